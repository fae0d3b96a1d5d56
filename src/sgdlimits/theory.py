"""Closed-form results of papers, in the package's convention: times are in samples per dimension.

The modules lie in `sgdlimits.papers`, in the folder of their paper, or in `sgdlimits.analysis`. Here each has its public name,
which also works in `from sgdlimits.theory.mediocrity import exit_time`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from sgdlimits.renamed import MODULES, PACKAGE

if TYPE_CHECKING:
    from sgdlimits.analysis import single_index
    from sgdlimits.papers.effective import recovery, theory as effective
    from sgdlimits.papers.mediocrity import escape, theory as mediocrity
    from sgdlimits.papers.quadratic import theory as quadratic
    from sgdlimits.papers.slides import theory as regimes

__path__: list[str] = []  # a package to the import system, whose modules are all loaded
__all__ = ["effective", "escape", "mediocrity", "quadratic", "recovery", "regimes", "single_index"]

for _name, _place in MODULES.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = import_module(f"{PACKAGE}.{_place}")

"""sgdlimits: write a learning problem down once, and look at its one-pass SGD at every level of description.

Names are loaded when they are first used (the list is in `__init__.pyi`), so that importing the package is quick.
"""

import lazy_loader

from sgdlimits.renamed import names_of as _names_of

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _find(name: str):
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    return _load(name)


__getattr__ = _names_of(__name__, _find)

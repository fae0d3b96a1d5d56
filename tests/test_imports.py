"""Imports point down: a strict order of the package's parts, and no cycle among its modules."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import sgdlimits
from sgdlimits._miscompiled import MISCOMPILING_RELEASE

ORDER = (
    "_miscompiled", "_x64", "errors", "renamed", "part", "text", "docstring", "size", "trial", "schedule", "checks", "domain",
    "schedule_forms", "schedule_text", "progress", "files", "jaxtools", "kernel.compiler", "kernel", "settings",
    "expectation.gaussian", "statistics", "inputs", "model", "expectation", "algorithm", "problem", "start", "level", "spec",
    "run", "analysis", "analysis.equations", "run.sweeps", "analysis.plot", "papers", "cli", "theory", "__main__",
)  # fmt: skip
"""Each may import those before it. The names that the package itself offers, in `__init__.pyi`, are those of all but papers and
cli; these alone use them."""
LEAVES = ("papers", "cli")
NUMBERS_OF_INPUTS = {"sigma", "spread", "means", "weights", "centre", "squared_length", "class_probabilities"}
MOST_READERS = 30
MOST_FOLDERS = 12
ROOT = Path(sgdlimits.__file__).parent
MODULES = {
    ".".join(["sgdlimits", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def imported(path: Path) -> set[str]:
    """All modules of the package that a file imports, anywhere in it, for types too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports {node.module} relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name.split(".")[0] == "sgdlimits"}


def part(module: str) -> str:
    """The entry of `ORDER` that a module belongs to, the longest one; nothing for the package itself."""
    inside = module.removeprefix("sgdlimits").removeprefix(".")
    return max((each for each in ORDER if f"{inside}.".startswith(f"{each}.")), key=len, default=inside.split(".")[0])


def test_every_part_has_its_place_in_the_order():
    assert {part(module) for module in MODULES} - {""} == set(ORDER)


def test_no_import_points_up():
    up = []
    for module, path in MODULES.items():
        for other in imported(path):
            if module == "sgdlimits" or (part(other) == "" and part(module) in LEAVES):
                continue
            if part(other) == "" or ORDER.index(part(other)) > ORDER.index(part(module)):
                up.append(f"{module} imports {other}")
    assert not up, "\n".join(up)


def test_leaves_are_leaves():
    """Only the command line imports what reproduces papers, and nothing imports the command line; `theory` has its names."""
    users = {leaf: {part(module) for module, path in MODULES.items() if leaf in map(part, imported(path))} for leaf in LEAVES}
    assert users == {"papers": {"papers", "cli", "theory"}, "cli": {"cli", "__main__"}}


def test_the_compiler_knows_nothing_of_problems():
    """It imports nothing of the package but itself and errors."""
    inside = {name: path for name, path in MODULES.items() if part(name) == "kernel.compiler"}
    assert len(inside) > 10
    assert {part(other) for path in inside.values() for other in imported(path)} <= {"kernel.compiler", "errors"}


def test_the_top_of_the_package_fits_on_a_page():
    folders = [path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()]
    assert len(folders) <= MOST_FOLDERS, sorted(folders)


def test_few_lines_read_the_numbers_of_the_inputs():
    """All others see the law of the fields, or ask the inputs. Counted are `data.sigma`, `model.inputs.means` and the like;
    `inputs` in `expectation.class...` are nodes, and `data` of analyses and papers are datasets.
    """
    found = set()
    for module, path in MODULES.items():
        if part(module) in ("inputs", "papers") or module.startswith("sgdlimits.expectation.class"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in NUMBERS_OF_INPUTS:
                owner = ast.unparse(node.value).split(".")
                if owner[-1] in ("data", "inputs") and owner[0] not in ("found", "table"):
                    found.add(f"{module}:{node.lineno}")
    assert 5 < len(found) <= MOST_READERS, sorted(found)


def test_no_module_imports_itself_in_a_circle():
    """A package is what its `__init__` imports, which no module of it may then import."""
    TopologicalSorter({module: imported(path) - {"sgdlimits"} for module, path in MODULES.items()}).prepare()


SURPRISES = """
import gc, json, logging, os, signal, sys, threading, warnings
import equinox, h5py, jax, jaxtyping, lazy_loader, pandas, scipy.integrate, scipy.special, tqdm, xarray
import jax._src.lru_cache

def state():
    names = ["", *logging.root.manager.loggerDict]
    loggers = {name: logging.getLogger(name) for name in names if not name.startswith("sgdlimits")}
    return {
        "jax": {name: str(value) for name, value in jax.config.values.items()},
        "environment": dict(os.environ),
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug()],
        "signals": {str(each): str(signal.getsignal(each)) for each in signal.valid_signals()},
        "warnings": [str(each) for each in warnings.filters] + [str(warnings.showwarning)],
        "logging": {name: [each.level, each.disabled, str(each.handlers)] for name, each in loggers.items()},
        "numpy": [str(xarray.core.duck_array_ops.np.geterr()), str(xarray.core.duck_array_ops.np.get_printoptions())],
        "hooks": [str(each) for each in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook)],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), os.getcwd(), sys.path],
        "patched": [str(jax._src.lru_cache.LRUCache.put)],
    }

before = state()
import sgdlimits as sl
sl.simulate(sl.presets.phase_retrieval(), sl.Chain(100), sl.RandomInit(100), t_max=1, runs=2, save=2)
sl.simulate(sl.presets.phase_retrieval(), sl.ODE(), sl.FixedInit(0.1), t_max=1, save=2)
after = state()
flat = lambda state: {f"{kind}/{key}": value for kind, part in state.items() for key, value in
                      (part.items() if isinstance(part, dict) else enumerate(part))}
old, new = flat(before), flat(after)
print(json.dumps([each for each in sorted(old.keys() | new.keys()) if old.get(each) != new.get(each)]))
"""


def test_importing_the_package_changes_nothing_but_the_precision_of_jax(tmp_path):
    """In a process that has other packages already: settings, environment, signals, warnings, messages, hooks and patches.

    Where jaxlib has the fault, the option against it is in the environment as well.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TF_", "XLA_", "SGDLIMITS_"))}
    plain["XDG_CACHE_HOME"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", SURPRISES], capture_output=True, text=True, check=True, env=plain)
    expected = ["environment/XLA_FLAGS"] * (version("jaxlib") == MISCOMPILING_RELEASE) + ["jax/jax_enable_x64"]
    assert json.loads(done.stdout) == expected


def test_a_first_simulation_imports_only_what_it_needs(tmp_path):
    """Each takes longer to import than such a simulation to compute. Then the same at the command line, which writes a file."""
    code = (
        "import sys, sgdlimits as sl\n"
        "sl.simulate(sl.presets.phase_retrieval(), sl.Chain(100), sl.RandomInit(100), t_max=1, runs=2, save=2)\n"
        "heavy = {'dask', 'diffrax', 'h5py', 'matplotlib', 'pydantic', 'scipy.linalg', 'scipy.special'}\n"
        "print(heavy & set(sys.modules))\n"
        "from sgdlimits.cli import main\n"
        "main('run phase_retrieval --d 100 --t-max 1 --runs 2 --quiet --out x.nc'.split(), standalone_mode=False)\n"
        "print(heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    first, *_, last = done.stdout.splitlines()
    assert (first, last) == ("set()", "{'h5py'}")

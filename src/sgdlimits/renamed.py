"""Public names and arguments that have another name now. The old ones work for a minor version more, and say what to write.

A name is `theory.mediocrity.compare`, as it stands behind `sgdlimits.`; an argument of a function that is `checked` is
`theory.single_index.exit_time(threshold)`, with the module in which the function is defined. Renaming something is one entry
here; a module of which a name has gone also needs `__getattr__ = renamed.names_of(__name__)`, which the package itself has.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from typing import Any, NamedTuple

PACKAGE = "sgdlimits"


class New(NamedTuple):
    """What is to be written instead, and the version in which the old name goes."""

    name: str
    until: str


MODULES = {
    "effective": "papers.effective.theory",
    "escape": "papers.mediocrity.escape",
    "mediocrity": "papers.mediocrity.theory",
    "quadratic": "papers.quadratic.theory",
    "recovery": "papers.effective.recovery",
    "regimes": "papers.slides.theory",
    "single_index": "analysis.single_index",
}
"""Where the modules of `sgdlimits.theory` are."""
PUBLIC = {place: f"theory.{name}" for name, place in MODULES.items()} | {
    "problem.presets.networks": "presets",
    "problem.presets.mixtures": "presets",
    "problem.projection": "",
}
"""What stands behind `sgdlimits.` for a module whose names are public elsewhere."""
PARAMETERS = {"rule": New("optimiser", "0.4")}
"""Parameters of sweeps and options of the command line."""
MEMBERS = {
    "rule": New("expectation", "0.4"),
    "with_rule": New("with_expectation", "0.4"),
}
"""Attributes and methods of problems, and arguments that `replace` takes."""
RENAMED = {
    "theory.mediocrity.compare": New("exit_table", "0.3"),
    "theory.quadratic.Null": New("theory.quadratic.NullDirections", "0.4"),
    "theory.single_index.exit_time(threshold)": New("overlap", "0.3"),
    "ProjectionProblem(rule)": New("expectation", "0.4"),
    "presets.committee(rule)": New("expectation", "0.4"),
    "presets.single_index(rule)": New("expectation", "0.4"),
    "presets.gaussian_mixture(rule)": New("expectation", "0.4"),
}


def names_of(module: str, others: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a module: what has another name now, with a warning; other names are asked of `others`."""

    def find(name: str) -> Any:
        old = f"{module}.{name}".removeprefix(f"{PACKAGE}.")
        if old not in RENAMED:
            if others:
                return others(name)
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = RENAMED[old]
        _warn(f"{PACKAGE}.{old}", f"{PACKAGE}.{new.name}", new.until, 3)
        return reduce(getattr, new.name.split("."), import_module(PACKAGE))

    return find


def arguments_of(fn: Callable) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """What gives the keywords of a call their new names, with a warning; None for functions without old ones."""
    place = fn.__module__.removeprefix(f"{PACKAGE}.")
    name = f"{PUBLIC.get(place, place)}.{fn.__qualname__}".removeprefix(".").removesuffix(".__init__")
    new = {old[len(name) + 1 : -1]: found for old, found in RENAMED.items() if old.startswith(f"{name}(")}

    def translate(keywords: dict[str, Any]) -> dict[str, Any]:
        for old in new.keys() & keywords.keys():
            _warn(f"The argument {old} of {PACKAGE}.{name}", new[old].name, new[old].until, 4)
        return {new[old].name if old in new else old: value for old, value in keywords.items()}

    return translate if new else None


def parameter_of(name: str) -> str:
    """Return the present name of a sweep's parameter such as `rule` or `rule.beta`, with a warning where it is another."""
    first, dot, rest = name.partition(".")
    if first not in PARAMETERS:
        return name
    new = PARAMETERS[first]
    _warn(f"The parameter {first} of a sweep", new.name, new.until, 5)
    return f"{new.name}{dot}{rest}"


def changes_of(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `replace` by their present names, with a warning for each old one."""
    for old in MEMBERS.keys() & changes.keys():
        _warn(f"The argument {old} of replace", MEMBERS[old].name, MEMBERS[old].until, 4)
    return {MEMBERS[name].name if name in MEMBERS else name: value for name, value in changes.items()}


def attribute_of(thing: Any, name: str, *views: tuple[str, type]) -> Any:
    """The `__getattr__` of a class: what has another name now, or moved to a view of it, by its old name, with a warning."""
    own = type(thing).__name__
    if name in MEMBERS and hasattr(type(thing), MEMBERS[name].name):
        _warn(f"{own}.{name}", f"{own}.{MEMBERS[name].name}", MEMBERS[name].until, 4)
        return getattr(thing, MEMBERS[name].name)
    for view, cls in views:
        if not name.startswith("_") and hasattr(cls, name):
            _warn(f"{own}.{name}", f"{own}.{view}.{name}", "0.4", 4)
            return getattr(getattr(thing, view), name)
    raise AttributeError(f"{own!r} object has no attribute {name!r}")


def _warn(old: str, new: str, until: str, up: int) -> None:
    """Warn `up` calls above, where the old name is written; frames of equinox, which wraps methods, do not count."""
    while sys._getframe(up - 1).f_globals.get("__name__", "").split(".")[0] == "equinox":
        up += 1
    text = f"{old} is now {new}. Write {new}; the old name goes with version {until}."
    warnings.warn(text, DeprecationWarning, stacklevel=up)

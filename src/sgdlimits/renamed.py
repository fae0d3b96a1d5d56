"""Public names and arguments that were renamed. Old names work for one more minor version, with a `DeprecationWarning`.

A name is written as after `sgdlimits.`, such as `theory.mediocrity.compare`. An argument of a function decorated with `checked`
is written as `theory.single_index.exit_time(threshold)`, with the module in which the function is defined. A rename needs one
entry here; a module that has lost a name also needs `__getattr__ = renamed.names_of(__name__)`, as the package itself has.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

PACKAGE = "sgdlimits"


class NewName(NamedTuple):
    """Present name of a public object or argument that was renamed, and the version that removes the old name."""

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
"""Paths in the package of the modules of `sgdlimits.theory`, by their public names."""
PUBLIC_PATHS = {place: f"theory.{name}" for name, place in MODULES.items()} | {
    "problem.presets.networks": "presets",
    "problem.presets.mixtures": "presets",
    "problem.projection": "",
}
"""Public paths of modules, by their paths in the package, where the two differ."""
PARAMETERS = {"rule": NewName("optimiser", "0.4")}
"""Present names of renamed parameters of sweeps and options of the command line, by the old names."""
RENAMED_MEMBERS = {
    "rule": NewName("expectation", "0.4"),
    "with_rule": NewName("with_expectation", "0.4"),
}
"""Present names of renamed attributes and methods of problems, by the old names.

The keyword arguments of `replace` were renamed in the same way.
"""
ALGORITHM_MEMBERS = {
    "downhill": NewName("scale_by_minus_lr", "0.4"),
    "held": NewName("normalise_on_sphere", "0.4"),
    "push": NewName("gradient_step", "0.4"),
    "trained": NewName("select_trained", "0.4"),
}
"""Present names of renamed methods of gradient algorithms, by the old names."""
LEVEL_MEMBERS = {
    "bind": NewName("make_engine", "0.4"),
    "first": NewName("draw_initial_statistics", "0.4"),
    "view": NewName("adapt_problem", "0.4"),
}
"""Present names of renamed methods of levels, by the old names."""
STEP_MEMBERS = {
    "after": NewName("repeat_after", "0.4"),
    "along": NewName("combine_inputs", "0.4"),
    "fields_of": NewName("fields_by_name", "0.4"),
    "mean": NewName("mean_gradient", "0.4"),
    "mixed": NewName("left_multiply", "0.4"),
    "numbers": NewName("updated_scalars", "0.4"),
    "orthogonal": NewName("orthogonalise", "0.4"),
    "samples": NewName("sample_gradients", "0.4"),
    "spread": NewName("scaled_gram", "0.4"),
    "steered": NewName("with_gradients", "0.4"),
}
"""Present names of renamed members of `now` (the state that an algorithm's step is given) and of weights, by old names."""
RENAMED = {
    "theory.mediocrity.compare": NewName("exit_table", "0.3"),
    "theory.quadratic.Null": NewName("theory.quadratic.NullDirections", "0.4"),
    "theory.regimes.of": NewName("theory.regimes.term_sizes", "0.4"),
    "theory.single_index.exit_time(threshold)": NewName("overlap", "0.3"),
    "ProjectionProblem(rule)": NewName("expectation", "0.4"),
    "presets.committee(rule)": NewName("expectation", "0.4"),
    "presets.single_index(rule)": NewName("expectation", "0.4"),
    "presets.gaussian_mixture(rule)": NewName("expectation", "0.4"),
}


def names_of(module: str, others: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """Return a module's function `__getattr__`, which finds renamed objects under their old names, with a warning.

    The function passes all other names to `others`.
    """

    def find_renamed(name: str) -> Any:
        old = f"{module}.{name}".removeprefix(f"{PACKAGE}.")
        if old not in RENAMED:
            if others:
                return others(name)
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = RENAMED[old]
        _warn_renamed(f"{PACKAGE}.{old}", f"{PACKAGE}.{new.name}", new.until, 3)
        return reduce(getattr, new.name.split("."), import_module(PACKAGE))

    return find_renamed


def argument_renamer(fn: Callable) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Return a function that replaces old keyword arguments of `fn` by their present names; None if `fn` has none.

    That function warns of old names.
    """
    place = fn.__module__.removeprefix(f"{PACKAGE}.")
    name = f"{PUBLIC_PATHS.get(place, place)}.{fn.__qualname__}".removeprefix(".").removesuffix(".__init__")
    new = {old[len(name) + 1 : -1]: found for old, found in RENAMED.items() if old.startswith(f"{name}(")}

    def translate(keywords: dict[str, Any]) -> dict[str, Any]:
        for old in new.keys() & keywords.keys():
            _warn_renamed(f"The argument {old} of {PACKAGE}.{name}", new[old].name, new[old].until, 4)
        return {new[old].name if old in new else old: value for old, value in keywords.items()}

    return translate if new else None


def present_parameter_name(name: str) -> str:
    """Return the present name of a sweep's parameter such as `rule` or `rule.beta`, with a warning if it was renamed."""
    first, dot, rest = name.partition(".")
    if first not in PARAMETERS:
        return name
    new = PARAMETERS[first]
    _warn_renamed(f"The parameter {first} of a sweep", new.name, new.until, 5)
    return f"{new.name}{dot}{rest}"


def rename_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a problem's `replace` by their present names, with a warning for each old one."""
    for old in RENAMED_MEMBERS.keys() & changes.keys():
        _warn_renamed(f"The argument {old} of replace", RENAMED_MEMBERS[old].name, RENAMED_MEMBERS[old].until, 4)
    return {RENAMED_MEMBERS[name].name if name in RENAMED_MEMBERS else name: value for name, value in changes.items()}


def adopt_renamed_methods(cls: type, renamed: Mapping[str, NewName]) -> None:
    """Give a user's class the present names of the methods that it defines under former names, with a warning for each."""
    for old, new in renamed.items():
        if old in vars(cls) and new.name not in vars(cls):
            _warn_renamed(f"{cls.__name__}.{old}", f"{cls.__name__}.{new.name}", new.until, 4)
            setattr(cls, new.name, vars(cls)[old])


def find_renamed_attribute(
    thing: Any, name: str, *views: tuple[str, type], renamed: Mapping[str, NewName] = MappingProxyType(RENAMED_MEMBERS)
) -> Any:
    """Return an attribute by its old name, or one that has moved to a view such as `problem.numerics`, with a warning.

    `views` has pairs of the name of a view, such as `numerics`, and its class; `renamed` has present names by old names.
    """
    own, new = type(thing).__name__, renamed.get(name)
    if new is not None and (hasattr(type(thing), new.name) or new.name in vars(thing)):
        _warn_renamed(f"{own}.{name}", f"{own}.{new.name}", new.until, 4)
        return getattr(thing, new.name)
    for view, cls in views:
        if not name.startswith("_") and hasattr(cls, name):
            _warn_renamed(f"{own}.{name}", f"{own}.{view}.{name}", "0.4", 4)
            return getattr(getattr(thing, view), name)
    raise AttributeError(f"{own!r} object has no attribute {name!r}")


def _warn_renamed(old: str, new: str, until: str, up: int) -> None:
    """Warn that an old name is deprecated, at the line of the caller `up` frames above.

    Frames of equinox, which wraps methods, are not counted.
    """
    while sys._getframe(up - 1).f_globals.get("__name__", "").split(".")[0] == "equinox":
        up += 1
    text = f"{old} is now {new}. Write {new}; the old name goes with version {until}."
    warnings.warn(text, DeprecationWarning, stacklevel=up)

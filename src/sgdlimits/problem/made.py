"""How a problem is made: the preset and the arguments that give it, found from its parts; and the problem with others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Self

import numpy as np

from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.domain import ALGORITHM_ARGUMENTS
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import Part, as_source, arguments, is_schedule, is_default
from sgdlimits.renamed import changes_of

MAKERS: dict[str, Callable] = {}
"""The presets by name, which put themselves here."""
INSIDE = ("target", "network", "algorithm", "loss", "data", "initial", "base")
"""Parts whose own arguments can be replaced."""

EQUATIONS = "sgdlimits.analysis.equations"
"""Where problems are written as LaTeX, which is loaded when a notebook shows one."""
ALWAYS = ("order", "width", "teachers", "lr", "noise", "snr", "ridge", "sphere")
"""Arguments that print even where they have their default."""


class Presented(Part):
    """A problem as text, and with other arguments: by the preset and the arguments that give it, or by its parts."""

    def __repr__(self) -> str:
        return f"{getattr(self, 'name', type(self).__name__)}: {words(self)}"

    def replace(self, **changes: Any) -> Self:
        """The problem with other arguments, by the names that its preset or its constructors have for them.

        Parameters
        ----------
        **changes : new values by name, such as lr, noise or width

        Returns
        -------
        Problem
            what the preset gives with these; for a problem from parts, the same parts with these

        >>> import sgdlimits as sl
        >>> sl.presets.phase_retrieval(lr=0.05).replace(lr=0.1, noise=0.2)
        phase_retrieval: width=1, lr=0.1, noise=0.2, sphere=True
          1 square unit learns 1 direction from standard normal inputs; SquaredLoss(), OnePassSGD
        """
        return replaced(self, changes_of(changes))

    def _repr_latex_(self) -> str | None:
        """What notebooks show: the equations, where they are written out."""
        try:
            return f"$$\n{import_module(EQUATIONS).latex(self)}\n$$"
        except BadInput:
            return None


class Made(NamedTuple):
    """A preset and its arguments."""

    preset: Callable
    given: dict[str, Any]


def _second(problem: Any) -> Any:
    """The ratio of the learning rates of the layers; True for 1, False where the second is not trained."""
    rate = problem.algorithm.lr_second
    if rate is None:
        return False
    if is_schedule(rate) and rate == problem.algorithm.lr:
        return True
    ratio = rate / problem.algorithm.lr
    return True if not is_traced(ratio) and float(ratio) == 1 else ratio


def _other_activation(problem: Any) -> Any:
    teacher = problem.target.readout.activation
    return None if teacher == problem.network.activation else teacher


def _snr(problem: Any) -> Any:
    spread = problem.data.spread
    if is_schedule(spread):  # made of 1/snr ** 0.5
        return spread.left.right if getattr(getattr(spread, "left", None), "operation", "") == "truediv" else 1 / spread**2
    return float("inf") if spread is None else float(f"{1 / float(spread) ** 2:.12g}")


FOUND: dict[str, Callable[[Any], Any]] = {
    "width": lambda problem: problem.network.width,
    "teachers": lambda problem: problem.target.teachers,
    "activation": lambda problem: problem.network.activation,
    "target": _other_activation,
    "teacher_activation": _other_activation,
    "noise": lambda problem: problem.target.noise,
    "train_second": _second,
    "expectation": lambda problem: problem.asked,
    "algorithm": lambda problem: None if isinstance(problem.algorithm, OnePassSGD) else problem.algorithm,
    "rho": lambda problem: problem.target.gram[0, 0],
    "snr": _snr,
    "means": lambda problem: problem.data.means,
    "weights": lambda problem: problem.data.weights,
    "similarity": lambda problem: problem.target.readout.turns[1, 0, 0],
    "speed": lambda problem: problem.target.readout.turns.speed,
    "labels": lambda problem: problem.target.readout.labels,
    "gram": lambda problem: (
        None if np.array_equal(problem.target.gram, np.eye(problem.target.teachers)) else problem.target.gram
    ),
}
"""Where a problem of parts has the arguments of presets; others are attributes of the problem or of its algorithm."""


def made_by(problem: Any) -> Made | None:
    """The preset that gives this problem, number by number; None where none of its name does."""
    preset = MAKERS.get(getattr(problem, "name", ""))
    if preset is None:
        return None
    given = {name: _found(problem, name, each.default) for name, each in inspect.signature(preset).parameters.items()}
    try:
        return Made(preset, given) if preset(**given) == problem else None
    except BadInput:
        return None


def _found(problem: Any, name: str, default: Any) -> Any:
    """An argument of a preset as the problem has it, or its default."""
    read = FOUND.get(name) if hasattr(problem, "model") else None
    try:
        found = read(problem) if read else getattr(problem, name, getattr(getattr(problem, "algorithm", None), name, default))
    except AttributeError:  # a part that this problem does not have
        return default
    return found.item() if isinstance(found, (np.ndarray, np.generic)) and found.ndim == 0 else found


def words(problem: Any) -> str:
    """The arguments that give a problem: those of its preset, or those of its parts that matter most."""
    made = made_by(problem)
    if made is not None:
        defaults = inspect.signature(made.preset).parameters
        usual = lambda name, value: value is None or (name not in ALWAYS and is_default(value, defaults[name].default))
        shown = {name: value for name, value in made.given.items() if not usual(name, value)}
    else:
        own = inner(problem)
        shown = {name: own[name] for name in (*ALWAYS, "algorithm") if name in own and name not in inner(own.get("algorithm"))}
    return ", ".join(f"{name}={as_source(value)}" for name, value in shown.items())


def inner(part: Any) -> dict[str, Any]:
    """The arguments of a part and of the parts in it; those of the outer one count."""
    own = dict(arguments(part)) if isinstance(part, Part) else {}
    parts = [own[name] for name in INSIDE if isinstance(own.get(name), Part)]
    return {**{name: value for each in parts[::-1] for name, value in inner(each).items()}, **own}


def replaced(problem: Any, changes: Mapping[str, Any]) -> Any:
    """The problem with other arguments: those of its preset where it has one, else those of its parts."""
    made = made_by(problem)
    names = list(made.given if made else inner(problem))
    for name in changes:
        if name not in names and name not in inner(problem):
            what = getattr(problem, "name", type(problem).__name__)
            raise BadInput(f"{what} has no {name!r} to replace. Give one of {', '.join(names)}.")
    if made is None or not set(changes) <= set(made.given):
        return _rebuilt(problem, dict(changes))
    own = made.given.get("algorithm")
    moved = {name: value for name, value in changes.items() if own is not None and name in inner(own)}
    algorithm = {"algorithm": _rebuilt(own, moved)} if moved else {}
    kept = {name: value for name, value in made.given.items() if name not in ALGORITHM_ARGUMENTS or changes.get("algorithm") is None}
    return made.preset(**{**kept, **changes, **algorithm})


def _rebuilt(part: Any, changes: dict[str, Any]) -> Any:
    """A part with other arguments, its own or those of the parts in it."""
    own = dict(arguments(part))
    mine = {name: changes[name] for name in changes if name in own}
    rest = {name: value for name, value in changes.items() if name not in own}
    for name in INSIDE:
        if isinstance(own.get(name), Part):
            fits = {key: rest.pop(key) for key in list(rest) if key in inner(own[name])}
            if fits:
                mine[name] = _rebuilt(own[name], fits)
    if "teachers" in mine and "gram" not in mine and np.array_equal(own["gram"], np.eye(len(own["gram"]))):
        own.pop("gram")
    if "algorithm" in mine and "initial" not in mine and own["initial"] == type(own["initial"])(unit=own["algorithm"].sphere):
        own.pop("initial")
    return type(part)(**{**own, **mine})

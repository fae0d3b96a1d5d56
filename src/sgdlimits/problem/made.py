"""Inference of the preset and the arguments that build a problem, from its parts, for printing and `replace`.

The arguments are not stored when a preset is called: a problem can change afterwards, by `with_algorithm`, in time or inside
JAX, and has to compare equal to the same problem built from parts. A preset counts only if it builds an equal problem again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Self

import numpy as np

from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.domain import ALGORITHM_ARGUMENTS
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.inputs import Blocks, Spectrum
from sgdlimits.model.activation import SIGN_ACTIVATION
from sgdlimits.part import Part, as_source, constructor_arguments, is_default, is_schedule
from sgdlimits.renamed import rename_changes
from sgdlimits.schedule import Root

PRESET_FUNCTIONS: dict[str, Callable] = {}
"""Functions that build the presets, by name; the module `problem.presets` fills this dictionary."""
PART_NAMES = ("target", "network", "algorithm", "loss", "data", "initial", "base")
"""Names of the arguments of a problem that are objects, such as `network`, whose own arguments can be replaced too."""

EQUATIONS_MODULE = "sgdlimits.analysis.equations"
"""Module that writes problems as LaTeX, imported only when a notebook shows one."""
ALWAYS_PRINTED_ARGUMENTS = ("order", "width", "teachers", "lr", "noise", "snr", "ridge", "sphere")
"""Arguments of presets that are printed even where they have their default."""


class PrintableProblem(Part):
    """Base class of problems: prints a problem as the call of its preset, and replaces arguments of that call."""

    def __repr__(self) -> str:
        return f"{getattr(self, 'name', type(self).__name__)}: {format_arguments(self)}"

    def replace(self, **changes: Any) -> Self:
        """Return the problem with some arguments replaced, by the names that its preset or its constructors use.

        Parameters
        ----------
        **changes : new values by name, such as lr, noise or width

        Returns
        -------
        Problem
            the result of the preset with the new arguments, or, if no preset makes the problem, its parts with these arguments

        >>> import sgdlimits as sl
        >>> sl.presets.phase_retrieval(lr=0.05).replace(lr=0.1, noise=0.2)
        phase_retrieval: width=1, lr=0.1, noise=0.2, sphere=True
          1 square unit learns 1 direction from standard normal inputs; SquaredLoss(), OnePassSGD
        """
        return replace_arguments(self, rename_changes(changes))

    def _repr_latex_(self) -> str | None:
        """Return the problem's equations as LaTeX for notebooks, or None if LaTeX is not supported for this problem."""
        try:
            return f"$$\n{import_module(EQUATIONS_MODULE).latex(self)}\n$$"
        except BadInput:
            return None


class PresetCall(NamedTuple):
    """The call of a preset that builds a problem: the preset's function and its keyword arguments."""

    preset: Callable
    given: dict[str, Any]


def _train_second_argument(problem: Any) -> Any:
    """Return the argument `train_second` that a preset would need: False, True, or the ratio of the learning rates."""
    rate = problem.algorithm.lr_second
    if rate is None:
        return False
    if is_schedule(rate) and rate == problem.algorithm.lr:
        return True
    ratio = rate / problem.algorithm.lr
    return True if not is_traced(ratio) and float(ratio) == 1 else ratio


def _teacher_activation_argument(problem: Any) -> Any:
    """Return the argument that a preset would need for the teacher's activation: None if the students have the same one."""
    teacher = problem.target.readout.activation
    return None if teacher == problem.network.activation else teacher


def _spectrum_argument(problem: Any) -> Any:
    """Return the argument `eigenvalues` that a preset would need: the spectrum of the problem's Gaussian inputs."""
    data = problem.data
    return Spectrum(data.variance[0], data.shares) if isinstance(data, Blocks) else data.squared_length


def _coefficients_argument(problem: Any) -> Any:
    """Return the argument `coefficients` that a preset would need: the length of a single teacher in each block."""
    return np.sqrt(np.asarray(problem.target.gram)[..., 0, 0].ravel())


def _signal_to_noise_ratio(problem: Any) -> Any:
    """Return the argument `snr` that a preset would need: the mixture's signal-to-noise ratio, a number or a schedule."""
    spread = problem.data.spread
    if is_schedule(spread):  # the preset has computed the root of 1 / snr, whose `right` is the schedule snr
        square: Any = spread.square if isinstance(spread, Root) else spread**2
        return square.right if getattr(square, "operation", "") == "truediv" else 1 / square
    return float("inf") if spread is None else float(f"{1 / float(spread) ** 2:.12g}")  # removes rounding


ARGUMENT_READERS: dict[str, Callable[[Any], Any]] = {
    "width": lambda problem: problem.network.width,
    "teachers": lambda problem: problem.target.teachers,
    "activation": lambda problem: problem.network.activation,
    "target": _teacher_activation_argument,
    "teacher_activation": _teacher_activation_argument,
    "noise": lambda problem: problem.target.noise,
    "train_second": _train_second_argument,
    "expectation": lambda problem: problem.asked,
    "algorithm": lambda problem: None if isinstance(problem.algorithm, OnePassSGD) else problem.algorithm,
    "rho": lambda problem: problem.target.gram[0, 0],
    "snr": _signal_to_noise_ratio,
    "means": lambda problem: problem.data.means,
    "weights": lambda problem: problem.data.weights,
    "eigenvalues": _spectrum_argument,
    "coefficients": _coefficients_argument,
    "similarity": lambda problem: problem.target.readout.turns[1, 0, 0],
    "speed": lambda problem: problem.target.readout.turns.speed,
    "relevant": lambda problem: problem.data.shares[0],
    "easy": lambda problem: problem.data.variance[0, 1],
    "hard": lambda problem: problem.data.variance[1, 1],
    "label": lambda problem: "sign" if problem.target.readout.activation == SIGN_ACTIVATION else "erf",
    "labels": lambda problem: problem.target.readout.labels,
    "gram": lambda problem: (
        None if np.array_equal(problem.target.gram, np.eye(problem.target.teachers)) else problem.target.gram
    ),
}
"""Functions that read preset arguments from a problem, by argument name; other arguments are attributes of the problem."""


def find_preset_call(problem: Any) -> PresetCall | None:
    """Return the call of a preset that builds an equal problem, or None if there is none."""
    preset = PRESET_FUNCTIONS.get(getattr(problem, "name", ""))
    if preset is None:
        return None
    given = {name: _read_argument(problem, name, each.default) for name, each in inspect.signature(preset).parameters.items()}
    try:
        return PresetCall(preset, given) if preset(**given) == problem else None
    except BadInput:
        return None


def _read_argument(problem: Any, name: str, default: Any) -> Any:
    """Read the value of one preset argument from a problem; if the problem does not have it, return the default."""
    read = ARGUMENT_READERS.get(name) if hasattr(problem, "model") else None
    try:
        found = read(problem) if read else getattr(problem, name, getattr(getattr(problem, "algorithm", None), name, default))
    except AttributeError:
        return default
    return found.item() if isinstance(found, (np.ndarray, np.generic)) and found.ndim == 0 else found


def format_arguments(problem: Any) -> str:
    """Format the arguments of a problem for printing: those of its preset, or else its most important arguments."""
    made = find_preset_call(problem)
    if made is not None:
        defaults = inspect.signature(made.preset).parameters
        implied = lambda name, value: (
            value is None or (name not in ALWAYS_PRINTED_ARGUMENTS and is_default(value, defaults[name].default))
        )
        shown = {name: value for name, value in made.given.items() if not implied(name, value)}
    else:
        own = all_arguments(problem)
        of_algorithm = all_arguments(own.get("algorithm"))
        scheduled = [name for name, value in own.items() if is_schedule(value) and name not in ALWAYS_PRINTED_ARGUMENTS]
        names = (*ALWAYS_PRINTED_ARGUMENTS, *scheduled, "algorithm")
        shown = {name: own[name] for name in names if name in own and name not in of_algorithm}
    return ", ".join(f"{name}={as_source(value)}" for name, value in shown.items())


def all_arguments(part: Any) -> dict[str, Any]:
    """Return the constructor arguments of an object and of its parts, by name; outer arguments take precedence."""
    own = dict(constructor_arguments(part)) if isinstance(part, Part) else {}
    parts = [own[name] for name in PART_NAMES if isinstance(own.get(name), Part)]
    return {**{name: value for each in parts[::-1] for name, value in all_arguments(each).items()}, **own}


def replace_arguments(problem: Any, changes: Mapping[str, Any]) -> Any:
    """Return a problem with some arguments replaced: those of its preset, or of its parts if no preset builds it."""
    made = find_preset_call(problem)
    names = list(made.given if made else all_arguments(problem))
    for name in changes:
        if name not in names and name not in all_arguments(problem):
            what = getattr(problem, "name", type(problem).__name__)
            raise BadInput(f"{what} has no {name!r} to replace. Give one of {', '.join(names)}.")
    if made is None or not set(changes) <= set(made.given):
        return _rebuild_problem(problem, dict(changes))
    own = made.given.get("algorithm")
    of_algorithm = {name: value for name, value in changes.items() if own is not None and name in all_arguments(own)}
    algorithm = {"algorithm": _rebuild_problem(own, of_algorithm)} if of_algorithm else {}
    # An algorithm brings its own rates and options, so that those of the preset would contradict it.
    kept = {
        name: value for name, value in made.given.items() if name not in ALGORITHM_ARGUMENTS or changes.get("algorithm") is None
    }
    return made.preset(**{**kept, **changes, **algorithm})


def _rebuild_problem(part: Any, changes: dict[str, Any]) -> Any:
    """Build an object again with some arguments of its constructor, or of its parts' constructors, replaced by `changes`."""
    own = dict(constructor_arguments(part))
    new = {name: changes[name] for name in changes if name in own}
    rest = {name: value for name, value in changes.items() if name not in own}
    for name in PART_NAMES:
        if isinstance(own.get(name), Part):
            fits = {key: rest.pop(key) for key in list(rest) if key in all_arguments(own[name])}
            if fits:
                new[name] = _rebuild_problem(own[name], fits)
    # Arguments that followed from others by default are left out, so that the constructor computes them anew.
    if "teachers" in new and "gram" not in new and np.array_equal(own["gram"], np.eye(len(own["gram"]))):
        own.pop("gram")
    if "algorithm" in new and "initial" not in new and own["initial"] == type(own["initial"])(unit=own["algorithm"].sphere):
        own.pop("initial")
    return type(part)(**{**own, **new})

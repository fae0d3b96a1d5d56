"""What an argument may be: one table by name, and the decorator that applies it to functions and constructors.

One name means one idea throughout the package (`lr`, `noise`, `width`, `d`, ...), so the table says for each name what it may
be. A function that means something else says so where it is decorated. Traced values pass, and so does None where it is the
default.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import types
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar, overload

import numpy as np

from sgdlimits.errors import BadInput, check_count, check_number, check_share, in_short, is_traced
from sgdlimits.part import is_schedule
from sgdlimits.renamed import arguments_of
from sgdlimits.schedule import as_schedule
from sgdlimits.size import too_large

Check = Callable[[str, Any], Any]
"""Takes the name of an argument and its value; returns the value to use, or raises `BadInput`."""
Checked = TypeVar("Checked", bound=Callable)


def number(**bounds: Any) -> Check:
    """One finite real number in a range, as it was given."""

    def check(name: str, value: Any) -> Any:
        check_number(name, value, **bounds)
        return value

    return check


class OverTime:
    """A check of a number that may also be a schedule or a function of time, whose values are checked by `values`."""

    def __init__(self, check: Check, values: Check | None = None) -> None:
        self.check, self.values = check, values or check

    def __call__(self, name: str, value: Any) -> Any:
        schedule = as_schedule(name, value)
        if schedule is None:
            return self.check(name, value)
        for example in schedule.examples():
            self.values(name, example)
        return schedule


def whole(**bounds: Any) -> Check:
    """A whole number, as an int: 3e3 is 3000."""
    return partial(check_count, **bounds)


def sized(each: float = 1.0, **bounds: Any) -> Check:
    """A whole number of things, of so many numbers each, for which this machine has room."""

    def check(name: str, value: Any) -> int:
        count = check_count(name, value, **bounds)
        if words := too_large(each * float(count)):
            raise BadInput(f"{name} = {count} takes at least {words}. Give a smaller number.")
        return count

    return check


def flag(name: str, value: Any) -> bool:
    """True or False, and nothing that Python would take for one of them."""
    if not isinstance(value, (bool, np.bool_)):
        raise BadInput(f"{name} must be True or False; got {in_short(value)}. Give one of the two.")
    return bool(value)


def text(name: str, value: Any) -> str:
    """A word or a sentence."""
    if not isinstance(value, str):
        raise BadInput(f"{name} must be text; got {in_short(value)}. Put it in quotes.")
    return value


def function(name: str, value: Any) -> Any:
    """Something to call."""
    if not callable(value) or isinstance(value, type):
        raise BadInput(f"{name} must be a function; got {in_short(value)}. Give a JAX function.")
    return value


def mapping(name: str, value: Any) -> Any:
    """Things by name."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadInput(f"{name} must be a dictionary with names as its keys; got {in_short(value)}. Give such a dictionary.")
    return value


def by_name(check: Check) -> Check:
    """A dictionary of what `check` lets pass, with names as its keys."""

    def all_of(name: str, value: Any) -> Any:
        return {key: check(f"{name}[{key!r}]", each) for key, each in mapping(name, value).items()}

    return all_of


def path(name: str, value: Any) -> Any:
    """Where a file or a folder is."""
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise BadInput(f"{name} must be a path; got {in_short(value)}. Give it as text or as a pathlib.Path.")
    return value


def as_numbers(name: str, value: Any) -> Any:
    """An array of real numbers; `BadInput` for text, complex numbers, None, and rows of different lengths."""
    if is_traced(value):
        return value
    try:
        array = value if hasattr(value, "dtype") and hasattr(value, "ndim") else np.asarray(value)
        real_numbers = array.dtype.kind in "iufb" or str(array.dtype) == "bfloat16"
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be an array of numbers; got {in_short(value)}. Give rows of equal lengths.") from None
    if not real_numbers or isinstance(value, bool):
        raise BadInput(f"{name} must be real numbers; got {in_short(value)}. Give numbers, or an array of them.")
    return array


def array(*, finite: bool = True, ndim: int | None = None, at_least: float = -math.inf) -> Check:
    """Real numbers in one array, or one number, as they were given."""

    def check(name: str, value: Any) -> Any:
        numbers = as_numbers(name, value)
        if ndim is not None and numbers.ndim != ndim:
            raise BadInput(f"{name} must have {ndim} axes; got shape {tuple(numbers.shape)}. Give such an array.")
        if is_traced(numbers) or not (finite or at_least > -math.inf):
            return value
        if not numbers.size:
            raise BadInput(f"{name} is empty. Give at least one number.")
        worst = np.asarray(numbers).flat[int(np.argmax(~np.isfinite(numbers) | (np.asarray(numbers) < at_least)))]
        if not (math.isfinite(worst) and worst >= at_least):
            low = f" of at least {at_least:g}" if at_least > -math.inf else ""
            raise BadInput(f"{name} must be finite numbers{low}; got {worst:g}. Give such numbers.")
        return value

    return check


def probabilities(name: str, value: Any) -> Any:
    """Check probabilities along the last axis: none is negative, and their sum is 1."""
    numbers = np.asarray(as_numbers(name, value), float)
    rows = numbers.reshape(-1, numbers.shape[-1])
    wrong = ~((rows >= 0).all(1) & np.isclose(rows.sum(1), 1.0, rtol=0.0, atol=1e-9))
    if wrong.any():
        worst = rows[wrong][0].tolist()
        raise BadInput(f"{name} must not be negative and sum to 1; got {worst}. Give such probabilities.")
    return value


def many(check: Check) -> Check:
    """An array of what `check` lets pass, or one."""

    def each(name: str, value: Any) -> Any:
        if is_traced(value) or not getattr(value, "shape", isinstance(value, (list, tuple))) or hasattr(value, "data_vars"):
            return check(name, value)
        array = as_numbers(name, value)
        if not array.size:
            raise BadInput(f"{name} is empty. Give at least one number.")
        for worst in (
            np.argmin(array),
            np.argmax(array),
            np.argmax(array != np.rint(array)),
        ):  # the least, the most, one not whole
            check(name, array.flat[int(worst)])
        return value

    return each


def optional(check: Check) -> Check:
    """What `check` lets pass, or None."""
    return lambda name, value: None if value is None else check(name, value)


def each_of(check: Check) -> Check:
    """A sequence of what `check` lets pass."""

    def all_of(name: str, value: Any) -> Any:
        if isinstance(value, (str, bytes, set, frozenset, Mapping)) or not np.iterable(value):
            raise BadInput(f"{name} must be a sequence; got {in_short(value)}. Put them in brackets.")
        return tuple(check(name, one) for one in value)

    return all_of


def instance(module: str, name: str, says: str, remedy: str) -> Check:
    """An instance of a class of the package or of a library, which is not imported for this."""

    def check(argument: str, value: Any) -> Any:
        cls = getattr(sys.modules.get(module), name, ())
        if not isinstance(value, cls):
            what = f"the class {value.__name__}" if isinstance(value, type) else f"{in_short(value)}"
            raise BadInput(f"{argument} must be {says}; got {what}. {remedy}")
        return value

    return check


def either(says: str, remedy: str, *checks: Check) -> Check:
    """What one of several checks lets pass."""

    def check(name: str, value: Any) -> Any:
        for each in checks:
            try:
                return each(name, value)
            except BadInput:
                continue
        raise BadInput(f"{name} must be {says}; got {in_short(value)}. {remedy}")

    return check


def statistics(name: str, value: Any) -> Any:
    """Statistics of a problem: of one run, or runs first."""
    if (
        isinstance(value, type)
        or not (hasattr(value, "overlap") and hasattr(type(value), "dims"))
        or hasattr(value, "data_vars")
    ):
        raise BadInput(f"{name} must be statistics; got {in_short(value)}. Give, for instance, Overlaps(a, M, Q).")
    return value


def quantile_pair(name: str, value: Any) -> tuple[float, float]:
    """Two shares, the smaller one first."""
    low, high = pair if len(pair := each_of(check_share)(name, value)) == 2 else (1.0, 0.0)
    if not low < high:
        raise BadInput(f"{name} must be two shares, the smaller one first; got {in_short(value)}. Give, say, (0.1, 0.9).")
    return low, high


positive, not_negative, real = number(above=0), number(at_least=0), number()
WIDTH = number(at_least=1, infinite=True)
"""A width in a formula, where it need not be whole."""
problem = instance(
    "sgdlimits.problem.base", "Problem", "a Problem", "Take one from sgdlimits.presets, or build a ProjectionProblem."
)
algorithm = instance("sgdlimits.algorithm.base", "Algorithm", "an algorithm such as OnePassSGD(lr=0.1)", "Give an instance.")
level = instance("sgdlimits.level.base", "Level", "a level such as Chain(d=3000) or ODE()", "Give an instance of a level.")
dataset = instance("xarray", "Dataset", "a dataset", "Give what simulate returned or load read.")

target = instance("sgdlimits.model.target", "Target", "a Target", "Give, for instance, Target(CommitteeReadout('erf'), 2).")
named = either("a name or a function", "Give, for instance, 'erf' or jnp.abs.", text, function)
"""An activation; names are looked up later."""
some_target = either("a name, a function, a Target or a problem", "Give, say, 'he3'.", named, target, problem)
expectation = either(
    "a rule such as GaussHermite(32), or an Expectation such as ClosedForm()",
    "Leave it out to have it chosen.",
    instance("sgdlimits.expectation.gaussian.base", "Rule", "", ""),
    instance("sgdlimits.expectation.base", "Expectation", "", ""),
)
start = either(
    "RandomInit, OrthogonalInit, FixedInit or statistics",
    "Give, for instance, RandomInit(d=3000) or Overlaps(a, M, Q).",
    instance("sgdlimits.start", "Start", "", ""),
    statistics,
    dataset,
)
"""Where runs start; of a dataset, where its runs ended."""
some_datasets = either("datasets", "Give one dataset, several, or a dictionary of them.", dataset, each_of(dataset), mapping)
one_axes = instance("matplotlib.axes", "Axes", "axes of matplotlib", "Leave it out for a new figure.")
RATE = OverTime(positive, not_negative)
"""A learning rate, which may be zero for a time."""
rate_or_rates = OverTime(
    either("a learning rate above 0, or such rates by name", "Give one number.", positive, by_name(optional(RATE))),
    not_negative,
)
one_or_named = either("one number, or numbers by name", "Give one number.", real, by_name(array()))
flag_or_rate = either("True, False or a learning rate above 0", "Give one of them.", flag, positive)
point_or_weights = either(
    "statistics, or weights",
    "Give Overlaps(a, M, Q), or an array of shape (p, d).",
    statistics,
    instance("sgdlimits.analysis.landscape", "Weights", "", ""),
    array(ndim=2),
)
some_numbers = array(finite=False)
scalars = either("numbers, or numbers by name", "Give an array.", some_numbers, by_name(some_numbers))
"""What statistics are made of; whether they are finite is looked at with the problem at hand."""
finite_scalars = either("finite numbers, or numbers by name", "Give an array.", array(), by_name(array()))

OF_ALGORITHM = ("lr", "ridge", "batch", "sphere", "train_second")
"""Arguments of presets that an algorithm has too."""
MOST_TEACHERS = 2**12
"""Fixed directions have a Gram matrix, which is factored."""
DOMAINS: dict[str, Check] = {
    # the problem
    "problem": problem, "width": sized(8), "teachers": whole(below=MOST_TEACHERS), "outputs": sized(),
    "noise": OverTime(not_negative), "snr": OverTime(number(above=0, infinite=True)), "variance": OverTime(not_negative),
    "Lambda": positive, "scale": positive, "left": real, "right": real, "target": target,
    "data": instance("sgdlimits.inputs.base", "Inputs", "Inputs", "Make it with mixture(means)."),
    "network": instance("sgdlimits.model.network", "AnyNetwork", "a network", "Give TwoLayer(width), for instance."),
    "initial": instance("sgdlimits.problem.directions", "InitialWeights", "InitialWeights", "Give InitialWeights(unit=True)."),
    "expectation": expectation, "paper_time": positive, "name": text, "activation": named, "teacher_activation": named,
    "mean": flag, "bias": flag, "direct": flag, "smooth": flag, "learns": flag, "trained": flag, "lazy": flag,
    "scalars": by_name(array()), "labels": array(), "means": array(), "weights": OverTime(array()),
    "gram": array(ndim=2), "R": array(ndim=2), "rho": real, "ratio": real,
    "coefficients": array(ndim=1), "train_second": flag_or_rate,
    # statistics and starts
    "a": finite_scalars, "M": array(), "Q": array(), "m": array(), "unit": flag,
    "second": one_or_named, "second_spread": not_negative,
    "positive": check_share, "overlap": array(),
    # the algorithm
    "algorithm": algorithm, "base": algorithm, "lr": RATE, "lr_second": rate_or_rates,
    "ridge": OverTime(not_negative),
    "batch": sized(), "sphere": flag,
    "beta": OverTime(number(at_least=0, below=1)), "friction": OverTime(positive), "norm": OverTime(positive),
    "radius": OverTime(not_negative),
    "times": whole(below=1001), "offset": positive, "begin": positive, "rate": positive, "each": flag,
    # the level and the simulation
    "level": level, "d": whole(), "dt": positive, "samples": sized(64), "corrector": flag,
    "rtol": number(at_least=1e-14, below=1), "atol": positive, "t_max": positive, "runs": sized(),
    "seed": whole(at_least=0, below=2**64), "resume": dataset, "progress": flag, "kernel": text, "reuse": whole(),
    "outside": whole(), "observe": mapping,
    "save": either("a number of times, or the times", "Give, say, save=200.", real, array(ndim=1)),
    "path": path, "folder": path, "pieces": each_of(dataset),
    # expectations
    "relative_error": positive, "smoothing": positive, "log2_points": whole(), "scrambles": whole(), "n": sized(at_least=0),
    # analysis and theory
    "dataset": dataset, "threshold": positive, "tolerance": positive, "spread": not_negative, "confidence": check_share,
    "share": check_share, "resamples": sized(8), "quantiles": each_of(check_share), "band": quantile_pair, "fall": check_share,
    "common": flag, "retry": flag, "keys": each_of(text),
    "floor": real, "excess": real, "starts": sized(), "count": sized(16), "seconds": positive, "kappa": not_negative,
    "stats": statistics, "point": statistics, "statistics": statistics, "t": array(at_least=0), "datasets": some_datasets,
    "at": point_or_weights,
    "population": real, "fluctuation": real, "reduction": many(check_share), "average": text, "function": function,
    "start": start, "basins": start,
    "delta": real, "excess_risk": positive, "log": flag, "legend": flag, "absolute": flag, "frames": whole(),
    "ax": one_axes, "axes": each_of(one_axes), "clock": text, "what": text, "x": text, "y": text, "value": text, "label": text,
    "theory_label": text, "theory": function, "levels": array(ndim=1),
    "singles": either("a whole number, or such numbers by label", "Give, say, 20.", whole(at_least=0), mapping),
}  # fmt: skip
"""What the arguments of public functions and constructors may be, by name."""


@overload
def checked(thing: Checked, /) -> Checked: ...
@overload
def checked(*, arrays: bool = False, **own: Check | None) -> Callable[[Checked], Checked]: ...
def checked(thing: Any = None, /, *, arrays: bool = False, **own: Check | None) -> Any:
    """Check the arguments of a function, or of a class's constructor, by `DOMAINS`.

    Parameters
    ----------
    thing : the function or class
    arrays : whether arrays of numbers are welcome where the table has one number
    **own : what arguments may be that mean something else here, or None for those that are checked elsewhere

    >>> @checked
    ... def samples(d, lr=1.0):
    ...     return d / lr
    >>> samples(3e3)
    3000.0
    >>> samples(30, lr="0.1")
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: lr must be one number; got '0.1'. Give one number.
    """
    if thing is None:
        return partial(checked, arrays=arrays, **own)
    if isinstance(thing, type):
        cls: Any = thing
        cls.__init__ = _guarded(cls.__init__, arrays, own)
        return cls
    return _guarded(thing, arrays, own)


def _guarded(fn: Callable, arrays: bool, own: dict[str, Check | None]) -> Callable:
    parameters = inspect.signature(fn).parameters
    by_name = {name: own.get(name, DOMAINS.get(name)) for name in parameters}
    checks = {name: many(check) if arrays else check for name, check in by_name.items() if check is not None}
    names, renamed = tuple(parameters), arguments_of(fn)
    moved = {name: parameters[name].default for name in OF_ALGORITHM if {"algorithm", name} <= set(parameters)}
    one_of_each = _one_of_each

    def pick(name: str, value: Any) -> Any:
        if name not in checks or value is parameters[name].default:
            return value
        if is_schedule(value) and not isinstance(checks[name], OverTime):
            raise BadInput(f"{name} cannot change with time; got {in_short(value)}. Give one value.")
        if is_traced(value) and not is_schedule(value):
            return value
        return checks[name](name, value)

    def guarded(*args, **kwargs):
        kwargs = renamed(kwargs) if renamed else kwargs
        head = [pick(name, value) for name, value in zip(names, args)]  # noqa: B905
        rest = {name: pick(name, value) for name, value in kwargs.items()}
        if moved:
            one_of_each({**dict(zip(names, head)), **rest}, moved)  # noqa: B905
        return fn(*head, *args[len(head) :], **rest)

    # With the globals of the function's own module, where doctests look for it.
    there = getattr(fn, "__globals__", {"__builtins__": __builtins__})
    here: Any = wraps(fn)(types.FunctionType(guarded.__code__, there, guarded.__name__, None, guarded.__closure__))
    here.checks = checks
    return here


def _one_of_each(given: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise `BadInput` where an argument stands beside an algorithm that has its own, so that it would be dropped."""
    algorithm = given.get("algorithm")
    for name in usual if algorithm is not None else ():
        value, own = given.get(name), _own(algorithm, name)
        if value is None or value is usual[name] or is_traced(value) or is_traced(own):
            continue
        if own is None or float(own) != float(bool(value) if name == "train_second" else value):
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            raise BadInput(
                f"{name} = {shown} stands beside {in_short(algorithm)}, which has its own. Give it to the algorithm."
            )


def _own(algorithm: Any, name: str) -> Any:
    """An argument that an algorithm, or the one inside it, was made with; None where it has no such argument."""
    inside = "trains_second" if name == "train_second" else name
    while algorithm is not None and not hasattr(algorithm, inside):
        algorithm = getattr(algorithm, "base", None)
    return getattr(algorithm, inside, None)

"""What an argument may be: one table by name, and the decorator that applies it to functions and constructors.

One name means one idea throughout the package (`lr`, `noise`, `width`, `d`, ...), so the table says for each name what it may
be. A function that means something else says so where it is decorated. Traced values pass, and so does None where it is the
default. Functions of users are `tried` on one sample.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, overload

import numpy as np

from sgdlimits.errors import BadInput, check_count, check_number, check_share, in_short, is_traced
from sgdlimits.renamed import arguments_of
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


def many(check: Check) -> Check:
    """An array of what `check` lets pass, or one."""

    def each(name: str, value: Any) -> Any:
        if is_traced(value) or not getattr(value, "shape", isinstance(value, (list, tuple))) or hasattr(value, "data_vars"):
            return check(name, value)
        array = np.asarray(value)
        if array.dtype.kind not in "iuf":
            raise BadInput(f"{name} must be numbers; got {in_short(value)}. Give numbers.")
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
        if isinstance(value, str) or not np.iterable(value):
            raise BadInput(f"{name} must be a sequence of numbers; got {in_short(value)}. Put them in brackets.")
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


positive, not_negative, real = number(above=0), number(at_least=0), number()
WIDTH = number(at_least=1, infinite=True)
"""A width in a formula, where it need not be whole."""
problem = instance(
    "sgdlimits.problem.base", "Problem", "a Problem", "Take one from sgdlimits.presets, or build a ProjectionProblem."
)
algorithm = instance("sgdlimits.algorithm.base", "Algorithm", "an algorithm such as OnePassSGD(lr=0.1)", "Give an instance.")
level = instance("sgdlimits.level.base", "Level", "a level such as Chain(d=3000) or ODE()", "Give an instance of a level.")
dataset = instance("xarray", "Dataset", "a dataset", "Give what simulate returned or load read.")

MOST_TEACHERS = 2**12
"""Fixed directions have a Gram matrix, which is factored."""
DOMAINS: dict[str, Check] = {
    # the problem
    "problem": problem, "width": sized(8), "teachers": whole(below=MOST_TEACHERS), "outputs": sized(), "noise": not_negative,
    "snr": number(above=0, infinite=True), "variance": not_negative, "Lambda": positive, "scale": positive, "left": real,
    "right": real,
    # the algorithm
    "algorithm": algorithm, "base": algorithm, "lr": positive, "ridge": not_negative, "batch": sized(), "sphere": flag,
    "beta": number(at_least=0, below=1), "friction": positive, "norm": positive, "radius": not_negative,
    "times": whole(below=1001), "offset": positive, "begin": positive, "rate": positive, "each": flag,
    # the level and the simulation
    "level": level, "d": whole(), "dt": positive, "samples": sized(64), "corrector": flag,
    "rtol": number(at_least=1e-14), "atol": positive, "t_max": positive, "runs": sized(),
    "seed": whole(at_least=0, below=2**64),
    # expectations
    "relative_error": positive, "smoothing": positive, "log2_points": whole(), "scrambles": whole(), "n": sized(at_least=0),
    # analysis and theory
    "dataset": dataset, "threshold": positive, "tolerance": positive, "spread": not_negative, "confidence": check_share,
    "share": check_share, "resamples": sized(8), "quantiles": each_of(check_share), "band": check_share, "fall": check_share,
    "floor": real, "excess": real, "starts": sized(), "count": sized(16), "seconds": positive, "kappa": not_negative,
    "delta": real, "excess_risk": positive, "log": flag, "legend": flag, "absolute": flag, "frames": whole(),
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


FAILURES = {
    "TracerArrayConversionError": "it calls NumPy on a number that is not known yet. Write it with jax.numpy.",
    "TracerBoolConversionError": "it asks a number that is not known yet whether it is true. Use jnp.where in place of if.",
    "ConcretizationTypeError": "it needs the value of a number that is not known yet. Leave out float and int.",
}
"""What users did where JAX raises these."""


def tried(
    what: str,
    fn: Callable,
    on: str,
    *sample: Any,
    shape: tuple[int, ...] | None = (),
    truth: bool = False,
    values: bool = True,
) -> Any:
    """What a user's function returns on one sample, as shapes; `BadInput` unless it is finite real numbers.

    Parameters
    ----------
    what, fn : its name in the sentence, and the function
    on, *sample : the sample in words, and its arguments, as NumPy's arrays, which know where an index ends
    shape : of what it must return, () for one number; None for any arrays
    truth : whether it may return a bool
    values : whether to look at the numbers too, which costs an evaluation

    >>> tried("the readout", lambda fixed: fixed[2], "2 fields", np.ones(2))
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: the readout fails on 2 fields: index 2 is out of bounds ... with size 2. Use a smaller index.
    """
    import jax

    if not callable(fn):
        raise BadInput(f"{what} must be a function; got {in_short(fn)}. Give a JAX function.")
    try:
        answer = jax.eval_shape(fn, *sample)
    except Exception as reason:
        raise BadInput(f"{what} fails on {on}: {_why(reason)}") from reason
    leaves = jax.tree.leaves(answer)
    if not leaves or (shape is not None and [leaf.shape for leaf in leaves] != [shape]):
        one = "one bool or one number" if truth else "one number"
        must = one if shape == () else "an array" if shape is None else f"shape {shape}"
        got = f"shape {leaves[0].shape}" if len(leaves) == 1 else f"{len(leaves)} of them" if leaves else "nothing"
        raise BadInput(f"{what} must return {must}; got {got}. Sum, index or stack what it returns.")
    for kind in {leaf.dtype.kind for leaf in leaves} - ({"f", "b"} if truth else {"f"}):
        words = {"c": "complex numbers. Take the real part.", "b": "bools. Return a number, such as jnp.where(..., 1.0, 0.0)."}
        must = f"{'a bool or ' if truth else ''}real floating-point numbers"
        raise BadInput(f"{what} must return {must}; got {words.get(kind, 'integers. Divide by 1.0.')}")
    for value in jax.tree.leaves(_value(what, fn, on, sample)) if values else ():
        if not is_traced(value) and not np.isfinite(value).all():
            got = in_short(np.asarray(value).tolist())
            raise BadInput(f"{what} must return finite numbers on {on}; got {got}. Make it finite for all real numbers.")
    return answer


def _value(what: str, fn: Callable, on: str, sample: tuple) -> Any:
    import jax

    try:
        with np.errstate(all="ignore"):
            return fn(*sample)
    except IndexError as reason:
        raise BadInput(f"{what} fails on {on}: {_why(reason)}") from reason
    except Exception:  # what JAX's arrays can do and NumPy's cannot
        return jax.jit(fn)(*sample)


def _why(reason: Exception) -> str:
    """An error of a user's function, and the remedy."""
    first = (str(reason).strip().split("\n")[0] or type(reason).__name__)[:200].rstrip(".")
    remedy = "Use a smaller index" if isinstance(reason, IndexError) else "Write it with jax.numpy"
    return FAILURES.get(type(reason).__name__, f"{first}. {remedy}.")


def fields(count: int) -> np.ndarray:
    """A sample of standard normal fields, of both signs."""
    return 1.7 * np.cos(2.1 * np.arange(count) + 2.1)


def _guarded(fn: Callable, arrays: bool, own: dict[str, Check | None]) -> Callable:
    parameters = inspect.signature(fn).parameters
    by_name = {name: own.get(name, DOMAINS.get(name)) for name in parameters}
    checks = {name: many(check) if arrays else check for name, check in by_name.items() if check is not None}
    names, renamed = tuple(parameters), arguments_of(fn)

    def pick(name: str, value: Any) -> Any:
        if name not in checks or value is parameters[name].default or is_traced(value):
            return value
        return checks[name](name, value)

    def guarded(*args, **kwargs):
        kwargs = renamed(kwargs) if renamed else kwargs
        head = [pick(name, value) for name, value in zip(names, args)]  # noqa: B905
        return fn(*head, *args[len(head) :], **{name: pick(name, value) for name, value in kwargs.items()})

    # With the globals of the function's own module, where doctests look for it.
    there = getattr(fn, "__globals__", {"__builtins__": __builtins__})
    here: Any = wraps(fn)(types.FunctionType(guarded.__code__, there, guarded.__name__, None, guarded.__closure__))
    here.checks = checks
    return here

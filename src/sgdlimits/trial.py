"""Functions of users, tried on one sample: what they cannot do is one sentence that names them and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdlimits.errors import BadInput, shorten, is_traced

FAILURES = {
    "TracerArrayConversionError": "it calls NumPy on a number that is not known yet. Write it with jax.numpy.",
    "TracerBoolConversionError": "it asks a number that is not known yet whether it is true. Use jnp.where in place of if.",
    "ConcretizationTypeError": "it needs the value of a number that is not known yet. Leave out float and int.",
}
"""What users did where JAX raises these."""


def try_function(
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

    >>> try_function("the readout", lambda fixed: fixed[2], "2 fields", np.ones(2))
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: the readout fails on 2 fields: index 2 is out of bounds ... with size 2. Use a smaller index.
    """
    import jax

    if not callable(fn):
        raise BadInput(f"{what} must be a function; got {shorten(fn)}. Give a JAX function.")
    try:
        answer = jax.eval_shape(fn, *sample)
    except Exception as reason:
        raise BadInput(f"{what} fails on {on}: {describe_error(reason)}") from reason
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
            got = shorten(np.asarray(value).tolist())
            raise BadInput(f"{what} must return finite numbers on {on}; got {got}. Make it finite for all real numbers.")
    return answer


def _value(what: str, fn: Callable, on: str, sample: tuple) -> Any:
    import jax

    try:
        with np.errstate(all="ignore"):
            return fn(*sample)
    except IndexError as reason:
        raise BadInput(f"{what} fails on {on}: {describe_error(reason)}") from reason
    except Exception:  # what JAX's arrays can do and NumPy's cannot
        return jax.jit(fn)(*sample)


def why(reason: Exception) -> str:
    """An error of a user's function, and the remedy."""
    first = (str(reason).strip().split("\n")[0] or type(reason).__name__)[:200].rstrip(".")
    remedy = "Use a smaller index" if isinstance(reason, IndexError) else "Write it with jax.numpy"
    return FAILURES.get(type(reason).__name__, f"{first}. {remedy}.")


def fields(count: int) -> np.ndarray:
    """A sample of standard normal fields, of both signs."""
    return 1.7 * np.cos(2.1 * np.arange(count) + 2.1)

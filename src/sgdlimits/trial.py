"""Trial calls of users' functions on examples. A failure raises an error that names the function and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdlimits.errors import BadInput, is_traced, shorten

ERROR_EXPLANATIONS = {
    "TracerArrayConversionError": "it calls NumPy on a number that is not known yet. Write it with jax.numpy.",
    "TracerBoolConversionError": "it asks a number that is not known yet whether it is true. Use jnp.where in place of if.",
    "ConcretizationTypeError": "it needs the value of a number that is not known yet. Leave out float and int.",
}
"""Explanations of errors that JAX raises in a user's function, with the remedy, by the names of the exceptions."""


def try_function(
    what: str,
    fn: Callable,
    on: str,
    *sample: Any,
    shape: tuple[int, ...] | None = (),
    truth: bool = False,
    values: bool = True,
) -> Any:
    """Call a user's function on an example and return the shapes of its result; raise `BadInput` if it fails.

    Parameters
    ----------
    what, fn : name of the function in messages, and the function
    on : description of the example in messages
    *sample : arguments of the call; NumPy arrays, unlike traced arrays, check indices
    shape : required shape of the result, () for one number; None for any arrays
    truth : whether the result may be a bool
    values : whether to check that the result is finite, which costs an evaluation

    >>> try_function("the readout", lambda fixed: fixed[2], "2 fields", np.ones(2))
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: the readout fails on 2 fields: index 2 is out of bounds ... with size 2. Use a smaller index.
    """
    import jax

    if not callable(fn):
        raise BadInput(f"{what} must be a function; got {shorten(fn)}. Give a JAX function.")
    try:
        answer = jax.eval_shape(fn, *sample)  # traces the function, as all later uses do
    except Exception as reason:
        raise BadInput(f"{what} fails on {on}: {describe_error(reason)}") from reason
    leaves = jax.tree.leaves(answer)
    if not leaves or (shape is not None and [leaf.shape for leaf in leaves] != [shape]):
        one = "one bool or one number" if truth else "one number"
        must = one if shape == () else "an array" if shape is None else f"shape {shape}"
        got = f"shape {leaves[0].shape}" if len(leaves) == 1 else f"{len(leaves)} arrays" if leaves else "nothing"
        raise BadInput(f"{what} must return {must}; got {got}. Sum, index or stack the results.")
    for kind in {leaf.dtype.kind for leaf in leaves} - ({"f", "b"} if truth else {"f"}):
        words = {"c": "complex numbers. Take the real part.", "b": "bools. Return a number, such as jnp.where(..., 1.0, 0.0)."}
        must = f"{'a bool or ' if truth else ''}real floating-point numbers"
        raise BadInput(f"{what} must return {must}; got {words.get(kind, 'integers. Divide by 1.0.')}")
    for value in jax.tree.leaves(_evaluate_on_sample(what, fn, on, sample)) if values else ():
        if not is_traced(value) and not np.isfinite(value).all():
            got = shorten(np.asarray(value).tolist())
            raise BadInput(f"{what} must return finite numbers on {on}; got {got}. Make it finite for all real numbers.")
    return answer


def _evaluate_on_sample(what: str, fn: Callable, on: str, sample: tuple) -> Any:
    """Call a user's function on an example, with NumPy arrays if it accepts them, otherwise compiled by JAX."""
    import jax

    try:
        with np.errstate(all="ignore"):
            return fn(*sample)
    except IndexError as reason:
        raise BadInput(f"{what} fails on {on}: {describe_error(reason)}") from reason
    except Exception:  # JAX arrays have methods, such as `at`, that NumPy's lack
        return jax.jit(fn)(*sample)


def describe_error(reason: Exception) -> str:
    """Return an explanation of an exception that a user's function raised, with a remedy."""
    first = (str(reason).strip().split("\n")[0] or type(reason).__name__)[:200].rstrip(".")
    remedy = "Use a smaller index" if isinstance(reason, IndexError) else "Write it with jax.numpy"
    if isinstance(reason, TypeError) and "positional argument" in first:
        remedy = "Correct its arguments"
    return ERROR_EXPLANATIONS.get(type(reason).__name__, f"{first}. {remedy}.")


def example_fields(count: int) -> np.ndarray:
    """Return `count` example fields w·x, fixed numbers of both signs, on which users' functions of the fields are tried."""
    return 1.7 * np.cos(2.1 * np.arange(count) + 2.1)

"""Exceptions and warnings that users meet, and checks of arguments. Messages name the mistake, the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr


class BadInput(ValueError):
    """Error for an argument that cannot be used. The message says what is wrong, with the value, and gives the remedy."""


class CensoredWarning(UserWarning):
    """Warning that some runs had not exited when they ended, so that their mean exit time is only bounded from below."""


class AccuracyWarning(UserWarning):
    """Warning that expectations are less accurate than requested."""


class RepeatedWarning(UserWarning):
    """Warning that a simulation continues from another one with the same seed, so that it repeats its random numbers."""


class Interrupted(KeyboardInterrupt):
    """Exception raised by Ctrl-C during `simulate`; its attribute `dataset` has the runs up to the time they had reached."""

    def __init__(self, dataset: xr.Dataset) -> None:
        super().__init__("the simulation was interrupted; its finished part is in the attribute `dataset` of this exception")
        self.dataset = dataset


def shorten(value: Any) -> str:
    """Return the `repr` of a value on one line of at most 80 characters, for an error message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_traced(value: Any) -> bool:
    """Return whether a number has no concrete value to check, because JAX traces it or because it is a schedule."""
    import jax

    return isinstance(value, jax.core.Tracer) or getattr(value, "is_schedule", False) is True


def check_number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float = math.inf,
    infinite: bool = False,
) -> None:
    """Raise `BadInput` unless `value` is one number in the given range; traced values pass.

    The number must be finite unless `infinite`. `name` is that of the argument, for the message.

    >>> check_number("noise", -1.0, at_least=0)
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: noise must be a finite number of at least 0; got -1. Give, for instance, 0.1.
    """
    if is_traced(value):
        return
    try:
        if (
            isinstance(value, (str, bytes, bool))
            or getattr(value, "ndim", 0) != 0
            or getattr(getattr(value, "dtype", None), "kind", "f") not in "iuf"  # NumPy drops imaginary parts with a warning
        ):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be one number; got {shorten(value)}. Give a number such as 0.1.") from None
    low = -math.inf
    text = "a number" if infinite else "a finite number"
    if above is not None:
        low = math.nextafter(above, math.inf)  # the least double above the bound
        text = f"{text} above {above:g}"
    elif at_least is not None:
        low = at_least
        text = f"{text} of at least {at_least:g}"
    text = text if below == math.inf else f"{text} and below {below:g}"
    if not (math.isfinite(number) or (infinite and number == math.inf)) or not (low <= number and (number < below or infinite)):
        raise BadInput(f"{name} must be {text}; got {number:g}. Give, for instance, {_example_between(low, below):g}.")


def _example_between(low: float, below: float) -> float:
    """Return a short number of at least `low` and below `below`, as an example of an admitted value."""
    return next((each for each in (0.1, 0.5, 1.0, 2.0, 10.0, 100.0) if low <= each < below), low)


def check_share(name: str, value: Any) -> float:
    """Return `value` as a float, or raise `BadInput` unless it is a number strictly between 0 and 1.

    >>> check_share("confidence", 95)
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: confidence must be between 0 and 1; got 95. Give, for instance, 0.5.
    """
    check_number(name, value)
    if not 0 < value < 1:
        raise BadInput(f"{name} must be between 0 and 1; got {value:g}. Give, for instance, 0.5.")
    return float(value)


def check_count(name: str, value: Any, *, at_least: int = 1, below: int = 2**63, remedy: str = "") -> int:
    """Return `value` as an int, or raise `BadInput` unless it is an integer of at least `at_least` and below `below`.

    >>> check_count("d", 3e3)
    3000
    """
    try:
        # 3e3 is an integer, "3" and True are not; arrays of any other kind are not either.
        if getattr(getattr(value, "dtype", None), "kind", "f") not in "iuf":
            raise TypeError
        whole = int(value)
        fits = bool(whole == value) and whole >= at_least and not isinstance(value, bool) and not getattr(value, "ndim", 0)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if fits and whole >= below:
        raise BadInput(f"{name} must be below {below:.3g}; got {shorten(whole)}. Give a smaller number.")
    if not fits:
        hint = remedy or f"Give, for instance, {10 if at_least <= 10 < below else at_least}."
        raise BadInput(f"{name} must be an integer of at least {at_least}; got {shorten(value)}. {hint}")
    return whole


def check_choice(name: str, value: Any, known: Collection[str]) -> str:
    """Return `value` if it is one of the known names; otherwise raise `BadInput`, which lists them."""
    if not isinstance(value, str) or value not in known:
        raise BadInput(f"{name} must be one of {', '.join(known)}; got {shorten(value)}. Choose a name from this list.")
    return value


def check_dimension(d: Any, teachers: int | None = None) -> int:
    """Return the dimension d as an int; raise `BadInput` unless it is an integer, positive and at least `teachers`."""
    d = check_count("d", d)
    if teachers is not None and d < teachers:
        raise BadInput(f"d must be at least the number of fixed directions, {teachers}; got {d}. Use a larger d.")
    return d

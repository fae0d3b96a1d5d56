"""Checks that annotations carry: unions, aliases, plain types, fields of data classes, and types known to mypy alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import equinox as eqx
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.algorithm.base import Descent
from sgdlimits.checks import integer, number
from sgdlimits.domain import Count, Fraction, Positive, Rate, UncheckedArgument, checked, checks_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from somewhere import Unknown  # type: ignore[import-not-found]


@checked
def call(
    count: Count,
    rate: Rate = 0.1,
    flag: bool = False,
    width: Annotated[int, integer(below=9)] | None = None,
    share: Fraction | None = 0.5,
    many: Positive | ArrayLike = 1.0,
    other: Unknown | Positive = 2.0,
    free: UncheckedArgument[float] = 0.0,
    kind: Literal["a", "b"] = "a",
    anything: Any = None,
    **more: float,
) -> dict[str, Any]:
    return dict(count=count, rate=rate, width=width, share=share, many=many)


def test_each_argument_has_the_check_of_its_annotation():
    assert list(checks_of(call)) == ["count", "rate", "flag", "width", "share", "many", "other"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"count": 0}, "count must be a whole number of at least 1; got 0"),
        ({"count": 1, "rate": -1}, "rate must be a finite number above 0; got -1"),
        ({"count": 1, "flag": 1}, "flag must be True or False; got 1"),
        ({"count": 1, "width": 9}, "width must be below 9; got 9"),
        ({"count": 1, "share": 1.5}, "share must be between 0 and 1; got 1.5"),
        ({"count": 1, "many": [1.0, -1.0]}, "many must be a finite number above 0; got -1"),
        ({"count": 1, "other": 0}, "other must be a finite number above 0; got 0"),
        ({"count": sl.Steps([1.0], [1, 2])}, "count cannot change with time"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises(sl.BadInput, match=words):
        call(**arguments)


def test_what_fits_passes():
    result = call(
        3e3, sl.Steps([1.0], [0.1, 0.2]), width=None, share=None, many=np.array([1.0, 2.0]), free="x", anything=3, more=1
    )
    assert result["count"] == 3000
    assert isinstance(result["count"], int)
    assert isinstance(result["rate"], sl.Steps)
    assert result["share"] is None
    assert result["many"].tolist() == [1.0, 2.0]


@checked
class Damped(Descent):
    """An optimiser with an argument of a new name and range."""

    damping: Annotated[float, number(at_least=2, below=3)] = eqx.field(static=True, default=2.0)

    def step(self, now):
        return {"student": self.normalise_on_sphere(now.student + self.gradient_step(now))}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lr": 0.1, "damping": 3}, "damping must be a finite number of at least 2 and below 3; got 3"),
        ({"lr": -0.1}, "lr must be a finite number above 0; got -0.1"),
        ({"lr": 0.1, "batch": 0}, "batch must be a whole number of at least 1; got 0"),
    ],
)
def test_a_new_optimiser_says_itself_what_its_arguments_may_be(arguments, words):
    assert Damped(lr=0.1, damping=2.5).damping == 2.5
    with pytest.raises(sl.BadInput, match=words):
        Damped(**arguments)


def test_fixed_points_takes_a_law_of_starts():
    """Its `starts` are a law, unlike those of a function that takes a number of starts."""
    points = sl.fixed_points(sl.presets.phase_retrieval(lr=0.1), starts=sl.RandomInit(100), count=8, runs=8, progress=False)
    assert len(points) >= 1
    with pytest.raises(sl.BadInput, match="starts must be RandomInit"):
        sl.fixed_points(sl.presets.phase_retrieval(lr=0.1), starts=3)

"""What users mistype: mypy refuses each marked line, and complains about a mark where it would not. Nothing runs."""

from typing import assert_type

import xarray as xr

import sgdlimits as sl


def types_reach_the_user() -> None:
    assert_type(sl.presets.phase_retrieval(), sl.ProjectionProblem)
    assert_type(sl.simulate(sl.presets.committee(), sl.ODE(), sl.FixedInit(0.1), t_max=1), xr.Dataset)
    assert_type(sl.Chain(d=100), sl.Chain)
    assert_type(sl.HeavyBall(0.1, 0.9).sphere, bool)


def words_for_objects() -> None:
    problem, start = sl.presets.phase_retrieval(), sl.RandomInit(d=100)
    sl.simulate(problem, level="chain", start=start, t_max=1)  # type: ignore[arg-type]
    sl.simulate("phase_retrieval", sl.ODE(), start, t_max=1)  # type: ignore[arg-type]
    sl.simulate(problem, sl.ODE(), "random", t_max=1)  # type: ignore[arg-type]
    sl.simulate(problem, sl.ODE(), start, t_max=1, kernel=3)  # type: ignore[arg-type]
    sl.simulate(problem, sl.ODE(), start, t_max="1")  # type: ignore[arg-type]
    sl.presets.committee(algorithm="sgd")  # type: ignore[arg-type]
    sl.TwoLayer(2, "erf", bias="yes")  # type: ignore[arg-type]


def names_that_are_none() -> None:
    sl.presets.phase_retrieval(lrr=0.1)  # type: ignore[call-arg]
    sl.OnePassSGD(lr=0.1, rigde=0.1)  # type: ignore[call-arg]
    sl.simulate(sl.presets.phase_retrieval(), sl.ODE(), sl.FixedInit(0.1), tmax=1)  # type: ignore[call-arg]
    sl.Chain()  # type: ignore[call-arg]
    sl.fixed_points(sl.presets.phase_retrieval(), start=3)  # type: ignore[call-arg]

"""Information exponents: learning rates, times and numbers of samples."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.analysis.single_index import (
    _interpolation_nodes,
    _PopulationSeries,
    drift_parts,
    exit_time,
    samples,
    start_quantile,
)
from sgdlimits.model.activation import Polynomial
from sgdlimits.papers.mediocrity import theory as mediocrity

# --- learning rates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "noise"), [(1, 0.0), (1, 0.7), (3, 0.0), (3, 0.7)])
def test_phase_retrieval_asks_for_the_published_rate_where_the_way_is_short(width, noise):
    """And for 1/(12 + noise/(1 - overlap^2)) in general, by one unit."""
    problem = sl.presets.phase_retrieval(width=width, noise=noise)
    short = sl.recommended_lr(problem, d=10**8, overlap=1e-3)
    assert abs(short / float(mediocrity.optimal_lr(width, noise)) - 1) < 1e-4
    if width == 1:
        assert abs(1 / sl.recommended_lr(problem, d=1000) - (12 + noise / 0.75)) < 1e-9


@pytest.mark.full
def test_rates_are_constant_for_small_exponents_and_fall_with_d_for_others():
    for activation, power in {"linear": 0, "square": 0, "he3": -1 / 2, "he4": -1}.items():
        problem = sl.presets.single_index(activation)
        small, large = (sl.recommended_lr(problem, d) for d in (10**3, 10**5))
        assert abs(np.log(large / small) / np.log(100) - power) < 1e-3


def test_a_rate_is_for_a_step_of_a_batch_and_does_not_depend_on_the_problem_s_own():
    one = sl.recommended_lr(sl.presets.single_index("square", lr=0.3, noise=0.1), 1000)
    many = sl.recommended_lr(sl.presets.single_index("square", lr=0.01, noise=0.1, batch=5), 1000)
    assert abs(many / one - 5) < 1e-9
    free = sl.recommended_lr(sl.presets.single_index("square", noise=0.1, sphere=False), 1000)
    assert abs(free / one - 1) < 1e-9


def test_an_odd_target_of_the_other_sign_is_learnt_with_the_other_sign_of_the_overlap():
    plus, minus = sl.presets.single_index("linear", lr=0.5), sl.presets.single_index("linear", Polynomial([0, -1]), lr=0.5)
    assert abs(sl.recommended_lr(minus, 100) / sl.recommended_lr(plus, 100) - 1) < 1e-9
    assert abs(exit_time(minus, 100, 0.5) / exit_time(plus, 100, 0.5) - 1) < 1e-9
    assert exit_time(minus, 100, 0.5, start=0.1) == np.inf


@pytest.mark.parametrize(
    ("student", "target", "width", "words"),
    [
        ("linear", "square", 1, "no Hermite coefficient in common"),
        ("square", Polynomial([1, 0, -1]), 1, "of order 2 of student and target have opposite signs"),
        (Polynomial([0, 1, 0, 1]), "he3", 2, "push each other away"),
        ("linear", Polynomial([0, 0.3]), 2, "does not grow beyond 0.6"),
    ],
)
def test_overlaps_that_do_not_grow_are_told_with_the_reason(student, target, width, words):
    problem = sl.presets.single_index(student, target, width=width)
    with pytest.raises(sl.BadInput, match=words):
        sl.recommended_lr(problem, 1000, overlap=0.9)


def test_bad_dimensions_and_overlaps_are_refused():
    problem = sl.presets.phase_retrieval()
    with pytest.raises(sl.BadInput, match="above that of a random start"):
        sl.recommended_lr(problem, 100, overlap=0.05)
    with pytest.raises(sl.BadInput, match="between 0 and 1"):
        sl.recommended_lr(problem, 100, overlap=1.5)
    with pytest.raises(sl.BadInput, match=r"got 'he3'. Take one from sgdlimits.presets"):
        sl.recommended_lr("he3", 100)
    with pytest.raises(sl.BadInput, match="one unit on the sphere"):
        exit_time(sl.presets.phase_retrieval(width=2), 100, 0.5)


# --- times -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "width"), [("erf", 1), ("erf", 2), ("he3", 1)])
def test_series_of_the_drift_is_the_problem_s(activation, width):
    """Also where students push each other away."""
    problem = sl.presets.single_index(activation, lr=0.3, noise=0.2, width=width)
    m = _interpolation_nodes(0.5)
    np.testing.assert_allclose(
        _PopulationSeries.from_problem(problem)(m), drift_parts(problem, jnp.asarray(m))[0], rtol=1e-7, atol=1e-13
    )


def test_times_of_phase_retrieval_are_those_of_its_own_theory():
    problem, d, end = sl.presets.phase_retrieval(lr=0.08, noise=0.3), 10**5, 0.5
    m0 = d**-0.5
    share = (end**2 - m0**2) / (1 - m0**2)
    for average, noise, error in (("ode", False, 1e-8), ("backward", True, 1e-5)):
        theirs = mediocrity.exit_time(problem, d, share, average, start=m0)
        assert abs(exit_time(problem, d, end, noise=noise) / theirs - 1) < error
    assert exit_time(sl.presets.phase_retrieval(lr=1 / 6), 100, 0.5) == np.inf
    assert exit_time(problem, 100, 0.5, start=0.0) == np.inf
    assert exit_time(problem, 100, [0.05, 0.5]).tolist() == [0.0, exit_time(problem, 100, 0.5)]


def test_time_of_a_linear_target_is_the_closed_one():
    """At lr = 1 the drift is (1 - m^2) - m (1 - m) = 1 - m."""
    time = exit_time(sl.presets.single_index("linear", lr=1.0), [100, 10_000], 0.5)
    np.testing.assert_allclose(time, np.log([0.9 / 0.5, 0.99 / 0.5]), rtol=1e-8)


def test_growth_and_quantiles_of_the_start():
    np.testing.assert_allclose(samples(2, [10, 100]), [10 * np.log(10), 100 * np.log(100)])
    assert (samples(1, 50), samples(4, 10)) == (50.0, 1000.0)
    start = np.abs(sl.RandomInit(d=20).sample(sl.presets.phase_retrieval(), runs=4000).M[:, 0, 0])
    assert abs((start < start_quantile(20)).mean() - 0.5) < 4 * 0.5 / np.sqrt(4000)

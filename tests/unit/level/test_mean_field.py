"""Mean-field runs are datasets like others, their starts are those of the other levels, and bad input gets a sentence."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.random import Stream
from sgdlimits.level import Condition
from sgdlimits.start import as_start
from sgdlimits.statistics.particles import particles_of

PROBLEM = sl.presets.phase_retrieval(3, lr=0.5)
ONE = sl.Particles([1.0, 1.0, 1.0], [[0.1], [0.3], [-0.2]], [1.0, 1.0, 1.0])


def run(problem=PROBLEM, start=ONE, **changes):
    return sl.simulate(problem, sl.MeanField(), start, **{"t_max": 20.0, "save": 21, "progress": False, **changes})


class RiskBelow(Condition):
    """A condition that asks the problem."""

    def margin(self, problem, stats, memory):
        return 0.5 - problem.risk(stats)


def test_a_run_is_a_dataset_that_can_be_saved_loaded_plotted_and_run_again(tmp_path):
    data = run(runs=2, start=sl.RandomInit(100))
    assert sl.check(data) is data
    assert dict(data.sizes) == {"run": 2, "t": 21, "student": 3, "teacher": 1}
    assert set(data.data_vars) == {"a", "M", "q", "risk"}
    assert data.attrs["level"] == "mean-field"
    loaded = sl.load(sl.save(data, tmp_path / "data.nc"))
    assert loaded.identical(data)
    np.testing.assert_array_equal(sl.rerun(loaded).M, data.M)
    assert sl.plot.overlaps(data).get_ylabel() == "overlap $|M_{jr}|$"
    assert sl.plot.overlaps(data, what="q").get_ylabel() == "squared norm $q_{j}$"
    sl.plot.risk([data], clock="paper")


def test_runs_stop_where_they_exit():
    whole, stopped = run(), run(until=sl.exits(0.5))
    late, exact = sl.exit_times(whole, 0.5), sl.exit_times(stopped, 0.5)
    assert stopped.status.values.tolist() == ["stopped"]
    np.testing.assert_allclose(late.t, exact.t, rtol=0.05)
    own = [sl.exit_times(data, RiskBelow()).t for data in (whole, run(until=RiskBelow()))]
    np.testing.assert_allclose(own[0], own[1], rtol=0.05)


def test_units_of_a_random_start_have_the_law_of_the_overlaps():
    """Above width 256 they are drawn without a p-by-p array: two samples of 8192 units, by Kolmogorov and Smirnov at 1e-4."""
    from scipy.stats import ks_2samp

    start, few, many = sl.RandomInit(12, scale=1.3), *(sl.presets.committee(width, 2) for width in (8, 1024))
    square = particles_of(start.sample(few, runs=1024))
    units = start.particles(many, Stream.from_seed(1, np.arange(8)))
    assert units.q.shape == (8, 1024)
    for name in ("M", "q"):
        assert ks_2samp(getattr(units, name).ravel(), getattr(square, name).ravel()).pvalue > 1e-4
    units = sl.RandomInit(12, scale=1.3, unit=True).particles(many, Stream.from_seed(1, np.arange(8)))
    np.testing.assert_allclose(units.q, 1.3**2, rtol=1e-12)


@pytest.mark.parametrize(
    "start",
    [
        sl.RandomInit(12),
        sl.OrthogonalInit(0.1),
        sl.FixedInit(0.3),
        as_start(sl.Overlaps(np.ones(3), np.zeros((3, 1)), np.eye(3))),
    ],
)
def test_starts_give_the_units_of_their_overlaps(start):
    stream = Stream.from_seed(3, [0, 5])
    units, square = start.particles(PROBLEM, stream), particles_of(start.batch(PROBLEM, stream))
    for name in ("a", "M", "q"):
        np.testing.assert_array_equal(getattr(units, name), getattr(square, name))


def kinked(teachers):
    target = sl.Target(lambda fixed: jnp.sin(fixed[0]), teachers=teachers)
    return sl.ProjectionProblem(target, sl.TwoLayer(1, "abs"), sl.SquaredLoss(), sl.OnePassSGD(0.1))


def third(fixed):
    return fixed[0] * fixed[1] * fixed[2]


BAD = {
    "or a smooth activation and at most 2 fixed directions; got 1 and a non-smooth activation": lambda: run(kinked(1)),
    "at most 2 fixed directions; got 3 and a smooth activation": lambda: run(
        sl.ProjectionProblem(sl.Target(third, 3), sl.TwoLayer(3, "erf"), sl.SquaredLoss(), sl.OnePassSGD(0.1))
    ),
    "q must have shape (3,) for width 3": lambda: run(start=sl.Particles(np.ones(3), np.zeros((3, 1)), np.ones(2))),
    "M must be finite; got nan": lambda: run(start=sl.Particles(np.ones(3), np.full((3, 1), np.nan), np.ones(3))),
    "no weights have these particles: q - M P^-1 M^T is -1.25": lambda: run(start=sl.FixedInit(1.5)),
    "sphere=True keeps every norm at 1, but the start has q = 2": lambda: run(
        start=sl.Particles(np.ones(3), np.zeros((3, 1)), [1.0, 2.0, 1.0])
    ),
    "Particles have no overlaps of pairs of units": lambda: sl.simulate(PROBLEM, sl.ODE(), ONE, t_max=1),
    "the start has only 2 runs, but run": lambda: run(
        start=sl.Particles(np.ones((2, 3)), np.zeros((2, 3, 1)), np.ones((2, 3))), runs=3
    ),
    "the mean-field limit has no noise": lambda: sl.MeanField().adapt_problem(PROBLEM).covariance(ONE),
    "rtol must be a finite number of at least 1e-14 and below 1; got -1": lambda: sl.MeanField(rtol=-1),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_gets_a_sentence_with_the_remedy(sentence):
    with pytest.raises(sl.BadInput) as caught:
        BAD[sentence]()
    message = str(caught.value)
    assert sentence in message
    assert message.endswith(".")
    assert "\n" not in message

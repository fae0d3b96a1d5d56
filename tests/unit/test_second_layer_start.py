"""Starts of the second layer: numbers, arrays and a law."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl

WIDTH = 3


@pytest.fixture(scope="module")
def problem():
    return sl.presets.phase_retrieval(width=WIDTH, lr=0.1, train_second=True)


@pytest.mark.parametrize("kind", [lambda a: sl.RandomInit(50, second=a), lambda a: sl.FixedInit(0.1, a)])
@pytest.mark.parametrize("second", [[0, 1, 1], np.array([0.0, 1.0, 1.0]), (0.0, 1.0, 1.0)])
def test_an_array_is_the_second_layer_of_every_run(kind, second, problem):
    stats = kind(second).sample(problem, runs=2)
    assert np.asarray(stats.a).tolist() == [[0.0, 1.0, 1.0]] * 2
    plain = kind(1.0).sample(problem, runs=2)
    assert np.array_equal(stats.M, plain.M)
    assert np.array_equal(stats.Q, plain.Q)


def test_bernoulli_entries_are_independent_with_the_given_probability(problem):
    """Means and correlations over 4,000 runs, six numbers within five standard errors."""
    start = sl.RandomInit(50, second=sl.Bernoulli(0.3, low=-1.0, high=2.0))
    a = np.asarray(start.sample(problem, runs=4000, seed=1).a)
    assert set(np.unique(a)) == {-1.0, 2.0}
    high = (a > 0).astype(float)
    assert (np.abs(high.mean(0) - 0.3) < 5 * np.sqrt(0.21 / 4000)).all()
    assert (np.abs(np.corrcoef(high.T)[np.triu_indices(WIDTH, 1)]) < 5 / np.sqrt(4000)).all()
    assert np.array_equal(start.sample(problem, runs=2, seed=1).a, a[:2])


def test_a_second_layer_by_units_reaches_the_weights_and_the_file(problem, tmp_path):
    start = sl.RandomInit(30, second=[0, 1, 1])
    data = sl.simulate(problem, sl.SGD(30), start, t_max=0.1, runs=2, save=2, progress=False)
    assert data.a.values[:, 0].tolist() == [[0.0, 1.0, 1.0]] * 2
    sl.save(data, tmp_path / "x.nc")
    assert "Bernoulli(share=0.3)" in repr(sl.RandomInit(30, second=sl.Bernoulli(0.3)))


def test_what_is_no_second_layer_is_told(problem):
    with pytest.raises(sl.BadInput, match=r"second must be one number or 3 of them, one for each unit"):
        sl.RandomInit(50, second=[0, 1]).sample(problem)
    with pytest.raises(sl.BadInput, match="second must be one number, one for each unit, a law, or numbers by name"):
        sl.RandomInit(50, second=[0, 1, np.nan])
    with pytest.raises(sl.BadInput, match="second must be one number or 3 of them"):
        sl.FixedInit(0.1, sl.Bernoulli()).sample(problem)
    with pytest.raises(sl.BadInput, match="neither positive= nor named scalars"):
        sl.RandomInit(50, second=sl.Bernoulli(), positive=0.5).sample(problem)

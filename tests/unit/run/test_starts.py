"""Starts that are not what they seem: in another dimension, or at the end of runs with the same random numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sgdlimits as sl

PROBLEM = sl.presets.phase_retrieval()


def run(level, start, seed=0):
    return sl.simulate(PROBLEM, level, start, t_max=0.2, runs=3, save=2, seed=seed)


@pytest.mark.parametrize("level", [sl.Chain(20), sl.SGD(20), sl.SDE(20), sl.Local(sl.Overlaps([1.0], [[0.0]], [[1.0]]), d=20)])
def test_level_and_start_have_one_dimension(level):
    with pytest.raises(sl.BadInput, match=r"the level has d = 20 and the start d = 30\. Give both the same d\."):
        run(level, sl.RandomInit(30))


def test_the_end_of_a_dataset_with_its_own_seed_repeats_random_numbers(tmp_path):
    first = run(sl.Chain(20), sl.RandomInit(20))
    loaded = sl.load(sl.save(first, tmp_path / "x.nc"))
    for data in (first, loaded, first.isel(run=[1])):  # the last is a start for all runs, and one of these made it
        with pytest.warns(sl.RepeatedWarning, match="Give another seed, or go on with resume=dataset") as caught:
            sl.simulate(PROBLEM, sl.Chain(20), data, t_max=0.2, runs=3, save=2)
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(sl.Chain(20), first, seed=1)
        run(sl.Chain(20), first.isel(run=[1, 2, 0]))
        run(sl.ODE(), first)


@pytest.mark.full
def test_second_layer_with_signs_by_lot():
    """10,000 entries, of which 30 % are positive; five standard errors are 0.023."""
    problem = sl.presets.phase_retrieval(width=20, train_second=True)
    drawn = sl.RandomInit(d=100, second=0.5, positive=0.3).sample(problem, runs=500)
    assert set(np.unique(drawn.a)) == {-0.5, 0.5}
    assert abs((np.asarray(drawn.a) > 0).mean() - 0.3) < 0.023
    np.testing.assert_array_equal(drawn.M, sl.RandomInit(d=100).sample(problem, runs=500).M)
    run = sl.simulate(problem, sl.Chain(100), sl.RandomInit(d=100, positive=0.5), t_max=0.1, runs=4, save=2)
    np.testing.assert_array_equal(run.a.values[:, 0], sl.RandomInit(d=100, positive=0.5).sample(problem, runs=4).a)
    np.testing.assert_array_equal(sl.rerun(run).a, run.a)

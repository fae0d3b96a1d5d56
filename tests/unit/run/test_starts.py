"""Starts that are not what they seem: in another dimension, or at the end of runs with the same random numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.random import Stream
from sgdlimits.level import chain, sgd
from sgdlimits.problem import overlap_coordinates

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


@pytest.mark.parametrize(
    "start", [sl.RandomInit(30), sl.FixedInit(0.2), sl.OrthogonalInit(0.1)], ids=lambda start: type(start).__name__
)
@pytest.mark.parametrize("level", [sl.Chain(30), sl.SGD(30), sl.SDE(30), sl.ODE()], ids=lambda level: level.name)
def test_overlaps_of_a_start_are_factored_once(level, start, monkeypatch):
    """By the chain and SGD to begin, and by others to check that weights with them exist."""
    calls = []

    def counted(factor):
        return lambda *arguments: (calls.append(factor), factor(*arguments))[1]

    for module in (chain, sgd, overlap_coordinates):
        for name in {"frame_of", "frame_by_block"} & set(vars(module)):
            monkeypatch.setattr(module, name, counted(getattr(module, name)))
    problem = sl.presets.committee(2, 1)
    sl.simulate(problem, level, start, t_max=0.2, runs=2, save=2, progress=False)
    assert len(calls) == 1


@pytest.mark.parametrize("gram", [None, [[1.0, 0.6], [0.6, 1.0]]])
def test_starts_of_norm_one_exist_or_are_refused(gram):
    """Overlaps on the border of what unit vectors have, against the smallest eigenvalue of Q - M P^-1 M^T."""
    P = np.eye(2) if gram is None else np.array(gram)
    problem = sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("erf"), 2, gram=gram), sl.TwoLayer(1, "erf"), sl.SquaredLoss(), sl.OnePassSGD(0.1)
    )
    border = 1 / np.sqrt(np.ones(2) @ np.linalg.solve(P, np.ones(2)))
    assert sl.FixedInit(border).one(problem).M.shape == (1, 2)
    for overlap in (1.001 * border, 1e200):
        with pytest.raises(sl.BadInput, match="FixedInit gives overlaps that no weights of norm 1 have"):
            sl.FixedInit(overlap).one(problem)
    draws = sl.OrthogonalInit(1.0).particles(problem, Stream.from_seed(3, np.arange(1))).M[0, 0]
    border = float(1 / np.sqrt(draws @ np.linalg.solve(P, draws)))
    assert sl.OrthogonalInit(0.999 * border).one(problem, seed=3).Q.item() == 1.0
    for spread in (1.001 * border, 1e200):
        with pytest.raises(sl.BadInput, match="gives overlaps that no weights of norm 1 have"):
            sl.OrthogonalInit(spread).one(problem, seed=3)

"""The diffusion stays where weights are: Q - M P^-1 M^T is positive semi-definite at every step."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.statistics.frame import admissible

HARD = {
    "recovery": (sl.presets.phase_retrieval(3, lr=0.1), 40, sl.Overlaps(np.ones(3), np.ones((3, 1)), np.ones((3, 3)))),
    "two dimensions": (sl.presets.phase_retrieval(1, lr=0.1, noise=0.1), 2, sl.RandomInit(2)),
    "off the sphere": (sl.presets.quadratic_network(3, 2, lr=0.1, noise=0.1), 10, sl.RandomInit(10)),
    "a tensor": (sl.presets.spiked_tensor(3, 3.0, lr=0.3), 4, sl.RandomInit(4)),
    "momentum": (sl.presets.committee(2, 2, "erf", algorithm=sl.HeavyBall(1.0, friction=2.0)), 6, sl.RandomInit(6)),
}


@pytest.mark.parametrize("case", HARD)
@pytest.mark.filterwarnings("ignore::sgdlimits.DivergedWarning")  # two dimensions are not many
def test_the_diffusion_does_not_leave_the_cone(case):
    problem, d, start = HARD[case]
    data = sl.simulate(problem, sl.SDE(d), start, t_max=5.0, runs=64, save=20, progress=False)
    if "r2" in data:
        assert (data.r2 >= 0).all()
        return
    rest = data.Q.values - data.M.values @ data.M.values.swapaxes(-1, -2)
    assert np.linalg.eigvalsh(rest).min() >= -1e-12 * max(1.0, np.abs(data.Q.values).max())
    assert (data.status == "diverged").mean() < 0.1


def test_statistics_of_weights_are_left_as_they_are(random_overlaps):
    """Others come nearer: to the same overlaps with what is fixed, where nothing is held at norm 1."""
    problem = sl.presets.committee(3, 2, "erf")
    one = random_overlaps(problem, 1)
    runs = lambda stats: jax.tree.map(lambda leaf: np.asarray(leaf)[..., None], stats)
    same = admissible(runs(one), problem.frame)
    np.testing.assert_allclose(same.Q[..., 0], one.Q, rtol=1e-13)
    worse = sl.Overlaps(one.a, one.M, one.Q - 0.9 * np.diag(np.diag(one.Q)))
    held = admissible(runs(worse), problem.frame)
    rest = held.Q[..., 0] - held.M[..., 0] @ held.M[..., 0].T
    assert np.linalg.eigvalsh(rest).min() > -1e-14
    np.testing.assert_array_equal(held.M[..., 0], one.M)


def test_long_steps_near_the_boundary_have_the_mean_of_short_ones():
    """Weak order: the mean risk of label noise near recovery, where every other step would cross."""
    problem = sl.presets.phase_retrieval(1, lr=0.1, noise=0.3)
    start, how = sl.Overlaps([1.0], [[1.0]], [[1.0]]), dict(t_max=8.0, runs=4096, save=[8.0], progress=False)
    risk = lambda dt, seed: sl.simulate(problem, sl.SDE(50, dt=dt), start, seed=seed, **how).risk.values
    coarse, fine = risk(0.2, 1), risk(0.04, 2)
    error = np.hypot(coarse.std(), fine.std()) / np.sqrt(coarse.size)
    assert abs(coarse.mean() - fine.mean()) < 4 * error + 0.05 * fine.mean()

"""Statistics are those of weights at every level, in cases that are hard for it: Q - M P^-1 M^T has no negative eigenvalue."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.statistics.frame import make_admissible

LEAST = -1e-12
"""Relative to the largest entry of Q where that is above 1."""
RATES = (1e-12, 0.1, 2.0, 1e3)
"""From nothing to divergence."""
NEARLY = 1 - 1e-6
PROBLEMS = {
    "one unit": lambda lr: sl.presets.phase_retrieval(lr=lr, noise=0.1, sphere=False),
    "on the sphere": lambda lr: sl.presets.phase_retrieval(width=2, lr=lr),
    "squares": lambda lr: sl.presets.quadratic_network(width=2, teachers=2, lr=lr),
    "erf": lambda lr: sl.presets.committee(width=2, teachers=2, activation="erf", lr=lr),
    "relu": lambda lr: sl.presets.committee(width=2, teachers=2, activation="relu", lr=lr),
    "teachers that nearly coincide": lambda lr: sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("erf"), gram=[[1.0, NEARLY], [NEARLY, 1.0]]),
        sl.TwoLayer(2, "erf"),
        sl.SquaredLoss(),
        sl.OnePassSGD(lr),
    ),
    "classes in noise": lambda lr: sl.presets.binary_mixture(snr=1e-3, lr=lr),
    "classes": lambda lr: sl.presets.binary_mixture(snr=1e3, lr=lr),
    "classes without noise": lambda lr: sl.presets.binary_mixture(snr=np.inf, lr=lr),
}
COSTLY = ("classes in noise", "classes")
"""Drifts by quadrature: ODE and SDE go on for a short while only, at rates where the drift is not stiff."""
WEIGHTS = {
    "recovery": lambda E, F: E,
    "nearly there": lambda E, F: E + 1e-8 * F,
    "zero": lambda E, F: 0 * E,
    "one zero": lambda E, F: np.diag([0.0] + [1.0] * (len(E) - 1)) @ (E + 0.5 * F),
    "in the span": lambda E, F: np.cos(np.arange(1, len(E) + 1))[:, None] * E[::-1],
    "identical": lambda E, F: np.ones((len(E), 1)) * (0.6 * E[:1] + 0.8 * F[:1]),
    "opposite": lambda E, F: (-1.0) ** np.arange(len(E))[:, None] * (0.6 * E[:1] + 0.8 * F[:1]),
    "large": lambda E, F: 100 * (E + F),
}
"""p units from as many rows E along the fixed directions and F, where there is room, beside them."""


def starts(problem, d):
    """Statistics of the units that exist in d dimensions, runs first."""
    p, k, B = problem.directions.width, problem.directions.fixed, np.linalg.cholesky(problem.directions.gram)
    E, F = np.zeros((p, d)), np.zeros((p, d))
    E[:, :k] = B[np.arange(p) % k]
    F[np.arange(p), np.minimum(k + np.arange(p), d - 1)] = 1.0
    units = [make(E, F) for make in WEIGHTS.values()]
    if problem.sphere:
        units = [W / np.linalg.norm(W, axis=1, keepdims=True) for W in units if np.linalg.norm(W, axis=1).all()]
    W = np.stack(units)
    M, Q = W[:, :, :k] @ B.T, W @ W.swapaxes(1, 2)
    a = np.ones((len(W), p)) if not problem.trains_second else np.tile(np.cos(np.arange(p)), (len(W), 1))
    return sl.Overlaps(a, M, Q)


def least(data, problem):
    """The least eigenvalue of Q - M P^-1 M^T over runs and times, each relative to its Q."""
    M, Q = data.M.values, data.Q.values
    outside = Q - M @ np.linalg.solve(np.asarray(problem.directions.gram), M.swapaxes(-1, -2))
    return (np.linalg.eigvalsh(outside)[..., 0] / np.maximum(np.abs(Q).max((-2, -1)), 1.0)).min()


def levels(problem):
    """With the dimensions that leave no room, less than the units need, and enough; each with the problem as it is tried there.

    Chain and SGD have the risk, which their steps do not use, by a few points.
    """
    k, p, quick = problem.directions.fixed, problem.directions.width, problem.with_expectation(sl.Sobol(3, 2))
    for d in dict.fromkeys((k, k + p - 1, 30)):
        yield from ((quick, sl.Chain(d), d), (quick, sl.SGD(d), d))
    yield from ((problem, sl.SDE(d), d) for d in (k + p - 1, 30))
    yield problem, sl.ODE(), 30


@pytest.mark.full
@pytest.mark.parametrize("name", PROBLEMS)
def test_no_weights_are_beyond_the_cone(name):
    cases = 0
    for lr in RATES:
        for problem, level, d in levels(PROBLEMS[name](lr)):
            if level.name in ("ode", "sde") and name in COSTLY and lr > 0.1:
                continue
            start = starts(problem, d)
            runs = len(start.M)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", sl.DivergedWarning)
                warnings.simplefilter("ignore", sl.AccuracyWarning)
                short = {"ode": 0.04, "sde": 1.0} if name in COSTLY else {"ode": min(4.0, 4 / lr)}
                end = short.get(level.name, 4.0)
                data = sl.simulate(problem, level, start, t_max=end, runs=runs, save=5, progress=False)
            worst = least(data, problem)
            assert worst >= LEAST, (lr, level, worst, data.status.values)
            cases += runs
    assert cases > 80


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in PROBLEMS if "classes" not in name])
def test_no_unit_of_a_measure_is_longer_along_the_fixed_directions_than_at_all(name):
    for lr in RATES:
        problem = PROBLEMS[name](lr)
        start = starts(problem, 30)
        how = dict(t_max=min(4.0, 4 / lr), runs=len(start.M), save=5, progress=False)
        data = sl.simulate(problem, sl.MeanField(), start, **how)
        m = np.linalg.solve(np.linalg.cholesky(problem.directions.gram), data.M.values.swapaxes(-1, -2))
        assert ((data.q - (m**2).sum(-2)) / np.maximum(data.q, 1.0)).min() >= LEAST


# --- the diffusion ---------------------------------------------------------------------------------------------------------

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
    same = make_admissible(runs(one), problem.frame)
    np.testing.assert_allclose(same.Q[..., 0], one.Q, rtol=1e-13)
    worse = sl.Overlaps(one.a, one.M, one.Q - 0.9 * np.diag(np.diag(one.Q)))
    held = make_admissible(runs(worse), problem.frame)
    rest = held.Q[..., 0] - held.M[..., 0] @ held.M[..., 0].T
    assert np.linalg.eigvalsh(rest).min() > -1e-14
    np.testing.assert_array_equal(held.M[..., 0], one.M)


def test_long_steps_near_the_boundary_have_the_mean_of_short_ones():
    """Weak order: the mean risk of label noise near recovery, where every other step would cross."""
    problem = sl.presets.phase_retrieval(1, lr=0.1, noise=0.3)
    start, how = sl.Overlaps([1.0], [[1.0]], [[1.0]]), dict(t_max=8.0, runs=2048, save=[8.0], progress=False)
    risk = lambda dt, seed: sl.simulate(problem, sl.SDE(50, dt=dt), start, seed=seed, **how).risk.values
    coarse, fine = risk(0.2, 1), risk(0.05, 2)
    error = np.hypot(coarse.std(), fine.std()) / np.sqrt(coarse.size)
    assert abs(coarse.mean() - fine.mean()) < 4 * error + 0.05 * fine.mean()

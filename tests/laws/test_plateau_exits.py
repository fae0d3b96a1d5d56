"""Exit times of plateaus: the noise of the departure against closed forms, and the law against SGD in plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf

import sgdlimits as sl
from sgdlimits.analysis.plateau import find_plateau
from sgdlimits.analysis.plateau_exits import LAW_STARTS, law_times

theory = sl.theory.mediocrity


@pytest.mark.parametrize(("width", "lr", "noise"), [(1, 1 / 12, 0.0), (2, 0.15, 0.1)])
def test_noise_of_the_departure_is_the_noise_gain_of_phase_retrieval(width, lr, noise):
    """The starts have the variance 1/d, so that K is kappa on the sphere, and the rate is that of (18)."""
    problem = sl.presets.phase_retrieval(width=width, lr=lr, noise=noise)
    saddle = find_plateau(problem, sl.RandomInit(1000))
    scale = saddle.projection @ saddle.projection.T
    kappa = float(theory.noise_gain(width, lr, noise))
    assert np.allclose(saddle.noise @ np.linalg.inv(scale), kappa * np.eye(width), rtol=1e-6, atol=1e-9)
    assert np.allclose(saddle.rates.real, float(theory.linear_rates(width, lr, noise).M) * float(problem.rate), rtol=1e-9)


def test_law_from_the_plateau_itself_has_the_time_of_the_linear_sde():
    """From m = 0 the time is (52), by 2F2, for small thresholds: within five standard errors of the law's samples and 1 %."""
    problem, d, T = sl.presets.phase_retrieval(lr=1 / 12), 10**6, 0.01
    start = sl.Overlaps([1.0], [[0.0]], [[1.0]])
    saddle = find_plateau(problem, start)
    law = law_times(problem, saddle, sl.start.as_start(start), d, (1 - T) * saddle.risk)
    expected = theory.exit_time(problem, d, T, "sde")
    assert law.size == LAW_STARTS
    assert abs(law.mean() - expected) < 5 * law.std() / np.sqrt(law.size) + 0.01 * expected


def test_a_stable_end_and_a_random_second_layer_are_refused():
    with pytest.raises(sl.BadInput, match="without unstable directions"):
        sl.plateau_exits(sl.presets.committee(1, 1, "linear", lr=0.5), 100, runs=2)
    problem = sl.presets.phase_retrieval(lr=1 / 12)
    with pytest.raises(sl.BadInput, match="second layer of this start is random"):
        find_plateau(problem, sl.RandomInit(100, second=1.0, positive=0.5))


def committee_exits(d: int, lr: float, risk: float, runs: int, t_max: float, seed: int) -> np.ndarray:
    """Exit times of SGD in R^d of two erf units that learn two teachers, in plain NumPy; the risk is Saad and Solla's."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(runs, 2, d)) / np.sqrt(d)
    times, left = np.full(runs, np.inf), np.arange(runs)
    for step in range(int(t_max * d)):
        x = rng.normal(size=(len(W), d))
        fields, labels = np.einsum("rjd,rd->rj", W, x), x[:, :2]
        error = (erf(fields / np.sqrt(2)).mean(1) - erf(labels / np.sqrt(2)).mean(1))[:, None]
        slope = error * np.sqrt(2 / np.pi) * np.exp(-(fields**2) / 2) / 2
        W -= lr / d * slope[:, :, None] * x[:, None]
        if step % 10 == 0:
            V = np.concatenate([W, np.broadcast_to(np.eye(2, d), W.shape)], axis=1)
            G = np.einsum("rid,rjd->rij", V, V)
            norms = np.sqrt(1 + np.diagonal(G, axis1=1, axis2=2))
            sign = np.array([0.5, 0.5, -0.5, -0.5])
            risks = np.arcsin(G / (norms[:, :, None] * norms[:, None])) * 2 / np.pi @ sign @ sign / 2
            out = risks <= risk
            times[left[out]], left, W = (step + 1) / d, left[~out], W[~out]
            if not len(left):
                break
    return times


@pytest.mark.full
def test_law_of_a_committee_has_the_exit_times_of_sgd_in_plain_numpy(say):
    """Two erf units at d = 200: the mean of 96 runs, within five standard errors of both samples."""
    problem, d = sl.presets.committee(2, 2, lr=1.5), 200
    saddle = find_plateau(problem, sl.RandomInit(d))
    law = law_times(problem, saddle, sl.RandomInit(d), d, saddle.risk / 2)
    found = committee_exits(d, 1.5, saddle.risk / 2, 96, 4 * law.mean(), seed=3)
    assert np.isfinite(found).all()
    error = np.hypot(law.std() / np.sqrt(law.size), found.std() / np.sqrt(found.size))
    say(f"NumPy {found.mean():.4g}, law {law.mean():.4g}, error {error:.2g}")
    assert abs(found.mean() - law.mean()) < 5 * error

"""Exit times of plateaus: the noise of the departure against closed forms, and the law against SGD in plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf

import sgdlimits as sl
from sgdlimits.analysis.plateau import find_plateau
from sgdlimits.analysis.plateau_exits import LAW_START_COUNT, law_times
from sgdlimits.problem import Polynomials

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
    assert law.size == LAW_START_COUNT
    assert abs(law.mean() - expected) < 5 * law.std() / np.sqrt(law.size) + 0.01 * expected


def test_a_stable_end_and_a_random_second_layer_are_refused():
    with pytest.raises(sl.BadInput, match="without unstable directions"):
        sl.plateau_exits(sl.presets.committee(1, 1, "linear", lr=0.5), 100, runs=2)
    problem = sl.presets.phase_retrieval(lr=1 / 12)
    with pytest.raises(sl.BadInput, match="second layer of this start is random"):
        find_plateau(problem, sl.RandomInit(100, second=1.0, positive=0.5))


def fitted_matrix(snr: float = 3.0):
    """The spiked matrix at the learning rate 1, fitted to its loss in R^40."""
    import jax
    import jax.numpy as jnp

    dynamics = sl.effective_dynamics(
        loss=lambda x, Y: ((Y - jnp.outer(x, x)) ** 2).sum(),
        sample=lambda key, d: jax.random.normal(key, (d, d)).at[0, 0].add(snr),
        statistics=lambda x: {"m": x[0], "r2": (x[1:] ** 2).sum()},
        at=lambda key, d: jax.random.normal(key, (d,)) / np.sqrt(d), lr=1.0, d=40, samples=2048,
    )  # fmt: skip
    return dynamics.fit(3, region={"m": (-1.8, 1.8), "r2": (0.2, 1.5)}).problem


def test_a_fitted_problem_has_the_exits_of_the_problem_itself(say):
    """No chain is known of it; its SDE is beside its law, and beside the closed chain's, within 15 %."""
    problem, exact, d = fitted_matrix(), sl.presets.spiked_tensor(2, 3.0, lr=1.0), 1000
    start = problem.state(m=0.0, r2=1.0)
    table = sl.plateau_exits(problem, d, 3e-4, start=start, plateau=start, runs=128, progress=False)
    say(table)
    assert table.data.source.values.tolist() == ["SDE", "ODE", "noisy law"]
    mean = table.data.t.sel(statistic="mean")
    assert float(mean.sel(source="SDE")) == pytest.approx(float(mean.sel(source="noisy law")), rel=0.15)
    assert table.plateau.rates.real.max() == pytest.approx(4 * (3.0 - 1.0), rel=0.05)
    sde = sl.simulate(problem, sl.SDE(d), start, t_max=1.5, runs=256, save=301, progress=False)
    chain = sl.simulate(exact, sl.Chain(d), sl.Spike(0.0, 1.0), t_max=1.5, runs=256, seed=1, save=301, progress=False)
    ours, theirs = (
        float(sl.exit_times(sde, lambda s: s.u[0] ** 2 - 0.04).t.mean()),
        float(sl.exit_times(chain, lambda s: s.m**2 - 0.04).t.mean()),
    )
    say(f"m^2 = 0.04 at t = {ours:.3f}, chain {theirs:.3f}")
    assert ours == pytest.approx(theirs, rel=0.15)
    with pytest.raises(sl.BadInput, match="over a floor of 0"):
        sl.plateau_exits(problem, d, 0.5, start=start, plateau=start, progress=False)


def test_a_way_out_of_the_region_of_a_fit_is_told():
    """For x' = x the ODE from 0.5 leaves the region up to 1, and with its margin ends at 1.2."""
    slopes = np.array([[0.0], [1.0]])
    problem = sl.Surrogate(("x",), Polynomials(1, np.ones(1)), slopes, 0 * slopes, 0 * slopes, np.zeros(2), [-1], [1])
    with pytest.raises(sl.BadInput, match=r"not finite on the way of the ODE .* from t = 0.8"):
        find_plateau(problem, problem.state(x=0.5))


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

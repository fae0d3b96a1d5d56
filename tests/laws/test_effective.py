"""The limit theorem of Ben Arous, Gheissari and Jagannath: its drift against steps in R^N, and its conditions as measured.

Monte Carlo comparisons are of about 1600 numbers, each at five standard errors: together they fail by chance with 1e-3.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.analysis.localizability import estimate_growth_exponent
from sgdlimits.analysis.one_sample import SampleDraws, sample_law_of
from sgdlimits.kernel.base import StepTime
from sgdlimits.level.spiked import PolarCoordinates, SpikeChain, SpikeDraws

N, SAMPLES, STATES = 400, 3000, 20

PRESETS = {
    "phase_retrieval": lambda: sl.presets.phase_retrieval(noise=0.1),
    "quadratic_network": lambda: sl.presets.quadratic_network(width=2, teachers=1),
    "committee": lambda: sl.presets.committee(width=2, teachers=1, train_second=True),
    "single_index": lambda: sl.presets.single_index("he3", width=2),
    "binary_mixture": sl.presets.binary_mixture,
    "xor_mixture": sl.presets.xor_mixture,
    "spiked_tensor": lambda: sl.presets.spiked_tensor(order=2, snr=1.2),
}


# --- f and g, in plain NumPy --------------------------------------------------------------------------------------------


def sample_gradient(a, W, x, y):
    """(G, dl/da) of the cross-entropy of sigma(a . relu(W x)) by hand."""
    fields = x @ W.T
    active = fields > 0
    error = 1 / (1 + np.exp(-(fields * active) @ a)) - y
    return error[:, None] * active * a, error[:, None] * fields * active


def inputs(rng, k, snr):
    """SAMPLES inputs in R^N and their labels: classes at plus and minus e_1 (label 1; minus e_1 has 0 if k = 1), and e_2."""
    c, sign = rng.integers(k, size=SAMPLES), rng.choice([-1.0, 1.0], SAMPLES)
    x = rng.normal(size=(SAMPLES, N)) / np.sqrt(snr)
    x[np.arange(SAMPLES), c] += sign
    return x, (sign > 0 if k == 1 else c == 0).astype(float)


def one_step(rng, a, W, k, snr, lr, ridge):
    """Of each sample, the terms of a step of size 1/N: linear in it for (M, Q, a), and the quadratic one of Q.

    The quadratic term is G_j G_l |x|^2; the part of x in the span of the directions adds what does not grow with N, so the
    squared length of the rest is taken, per dimension.
    """
    x, y = inputs(rng, k, snr)
    G, second = sample_gradient(a, W, x, y)
    fields, fixed, M, Q = x @ W.T, x[:, :k], W[:, :k], W @ W.T
    span = np.linalg.qr(np.concatenate([np.eye(N)[:k], W]).T)[0]
    rest = (x**2).sum(1) - ((x @ span) ** 2).sum(1)
    cross = G[:, :, None] * fields[:, None, :]
    linear_M = lr * (G[:, :, None] * fixed[:, None, :] + ridge * M)
    linear_Q = lr * (cross + cross.swapaxes(1, 2) + 2 * ridge * Q)
    linear_a = lr * (second + ridge * a)
    quadratic = lr**2 * G[:, :, None] * G[:, None, :] * rest[:, None, None] / (N - span.shape[1])
    return linear_M, linear_Q, linear_a, quadratic


@pytest.mark.parametrize(("preset", "snr"), [("binary_mixture", 2.0), ("binary_mixture", 100.0), ("xor_mixture", 100.0)])
def test_population_drift_and_corrector_are_the_two_orders_of_a_step(preset, snr, say):
    """Twenty random states of networks in R^400, the gradient by hand with relu and sigmoid."""
    lr, ridge, rng, worst = 0.7, 0.1, np.random.default_rng(5), 0.0
    problem = getattr(sl.presets, preset)(snr=snr, ridge=ridge, lr=lr)
    p, k = problem.network.width, problem.target.teachers
    dynamics = sl.effective_dynamics(problem)
    for _ in range(STATES):
        a, W = rng.normal(size=p), np.zeros((p, N))
        W[:, : k + p] = rng.normal(size=(p, k + p)) / np.sqrt(p)
        stats = sl.Overlaps(a, W[:, :k], W @ W.T)
        f, g = dynamics.f(stats), dynamics.g(stats)
        assert not np.any(g.M)
        assert not np.any(g.a)
        for ours, each in zip((f.M, f.Q, f.a, g.Q), one_step(rng, a, W, k, snr, lr, ridge), strict=True):
            error = each.std(0) / np.sqrt(SAMPLES) + 1e-4 * np.abs(np.asarray(ours)).max() / 5
            worst = max(worst, float((np.abs(each.mean(0) - ours) / error).max()))
    say(f"{preset}, snr {snr:g}: f and g at {STATES} states differ from Monte Carlo by at most {worst:.2f} standard errors")
    assert worst < 5


# --- one sample ---------------------------------------------------------------------------------------------------------


@eqx.filter_jit
def terms_of(problem, stats, draws):
    return sample_law_of(problem).terms(stats, draws)


def test_terms_of_a_sample_make_up_its_step_in_r_d():
    """Every sample has as many coordinates as the span of the directions, and one more for its rest."""
    problem = sl.presets.binary_mixture(snr=2.0, ridge=0.3, lr=0.7)
    rng, count, delta = np.random.default_rng(0), 50, 0.01
    a, T = rng.normal(size=2), np.tril(rng.normal(size=(2, 2)))
    T *= np.sign(np.diagonal(T))
    W = np.concatenate([rng.normal(size=(2, 1)), T, np.zeros((2, 1))], axis=1)
    points, outside, c = rng.normal(size=(4, count)), rng.chisquare(30, count), rng.integers(2, size=count)
    stats = sl.Overlaps(a, W[:, :1], W @ W.T)
    terms = terms_of(problem, stats, SampleDraws(jnp.asarray(points), jnp.asarray(outside), jnp.asarray(c)))
    x = np.concatenate([points[:3], np.sqrt(outside)[None]]).T / np.sqrt(2.0)
    x[:, 0] += 1 - 2 * c
    G, second = sample_gradient(a, W, x, 1.0 - c)
    after = W - delta * 0.7 * (G[:, :, None] * x[:, None] + 0.3 * W)
    Q = after @ after.swapaxes(1, 2)
    expected = np.concatenate([after[:, :, 0], Q[:, 0], Q[:, 1, 1:], a - delta * 0.7 * (second + 0.3 * a)], axis=1)
    ours = np.asarray(problem.vector(stats))[:, None] - delta * terms.first_order_terms + delta**2 * terms.second_order_terms
    np.testing.assert_allclose(ours.T, expected, rtol=1e-12, atol=1e-14)
    gradient = np.concatenate([(after - W)[:, :, :3].reshape(count, -1), -delta * 0.7 * (second + 0.3 * a)], axis=1)
    np.testing.assert_allclose(delta * np.abs(terms.gradient).T, np.abs(gradient), rtol=1e-10, atol=1e-14)


def test_terms_of_a_spike_make_up_a_step_of_its_chain():
    problem, d, rng = sl.presets.spiked_tensor(order=3, snr=1.5, lr=0.7, ridge=0.2), 50, np.random.default_rng(1)
    points, outside = jnp.asarray(rng.normal(size=(2, 9))), jnp.asarray(rng.chisquare(d - 2, 9))
    stats = sl.Spike(m=0.4, r2=0.9)
    terms = terms_of(problem, stats, SampleDraws(points, outside, jnp.zeros(9, int)))
    state = PolarCoordinates(jnp.full(9, 0.4), jnp.full(9, np.sqrt(0.9)))
    after = SpikeChain(problem, d).step(state, SpikeDraws(points, outside), StepTime(0.0, 1.0)).spike
    ours = np.array([[0.4], [0.9]]) - terms.first_order_terms / d + terms.second_order_terms / d**2
    np.testing.assert_allclose(ours, np.stack([after.m, after.r2]), rtol=1e-12)


# --- localizability -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_meet_the_conditions_and_are_critical_at_one_over_d(preset, say):
    """The last condition as printed, below delta^-1, fails wherever the gradient's length varies: its exponent is 2, and
    1 for spiked tensors, whose gradient is Gaussian."""
    report = sl.effective_dynamics(PRESETS[preset]()).localizability()
    *_, fourth, second = report.conditions
    say(f"{preset}: critical exponent {report.critical_exponent:.4f}, moments {fourth.measured:.2f} and {second.measured:.2f}")
    assert report.passed, report
    assert abs(report.critical_exponent - 1) < 0.02
    assert abs(second.measured - (1 if preset == "spiked_tensor" else 2)) < 0.1
    assert "passed" in repr(report)


def failed(report) -> set[str]:
    return {condition.name[0] for condition in report.conditions if not condition.passed}


@pytest.mark.parametrize(
    ("magnify", "conditions"), [(0.5, set()), (0.75, {"1", "3"}), ({"m": 0.5}, set()), ({"m": 0.75}, {"3"})]
)
def test_fluctuations_can_be_magnified_by_the_root_of_d_and_no_more(magnify, conditions):
    report = sl.effective_dynamics(PRESETS["spiked_tensor"]()).localizability(magnify=magnify)
    assert failed(report) == conditions, report
    assert abs(report.critical_exponent - 1) < 0.02


def test_growing_signals_and_growing_noise_are_found_out(say):
    signal = sl.effective_dynamics(lambda d: sl.presets.spiked_tensor(order=2, snr=float(d) ** 2)).localizability()
    noise = sl.effective_dynamics(lambda d: sl.presets.phase_retrieval(noise=float(d))).localizability()
    say(f"noise = d: critical exponent {noise.critical_exponent:.3f}")
    assert failed(signal) == {"2"}
    assert abs(signal.conditions[2].measured - 2) < 0.02
    assert failed(noise) == {"3"}
    assert abs(noise.critical_exponent - 2) < 0.02


@pytest.mark.parametrize(("order", "power"), [(2, 0.25), (3, 0.25), (3, 0.5), (3, 0.75), (4, 1.0), (4, 1.25)])
def test_magnified_overlaps_have_a_limit_up_to_the_growth_of_the_published_threshold(order, power):
    """With snr Lambda d^a the drift of u = sqrt(d) m is 2 k u (Lambda u^(k-2) d^(a - (k-2)/2) - 1) at r2 = 1."""
    family = lambda d: sl.presets.spiked_tensor(order, snr=1.2 * d**power)
    report = sl.effective_dynamics(family).localizability(magnify={"m": 0.5}, around=sl.Spike(0.0, 1.0), samples=256)
    above = power - (order - 2) / 2
    assert report.limit == ("diffusive" if above <= 0 else "none")
    assert report.drift.exponent == pytest.approx(max(above, 0.0), abs=0.05)
    assert report.volatility.exponent == pytest.approx(1.0, abs=0.01)
    chosen = sl.effective_dynamics(family, statistics=lambda u, d: {"u": jnp.sqrt(d) * u.m})
    d, u = 10**8, 0.7
    here = sl.Spike(u / np.sqrt(d), 1.0)
    expected = 2 * order * u * (1.2 * u ** (order - 2) * d**above - 1)
    assert float(chosen.at(d).h(here)["u"]) == pytest.approx(expected, rel=1e-5)
    assert float(chosen.at(d).diffusion(here)[0, 0]) == pytest.approx(4 * order, rel=1e-5)


def test_the_limit_of_the_presets_is_ballistic_and_that_of_magnified_deviations_is_diffusive():
    dynamics = sl.effective_dynamics(sl.presets.phase_retrieval())
    assert dynamics.localizability(samples=256).limit == "ballistic"
    assert dynamics.localizability(samples=256, magnify={"M": 0.5}).limit is None
    saddle = sl.Overlaps([1.0], [[0.0]], [[1.0]])
    assert dynamics.localizability(samples=256, magnify={"M": 0.5}, around=saddle).limit.startswith("diffusive")
    moving = sl.Overlaps([1.0], [[0.5]], [[1.0]])
    assert dynamics.localizability(samples=256, magnify={"M": 0.5}, around=moving).limit == "none"
    with pytest.raises(sl.BadInput, match="must be Overlaps"):
        dynamics.localizability(magnify=0.5, around=sl.Spike(0.0, 1.0))


def test_a_problem_of_ones_own_with_an_infinite_moment_is_found_out():
    """Labels exp(c l^2) have a fourth moment only for c < 1/8; everything else is bounded."""

    def report(c):
        own = sl.ProjectionProblem(
            target=sl.Target(sl.QuadraticReadout([[c]])),
            network=sl.TwoLayer(1, "tanh"),
            loss=lambda prediction, label: (prediction - jnp.exp(label)) ** 2 / 2,
            algorithm=sl.OnePassSGD(lr=0.1),
        )
        return sl.effective_dynamics(own).localizability()

    assert failed(report(0.08)) == set()
    assert failed(report(0.2)) == {"3"}
    assert "infinite" in repr(report(0.2))


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0])
def test_exponents_are_found_beside_a_constant(c):
    d = np.array([100.0, 1000.0, 5000.0, 10**5])
    assert abs(estimate_growth_exponent(d, 50 + 0.1 * d**c) - c) < 1e-6
    assert abs(estimate_growth_exponent(d, 3 * d**-c) + c) < 1e-6
    assert estimate_growth_exponent(d, np.full(4, 7.0)) == 0


# --- regimes ------------------------------------------------------------------------------------------------------------


def test_below_the_critical_step_size_only_the_population_drift_is_left():
    problem, u = PRESETS["spiked_tensor"](), sl.Spike(m=0.3, r2=0.8)
    critical, below, above = (sl.effective_dynamics(problem, exponent) for exponent in (1, 1.5, 0.5))
    assert [one.regime for one in (critical, below, above)] == ["critical", "sub-critical", "super-critical"]
    np.testing.assert_allclose(critical.h(u).r2, problem.drift(u).r2, rtol=1e-14)
    assert critical.g(u).r2 > 0
    assert below.g(u).r2 == 0
    assert not np.any(below.Sigma(u))
    assert below.h(u).r2 == -below.f(u).r2 == -critical.f(u).r2 == -above.f(u).r2
    np.testing.assert_array_equal(critical.Sigma(u), problem.covariance(u))
    for name in ("g", "h", "Sigma"):
        with pytest.raises(sl.BadInput, match="no limit at the exponent"):
            getattr(above, name)(u)
    with pytest.raises(sl.BadInput, match=r"dynamics\.at\(1000\)"):
        sl.effective_dynamics(lambda d: problem).f(u)
    assert sl.effective_dynamics(lambda d: problem).at(100).f(u).r2 == critical.f(u).r2


def test_bad_questions_are_answered_with_the_remedy():
    dynamics = sl.effective_dynamics(PRESETS["spiked_tensor"]())
    with pytest.raises(sl.BadInput, match="three or more entries"):
        dynamics.localizability(dimensions=(100, 1000))
    with pytest.raises(sl.BadInput, match="The statistics are m, r2"):
        dynamics.localizability(magnify={"M": 0.5})
    with pytest.raises(sl.BadInput, match="function of d"):
        sl.effective_dynamics(3.0)

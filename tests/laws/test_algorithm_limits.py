"""What algorithms become as d grows, against the chain and against averages in NumPy that know only the formulas."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.special import erf

import sgdlimits as sl

A = np.ones(2)
M = np.array([[0.3], [-0.1]])
T = np.array([[0.8, 0.0], [0.2, 0.7]])
START = sl.Overlaps(A, M, M @ M.T + T @ T.T)
NOISE = 0.09


def committee(algorithm):
    return sl.presets.committee(2, 1, "erf", noise=NOISE, algorithm=algorithm)


def gaps(problem, dimensions, names, t=1.0, runs=64):
    """The mean distances of chain and ODE at time t, over the statistics with these names. The risk is by few points."""
    start, seen = START, problem.with_expectation(sl.Sobol(3, 2))
    if problem.sphere:
        norm = np.sqrt(np.diagonal(START.Q))
        start = sl.Overlaps(A, M / norm[:, None], START.Q / np.outer(norm, norm))
    ode = sl.simulate(problem, sl.ODE(), start, t_max=t, save=[t])
    for d in dimensions:
        chain = sl.simulate(seen, sl.Chain(d), start, t_max=t, save=[t], runs=runs, seed=3, progress=False)
        yield np.mean([float(np.abs(chain[name] - ode[name].isel(run=0)).mean()) for name in names])


LIMITS = {
    "beta": (sl.HeavyBall(0.3, 0.8), ("M", "Q")),
    "friction": (sl.HeavyBall(1.5, friction=3.0, lr_second=0.5), ("M", "Q", "a", "velocity_M", "velocity_student")),
    "nesterov": (sl.Nesterov(0.3, 0.8), ("M", "Q")),
    "mean": (sl.Averaged(sl.OnePassSGD(1.5)), ("M", "average_M", "average_Q")),
    "rate": (sl.Averaged(sl.OnePassSGD(1.5, sphere=True), rate=2.0), ("M", "average_M", "average_student")),
    "clipped": (sl.Clipped(sl.OnePassSGD(1.5), 0.2), ("M", "Q")),
    "adagrad": (sl.AdaGradNorm(1.0, 0.1), ("M", "Q", "sum")),
    "scheduled": (sl.Scheduled(sl.HeavyBall(0.6, 0.8), 1.0, span=0.5, warmup=0.3), ("M", "Q")),
    "clipped momentum": (sl.Clipped(sl.HeavyBall(0.3, 0.8), 0.2), ("M", "Q")),
    "sharp momentum": (sl.SAM(sl.HeavyBall(0.2, 0.8), 0.3), ("M", "Q")),
    "private momentum": (sl.Private(sl.HeavyBall(0.3, 0.8), 0.3, 0.5), ("M", "Q")),
    "private": (sl.Private(sl.OnePassSGD(1.5), 0.3, 0.5), ("M", "Q")),
}


@pytest.mark.parametrize("name", LIMITS)
def test_gap_of_chain_and_ode_falls_as_the_root_of_d(name, say):
    algorithm, names = LIMITS[name]
    dimensions = [200, 2000, 20000]
    found = list(gaps(committee(algorithm), dimensions, names))
    slope = np.polyfit(np.log(dimensions), np.log(found), 1)[0]
    say(f"{name}: gap falls as d^{slope:.3f}")
    assert abs(slope + 0.5) < 0.1  # 64 runs know each gap to about 10 %


def test_momentum_is_sgd_at_a_larger_rate():
    ball, plain = committee(sl.HeavyBall(0.1, 0.9)), committee(sl.OnePassSGD(1.0))
    for one, other in zip(jax.tree.leaves(ball.drift(START)), jax.tree.leaves(plain.drift(START)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-14)
    np.testing.assert_allclose(ball.covariance(START), plain.covariance(START), atol=1e-13)


def test_repeated_batches_with_a_fast_velocity_have_no_limit_yet():
    problem = committee(sl.Repeated(sl.HeavyBall(0.1, 0.5), 2))
    for level in (sl.ODE(), sl.SDE(100)):
        with pytest.raises(sl.BadInput, match="Repeated has no limit as d grows"):
            sl.simulate(problem, level, START, t_max=1)
    sl.simulate(problem, sl.Chain(100), START, t_max=0.1)


def test_statistics_of_the_limit_have_what_it_remembers():
    """The limit of Adam remembers a number for each unit, where Adam has coordinates."""
    for algorithm in (sl.Adam(0.1), sl.SignSGD(0.1), sl.Averaged(sl.HeavyBall(0.1, 0.5)), sl.AdaGradNorm(0.1)):
        problem = committee(algorithm)
        stats = problem.coordinates.in_limit(sl.RandomInit(50).one(problem))
        assert np.isfinite(problem.limit.drift(stats).M).all()


def test_a_schedule_is_the_base_at_its_rates_of_the_time():
    rule = sl.Scheduled(sl.OnePassSGD(2.0, lr_second=0.4, ridge=0.3), power=2.0, span=3.0, warmup=4.0)
    problem = committee(rule)
    for t, factor in ((0.0, 0.0), (1.0, 1 / 4 * 9 / 16), (6.0, 1 / 9)):
        now = committee(sl.OnePassSGD(2.0 * factor, lr_second=0.4 * factor, ridge=0.3)) if factor else None
        for of in (lambda problem, t: problem.drift(START, t), lambda problem, t: problem.covariance(START, t)):
            for one, other in zip(*(jax.tree.leaves(of(each, t)) for each in (problem, now or problem)), strict=True):
                np.testing.assert_allclose(one, other if factor else 0 * one, atol=1e-14)


def test_rates_that_begin_at_zero_do_not_make_the_steps_of_the_sde_long():
    rule = sl.Scheduled(sl.OnePassSGD(0.1, sphere=True), power=1.0, span=10.0, warmup=3.0)
    problem, start = sl.presets.phase_retrieval(algorithm=rule), sl.FixedInit(0.3)
    ends = [sl.simulate(problem, level, start, t_max=20, runs=runs, save=2).M.values[:, -1] for level, runs in
            ((sl.SDE(2000), 64), (sl.ODE(), 1))]  # fmt: skip
    assert abs(ends[0].mean() - ends[1].mean()) < 5 * ends[0].std() / 8 + 1 / 2000  # five standard errors, and order 1/d


# --- drifts of steps that are not linear in the gradient ---------------------------------------------------------------------

SAMPLES = 400_000


def fields(rng, batch):
    """Fields of samples of a batch at START: students (n, 2, b), teacher (n, b), and the gradients there (n, 2, b)."""
    x, h = rng.standard_normal((SAMPLES, 1, batch)), rng.standard_normal((SAMPLES, 2, batch))
    student, teacher = M * x + np.einsum("js,nsb->njb", T, h), x[:, 0]
    return student, teacher, gradient(student, teacher, np.sqrt(NOISE) * rng.standard_normal((SAMPLES, batch)))


def gradient(student, teacher, noise):
    error = erf(student / np.sqrt(2)).mean(1) - erf(teacher / np.sqrt(2)) - noise
    return error[:, None] * np.sqrt(2 / np.pi) * np.exp(-(student**2) / 2) / 2


def clipped(rng):
    """(coefficients of the inputs, fields, teacher) of steps clipped to the norm 0.2, batches of two."""
    student, teacher, G = fields(rng, 2)
    size = np.sqrt((G**2).sum((1, 2), keepdims=True)) / 2
    return -1.5 * G / 2 * np.minimum(1, 0.2 / size), student, teacher


def sharp(rng):
    """SAM: the fields move by radius G |x| / |G| over the root of d, and |x|^2/d is one."""
    x, h = rng.standard_normal((SAMPLES, 1, 1)), rng.standard_normal((SAMPLES, 2, 1))
    student, teacher = M * x + np.einsum("js,nsb->njb", T, h), x[:, 0]
    noise = np.sqrt(NOISE) * rng.standard_normal((SAMPLES, 1))
    G = gradient(student, teacher, noise)
    return -1.5 * gradient(student + 0.5 * G / np.linalg.norm(G, axis=1, keepdims=True), teacher, noise), student, teacher


def muon(rng):
    """The orthonormal rows of G X for three samples, whose Gram matrix over d is the identity."""
    student, teacher, G = fields(rng, 3)
    U, _, V = np.linalg.svd(G, full_matrices=False)
    return -0.5 * U @ V, student, teacher


CASES = {
    "clipped": (clipped, sl.Clipped(sl.OnePassSGD(1.5, batch=2), 0.2)),
    "sam": (sharp, sl.SAM(sl.OnePassSGD(1.5), 0.5)),
    "muon": (muon, sl.Muon(0.5, batch=3)),
}


@pytest.mark.parametrize("name", CASES)
def test_drift_is_the_mean_over_steps(name):
    steps, algorithm = CASES[name]
    C, student, teacher = steps(np.random.default_rng(0))
    b = algorithm.batch
    moved = np.einsum("njb,nlb->njl", C, student)
    found = committee(algorithm).drift(START)
    for values, drift in (
        (np.einsum("njb,nb->nj", C, teacher)[..., None] / b, found.M),
        ((moved + np.swapaxes(moved, 1, 2) + np.einsum("njb,nlb->njl", C, C)) / b, found.Q),
    ):
        error = values.std(0) / np.sqrt(SAMPLES)
        assert (np.abs(values.mean(0) - np.asarray(drift)) < 5 * error + 2e-3 * np.abs(values.mean(0)).max()).all()


@pytest.mark.full
def test_covariance_of_slow_momentum_is_that_of_its_increments():
    """With a velocity whose direction has a part outside the span of all others."""
    problem = committee(sl.HeavyBall(1.5, friction=3.0))
    rng = np.random.default_rng(1)
    W = np.concatenate([np.concatenate([M, T, np.zeros((2, 2))], axis=1), 0.4 * rng.standard_normal((2, 5))])
    stats = sl.Overlaps(A, W[:, :1], W @ W.T, {"velocity": ()}, ("student", "velocity"))
    x = rng.standard_normal((SAMPLES, 5))
    F = x @ W.T
    G = gradient(F[:, :2, None], x[:, :1], np.sqrt(NOISE) * rng.standard_normal((SAMPLES, 1)))[:, :, 0]
    C = np.concatenate([np.zeros_like(G), -4.5 * G], axis=1)
    dM, dQ = C * x[:, :1], C[:, :, None] * F[:, None]
    dQ = dQ + np.swapaxes(dQ, 1, 2) + C[:, :, None] * C[:, None]
    row, column = np.triu_indices(4)
    increments = np.concatenate([dM, dQ[:, row, column]], axis=1)
    expected, found = np.cov(increments.T), np.asarray(problem.covariance(stats))
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_slopes_of_the_drift_of_sign_sgd_are_its_differences():
    """A unit's correlation with itself stays 1, where the arcsine has no slope."""
    problem = committee(sl.SignSGD(0.3, batch=3)).with_expectation(sl.Sobol(10))
    drift = jax.jit(lambda y: problem.vector(problem.drift(problem.from_vector(y, START))))
    y, h = problem.vector(START), 1e-3
    each = [(drift(y + h * e) - drift(y - h * e)) / (2 * h) for e in np.eye(y.size)]
    np.testing.assert_allclose(sl.linearise(problem, START).matrix, np.transpose(each), atol=0.02)


@pytest.mark.full
@pytest.mark.parametrize(
    "algorithm", [sl.SignSGD(0.3, batch=3, ridge=0.2), sl.Adam(0.3, 0.8, begin=0.05, batch=2)], ids=["sign", "adam"]
)
def test_coordinatewise_algorithms_follow_their_ode_as_d_grows(algorithm, say):
    """SGD in R^d with diffuse weights: the mean is off by order 1/d, and within 5 standard errors of the ODE at d = 400."""
    problem = committee(algorithm)
    ode = sl.simulate(problem, sl.ODE(), START, t_max=1.0, save=[1.0]).isel(run=0, t=0)
    gaps = []
    for d, runs in ((40, 1024), (400, 128)):
        space = sl.simulate(problem, sl.SGD(d), START, t_max=1.0, save=[1.0], runs=runs, seed=2, progress=False).isel(t=0)
        gaps.append(max(float(np.abs(space[name].mean("run") - ode[name]).max()) for name in ("M", "Q")))
    errors = {name: space[name].std("run") / np.sqrt(runs) for name in ("M", "Q")}
    say(f"gaps {gaps[0]:.4f} at d = 40, {gaps[1]:.4f} at d = 400")
    for name, error in errors.items():
        assert (np.abs(space[name].mean("run") - ode[name]) < 5 * error + 2e-3).all()
    with pytest.raises(sl.BadInput, match="not a Markov chain"):
        sl.simulate(problem, sl.Chain(40), START, t_max=1.0)


def jump(before, after):
    """A number that jumps half way."""
    return sl.Steps([0.5], [before, after])


JUMPS = {
    "Clipped, norm": sl.Clipped(sl.OnePassSGD(1.0, lr_second=0.7), jump(0.5, 0.05)),
    "Private, noise": sl.Private(sl.OnePassSGD(1.0, ridge=0.4), 0.3, jump(0.1, 3.0)),
    "Averaged, rate": sl.Averaged(sl.OnePassSGD(1.0), rate=jump(0.5, 8.0)),
    "SignSGD, rate": sl.SignSGD(jump(1.0, 0.2)),
    "Adam, decay rate": sl.Adam(0.2, rate=jump(0.3, 10.0)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", JUMPS)
def test_ode_and_sde_follow_the_chain_through_a_jump(name):
    """Means at the jump and after it, within five standard errors and the error of order 1/d; SGD where there is no chain."""
    algorithm, d = JUMPS[name], 600
    level, runs = (sl.SGD(d), 24) if isinstance(algorithm, (sl.SignSGD, sl.Adam)) else (sl.Chain(d), 200)
    own = committee(algorithm).with_expectation(sl.Sobol(9))
    go = lambda level, runs: sl.simulate(own, level, START, t_max=1.0, save=[0.5, 1.0], runs=runs, seed=3, progress=False)
    exact = go(level, runs)
    for data in (go(sl.ODE(), 1), go(sl.SDE(d, dt=0.025), 64)):
        for statistic in ("M", "Q", "average_M"):
            if statistic in exact:
                x, y = exact[statistic].values, data[statistic].values
                error = np.sqrt(x.var(0) / len(x) + y.var(0) / len(y))
                assert (np.abs(x.mean(0) - y.mean(0)) < 5 * error + 4 / d).all(), (data.level, statistic)

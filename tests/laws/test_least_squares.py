"""Expectations of least squares: against the recursion of the full second moment in R^d, and against the mean of the chain."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl


def full_recursion(h, S, gamma, noise, steps):
    """E[(w - w*)(w - w*)^T] of one-pass SGD for a covariance diag(h), from Isserlis' theorem, whatever the start.

    S <- S - gamma (HS + SH) + gamma^2 (2 HSH + H (tr HS + noise)), entry by entry.
    """
    factor = 1 - gamma * (h[:, None] + h) + 2 * gamma**2 * h[:, None] * h
    for _ in range(steps):
        added = gamma**2 * h * (h @ np.diagonal(S) + noise)
        S = factor * S
        S[np.arange(h.size), np.arange(h.size)] += added
    return S


def risk_by_full_recursion(d, steps, gamma, noise):
    rng = np.random.default_rng(0)
    eigenvalues = np.arange(1.0, d + 1) ** -1.2
    w, teacher = rng.standard_normal(d) / np.sqrt(d), np.arange(1.0, d + 1) ** -0.4
    S = full_recursion(eigenvalues, np.outer(w - teacher, w - teacher), gamma, noise, steps)
    problem = sl.presets.least_squares(eigenvalues, teacher, lr=gamma * d, noise=noise)
    start = sl.Overlaps([1.0], (w * teacher)[:, None, None], (w**2)[:, None, None])
    data = sl.simulate(problem, sl.SecondMoments(d), start, t_max=steps / d, save=2, progress=False)
    return float(data.risk[0, -1]), (eigenvalues @ np.diagonal(S) + noise) / 2


@pytest.mark.parametrize(("d", "steps"), [(30, 500), pytest.param(1000, 200, marks=pytest.mark.full)])
def test_one_block_for_each_dimension_is_the_full_recursion(d, steps):
    ours, theirs = risk_by_full_recursion(d, steps, 0.1, 0.2)
    assert abs(ours / theirs - 1) < 1e-8
    wrong = (theirs - 0.1) * (1 + 1e-6) + 0.1  # a control: the comparison sees an error of 1e-6
    assert abs(ours / wrong - 1) > 1e-8


@pytest.mark.parametrize(
    "algorithm",
    [
        sl.OnePassSGD,
        pytest.param(lambda lr: sl.HeavyBall(lr, 0.9), marks=pytest.mark.full),
        pytest.param(lambda lr: sl.Nesterov(lr, 0.9, ridge=0.1), marks=pytest.mark.full),
    ],
)
def test_a_power_is_the_product_of_its_steps(algorithm):
    """By a schedule of equal rates, which are computed step by step, to 1e-11; also for momentum."""
    spectrum = sl.Spectrum([2.0, 0.5, 0.01], [0.1, 0.3, 0.6])
    runs = []
    for lr in (0.2, lambda t: 0.2 + 0 * t):
        problem = sl.presets.least_squares(spectrum, [0.5, 0.5, 1.0], noise=0.1, algorithm=algorithm(lr))
        start = sl.RandomInit(50, scale=1.0)
        runs.append(sl.simulate(problem, sl.SecondMoments(50), start, t_max=6, save=4, progress=False))
    for name in runs[0].data_vars:
        np.testing.assert_allclose(runs[0][name], runs[1][name], rtol=1e-11, atol=1e-13, err_msg=name)


ALGORITHMS = {
    "sgd": sl.OnePassSGD(2.0, batch=2),
    "heavy ball": sl.HeavyBall(1.5, 0.8, batch=2),
    "nesterov": sl.Nesterov(0.5, 0.8),
    "friction": sl.HeavyBall(1.0, friction=2.0, ridge=0.3),
    "averaged": sl.Averaged(sl.OnePassSGD(1.0)),
    "schedule-free": sl.ScheduleFree(4.0, 0.7),
    "dana": sl.DANA(1.0, 2.0),
    "dana decaying": sl.DANA(1.0, 2.0, decay=0.5, batch=2),
    "decayed": sl.Decayed(sl.OnePassSGD(2.0), 0.5),
    "cosine": sl.OnePassSGD(sl.Cosine(3.0, 0.1, 3.0)),
    "steps": sl.OnePassSGD(sl.Steps([1.0, 2.0], [2.0, 1.0, 0.2])),
}


FEW = ("heavy ball", "schedule-free")


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.full) for name in ALGORITHMS])
def test_expectations_are_the_mean_of_the_chain(name):
    """Within five standard errors for some 60 numbers together; false alarms below 1e-4."""
    spectrum, d, runs = sl.Spectrum([2.0, 0.5, 0.1], [0.25, 0.25, 0.5]), 16, 4000
    problem = sl.presets.least_squares(spectrum, [0.7, 0.5, 0.4], noise=0.2, algorithm=ALGORITHMS[name])
    start = sl.RandomInit(d, scale=1.0).one(problem)
    mean = sl.simulate(problem, sl.SecondMoments(d), start, t_max=3, save=3, progress=False)
    chain = sl.simulate(problem, sl.Chain(d), start, t_max=3, save=3, runs=runs, progress=False)
    for variable in set(mean.data_vars) - {"a"}:
        error = chain[variable].std("run").values / np.sqrt(runs)
        assert (np.abs(chain[variable].mean("run") - mean[variable][0]) <= 5 * error + 1e-12).all(), variable
        assert mean[variable].dims == chain[variable].dims


def test_the_exponent_of_a_power_law_is_that_of_gradient_flow():
    """Risk ~ t^-(a-1)/b for eigenvalues j^-b and squares j^-(a-b) of the teacher, at a small rate without noise; to 0.01."""
    d, b, a = 10**9, 1.5, 2.2
    spectrum = sl.spectrum.power_law(d, b, blocks=80)
    problem = sl.presets.least_squares(spectrum, spectrum.source((a - b) / 2), lr=0.02 * d)
    times = np.array([1e7, 1e8]) / d
    risk = sl.simulate(problem, sl.SecondMoments(d), sl.RandomInit(d), t_max=0.1, save=times, progress=False).risk.values[0]
    assert abs(-np.log10(risk[1] / risk[0]) - (a - 1) / b) < 0.01


def test_large_dimensions_follow_the_ode():
    """The gap shrinks in proportion to 1/d."""
    gaps = []
    for d in (100, 1000):
        problem = sl.presets.least_squares([2.0, 0.5], [0.7, 0.5], lr=0.3, noise=0.1)
        start = sl.Overlaps([1.0], np.zeros((2, 1, 1)), np.zeros((2, 1, 1)))
        risks = [
            sl.simulate(problem, level, start, t_max=2, save=3, progress=False).risk.values
            for level in (sl.SecondMoments(d), sl.ODE(rtol=1e-11))
        ]
        gaps.append(np.abs(risks[0] - risks[1]).max())
    assert 8 < gaps[0] / gaps[1] < 12

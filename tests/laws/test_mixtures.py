"""Mixtures: which runs find the optimum and where the others end, the limit of large d, and runs that diverge."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import hermite_e
from scipy.optimize import root
from scipy.stats import binomtest

import sgdlimits as sl
from sgdlimits.papers.effective import theory as effective
from sgdlimits.papers.effective.figures.effective_2 import has_found_optimum as optimal_binary
from sgdlimits.papers.effective.figures.effective_3 import has_found_optimum as optimal_xor
from sgdlimits.papers.effective.figures.effective_ridge import build_classifier, find_classifier

FEW = sl.Sobol(5, 4)
"""For chains whose risk nobody looks at: paths do not depend on it."""
CASES = {
    "binary": (lambda: sl.presets.binary_mixture(snr=100.0, ridge=0.1), optimal_binary, 50.0, 400, 0.5, 1 / 2),
    "xor": (lambda: sl.presets.xor_mixture(snr=1000.0, ridge=0.1), optimal_xor, 150.0, 320, 0.25, 3 / 32),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_fraction_of_runs_at_the_optimum_and_where_runs_end(name):
    """N = 250 as in the paper. False alarm of the fraction: 1 in 1000.

    At the optimum the second layer is near that of snr = inf, and elsewhere the units that look along one signed direction lie
    on its ring. XOR has 10 % of room: at snr = 1000 and ridge 0.1, near its threshold of 1/8, the optimum lies several per
    cent below that of snr = inf.
    """
    make, optimal, t_max, runs, weight, predicted = CASES[name]
    tolerance = 0.02 if name == "binary" else 0.1
    problem, radius = make().with_expectation(FEW), sl.theory.effective.ring_radius(0.1, weight)
    data = sl.simulate(problem, sl.Chain(250), sl.RandomInit(250), t_max=t_max, runs=runs, save=[t_max], progress=False)
    best = optimal(data).values[:, -1]
    test = binomtest(int(best.sum()), runs, predicted)
    low, high = test.proportion_ci(method="wilson")
    assert test.pvalue > 1e-3

    a, own, M = np.abs(data.a.values[:, -1]), np.abs(data.M.values[:, -1]).max(-1), data.M.values[:, -1]
    error = a[best].std() / np.sqrt(best.sum())
    print(
        f"{name}: {best.mean():.4f} in [{low:.4f}, {high:.4f}], theory {predicted:.4f}; at the optimum a is "
        f"{a[best].mean():.4f} +- {error:.4f}, snr = inf {radius:.4f}"
    )
    assert abs(a[best].mean() / radius - 1) < tolerance
    groups = [(sign, r) for r in range(M.shape[2]) for sign in (1, -1)]
    squares = np.stack([((own**2) * (sign * M[:, :, r] >= own)).sum(1) for sign, r in groups], axis=1)
    present = squares > 0.1
    assert abs(np.sqrt(squares[present]).mean() / radius - 1) < tolerance
    assert (present.all(1) == best).mean() > 0.99


@pytest.mark.full
def test_gap_to_ode_shrinks_as_inverse_root_d():
    """sup_t E|chain - ODE| over a decade; 64 runs leave an error of 0.04 in the exponent."""
    problem = sl.presets.gaussian_mixture([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]], [1, 0, 0.5], [0.5, 0.3, 0.2], snr=4.0, lr=2.0)
    start, dimensions = sl.FixedInit([[0.3, 0.1], [-0.2, 0.4]], second=0.8).one(problem), np.array([1200, 12_000])
    times = dict(t_max=2.0, save=9, progress=False)
    limit = sl.simulate(problem, sl.ODE(), start, **times)
    gaps = []
    for d in dimensions:
        chain = sl.simulate(problem.with_expectation(FEW), sl.Chain(int(d)), start, runs=64, **times)
        each = [np.abs(chain[name] - limit[name].interp(t=chain.t).isel(run=0)).mean("run") for name in ("a", "M", "Q")]
        gaps.append(float(sum(gap.sum([dim for dim in gap.dims if dim != "t"]) for gap in each).max()))
    exponent = np.log(gaps[1] / gaps[0]) / np.log(dimensions[1] / dimensions[0])
    print(f"E|chain - ODE| falls with exponent {exponent:.3f}")
    assert abs(exponent + 0.5) < 0.1


def test_a_step_that_is_too_large_for_the_ridge_diverges():
    problem = sl.presets.binary_mixture(snr=10.0, ridge=0.1, lr=7500.0)
    with pytest.warns(sl.DivergedWarning, match="16 of 16 runs diverged"):
        data = sl.simulate(problem, sl.Chain(250), sl.RandomInit(250), t_max=1.0, runs=16, save=3, progress=False)
    assert (data.status == "diverged").all()
    assert np.isfinite(data.risk).all()


def small_drift(snr, ridge, v, m, q, classes):
    """Change of (v, m, q) of one unit of a network with small outputs, lr = 1: integrals over two fields on a grid, NumPy."""
    x, weights = hermite_e.hermegauss(301)
    along, across = np.meshgrid(x, x, indexing="ij")
    weights = np.outer(weights, weights) / weights.sum() ** 2
    rest, total = np.sqrt(max(q - m**2, 0.0)), np.zeros(3)
    for mean, sign in classes:
        fixed = mean + along / np.sqrt(snr)
        field = m * fixed + rest * across / np.sqrt(snr)
        on = 0.5 * (1 + np.tanh(field / (0.02 * np.sqrt(q / snr))))  # the kink, a little smoothed for the grid
        error = sign / 2
        push = np.array([(weights * error * on * each).sum() for each in (field, v * fixed, 2 * v * field)])
        push[2] += v**2 / snr * (weights * error**2 * on).sum()
        total += push / len(classes)
    return total - ridge * np.array([v, m, 2 * q])


@pytest.mark.parametrize(("snr", "preset"), [(5.0, "xor_mixture"), (20.0, "xor_mixture"), (5.0, "binary_mixture")])
def test_line_of_the_good_classifier_is_that_of_integrals_on_a_grid(snr, preset):
    """Second layer 1e-3, unknown overlap, length and ridge."""
    classes = [(1, 1), (-1, 1), (0, -1), (0, -1)] if preset == "xor_mixture" else [(1, 1), (-1, -1)]
    v, guess = 1e-3, effective.classifier_ridge(preset, snr)
    balance = lambda z: small_drift(snr, z[2], v, v * z[0], v**2 * z[1], classes) / v / np.array([1, 1, v])
    found = root(balance, [0.97, 1.1, 0.95 * guess], tol=1e-10)
    assert found.success
    np.testing.assert_allclose(found.x[2], guess, rtol=2e-3)


@pytest.mark.full
def test_good_classifier_of_xor_ends_on_the_closed_line(say):
    """Fixed points of the ODE at snr 20: their squared second layer falls to zero there, linearly; the chain stays at one."""

    line = effective.classifier_ridge("xor_mixture", 20.0)
    shares, squares = np.array([0.97, 0.99]), []
    for share in shares:
        problem, x = find_classifier("xor_mixture", 20.0, share * line)
        squares.append(x[0] ** 2)
    end = shares[1] + squares[1] * (shares[1] - shares[0]) / (squares[0] - squares[1])
    say(f"v^2 = {np.round(squares, 4)} at {shares} of the line, zero at {end:.4f}")
    assert abs(end - 1) < 2e-3
    problem, x = find_classifier("xor_mixture", 20.0, 0.7 * line)
    how = dict(t_max=6, runs=8, save=13, progress=False)
    for d in (300, 1000, 3000):
        found = sl.simulate(problem.with_expectation(FEW), sl.Chain(d), build_classifier("xor_mixture", x), seed=d, **how)
        means = (found.a.values[:, 6:] ** 2).mean((1, 2)) / x[0] ** 2
        error = means.std(ddof=1) / np.sqrt(8)
        say(f"d = {d}: chain over ODE {means.mean():.4f} ± {error:.4f}")
        assert abs(means.mean() - 1) < 5 * error + 10 / d


@pytest.mark.parametrize("snr", [1.5, 2.0, 2.1, 30.0])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_accuracy_is_the_share_of_right_predictions(width, snr):
    """Of 10^5 inputs in R^d, for units that are off, that leak and that fold, near a class, apart and parallel.

    Within five standard errors, of inputs and of nodes, which up to two units need not; predictions of zero count half.
    """
    d, count, rng = 12, 100_000, np.random.default_rng(width)
    c = rng.integers(0, 2, count)
    x = np.outer(1 - 2 * c, np.eye(d)[0]) + rng.normal(size=(count, d)) / np.sqrt(snr)
    for unit in (sl.PiecewiseLinear(), sl.PiecewiseLinear(0.3), sl.PiecewiseLinear(-1.0)):
        problem = sl.presets.gaussian_mixture([[1.0], [-1.0]], [1, 0], snr=snr, width=width, activation=unit)
        for noise in (1.0, 0.1, 0.0):
            W, a = noise * rng.normal(size=(width, d)) / np.sqrt(d), rng.normal(size=width)
            W[:, 0] += np.array([1.2, -0.9, 0.5])[:width]
            f = np.where(x @ W.T > 0, unit.right, unit.left) * (x @ W.T) @ a
            share = np.where(f == 0, 0.5, (f > 0) == (c == 0)).mean()
            shown = problem.observables(sl.Overlaps(a, W[:, :1], W @ W.T))
            assert ("accuracy_error" in shown) == (width > 2)
            error = np.hypot(np.sqrt(share * (1 - share) / count), shown.get("accuracy_error", 0.0))
            assert abs(shown["accuracy"] - share) < 5 * error + 10 / count, (unit, noise)


def test_accuracy_of_xor_is_the_share_of_right_predictions():
    """Of 4 x 10^5 inputs in R^6, at four units around the optimum and away from it; its error estimate is 1e-3 or less."""
    snr, count, rng = 5.0, 400_000, np.random.default_rng(4)
    problem, c = sl.presets.xor_mixture(snr=snr), rng.integers(0, 4, count)
    means = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    x = rng.normal(size=(count, 6)) / np.sqrt(snr)
    x[:, :2] += means[c]
    for spread in (0.1, 0.4):
        a, W = np.array([1.3, 0.9, -1.1, -0.8]), np.hstack([means, np.zeros((4, 4))]) + spread * rng.normal(size=(4, 6))
        f = np.maximum(x @ W.T, 0) @ a
        share = np.where(f == 0, 0.5, (f > 0) == (c < 2)).mean()
        shown = problem.observables(sl.Overlaps(a, W[:, :2], W @ W.T))
        error = float(shown["accuracy_error"])
        assert error < 1e-3
        assert abs(float(shown["accuracy"]) - share) < 5 * np.hypot(error, np.sqrt(share * (1 - share) / count))

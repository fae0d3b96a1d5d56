"""Claims of the slides on wide networks: their overlaps, the mean-field limit, and its learning times."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import xarray as xr
from scipy.integrate import solve_ivp

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.one_step import SquaredUnits, random_weights
from sgdlimits.papers.shorthand import log_slope, make_overlaps, simulate, simulate_chain


@claim(
    r"$Q$ as $p \to \infty$", "students in the teachers' span", r"$M P M^\top$", right=r"$M P^{-1} M^\top$",
    tests="`test_embedded_weights_have_the_given_statistics` in `tests/laws/test_chain_law.py`",
)  # fmt: skip
def compare_projected_gram_matrix(effort: Effort) -> Comparison:
    """Compare the Gram matrix of students projected on the teachers' span with M P^-1 M^T (in the paper M P M^T).

    Here M has the overlaps with the teachers, and P is the teachers' Gram matrix; the projection is computed by QR.
    """
    W, E = random_weights(3, 6, seed=0), random_weights(2, 6, seed=1)
    inside = np.linalg.qr(E.T)[0]
    M, gram = W @ E.T, E @ E.T
    return compare(W @ inside @ inside.T @ W.T, M @ np.linalg.inv(gram) @ M.T, M @ gram @ M.T)


@claim(
    "theorem on $Q$", "students outside the span", r"$Q - M P^{-1} M^\top + \mathrm{diag}(Q^\perp)$",
    right=r"$Q - M P^{-1} M^\top - \mathrm{diag}(Q^\perp)$",
    tests="`test_gap_to_the_ode_falls_as_one_over_the_width` in `tests/laws/test_mean_field.py`",
)  # fmt: skip
def compare_norms_outside_span(effort: Effort) -> Comparison:
    """Compare the diagonal of Q - M P^-1 M^T with the squared norms of the students' components outside the teachers' span.

    Here Q and M have the overlaps between students and with the teachers, and P is the teachers' Gram matrix. The paper prints
    the opposite sign.
    """
    W, E = random_weights(3, 6, seed=0), random_weights(2, 6, seed=1)
    inside, M = np.linalg.qr(E.T)[0], W @ E.T
    orthogonal = ((W - W @ inside @ inside.T) ** 2).sum(1)
    return compare((W @ W.T - M @ np.linalg.inv(E @ E.T) @ M.T).diagonal(), orthogonal, -orthogonal)


def beyond_teachers(found: xr.Dataset) -> np.ndarray:
    """Return the absolute entries of Q - M M^T off the diagonal, with zeros on the diagonal.

    They are the overlaps Q between students that the overlaps M with orthonormal teachers do not explain.
    """
    M, Q = found.M.values, found.Q.values
    return np.abs((Q - M @ M.swapaxes(1, 2)) * (1 - np.eye(M.shape[1])))


@claim("theorem on $Q$", "mean field of wide networks", r"The gap falls at least as $p^{-1/2}$")
def compare_mean_field(effort: Effort) -> Comparison:
    """Compare the exponent, in the width, of the entries of Q - M M^T off the diagonal with the bound -1/2.

    M has the overlaps with orthonormal teachers, and Q those between students.

    The overlaps are those of the simulated ODE.
    """
    widths, gaps = (6, 24), []
    for p in widths:
        rng = np.random.default_rng(p)
        M = 0.3 * rng.normal(size=(p, 2))
        start = make_overlaps(np.ones(p), M, M @ M.T + np.diag(0.5 + rng.random(p)))
        ode = simulate(sl.presets.committee(p, 2, lr=1.0, noise=0.1), sl.ODE(rtol=1e-5), start, 3.0 * p, save=4).isel(run=0)
        gaps.append(beyond_teachers(ode).max())
    return compare(np.log(gaps[1] / gaps[0]) / np.log(widths[1] / widths[0]), -0.5, rtol=0, relation="<")


@claim("theorem on $Q$", "wide networks at finite d", r"The gap falls as $d^{-1/2}$ where $p$ is large")
def compare_mean_field_in_d(effort: Effort) -> Comparison:
    """Compare the exponent, in d, of the entries of Q - M M^T off the diagonal with the predicted value -1/2.

    M has the overlaps with orthonormal teachers, and Q those between students.

    The overlaps are those of the exact chain of 32 units in d dimensions.
    """
    p, lr, runs, sizes, rows = 32, 3.2, effort.runs(16, 16), (100, 1600), []
    problem = sl.presets.committee(p, 1, lr=lr).with_expectation(sl.Sobol(3, 2))  # a cheap risk, which is not used
    for d in sizes:
        end = simulate_chain(problem, d, p / lr / 2, save=[p / lr / 2], runs=runs, seed=d).isel(t=0)
        gaps = beyond_teachers(end).max((1, 2))
        rows.append((np.log(gaps.mean()), gaps.std(ddof=1) / np.sqrt(runs) / gaps.mean()))
    number, sigma = log_slope(sizes, rows)
    return compare(number, -0.5, atol=0.02, sigma=sigma)


@claim("mean-field PDE", "particles are the limit of many units", r"$\partial_t\hat\mu = \nabla\cdot(\hat\mu\varphi)$")
def compare_mean_field_drift(effort: Effort) -> Comparison:
    """Compare the ODE's drift of the teacher overlaps M for infinitely many copies of three units with the mean-field limit.

    With n copies the drift differs from the limit by a constant over n, which gives the extrapolation.
    """
    rng = np.random.default_rng(0)
    a, M, q = np.ones(3), 0.3 * rng.normal(size=(3, 1)), 0.6 + rng.random(3)
    drifts = []
    for n in (1, 2):
        m, norms = np.repeat(M, n, 0), np.repeat(q, n)
        stats = make_overlaps(np.ones(3 * n), m, m @ m.T + np.diag(norms - (m**2).sum(1)))
        drifts.append(np.asarray(sl.presets.committee(3 * n, 1, lr=float(n)).drift_parts(stats)[0].M)[::n])
    limit = sl.MeanField().adapt_problem(sl.presets.committee(3, 1, lr=1.0)).drift(sl.Particles(*map(jnp.asarray, (a, M, q))))
    return compare(2 * drifts[1] - drifts[0], np.asarray(limit.M), rtol=1e-7)


@claim(
    "mean-field limit",
    "mean field at a fixed dimension",
    r"$\partial_t\rho_t = \gamma\nabla(\rho_t\nabla\ell)$ as $p\to\infty$ at fixed $d$",
)
def compare_fixed_dimension(effort: Effort) -> Comparison:
    """Compare the drift of 24 rotated copies of two erf units in R^3, in the ODE, with that in the mean-field limit."""
    a, m, q, count = np.array([1.0, -0.6]), np.array([0.4, -0.7]), np.array([1.2, 0.9]), 24
    # equally spaced: exact for trigonometric polynomials of degree below 24
    angles = 2 * np.pi * (np.arange(count) + 0.5) / count
    across = np.sqrt(q - m**2)[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    W = np.concatenate([np.repeat(m, count)[:, None], across.reshape(-1, 2)], 1)
    wide = sl.presets.committee(2 * count, 1, lr=2.0 * count, train_second=True)
    many = wide.drift_parts(make_overlaps(np.repeat(a, count), W[:, :1], W @ W.T))[0]
    limit = sl.MeanField(outside=2).adapt_problem(sl.presets.committee(2, 1, lr=2.0, train_second=True))
    right = limit.drift(sl.Particles(*map(jnp.asarray, (a, m[:, None], q))))
    return compare([*many.M[::count, 0], *many.a[::count]], [*right.M[:, 0], *right.a], atol=1e-6)


@claim(
    "mean-field limit", "risk of a measure of units", "The risk is linear in the measure of units.",
    right="The network is linear in it, and the risk is a quadratic function, which is convex.",
    tests="`test_the_risk_is_quadratic_in_the_measure_of_units` in `tests/laws/test_mean_field.py`",
)  # fmt: skip
def compare_merged_unit_risk(effort: Effort) -> Comparison:
    """Compare the risk of a wide network merged from two, by quadrature, with the exact formula, quadratic in the measure.

    The printed value is the mean of the risks of the two pairs.
    """
    one, two, E = random_weights(2, 3, seed=0), random_weights(2, 3, seed=1), np.eye(1, 3)
    each = [SquaredUnits(W, E) for W in (one, two)]
    ends = (each[0].risk + each[1].risk) / 2
    apart = each[0].mean((each[0].error - each[1].error) ** 2) / 8
    return compare(SquaredUnits(np.concatenate([one, two]), E).risk, ends - apart, ends)


@claim(
    "global convergence",
    "only global optima",
    "From all directions a flow of 2-homogeneous units can only end in a global optimum",
)
def compare_global_convergence(effort: Effort) -> Comparison:
    """Compare the final excess risk of relu units in the mean field with 0, and with 1/4 from one-signed starts.

    From all overlaps and both signs of the second layer the risk decays to zero as t^-2; from negative second layers only it
    ends at the risk of the zero network.
    """
    angles, ends = np.linspace(-0.95, 0.95, 16), []
    for signs in ([1.0, -1.0], [-1.0]):
        a, p = np.repeat(signs, 16), 16 * len(signs)
        start = sl.Particles(*map(jnp.asarray, (a, np.tile(angles, len(signs))[:, None], np.ones(p))))
        problem = sl.presets.committee(p, 1, "relu", lr=float(p), train_second=True)
        found = simulate(problem, sl.MeanField(), start, 200, save=[200.0])
        ends.append(float(found.risk[0, -1]))
    return compare(ends, [0.0, 0.25], atol=1e-4)


def half_times(ratio: float, units: int = 10) -> list[float]:
    """Return the mean-field times at which components 1 to 3 of the Hermite target h1 + (h2 + h3)/2 are half learnt.

    Here hn is the Hermite polynomial of order n. Units with activation h0 + h1 + h2 + h3 are on the sphere; the component n of
    the network is the mean of a m^n over units with second layer a and overlap m.

    Parameters
    ----------
    ratio : learning rate of the second layer over that of the first

    units : number of units
    """
    n, target = np.arange(4), np.array([0.0, 1.0, 0.5, 0.5])

    def slope(x: float, y: np.ndarray) -> np.ndarray:
        """Return the derivative of (a, m), second layer and overlaps of the units, in the logarithm x of time."""
        a, m = y[:units], y[units:]
        powers = m[:, None] ** n
        error = target - a @ powers / units
        # d/dx = t d/dt, as x is the logarithm of time
        return np.exp(x) * np.concatenate([ratio * powers @ error, a * (1 - m**2) * (powers[:, :3] @ (n[1:] * error[1:]))])

    # k=k binds the loop variable
    events = [lambda x, y, k=k: (y[:units] * y[units:] ** k).mean() - target[k] / 2 for k in (1, 2, 3)]
    events[2].terminal = True  # type: ignore[attr-defined]
    first = np.concatenate([np.linspace(-1, 1, units), np.zeros(units)])
    span = np.log([0.01 / ratio, 10.0])  # in the logarithm of time
    found = solve_ivp(slope, span, first, method="Radau", rtol=1e-6, atol=1e-9, events=events)
    return [float(np.exp(each[0])) for each in found.t_events]


@claim(
    "single-index models, two rates",
    "two time scales of the mean field",
    r"A second layer $1/\varepsilon$ times faster: component $n$ at $\varepsilon^{1/2n}$, "
    r"the first later by $\log 1/\varepsilon$ [12]",
)
def compare_two_time_scales(effort: Effort) -> Comparison:
    """Compare the exponents of three learning times in the ratio of the layers' learning rates with 1/2, 1/4 and 1/6.

    The times are those of a numerical solution of the mean field, and the ratio is the first layer's rate over the second's.
    The first time is divided by its logarithm.
    """
    ratios = np.array([1e10, 1e12])
    times = np.log([half_times(ratio) for ratio in ratios])
    times[:, 0] -= np.log(np.log(ratios))
    return compare(-np.diff(times, axis=0)[0] / np.log(100), [1 / 2, 1 / 4, 1 / 6], atol=0.02)

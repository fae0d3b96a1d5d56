"""The first correction to the ODE in 1/d: against exact steps, and against the chain."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss

import sgdlimits as sl
from sgdlimits.analysis.correction import drift_correction

correction = eqx.filter_jit(drift_correction)


def exact_step(m, d, lr, noise, sphere):
    """E of the new overlaps of one squared unit after one step in dimension d, by quadrature over the sample in plain NumPy.

    Two points stand for the chi-square number: its mean and variance are all that counts up to order 1/d^2.
    """
    x, w = hermegauss(24)
    g, h, z, chi = np.meshgrid(x, x, x, d - 2 + np.sqrt(2 * (d - 2)) * np.array([-1, 1]), indexing="ij")
    weight = np.einsum("i,j,k,l->ijkl", w, w, w, np.ones(2))
    field = m * g + np.sqrt(1 - m * m) * h
    c = lr / d * 2 * field * (g**2 + np.sqrt(noise) * z - field**2)
    overlap = m + c * g
    square = overlap**2 + (np.sqrt(1 - m * m) + c * h) ** 2 + c**2 * chi
    mean = lambda values: float((weight * values).sum() / weight.sum())
    return (mean(overlap / np.sqrt(square)),) if sphere else (mean(overlap), mean(square))


@pytest.mark.parametrize("sphere", [True, False])
def test_correction_of_the_drift_is_that_of_exact_steps(sphere):
    """d (d E[step] - b) at d = 4000 and 8000, extrapolated: within 1e-3 of b1, whose next term is of order 1/d^2."""
    m, lr, noise = 0.4, 0.03, 0.5
    problem = sl.presets.phase_retrieval(lr=lr, noise=noise, sphere=sphere)
    point = sl.FixedInit(m).one(problem)
    now, free = np.array([m, 1.0]), np.flatnonzero(problem.coordinates.moves(point))
    b = np.asarray(problem.vector(problem.drift(point)))[free]
    first = lambda d: d * (d * (np.array(exact_step(m, d, lr, noise, sphere)) - now[: free.size]) - b)
    expected = 2 * first(8000) - first(4000)
    assert np.allclose(np.asarray(correction(problem, point))[free], expected, rtol=1e-3, atol=1e-3)


TWO = sl.Overlaps([1.0, 1.0], [[0.6], [-0.4]], [[1.0, 0.2], [0.2, 1.0]])
ONE = sl.Overlaps([1.0], [[0.3]], [[1.0]])
CASES = {
    "phase retrieval": (sl.presets.phase_retrieval(width=2, lr=0.1, noise=0.1), TWO, 1.0, (16, 32), 150_000),
    "erf": (sl.presets.committee(1, 1, "erf", lr=3.0, noise=0.3), ONE, 2.0, (8, 20), 150_000),
    "batches": (
        sl.presets.committee(1, 1, "erf", algorithm=sl.OnePassSGD(3.0, lr_second=0.5, ridge=0.1, batch=3)),
        *(ONE, 6.0, (9, 18), 150_000),
    ),
    "mixture": (sl.presets.binary_mixture(2.0, 0.2, lr=3.0), sl.RandomInit(50), 1.0, (8, 16), 15_000),
}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_mean_beyond_its_first_correction_falls_as_inverse_square_of_d(case, say):
    """d^2 times what is left is the same number at two dimensions, within 4 standard errors, and not zero."""
    problem, start, t, sizes, runs = CASES[case]
    start = start.one(problem, seed=1) if isinstance(start, sl.RandomInit) else start
    path, free = sl.expansion(problem, start, t, save=2).isel(t=-1), np.flatnonzero(problem.coordinates.moves(start))
    left, error, variance = [], [], []
    seen = problem.with_expectation(sl.Sobol(5, 4)) if case == "mixture" else problem  # of which the risk costs little
    for d in sizes:
        chain = sl.simulate(seen, sl.Chain(d), start, t_max=t, runs=runs, seed=3, save=[t], progress=False).isel(t=-1)
        stats = sl.Overlaps(chain.a.values, chain.M.values, chain.Q.values)
        x = np.asarray(jax.vmap(problem.vector)(stats))[:, free]
        left.append(d**2 * (x.mean(0) - path.ode.values - path["first"].values / d))
        error.append(d**2 * x.std(0) / np.sqrt(runs))
        variance.append(d * x.var(0) / np.diagonal(path.covariance))
    worst = int(np.argmax(np.abs(left[0]) / error[0]))
    say(f"{case}: d^2 times the rest {[f'{a[worst]:.2f} +- {e[worst]:.2f}' for a, e in zip(left, error, strict=True)]}")
    assert np.abs(left[0][worst]) > 4 * error[0][worst]
    assert (np.abs(left[1] - left[0]) < 4 * np.hypot(*error) + 0.3 * np.abs(left[0])).all()
    assert (np.abs(variance[1] - 1) < 0.35).all()
    assert (np.abs(variance[1] - 1) <= np.abs(variance[0] - 1) + 0.03).all()


def test_trust_names_the_chain_for_an_escape():
    problem = sl.presets.phase_retrieval(lr=0.1)
    escape = sl.trust(problem, sl.RandomInit(d=3000), d=3000, t_max=60)
    assert escape.fails is not None
    assert "Use Chain(d=3000)" in repr(escape)
    assert not escape.within(0.5)
    smooth = sl.trust(problem, sl.FixedInit(0.5), d=10**6, t_max=5)
    assert smooth.within()
    assert "within 1%" in repr(smooth)


def test_expansion_is_for_one_pass_sgd_on_projections():
    with pytest.raises(sl.BadInput, match=r"got HeavyBall. Simulate with Chain\(d\)"):
        sl.trust(sl.presets.phase_retrieval(algorithm=sl.HeavyBall(0.1, 0.5)), sl.FixedInit(0.5), 100, 1.0)


@pytest.mark.parametrize(("m", "lr", "noise"), [(0.1, 1 / 12, 0.0), (0.6, 0.05, 1.0), (-0.9, 0.12, 0.3)])
def test_one_unit_on_the_sphere_has_the_polynomial_of_wicks_theorem(m, lr, noise):
    stats = sl.Overlaps([1.0], [[m]], [[1.0]])
    found = correction(sl.presets.phase_retrieval(lr=lr, noise=noise), stats)
    np.testing.assert_allclose(found[0], sl.theory.mediocrity.drift_correction(m, lr, noise), rtol=1e-9)

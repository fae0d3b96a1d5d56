"""Effective dynamics of a function of the statistics: the native ones, one step of the chain, and a random start."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl

PROBLEM = sl.presets.phase_retrieval(width=2, lr=0.3, noise=0.5, sphere=False)
STATE = sl.Overlaps(a=[1.0, 1.0], M=[[0.5], [-0.2]], Q=[[1.0, 0.1], [0.1, 0.6]])
CHOSEN = {
    "m^2": lambda u: u.M[0, 0] ** 2,
    "angle": lambda u: jnp.arccos(u.M[0, 0] / jnp.sqrt(u.Q[0, 0])),
    "norm ratio": lambda u: jnp.sqrt(u.Q[0, 0] / u.Q[1, 1]),
}


@pytest.mark.parametrize("make", [lambda u: u, lambda u: {"M": u.M, "Q": u.Q}], ids=["statistics", "dictionary"])
def test_the_identity_has_the_native_dynamics(make):
    native, ours = sl.effective_dynamics(PROBLEM), sl.effective_dynamics(PROBLEM, statistics=make)
    for part in ("f", "g", "h"):
        own, theirs = getattr(ours, part)(STATE), getattr(native, part)(STATE)
        for name in ("M", "Q"):
            value = own[name] if isinstance(own, dict) else getattr(own, name)
            np.testing.assert_allclose(value, getattr(theirs, name), rtol=1e-12, atol=1e-14)
    assert ours.closure().closed
    if not isinstance(make(STATE), dict):
        np.testing.assert_allclose(ours.Sigma(STATE), native.Sigma(STATE), rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("name", CHOSEN)
def test_drift_and_second_order_term_are_those_of_a_step_of_the_chain(name, say):
    """A step has two more terms of order 1/d: those of the drift itself, and of its square; both are subtracted.

    Most of the spread of a step is that of its linear part, whose mean is known.
    """
    d, runs, fn = 240, 1_600_000, CHOSEN[name]
    data = sl.simulate(PROBLEM, sl.Chain(d), STATE, t_max=1 / d, runs=runs, save=2, seed=3, progress=False)
    values = jax.vmap(lambda M, Q: fn(sl.Overlaps([1.0, 1.0], M, Q)))(data.M.values[:, -1], data.Q.values[:, -1])
    jumps = d * (np.asarray(values) - float(fn(STATE)))
    moved = jax.vmap(lambda M, Q: PROBLEM.vector(sl.Overlaps([1.0, 1.0], M, Q)))(data.M.values[:, -1], data.Q.values[:, -1])
    along = lambda x: fn(PROBLEM.from_vector(x, STATE))
    x, b = PROBLEM.vector(STATE), PROBLEM.vector(PROBLEM.drift(STATE))
    slope, bend = jax.jacfwd(along)(x), jax.hessian(along)(x)
    curved = jumps - d * np.asarray((moved - x) @ slope)
    measured, error = curved.mean() + float(slope @ b) - float(b @ bend @ b) / (2 * d), curved.std() / np.sqrt(runs)
    dynamics = sl.effective_dynamics(PROBLEM, statistics=fn)
    limit, ours = float(dynamics.h(STATE)), float(dynamics.at(d).h(STATE))
    say(f"{name}: {measured:.4f} +- {error:.4f}, at d = {d} {ours:.4f}, as d grows {limit:.4f}")
    assert abs(measured - ours) < 4 * error + 2 * abs(ours - limit) * 4 / d
    assert abs(measured - limit) > 5 * error


def test_a_magnified_square_at_the_saddle_has_its_second_order_term_in_the_limit(say):
    """v = d m^2 is of order one at a random start: v' = 2 rate v + Sigma_mm."""
    problem, d = sl.presets.phase_retrieval(lr=0.1, noise=0.5), 10**6
    dynamics = sl.effective_dynamics(problem, statistics=lambda u, d: {"v": d * u.M[0, 0] ** 2})
    start = sl.Overlaps([1.0], [[1 / np.sqrt(d)]], [[1.0]])
    with pytest.raises(sl.BadInput, match=r"dynamics\.at\(1000\)"):
        dynamics.h(start)
    at = lambda v: float(dynamics.at(d).h(sl.Overlaps([1.0], [[np.sqrt(v / d)]], [[1.0]]))["v"])
    slope, kick, t = at(2.0) - at(1.0), 2 * at(1.0) - at(2.0), 1.0
    expected = (1 + kick / slope) * np.exp(slope * t) - kick / slope
    data = sl.simulate(problem, sl.SDE(d), start, t_max=t, runs=20_000, save=2, seed=1, progress=False)
    v = d * data.M.values[:, -1, 0, 0] ** 2
    say(f"E d m^2 at t = {t:g}: {v.mean():.3f} +- {v.std() / 141:.3f}, by the chain rule {expected:.3f}")
    assert abs(v.mean() - expected) < 5 * v.std() / np.sqrt(v.size)
    assert kick == pytest.approx(float(problem.covariance(start)[0, 0]), rel=1e-3)
    assert float(dynamics.at(d).diffusion(start)[0, 0]) == pytest.approx(4 * kick, rel=1e-3)


def test_statistics_that_do_not_close_are_told_with_what_they_miss():
    spike = sl.presets.spiked_tensor(2, 1.2)
    assert sl.effective_dynamics(spike, statistics=lambda u: {"m2": u.m**2, "r2": u.r2}).closure().closed
    alone = sl.effective_dynamics(spike, statistics=lambda u: {"m": u.m}).closure()
    assert not alone.closed
    assert "NO function of the statistics: where all of them stay the same, that of m changes with r2" in repr(alone)
    sphere = sl.presets.phase_retrieval(lr=0.1)
    assert sl.effective_dynamics(sphere, statistics=lambda u: {"m": u.M[0, 0]}).closure().closed
    assert sl.effective_dynamics(sphere, statistics=lambda u, d: jnp.sqrt(d) * u.M[0, 0]).at(1000).closure().closed


def test_functions_that_cannot_be_statistics_are_refused():
    for wrong, words in (
        (lambda u: u.W, "no attribute 'W'.*no closed dynamics"),
        (lambda u: u.M[7, 0], "out of bounds"),
        (lambda u: "m", "statistics fails on Overlaps"),
        (lambda u: jnp.sqrt(u.M[0, 0] - 0.5), "no finite derivative of u"),
        (lambda u: np.arccos(u.M[0, 0]), "it calls NumPy"),
        (lambda u: float(u.M[0, 0]), "it needs the value"),
        (lambda u: u.M > 0, "got bools"),
        (lambda u: 1j * u.M, "got complex numbers"),
        (lambda u: None, "got nothing"),
        (lambda u: {}, "got nothing"),
    ):
        with pytest.raises(sl.BadInput, match=words) as told:
            sl.effective_dynamics(PROBLEM, statistics=wrong).f(STATE)
        assert "\n" not in str(told.value)
    with pytest.raises(sl.BadInput, match="not for functions of these statistics"):
        sl.effective_dynamics(PROBLEM, statistics=CHOSEN["m^2"]).localizability()
    with pytest.raises(sl.BadInput, match="needs statistics="):
        sl.effective_dynamics(PROBLEM, d=100)
    above = sl.effective_dynamics(PROBLEM, 0.5, statistics=CHOSEN["m^2"])
    with pytest.raises(sl.BadInput, match="no limit at the exponent"):
        above.h(STATE)
    below = sl.effective_dynamics(PROBLEM, 1.5, statistics=CHOSEN["norm ratio"])
    assert float(below.g(STATE)) == 0.0
    assert float(below.h(STATE)) == -float(below.f(STATE))

"""Lower bounds of risks from one state."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import sgdlimits as sl
from sgdlimits.level.stopping import _max_curvature, risk_bound
from sgdlimits.model.activation import Activation, PiecewiseLinear, as_activation

PROBLEMS = {
    "two classes": lambda: sl.presets.binary_mixture(snr=2.0),
    "two classes with little noise": lambda: sl.presets.binary_mixture(snr=50.0),
    "exclusive or": lambda: sl.presets.xor_mixture(snr=5.0, width=2),
    "leaky units, a label between": lambda: sl.presets.gaussian_mixture(
        [[1, 0], [0, 1], [-1, 1]],
        [0, 1, 0.3],
        [0.2, 0.3, 0.5],
        4.0,
        activation=PiecewiseLinear(1.0, 0.2),
        gram=[[1, 0.5], [0.5, 1]],
    ),
    "classes without noise": lambda: sl.presets.xor_mixture(snr=np.inf),
    "four units": lambda: sl.presets.xor_mixture(snr=1000.0),
    "tanh": lambda: sl.presets.committee(3, 2, "tanh", noise=0.1),
    "softplus": lambda: sl.presets.committee(2, 1, jax.nn.softplus),
}


KINDS = {"four units": (True,), "classes without noise": (True,), "tanh": (False,), "softplus": (False,)}
"""Whether its bound is cheap; the others have both kinds, and they differ."""


@eqx.filter_jit
def risks(rule, model, *states):
    one = lambda a, S: rule.risk(model, a, model.law(sl.Overlaps(a, S[:, : model.teachers] @ model.frame.T, S @ S.T)))
    return jax.lax.map(lambda state: one(*state), states)


@eqx.filter_jit
def numbers_below(rule, model, *states):
    return jax.vmap(lambda a, S: risk_bound(rule, model, a, S, cheap=True).value)(*states)


@eqx.filter_jit
def bounds(rule, model, a, S, cheap):
    return risk_bound(rule, model, a, S, cheap)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_risk_is_nowhere_below_its_bound_and_touches_it(name):
    """From states near by and far away, with units that turn round or almost coincide, and second layers that change signs.

    A grid of four units fails this where two of them almost coincide, and one of smooth units of classes where they are long.
    A cheap bound has a value of its own, below the risk, for which the same holds.
    """
    problem = PROBLEMS[name]()
    rule, model, p = problem.expectation, problem.model, problem.network.width
    risk, below, bound = (partial(function, rule, model) for function in (risks, numbers_below, bounds))
    for cheap in KINDS.get(name, (False, True)):
        for seed in range(18):
            rng = np.random.default_rng(seed)
            a, S = 3 * rng.normal(size=p), rng.normal(size=(p, 6)) * [0.1, 0.7, 2.0][seed // 3 % 3]
            if seed % 3 == 1:
                S[1] = S[0] + 1e-3 * rng.normal(size=6)
            if seed % 3 == 2:  # one unit is wrong everywhere in some classes, the others little
                a[0] = -60
            value, slope, bend = jax.tree.map(np.asarray, bound(a, S, cheap))
            far = 10 + 10 * (a**2).max()
            sizes = np.repeat([0.0, 1e-3, 0.1, 0.5, 2.0], 6)
            some, last = [rng.normal(size=x.shape) for x in (a, S)], np.arange(p)[:, None] == p - 1
            ways = [some, (0 * a, last * some[1]), slope, (0 * a, last * slope[1]), (0 * a, -S), (-a, 0 * S)] * 5
            changes = [np.stack([-size * x for size, x in zip(sizes, part, strict=True)]) for part in zip(*ways, strict=True)]
            line, bends, left = (
                sum((weight * x**power).reshape(sizes.size, -1).sum(1) for weight, x in zip(weights, changes, strict=True))
                for weights, power in ((slope, 1), (bend, 2), ((far, far), 2))
            )
            states = a + changes[0], S + changes[1]
            there = np.asarray((below if cheap else risk)(*states))
            assert (there > value + line - bends - 1e-6).all()
            np.testing.assert_allclose(there[0], value, rtol=1e-12)
            assert (there < value + line + left + 1e-9)[sizes <= 1e-3].all()  # what is left of the line is quadratic
            assert not cheap or (there < risk(*states) + 1e-6).all()


def test_a_cheap_bound_is_near_where_outputs_vary_little_in_a_class():
    """The loss of a mean is less than the mean loss by half of a variance of at most 0.05, times a curvature of at most 1/4."""
    problem, S = sl.presets.binary_mixture(snr=50.0), jnp.array([[1.0, 0.3, 0.0], [-1.0, 0.0, 0.2]])
    bound = lambda cheap: jax.jit(lambda a: risk_bound(problem.expectation, problem.model, a, S, cheap).value)(
        jnp.array([1.0, -1.5])
    )
    value, near = bound(False), bound(True)
    assert value - 0.01 < near < value


def test_what_a_unit_bends_is_within_its_largest_and_comes_near_it():
    """The remainder of the mean of a unit in closed form, E max(x, 0) for x of mean m and deviation s."""
    mean = lambda m, s: m * norm.cdf(m / s) + s * norm.pdf(m / s)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        problem = sl.presets.binary_mixture(snr=10.0 ** rng.uniform(-1, 2), width=1)
        data, unit = problem.model.data, rng.normal(size=4) * [3.0, 1.0, 1.0, 1.0]
        most, sigma, centres = (
            np.asarray(_max_curvature(problem.model, unit[None])),
            float(data.sigma),
            np.asarray(data.means)[:, 0],
        )
        changes = np.linalg.norm(unit) * 10.0 ** rng.uniform(-2, 1, size=(20_000, 1)) * rng.normal(size=(20_000, 4))
        changes[::2, 2:] = changes[::2, 1:2] * unit[2:] / unit[1]  # in the plane of the unit and the means
        new = unit + changes
        for c, b in enumerate(centres):
            m, s = b * unit[0], sigma * np.linalg.norm(unit)
            slope = norm.cdf(m / s) * b * np.eye(4)[0] + sigma * norm.pdf(m / s) * unit / np.linalg.norm(unit)
            bends = mean(b * new[:, 0], sigma * np.linalg.norm(new, axis=1)) - new @ slope
            share = bends / (changes**2).sum(1) / most[0, c]
            assert 0.3 < share.max() <= 1


def test_what_a_unit_bends_without_noise_is_within_its_largest_which_is_reached():
    """Where a field becomes its opposite by the shortest way."""
    rng, problem = np.random.default_rng(0), sl.presets.xor_mixture(snr=np.inf, width=1)
    centres, unit = np.asarray(problem.model.data.means), rng.normal(size=4)
    most = np.asarray(_max_curvature(problem.model, unit[None]))[0]
    for c, centre in enumerate(np.pad(centres, ((0, 0), (0, 2)))):
        field = unit @ centre
        changes = np.vstack([-2 * field * centre / (centre @ centre), 3 * rng.normal(size=(10_000, 4))])
        bends = np.maximum(field + changes @ centre, 0) - max(field, 0) - (field > 0) * changes @ centre
        share = bends / (changes**2).sum(1) / most[c]
        np.testing.assert_allclose([share[0], share.max()], 1.0)


def test_there_is_none_where_nothing_is_bounded_or_a_grid_is_coarse():
    smooth = sl.presets.gaussian_mixture([[1], [-1]], [1, 0], snr=3.0, activation="tanh")
    networks = (sl.presets.committee(2, 1, "relu"), sl.presets.committee(2, 1, jnp.sinh), sl.presets.phase_retrieval(2))
    for problem in (*networks, smooth, sl.presets.xor_mixture(snr=5.0)):
        p = problem.network.width
        assert risk_bound(problem.expectation, problem.model, jnp.ones(p), jnp.eye(p, p + 2), False) is None


def test_the_steepest_slopes_of_units():
    """Within a tenth above the largest of tanh, at 0 and where tanh^2 = 1/3."""
    slope, bend = as_activation("tanh").derivative_bounds
    assert 1 <= slope < 1.11
    assert 4 / 27**0.5 <= bend < 1.11 * 4 / 27**0.5
    assert as_activation("square").derivative_bounds is None
    assert as_activation("abs").derivative_bounds == (1.0, 0.0)


def test_a_unit_with_numbers_of_its_own_is_not_looked_at():
    class Scaled(Activation):
        scale: jax.Array

        def __call__(self, fields):
            return jnp.tanh(self.scale * fields)

    assert Scaled(jnp.ones(())).derivative_bounds is None

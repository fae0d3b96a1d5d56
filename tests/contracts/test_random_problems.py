"""Laws over random problems of a user's own: vector fields in batches and by Monte Carlo, and every level against another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_problems import random_problem

import sgdlimits as sl
from sgdlimits.model.activation import as_activation

FEW, ALL = 40, 400
"""Problems that are drawn without and with --all."""
LEVELS_EACH = 20
"""One problem in so many is simulated at four levels, which takes as long as the vector fields of several."""


def seeds(every: int = 1, first: int = 0) -> list:
    return [pytest.param(seed, marks=() if seed < FEW else pytest.mark.full) for seed in range(first, ALL, every)]


def in_limit(problem, stats):
    """The problem that remains as d grows and its statistics: fast velocities, for example, are gone."""
    return problem.limit, problem.coordinates.in_limit(stats)


def fields(problem, covariance=True):
    """The drift as a vector, and the covariance, as one function of statistics."""
    drift = lambda stats: problem.vector(problem.drift(stats))
    return jax.jit(lambda stats: (drift(stats), problem.covariance(stats)) if covariance else (drift(stats),))


@pytest.mark.parametrize("seed", seeds())
def test_fields_are_those_of_one_sample_in_batches_of_any_size(seed, random_statistics):
    """Alone, in a batch of one, in a larger one, and where SGD is plain by Monte Carlo.

    The covariance of one problem in four: it takes most of the time to compile.
    """
    drawn = random_problem(seed)
    covariance = seed % 8 < 2
    states = [in_limit(drawn, random_statistics(drawn, seed + i)) for i in range(8)]
    problem, stats = states[0][0], [one for _, one in states]
    alone = fields(problem, covariance)(stats[0])
    for size in (1,) if seed % 4 else (1, (2, 3, 8)[seed % 3]):
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stats[:size])
        together = jax.jit(jax.vmap(fields(problem, covariance and size == 1)))(stacked)
        for one, many in zip(alone, together, strict=False):
            assert np.isfinite(many).all()
            np.testing.assert_allclose(many[0], one, rtol=1e-9, atol=1e-9 * max(1.0, np.abs(one).max()))
    if seed % 2 == 0:
        found = increments(problem, stats[0], 100_000, np.random.default_rng(seed))
        agree_with_samples(found, *alone, heavy=problem.network.activation == as_activation("square"))


ROUNDING = 1e-12
"""Entries that the sphere keeps at zero differ by rounding."""


def agree_with_samples(found, drift, covariance=None, heavy=False):
    """Six standard errors for each entry: one false alarm in 10^7 problems. `heavy` allows a covariance 5 % instead of 1 %.

    The covariance of squares is an average of polynomials of degree 12: for seed 224 the default nodes are 4 % off, 2^15
    of them 1.5 %, and the standard error of 10^5 samples is itself not known to 10 %.
    """
    n = found.shape[1]
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    accuracy = 2e-3 * np.abs(found).mean(axis=0)  # expectations by quadrature are asked for 1e-3
    assert (np.abs(found.mean(axis=0) - drift[:n]) <= 6 * error + accuracy + ROUNDING).all()
    if covariance is None:
        return
    centred = found - found.mean(axis=0)
    products = centred[:, :, None] * centred[:, None, :]
    error, accuracy = products.std(axis=0) / np.sqrt(len(found)), 5e-2 if heavy else 1e-2
    assert (np.abs(products.mean(axis=0) - covariance) <= 6 * error + ROUNDING + accuracy * np.abs(products).mean(axis=0)).all()


def increments(problem, stats, samples, rng):
    """d times the change of the statistics by one sample of plain SGD as d grows, from nothing but the definitions."""
    data, sgd = problem.data, problem.algorithm
    classes = rng.choice(data.classes, size=samples, p=np.asarray(data.weights))
    P = np.asarray(problem.directions.gram)
    M, Q, a = (np.asarray(leaf) for leaf in (stats.M, stats.Q, stats.a))
    omega = np.block([[Q, M], [M.T, P]])
    means = np.zeros((1, len(P))) if data.centred else np.asarray(data.means)
    p, b, sigma = len(Q), means[classes], float(data.sigma)
    mean = np.concatenate([b @ M.T, b @ P], axis=1)
    values, vectors = np.linalg.eigh(omega)
    v = mean + sigma * rng.normal(size=mean.shape) * np.sqrt(np.maximum(values, 0)) @ vectors.T
    l, fixed = v[:, :p], v[:, p:]
    label = problem.target.readout(jnp.asarray(fixed.T)) + np.sqrt(float(problem.target.noise)) * rng.normal(size=samples)
    loss = lambda l, a, y: problem.loss(problem.network(l, a), y)
    G, Ga = jax.jit(jax.vmap(jax.grad(loss, (0, 1)), in_axes=(0, None, 0)))(l, a, jnp.asarray(label))
    G, Ga, lr, ridge = np.asarray(G), np.asarray(Ga), float(sgd.lr), float(sgd.ridge)
    outer = lambda x, y: x[:, :, None] * y[:, None, :]
    dM = -lr * (outer(G, fixed) + ridge * M)
    dQ = -lr * (outer(G, l) + outer(l, G) + 2 * ridge * Q) + lr**2 * sigma**2 * outer(G, G)
    if sgd.sphere:
        own = np.diagonal(dQ, axis1=1, axis2=2)
        dM = dM - M * own[:, :, None] / 2
        dQ = dQ - Q * (own[:, :, None] + own[:, None, :]) / 2
    parts = [dM.reshape(samples, -1), dQ[(slice(None), *np.triu_indices(p))]]
    if problem.trains_second:
        parts.append(-float(sgd.lr_second) * (Ga + ridge * a))
    return np.concatenate(parts, axis=1)


D, END, RUNS = 2000, 0.5, 64


@pytest.mark.filterwarnings("ignore::sgdlimits.errors.AccuracyWarning")  # of the coarse rule of the SDE
@pytest.mark.parametrize("seed", seeds(LEVELS_EACH, first=1))
def test_levels_agree(seed, random_statistics, same_law):
    """Means of chain and SDE and the ODE within six standard errors and order 1/d; chain and SGD in law at d = 20."""
    problem = random_problem(seed)
    few = problem.with_expectation(sl.Sobol(3, 2))  # for levels whose path needs no expectation
    start = random_statistics(problem, seed)
    names = list(problem.coordinates.variables(problem.coordinates.in_limit(start)))
    run = lambda problem, level, runs, t, seed: sl.simulate(
        problem, level, start, t_max=t, save=[t], runs=runs, seed=seed, progress=False
    )
    chain = run(few, sl.Chain(D), RUNS, END, 1)
    sde = run(problem.with_expectation(sl.Sobol(8, 4)), sl.SDE(D), RUNS, END, 2)
    ode = run(problem, sl.ODE(), 1, END, 0)
    for name in names:
        x, y, z = (each[name].values for each in (chain, sde, ode))
        assert all(np.isfinite(values).all() for values in (x, y, z))
        scale = np.abs(x).max()
        error = 6 * x.std(axis=0, ddof=1) / np.sqrt(RUNS)
        assert (np.abs(x.mean(axis=0) - z[0]) <= error + 10 * scale / D).all(), f"{name}: chain and ODE"
        error = np.hypot(error, 6 * y.std(axis=0, ddof=1) / np.sqrt(RUNS))
        assert (np.abs(x.mean(axis=0) - y.mean(axis=0)) <= error + 10 * scale / D).all(), f"{name}: chain and SDE"
    small = [run(few, level(20), 1000, 1.0, seed) for seed, level in enumerate((sl.Chain, sl.SGD))]
    same_law(*({name: each[name].values for name in names} for each in small))

"""What every problem keeps, whatever the level."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import sgdlimits as sl


def test_chain_has_the_law_of_sgd(problem, same_law):
    """Of the statistics; the risk, which is a function of them, by a few points."""
    if isinstance(problem, sl.ProjectionProblem):
        problem = problem.with_expectation(sl.Sobol(3, 2))
    times = np.array([1, 10, 100]) / 20
    data = [
        sl.simulate(problem, level, sl.RandomInit(20), t_max=5.0, runs=2000, seed=seed, save=times, progress=False)
        for seed, level in enumerate((sl.Chain(20), sl.SGD(20)))
    ]
    names = problem.coordinates.variables(sl.FixedInit(0.3).one(problem))
    same_law(*({name: each[name].values for name in names} for each in data))


def test_drift_can_be_differentiated_and_batched(problem, random_statistics):
    stats = [random_statistics(problem, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stats)
    slopes = lambda problem, one: jax.jacfwd(lambda at: (problem.drift(at),) * 2, has_aux=True)(one)
    jacobians, together = eqx.filter_jit(eqx.filter_vmap(slopes, in_axes=(None, 0)))(problem, stacked)
    for i, one in enumerate(stats):
        for left, right in zip(jax.tree.leaves(together), jax.tree.leaves(problem.drift(one)), strict=True):
            np.testing.assert_allclose(left[i], right, rtol=1e-10, atol=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jacobians))


def test_covariance_is_symmetric_and_positive(problem, random_statistics):
    C = np.asarray(problem.covariance(random_statistics(problem)))
    np.testing.assert_allclose(C, C.T, atol=1e-10 * np.abs(C).max())
    assert np.linalg.eigvalsh(C).min() > -1e-10 * np.abs(C).max()

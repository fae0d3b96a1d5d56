"""The rule that computes expectations follows from what a problem is now, and from nothing that was stored or traced."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl


def classes(noise=0.0, variance=0.2, activation="relu"):
    return sl.ProjectionProblem(
        target=sl.Target(sl.ClassLabels([1.0, 0.0]), 1, noise=noise),
        network=sl.TwoLayer(2, activation, mean=False),
        loss=sl.CrossEntropy(),
        algorithm=sl.OnePassSGD(lr=0.5, lr_second=0.2),
        data=sl.mixture([[1.0], [-1.0]], variance=variance),
    )


@eqx.filter_jit
def limits(problem):
    """Drift, corrector and covariance."""
    return problem.drift_parts(STATS), problem.covariance(STATS)


STATS = sl.Overlaps([1.0, -1.0], [[0.3], [-0.2]], [[1.0, 0.1], [0.1, 1.0]])


def test_another_activation_is_another_drift():
    squares = sl.presets.phase_retrieval(lr=0.1)
    stats = sl.FixedInit(0.3).one(squares)
    changed = eqx.tree_at(lambda problem: problem.network.activation, squares, sl.Erf())
    fresh = sl.ProjectionProblem(squares.target, sl.TwoLayer(1, "erf"), squares.loss, squares.algorithm)
    assert type(changed.expectation) is type(fresh.expectation) is not type(squares.expectation)
    np.testing.assert_array_equal(changed.drift(stats).M, fresh.drift(stats).M)
    assert float(changed.risk(stats)) == float(fresh.risk(stats))
    assert not np.allclose(changed.drift(stats).M, squares.drift(stats).M)


@pytest.mark.parametrize("name", ["noise", "variance"])
def test_numbers_that_are_traced_choose_nothing(name):
    """Drift, corrector and risk of class labels are the same eagerly, compiled and mapped."""
    values = jnp.array([0.1, 0.7])

    def all_of(value):
        problem = classes(**{name: value})
        return problem.drift_parts(STATS), problem.risk(STATS)

    mapped = jax.vmap(all_of)(values)
    for i, value in enumerate(values):
        for alone, together in zip(jax.tree.leaves(all_of(float(value))), jax.tree.leaves(mapped), strict=True):
            np.testing.assert_allclose(together[i], alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("variance", [0.2, 0.0])
def test_label_noise_of_classes_is_that_of_nodes(activation, variance):
    """Against nodes over the noise and the fields; without variance only the noise has nodes that matter."""
    problem = classes(0.6, variance, activation)
    nodes = problem.with_expectation(sl.GaussHermite(28 if variance else 6))
    tolerance = 1e-12 if not variance else 2e-3 if activation == "relu" else 1e-6
    (drift, C), (drift_at_nodes, C_at_nodes) = limits(problem), limits(nodes)
    for mine, theirs in zip(jax.tree.leaves(drift), jax.tree.leaves(drift_at_nodes), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=tolerance)
    if not variance or activation == "tanh":
        np.testing.assert_allclose(C, C_at_nodes, atol=max(tolerance, 1e-5) * float(jnp.abs(C).max()))


def test_data_shows_what_it_is():
    assert classes(variance=0.0).data.has_inputs_at_means
    assert not classes().data.centred
    moved = eqx.tree_at(lambda problem: problem.data.spread, classes(), jnp.asarray(0.3))
    np.testing.assert_allclose(moved.drift(STATS).M, classes(variance=0.09).drift(STATS).M, rtol=1e-12)

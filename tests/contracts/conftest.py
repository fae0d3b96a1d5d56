"""The problems that every contract is tried on: presets, and problems a user might write. Add yours to PROBLEMS."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import sgdlimits as sl


def huber(prediction, label):
    error = jnp.abs(prediction - label)
    return jnp.where(error < 1, error**2 / 2, error - 0.5)


def product(fixed):
    return fixed[0] * fixed[1]


def absolute_huber_product() -> sl.ProjectionProblem:
    """Absolute-value units, Huber loss, a readout of two directions: nothing of it is in the package."""
    return sl.ProjectionProblem(
        target=sl.Target(product, teachers=2, noise=0.1),
        network=sl.TwoLayer(2, jnp.abs),
        loss=huber,
        algorithm=sl.OnePassSGD(lr=0.3, lr_second=0.2, ridge=0.05),
        rule=sl.Sobol(log2_points=9, scrambles=8),
        name="absolute_huber_product",
    )


def unequal_teachers() -> sl.ProjectionProblem:
    """A quadratic readout of directions that are not orthonormal, on the sphere, second layer trained, batches of three."""
    return sl.ProjectionProblem(
        target=sl.Target(sl.QuadraticReadout([[1.0, 0.2], [0.2, -0.5]]), 2, noise=0.05, gram=[[1.0, 0.3], [0.3, 0.7]]),
        network=sl.TwoLayer(3, "square"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr=0.9, lr_second=0.3, sphere=True, batch=3),
        name="unequal_teachers",
    )


def own_mixture() -> sl.ProjectionProblem:
    """Three classes of different weights and two labels along directions that are not orthonormal, ridge on both layers.

    By few Sobol points, which compile faster: the accuracy of expectations has tests of its own.
    """
    means, labels, weights = [[1.0, 0.0], [-0.5, 1.0], [0.0, -1.0]], [1.0, 0.0, 1.0], [0.3, 0.5, 0.2]
    gram = [[1.0, 0.3], [0.3, 0.7]]
    return sl.presets.gaussian_mixture(
        means, labels, weights, snr=4.0, ridge=0.05, lr=1.5, width=2, gram=gram, rule=sl.Sobol(7, 4)
    )


PROBLEMS = {
    "absolute_huber_product": absolute_huber_product,
    "unequal_teachers": unequal_teachers,
    "own_mixture": own_mixture,
    "spiked_tensor": lambda: sl.presets.spiked_tensor(order=3, snr=3.0, lr=0.1, ridge=0.1),
}

LEVELS = {
    "sgd": lambda d: sl.SGD(d),
    "chain": lambda d: sl.Chain(d),
    "sde": lambda d: sl.SDE(d, dt=0.03, samples=8),
    "ode": lambda d: sl.ODE(),
}


@pytest.fixture(params=PROBLEMS)
def problem(request):
    return PROBLEMS[request.param]()


@pytest.fixture(params=LEVELS)
def level(request):
    return LEVELS[request.param]

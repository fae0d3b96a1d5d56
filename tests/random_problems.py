"""Problems that users might write, drawn at random: activation, readout, loss, sizes, trained scalars, classes, algorithm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import sgdlimits as sl

ACTIVATIONS = (
    "erf", "relu", "tanh", "square",
    jnp.sin, jnp.abs, jax.nn.softplus,
    lambda x: jnp.maximum(x, 0.2 * x), lambda x: x + 0.3 * x**2, lambda x: x * jnp.exp(-(x**2) / 4),
)  # fmt: skip
READOUTS = (
    lambda fixed: jnp.tanh(fixed[0]),
    lambda fixed: fixed[0] * fixed[-1],
    lambda fixed: jnp.abs(fixed).sum(0) - 0.5,
    lambda fixed: jnp.cos(fixed[0]) + 0.5 * fixed[-1],
    lambda fixed: jax.scipy.special.erf(fixed).mean(0),
)
LOSSES = (
    sl.SquaredLoss(),
    lambda prediction, label: jnp.logaddexp(prediction - label, label - prediction),
    lambda prediction, label: jnp.sqrt(1 + (prediction - label) ** 2),
)


def random_algorithm(rng: np.random.Generator, second: float | None, plain: bool) -> sl.Algorithm:
    """Draw plain SGD, with ridge or sphere, or one of the algorithms that remember or change the gradient."""
    lr = rng.uniform(0.1, 0.5)
    if plain:
        ridge, sphere = [(0.0, False), (0.1, False), (0.0, True)][rng.integers(3)]
        return sl.OnePassSGD(lr, lr_second=second, ridge=ridge, sphere=sphere)
    base = sl.OnePassSGD(lr, lr_second=second)
    kinds = (
        lambda: sl.HeavyBall(lr / 5, 0.8, lr_second=second),
        lambda: sl.HeavyBall(lr, friction=2.0, lr_second=second),
        lambda: sl.Averaged(base, rate=2.0),
        lambda: sl.Clipped(base, 0.5),
        lambda: sl.Private(sl.OnePassSGD(lr), 0.5, 0.3),  # it trains no second layer
        lambda: sl.AdaGradNorm(lr, 0.5),
        lambda: sl.OnePassSGD(lr, lr_second=second, batch=2),
        lambda: sl.Clipped(sl.HeavyBall(lr / 5, 0.8, lr_second=second), 0.5),
        lambda: sl.Averaged(sl.Clipped(sl.HeavyBall(lr / 5, 0.8), 0.5, each=True), rate=2.0),
    )
    return kinds[rng.integers(len(kinds))]()


def random_problem(seed: int) -> sl.ProjectionProblem:
    """Draw a problem. Even seeds have plain SGD, whose one-sample increments a test can write down."""
    rng = np.random.default_rng(seed)
    pick = lambda choices: choices[rng.integers(len(choices))]
    width, teachers = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    second = pick((None, 0.3))
    data = None
    if rng.random() < 0.3:
        means, weights = rng.normal(size=(2, teachers)), rng.uniform(0.2, 1.0, size=2)
        data = sl.mixture(means, weights / weights.sum(), variance=rng.uniform(0.3, 1.0))
    return sl.ProjectionProblem(
        target=sl.Target(pick(READOUTS), teachers, noise=rng.uniform(0.0, 0.3)),
        network=sl.TwoLayer(width, pick(ACTIVATIONS), mean=bool(rng.integers(2))),
        loss=pick(LOSSES),
        algorithm=random_algorithm(rng, second, plain=seed % 2 == 0),
        data=data,
        name=f"random{seed}",
    )

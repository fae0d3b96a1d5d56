"""Inputs that a user's function draws, with independent or weakly dependent coordinates that need not be Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from sgdlimits.domain import Function, Positive, checked
from sgdlimits.errors import BadInput
from sgdlimits.inputs.mixture import Mixture
from sgdlimits.kernel.random import Purpose
from sgdlimits.kernel.random.transform import normal_pair
from sgdlimits.trial import try_function

TRIAL_DIMENSION, TRIAL_SAMPLES = 32, 4096
"""Dimension and number of the inputs that are drawn to check their moments; their sampling error is about 2%."""
MAX_MOMENT_ERROR = 0.1
"""Largest error of the mean, relative to a standard deviation, and of the variance, in samples of that number."""
MAX_EIGENVALUE_SHARE = 1.5
"""Largest eigenvalue of the trial's covariance, relative to the variance, that passes: 1.19 for independent coordinates."""


@checked
class Sampler(Mixture):
    """Inputs drawn by a function, with mean zero and the same variance in all directions, on which `SGD(d)` trains.

    All other levels describe Gaussian inputs of the same variance, so that a simulation with `SGD(d)` shows whether these
    describe the inputs too. The fixed directions and the initial weights of `SGD(d)` are spread over all coordinates.

    Parameters
    ----------
    fn : JAX function fn(key, d) that draws the d coordinates of one input from a random key
    variance : variance of each coordinate

    >>> signs = Sampler(lambda key, d: jax.random.rademacher(key, (d,), float))
    >>> signs.squared_length.item()
    1.0
    """

    fn: Callable = eqx.field(static=True)
    variance: float = eqx.field(static=True)

    def __init__(self, fn: Function, variance: Positive = 1.0) -> None:
        super().__init__(np.ones(1), sigma=math.sqrt(variance))
        self.fn, self.variance = fn, float(variance)
        _check_moments(fn, self.variance)

    def draw_words(self, stream, samples: int) -> tuple[UInt32[Array, "steps samples runs"], ...]:
        """Draw four random words for each sample, the first two for the key of its input and the others for label noise."""
        words = stream.split_into_samples(samples).draw_words(Purpose.INPUT, 1)
        return tuple(word.reshape(stream.steps, samples, stream.runs.size) for word in words)

    def draw_vectors(self, stream, sizes, d, B, add_mean):
        if sizes.samples < sizes.inputs:
            raise BadInput("a sampler of inputs does not support algorithms with noise of their own. Use another algorithm.")
        first, second, third, fourth = self.draw_words(stream, sizes.samples)
        keys = jnp.stack([first, second], axis=-1).reshape(-1, 2)
        x = jax.vmap(lambda key: self.fn(jax.random.wrap_key_data(key, impl="threefry2x32"), d))(keys)
        z = normal_pair(third, fourth)[0]
        return x.reshape(*first.shape, d), z, jnp.zeros(first.shape, jnp.int32)


def sampler(fn: Callable, variance: float = 1.0) -> Sampler:
    """Return inputs for `SGD(d)` that the function fn(key, d) draws, with mean zero and uncorrelated coordinates.

    Inputs whose coordinates are correlated are described by `from_data`, from an array of draws.

    Parameters
    ----------
    fn : JAX function fn(key, d) that draws the d coordinates of one input from a random key
    variance : variance of each coordinate

    >>> sampler(lambda key, d: jax.random.uniform(key, (d,), float, -1.0, 1.0))
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: the inputs have the variance 0.333, and variance is 1. Give variance=0.333, or scale the inputs.
    """
    return Sampler(fn, variance)


def _check_moments(fn: Callable, variance: float) -> None:
    """Raise `BadInput` unless draws of a function have mean zero and about the given variance in all directions."""
    d, n, key = TRIAL_DIMENSION, TRIAL_SAMPLES, jax.random.key(0)
    try_function("the sampler", lambda key: fn(key, d), f"a key and d = {d}", key, shape=(d,), values=False)
    x: Float[np.ndarray, "n d"] = np.asarray(jax.jit(jax.vmap(lambda key: fn(key, d)))(jax.random.split(key, n)))
    if not np.isfinite(x).all():
        raise BadInput(
            f"the function fn must return finite numbers; some of {n} inputs in d = {d} are not finite. Correct fn(key, {d})."
        )
    mean, measured = x.mean(0), x.var()
    if abs(mean).max() > MAX_MOMENT_ERROR * max(math.sqrt(measured), 1e-300):
        raise BadInput(
            f"the inputs that fn(key, d) draws must have mean zero; got a mean of up to {abs(mean).max():.3g}. Subtract it."
        )
    if abs(measured / variance - 1) > MAX_MOMENT_ERROR:
        raise BadInput(
            f"the inputs have the variance {measured:.3g}, and variance is {variance:g}. "
            f"Give variance={measured:.3g}, or scale the inputs."
        )
    largest = np.linalg.eigvalsh(x.T @ x / n)[-1] / measured
    if largest > MAX_EIGENVALUE_SHARE:
        raise BadInput(
            f"the coordinates of the inputs are correlated: their covariance has an eigenvalue {largest:.3g} times its mean. "
            "Draw an array of inputs, and give it to from_data."
        )

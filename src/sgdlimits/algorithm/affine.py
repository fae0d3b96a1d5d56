r"""Steps in which the gradient at one point enters linearly, with coefficients that depend on time alone.

Such a step maps all directions W, one for each name of the algorithm, to :math:`AW + \frac1{db}\, c \sum_i G_i x_i^\top`. The
derivatives :math:`G_i` of the loss are those at the weights :math:`g^\top W`. The coefficients are found by one step on unit
vectors, so that an algorithm of one's own needs nothing else than its step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Algorithm, compute_updates
from sgdlimits.algorithm.coordinates import CoordinatewiseAlgorithm
from sgdlimits.algorithm.needs import step_needs
from sgdlimits.algorithm.weights import StepContext
from sgdlimits.errors import BadInput
from sgdlimits.part import at_start

MAX_RELATIVE_ERROR = 1e-9
"""Maximum relative deviation from linearity that counts as rounding."""
PROBE_SCALES = (1e-3, 1.0, 1e3)
"""Sizes of gradients at which linearity is tested."""


class AffineStep(NamedTuple):
    """Coefficients of a step that is linear in the gradient at one point.

    Parameters
    ----------
    old_coefficients : A, the coefficients of the old weights of all names
    gradient : c, d times the coefficient of the mean gradient of the batch
    point : g, the coefficients of the weights at which the gradient is taken
    """

    old_coefficients: Float[Array, "n n"]
    gradient: Float[Array, " n"]
    point: Float[Array, " n"]


def affine_step(algorithm: Algorithm, t: Any, inv_d: float) -> AffineStep:
    """Return the coefficients of a step at time t in dimension d, for an algorithm that passes `check_affine`."""
    past, C = _step_on_unit_vectors(algorithm, t, inv_d, lambda fields: fields)
    gradient, size = C[:, -1], (C[:, -1] ** 2).sum()
    # without a gradient, as for a learning rate of zero, the point does not matter
    point = gradient @ C[:, :-1] / jnp.where(size > 0, size, 1.0)
    return AffineStep(past, gradient, point)


def check_affine(algorithm: Algorithm, what: str) -> None:
    """Raise `BadInput`, for the level named `what`, unless steps are linear in the gradient at one point."""
    needs = None if isinstance(algorithm, CoordinatewiseAlgorithm) else step_needs(algorithm, 1)
    refused = (
        needs is None or any(needs) or algorithm.numbers or algorithm.sphere or algorithm.trains_second
    ) or not _is_affine(at_start(algorithm))
    if refused:
        raise BadInput(
            f"{what} needs steps that are linear in the gradient, without sphere and lr_second; got {algorithm}. "
            "Use OnePassSGD, HeavyBall, Nesterov, Averaged, ScheduleFree or DANA, or the level Chain(d)."
        )


def _is_affine(algorithm: Algorithm) -> bool:
    """Return whether the steps of an algorithm on gradients of several sizes have the same coefficients."""
    for t in (0.0, 1.0):
        step = affine_step(algorithm, t, 0.01)
        model = np.concatenate([np.outer(step.gradient, step.point), np.asarray(step.gradient)[:, None]], axis=1)
        for scale in PROBE_SCALES:
            past, C = _step_on_unit_vectors(algorithm, t, 0.01, lambda fields, scale=scale: scale * fields)
            same = np.allclose(C, scale * model, rtol=MAX_RELATIVE_ERROR, atol=MAX_RELATIVE_ERROR * scale * np.abs(model).max())
            if not same or not np.allclose(past, step.old_coefficients, rtol=MAX_RELATIVE_ERROR, atol=1e-12):
                return False
    return True


def _step_on_unit_vectors(algorithm: Algorithm, t: Any, inv_d: float, gradient: Any) -> tuple[Array, Array]:
    """Make a step of one unit on n + 1 unit samples, and return the coefficients of its n stored vectors and of the samples.

    Sample i has the field 1 along stored vector i. The last sample has zero fields, but the gradient of a sample with the field
    1. `gradient` is the derivative of the loss as a function of the field.
    """
    names, n = algorithm.names, len(algorithm.names)
    basis = jnp.eye(n + 1)
    fields = {name: basis[i : i + 1] for i, name in enumerate(names)}
    slope = lambda fields, scalars: (gradient(fields + basis[n:]), ())
    unknown = lambda *names: jnp.full((1, 1), jnp.nan)
    now = StepContext(inv_d, t, fields, jnp.zeros((1, n + 1)), slope, n + 1, dict.fromkeys(names, ()), {}, unknown, unknown)
    updates, _ = compute_updates(algorithm, now)
    past = jnp.stack(
        [jnp.stack([jnp.reshape(update.old_coefficients.get(name, 0.0), ()) for name in names]) for update in updates]
    )
    return past * jnp.ones(()), (n + 1) * jnp.concatenate([update.inputs for update in updates])

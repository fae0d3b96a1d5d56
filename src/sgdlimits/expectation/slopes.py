r"""The gradient and the Hessian of the population risk in the frame of the statistics.

With the loss l of one sample, :math:`G_j = \partial l/\partial\lambda_j` and :math:`l_{jl} = \partial G_j/\partial\lambda_l`,

.. math:: \nabla_j R = E[G_j x], \qquad \nabla_j\nabla_l R = E[l_{jl}\, xx^\top].

In the orthonormal frame of the fixed and the trained directions the first has n coordinates and the second an n-by-n block.
Along any direction outside the frame the input is a normal number of variance :math:`\sigma^2`, independent of all fields:
there the gradient is zero, and the Hessian is :math:`\sigma^2E[l_{jl}]` along each direction, with no mixed terms.

How the expectations are computed is a matter of the rule. Squared activations have a formula, sums of other units are made of
pairs (`unit_pairs`), erf units and inputs without variance are differentiated in their closed form, classifiers with kinks have
a grid that is split there (`class_slopes`), and everything else is a sum over nodes that do not move with the weights
(`node_slopes`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import AccuracyWarning, BadInput
from sgdlimits.model.sample import Model
from sgdlimits.statistics.frame import frame_rows
from sgdlimits.statistics.overlaps import Overlaps


class Slopes(NamedTuple):
    """The gradient, the Hessian within the frame, and the block of the Hessian along each direction outside."""

    gradient: Float[np.ndarray, "p n"]
    span: Float[np.ndarray, "p n p n"]
    outside: Float[np.ndarray, "p p"]


def refuse_zero_weights(model: Model, S: Float[np.ndarray, "p n"]) -> None:
    """Raise `BadInput` where a unit with a kink has zero weights: there is no Hessian."""
    if model.network.activation.kinked and not np.linalg.norm(S, axis=1).all():
        raise BadInput("there is no Hessian where a unit with a kink has zero weights. Give statistics with Q_jj above zero.")


def differentiated(risk: Callable, model: Model, a: np.ndarray, S: np.ndarray) -> Slopes:
    """Automatic derivatives of risk(model, stats), with one more coordinate for the directions outside."""
    n = S.shape[1]
    arrays = jnp.asarray(a), jnp.asarray(padded(model, S, more=1))
    gradient, hessian = (np.asarray(leaf) for leaf in _automatic(risk, model, *arrays))
    return Slopes(gradient[:, :n], hessian[:, :n, :, :n], hessian[:, -1, :, -1])


@eqx.filter_jit
def _automatic(risk: Callable, model: Model, a: Array, S: Array) -> tuple[Array, Array]:
    height = lambda S: risk(model, Overlaps(a, S[:, : model.teachers] @ model.frame.T, S @ S.T))
    return jax.grad(height)(S), jax.hessian(height)(S)


def from_products(moments: Callable, model: Model, a: np.ndarray, S: np.ndarray) -> Float[np.ndarray, "p n"]:
    """The gradient from its products with all directions, which moments(model, stats) are made of."""
    rows = np.concatenate([S, frame_rows(model.frame, S.shape[1])])
    products = _products(moments, model, Overlaps(jnp.asarray(a), jnp.asarray(S @ rows[len(S) :].T), jnp.asarray(S @ S.T)))
    return np.linalg.lstsq(rows, np.asarray(products).T, rcond=None)[0].T


@eqx.filter_jit
def _products(moments: Callable, model: Model, stats: Overlaps) -> Float[Array, "p p+k"]:
    found = moments(model, stats)
    return jnp.concatenate([found.gradient_field, found.gradient_fixed], axis=1)


def padded(model: Model, S: np.ndarray, more: int = 0) -> np.ndarray:
    """Units in the largest frame, so that states of any rank share what is compiled."""
    return np.pad(S, ((0, 0), (0, model.width + model.teachers + more - S.shape[1])))


def checked_by_stein(model: Model, S: np.ndarray, slopes: Slopes, accuracy: float, remedy: str) -> Slopes:
    r"""The slopes, with a warning where they miss Stein's lemma.

    Off the fixed directions it is :math:`E[G_jx] = \sum_l\sigma^2E[l_{jl}]u_l`, between sums that are computed independently.
    """
    expected = slopes.outside @ S[:, model.teachers :]
    largest = np.abs(slopes.outside).max() * np.abs(S).max() * np.ones(1)
    warn_of(slopes.gradient[:, model.teachers :] - expected, largest, accuracy, remedy)
    return slopes


def warn_of(error: np.ndarray, value: np.ndarray, tolerance: float, remedy: str) -> None:
    """Warn where derivatives are less accurate than they should be."""
    reached = np.abs(error).max(initial=0.0) / max(np.abs(value).max(), np.finfo(float).tiny)
    if not reached <= tolerance:
        warnings.warn(
            f"the derivatives of the risk have a relative error of about {reached:.1e}, above {tolerance:.1e}. {remedy}",
            AccuracyWarning,
            stacklevel=5,
        )

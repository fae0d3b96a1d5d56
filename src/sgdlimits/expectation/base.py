"""The interface of expectations over one sample of a model."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput
from sgdlimits.expectation.slopes import RiskDerivatives
from sgdlimits.model.activation import PiecewiseLinear
from sgdlimits.model.sample import Model
from sgdlimits.part import Part
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Scalars
from sgdlimits.statistics.products import Moments

Increment = Callable[[Moments], Float[Array, "n samples"]]
"""Function that maps products of the samples' gradients and fields to changes of the statistics; it is affine."""


class Expectation(Part):
    """A method to compute expectations over one random sample of a model, independent of the optimiser.

    A subclass implements `supports`, `moments`, `covariance`, `risk_of_factor` and `slopes`, and describes the supported models
    in `supported_models`. Support depends on types and static fields only, never on the value of an array: the choice is
    repeated at every use, inside and outside compiled code, so it cannot become stale.
    """

    supported_models: ClassVar[str] = ""
    """Description of the models that this expectation supports, for error messages."""
    closed_covariance: ClassVar[bool] = False
    """Whether this expectation has a closed form of the covariance of increments."""
    risk_uses_factor: ClassVar[bool] = True
    """Whether `risk_of_factor` differs from `risk` by a formula that is more accurate where the risk is small."""

    def __call__(self, *stats: Any, **how: Any) -> Any:
        raise BadInput("problem.expectation(stats) is now problem.moments(stats). Call problem.moments(stats).")

    def supports(self, model: Model) -> bool:
        """Return whether this method can compute the expectations of a model."""
        return True

    @abc.abstractmethod
    def moments(self, model: Model, a: Scalars, law: FieldLaw) -> Moments:
        """Compute the expectations that give the drift of one run, from the network's scalars `a` and the law of its fields."""

    @abc.abstractmethod
    def covariance(self, model: Model, a: Scalars, law: FieldLaw, increment: Increment) -> Float[Array, "n n"]:
        """Compute the covariance matrix of the changes of n statistics by one random sample.

        `increment` maps the products of a sample's gradients and fields to these changes.
        """

    @abc.abstractmethod
    def risk_of_factor(self, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, ""]:
        """Compute the population risk from a factor F of the fields' covariance F F^T, accurately even where it is tiny."""

    @abc.abstractmethod
    def slopes(self, model: Model, a: Scalars, S: Float[np.ndarray, "p n"]) -> RiskDerivatives:
        """Compute gradient and Hessian of the risk in the units' weights, whose coordinates in an orthonormal basis are S."""

    def gradient(self, model: Model, a: Scalars, S: Float[np.ndarray, "p n"]) -> Float[np.ndarray, "p n"]:
        """Compute the gradient of the risk in the units' weights, whose coordinates in an orthonormal basis are S."""
        return self.slopes(model, a, S).gradient

    def risk(self, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, ""]:
        """Compute the population risk, the mean loss of one sample, for one run."""
        return self.moments(model, a, law).loss

    def floor(self, model: Model) -> Float[Array, ""]:
        """Compute the noise floor: the mean loss of predicting each label without its noise."""
        closed = model.loss.floor(model.coordinates, model.target)
        assert closed is not None, "expectations other than sums over nodes are for losses whose floor is closed"
        return closed

    def without_smoothing(self) -> Expectation:
        """Return this expectation without the smoothing of piecewise linear activations that helps ODE solvers."""
        return self

    def with_more_nodes(self) -> Expectation | None:
        """Return this expectation with more quadrature nodes, or None if that is impossible or it has no nodes."""
        return None

    def error(self, model: Model, a: Scalars, law: FieldLaw) -> Moments:
        """Estimate the absolute quadrature errors of `moments`, which are zero in closed form."""
        # eval_shape gives the structure of the moments without computing them.
        return jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: self.moments(model, a, law)))

    def estimate(self, model: Model, a: Scalars, law: FieldLaw) -> tuple[Moments, Moments]:
        """Return the expectations computed by `moments` with estimates of their absolute errors."""
        return self.moments(model, a, law), self.error(model, a, law)

    def risk_error(self, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, ""]:
        """Estimate the absolute quadrature error of `risk`."""
        return self.error(model, a, law).loss

    def tolerance(self, model: Model) -> float:
        """Return the default relative tolerance of the ODE solver, not below the quadrature error of the drift."""
        return 1e-9

    def accuracy(self, model: Model) -> float | None:
        """Return the relative error of `moments` above which users are warned; None if they are in closed form."""
        return None

    @property
    def remedy(self) -> str:
        """The advice in warnings: a sentence that tells users how to make the moments more accurate."""
        return ""

    def runs_at_once(self, model: Model) -> int | None:
        """Return how many runs `moments` can process together within the memory limit; None for any number."""
        return None


def linearise_increment(increment: Increment, a: Scalars, shape: tuple[int, ...], directions: int = 0) -> Moments:
    """Differentiate the change of n statistics by one sample with respect to products of the sample's gradients and fields.

    Returns `Moments` whose arrays have the shape (n, ...).

    Parameters
    ----------
    increment : the change of n statistics, affine in the products
    a : network scalars, of which only shapes count
    shape : (p, k), the numbers of student and fixed fields
    directions : the number of field columns in `gradient_field`; 0 for p
    """
    p, k = shape
    zeros = lambda *shape: jnp.zeros((*shape, 1))  # a single sample on the last axis
    second = jax.tree.map(lambda leaf: zeros(*leaf.shape), a)
    origin = Moments(zeros(), zeros(p, k), zeros(p, directions or p), zeros(p, p), second)
    # An affine map has the same derivative everywhere, so it is taken at zero products.
    return jax.tree.map(lambda leaf: leaf[:, 0, ..., 0], jax.jacfwd(increment)(origin))


def increment_covariance(increment: Increment, products: Moments, weights: Float[Array, " samples"]) -> Float[Array, "n n"]:
    """Compute the covariance of the changes of n statistics over samples with given weights, which sum to 1.

    `products` are the products of each sample's gradients and fields, from which `increment` computes the changes.
    """
    change = increment(products)
    # Centred first: the difference of raw moments would lose digits where the mean dominates.
    centred = change - (change @ weights)[:, None]
    return (centred * weights) @ centred.T


def freeze_zero_units(model: Model, squares: Float[Array, " p"], moments: Any) -> Any:
    """Set the gradients of units with zero weights to zero, if the activation is constant on the left of zero, like relu.

    The mean slope is discontinuous at zero norm: half of relu's inputs have slope 1 at any positive norm, and none at zero. SGD
    and the exact chain use :math:`s'(0)`, the slope on the left of the kink. If this slope is zero, units with zero weights
    never move, and must not move in the limit either. Otherwise, as for leaky relu, their weights become nonzero in one step,
    and the mean slope at small norms is the right limit.

    Parameters
    ----------
    squares : squared norms of the units, shape (p,)
    moments : `Moments` or `ParticleMoments` of the model, returned with some rows set to zero
    """
    unit = model.network.activation
    if not (isinstance(unit, PiecewiseLinear) and unit.kinked and unit.left == 0):
        return moments
    mask_rows = lambda leaf: jnp.where((squares != 0).reshape(-1, *(1 for _ in leaf.shape[1:])), leaf, 0.0)
    changed = {name: mask_rows(getattr(moments, name)) for name in ("gradient_fixed", "gradient_field")}
    if hasattr(moments, "gradient_gradient"):  # the mean field has no products of two gradients
        changed["gradient_gradient"] = mask_rows(mask_rows(moments.gradient_gradient).T)
    return moments._replace(**changed)

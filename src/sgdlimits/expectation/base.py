"""Averages over one sample: the interface of the rules that compute them."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput
from sgdlimits.expectation.slopes import Slopes
from sgdlimits.model.activation import PiecewiseLinear
from sgdlimits.model.sample import Model
from sgdlimits.part import Part
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Scalars
from sgdlimits.statistics.products import Moments

Increment = Callable[[Moments], Float[Array, "n samples"]]
"""What the products of samples do to the statistics, linear in the products but for a constant; their last axis is kept."""


class Expectation(Part):
    """How averages over one sample of a model are computed. Nothing here knows of an algorithm.

    Of the inputs it sees only the law of their fields.

    A subclass implements `suits`, `moments`, `covariance`, `risk_of_factor` and `slopes`; `needs` says in words which models
    suit it. Whether it suits a model depends on types and static fields, never on a number: the choice is made again at every
    use, inside compiled code as outside, and cannot go stale.
    """

    needs: ClassVar[str] = ""
    closed_covariance: ClassVar[bool] = False
    factored: ClassVar[bool] = True
    """Whether the risk of a factor is another sum than that of the overlaps."""

    def __call__(self, *stats: Any, **how: Any) -> Any:
        raise BadInput("problem.expectation(stats) is now problem.moments(stats). Write moments.")

    def supports(self, model: Model) -> bool:
        """Whether the model is of the kind that this expectation is made for."""
        return True

    @abc.abstractmethod
    def moments(self, model: Model, a: Scalars, law: FieldLaw) -> Moments:
        """The moments of the drift for one run, at scalars `a` and fields of this law."""

    @abc.abstractmethod
    def covariance(self, model: Model, a: Scalars, law: FieldLaw, increment: Increment) -> Float[Array, "n n"]:
        """The covariance of the increments of one sample."""

    @abc.abstractmethod
    def risk_of_factor(self, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, ""]:
        """The population risk for a law whose factor is known, as exact as can be where the risk is tiny."""

    @abc.abstractmethod
    def slopes(self, model: Model, a: Scalars, S: Float[np.ndarray, "p n"]) -> Slopes:
        """Gradient and Hessian of the risk for units with coordinates S in an orthonormal frame."""

    def gradient(self, model: Model, a: Scalars, S: Float[np.ndarray, "p n"]) -> Float[np.ndarray, "p n"]:
        """E[G x] in that frame."""
        return self.slopes(model, a, S).gradient

    def risk(self, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, ""]:
        """The mean loss for one run."""
        return self.moments(model, a, law).loss

    def floor(self, model: Model) -> Float[Array, ""]:
        """The mean loss of a prediction that is the label without its noise."""
        closed = model.loss.floor(model.coordinates, model.target)
        assert closed is not None, "expectations other than sums over nodes are for losses whose floor is closed"
        return closed

    def without_smoothing(self) -> Expectation:
        """Return the expectation with kinks as they are, if it smooths them for solvers."""
        return self

    def finer(self) -> Expectation | None:
        """Return the expectation with more nodes, or None if it has no nodes or reached their maximum."""
        return None

    def error(self, model: Model, a: Scalars, law: FieldLaw) -> Moments:
        """Estimates of the errors of `moments`, zero in closed form."""
        return jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: self.moments(model, a, law)))

    def estimate(self, model: Model, a: Scalars, law: FieldLaw) -> tuple[Moments, Moments]:
        """The moments and estimates of their errors."""
        return self.moments(model, a, law), self.error(model, a, law)

    def risk_error(self, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, ""]:
        """An estimate of the error of `risk`."""
        return self.error(model, a, law).loss

    def tolerance(self, model: Model) -> float:
        """A relative tolerance worth asking of a solver of the drift."""
        return 1e-9

    def accuracy(self, model: Model) -> float | None:
        """The relative accuracy that the moments should have unless another is asked for; None in closed form."""
        return None

    @property
    def remedy(self) -> str:
        """What makes the moments more accurate."""
        return ""

    def runs_at_once(self, model: Model) -> int | None:
        """How many runs' moments to compute at once, where memory is a question."""
        return None


def linearise_increment(increment: Increment, a: Scalars, shape: tuple[int, ...], directions: int = 0) -> Moments:
    """The matrix of an increment: its derivative with respect to each product, shape (n, ...), for (p, k) fields."""
    p, k = shape
    zeros = lambda *shape: jnp.zeros((*shape, 1))
    second = jax.tree.map(lambda leaf: zeros(*leaf.shape), a)
    still = Moments(zeros(), zeros(p, k), zeros(p, directions or p), zeros(p, p), second)
    return jax.tree.map(lambda leaf: leaf[:, 0, ..., 0], jax.jacfwd(increment)(still))


def covariance_over(increment: Increment, products: Moments, weights: Float[Array, " samples"]) -> Float[Array, "n n"]:
    """The covariance of the increments of samples with these weights, which sum to 1."""
    change = increment(products)
    centred = change - (change @ weights)[:, None]
    return (centred * weights) @ centred.T


def freeze_zero_units(model: Model, squares: Float[Array, " p"], moments: Any) -> Any:
    r"""The moments with units of squared norm exactly zero at rest where their slope at zero is zero, as that of relu.

    The mean of the slope is discontinuous there: half of relu's inputs have slope 1 at the smallest norm, and none at zero. SGD
    and its chain take :math:`s'(0)`, the slope on the left. Where that is zero they stay for ever, and so must their limit.
    Where it is not, as for leaky units, they leave in one step, after which the mean slope of small norms is right.
    """
    unit = model.network.activation
    if not (isinstance(unit, PiecewiseLinear) and unit.kinked and unit.left == 0):
        return moments
    rows = lambda leaf: jnp.where((squares != 0).reshape(-1, *(1 for _ in leaf.shape[1:])), leaf, 0.0)
    changed = {name: rows(getattr(moments, name)) for name in ("gradient_fixed", "gradient_field")}
    if hasattr(moments, "gradient_gradient"):
        changed["gradient_gradient"] = rows(rows(moments.gradient_gradient).T)
    return moments._replace(**changed)

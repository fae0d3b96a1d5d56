"""How a prediction is scored."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput


class Loss(eqx.Module):
    """A function of a prediction and a label, entry by entry."""

    @abc.abstractmethod
    def __call__(self, prediction: Float[Array, "*batch"], label: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The loss of each entry."""

    @property
    def quadratic(self) -> bool:
        """Whether it is a multiple, `weight`, of the square of the residual."""
        return False

    def floor(self, data: Any, target: Any) -> Float[Array, ""] | None:
        """The mean over inputs and label noise of loss(label without noise, label), where it is closed; None otherwise."""
        return None


class SquaredLoss(Loss):
    """weight (f - y)^2. The weight is 1/2 in most papers and 1 in some."""

    weight: float = eqx.field(static=True, default=0.5)

    def __call__(self, prediction, label):
        return self.weight * (prediction - label) ** 2

    @property
    def quadratic(self):
        return True

    def floor(self, data, target):
        return self.weight * target.noise


class CrossEntropy(Loss):
    r"""The cross-entropy of a label y between 0 and 1 and the probability :math:`\sigma(f) = 1/(1 + e^{-f})`:
    :math:`-y\log\sigma(f) - (1-y)\log\sigma(-f) = \log(1 + e^f) - yf`.

    >>> round(float(CrossEntropy()(0.0, 1.0)), 4)
    0.6931
    """

    def __call__(self, prediction, label):
        return jax.nn.softplus(prediction) - label * prediction

    def least(self, label: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The least loss of any prediction: the entropy of the label, zero for 0 and 1."""
        return -(xlogy(label, label) + xlogy(1 - label, 1 - label))

    def floor(self, data, target):
        """For labels of classes their mean entropy, the loss of a network that is sure of every class."""
        labels = getattr(target.readout, "labels", None)
        return None if labels is None else data.weights @ self.least(labels)


class FunctionLoss(Loss):
    """A user's own differentiable function loss(prediction, label) of two numbers."""

    fn: Callable = eqx.field(static=True)

    def __call__(self, prediction, label):
        if prediction.ndim == 0:
            return self.fn(prediction, label)
        return jax.vmap(self.fn)(prediction.ravel(), label.ravel()).reshape(prediction.shape)


def as_loss(loss: Callable) -> Loss:
    """A loss from a user's JAX function, checked: two numbers in, one number out."""
    if isinstance(loss, Loss):
        return loss
    number = jax.ShapeDtypeStruct((), float)
    try:
        shape = jax.eval_shape(loss, number, number).shape
    except Exception as reason:
        raise BadInput(f"the loss fails on two numbers: {reason}. Write loss(prediction, label) with jax.numpy.") from reason
    if shape != ():
        raise BadInput(f"the loss must return one number; got shape {shape}. Sum or average what it returns.")
    return FunctionLoss(loss)

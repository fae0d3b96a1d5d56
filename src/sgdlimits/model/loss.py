"""How a prediction is scored."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float

from sgdlimits.domain import Positive, checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import Part
from sgdlimits.trial import try_function


class Loss(Part):
    """A function of a prediction, which is a number or has its outputs on the first axis, and of a label, entry by entry."""

    classifies: ClassVar[bool] = False
    """Whether labels are classes, so that predictions are right or wrong."""
    quadratic: ClassVar[bool] = False
    """Whether it is a multiple, `weight`, of the square of the residual."""

    @abc.abstractmethod
    def __call__(self, prediction: Float[Array, "*outputs *batch"], label: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The loss of each entry."""

    def probability_correct(self, prediction: Float[Array, "*outputs *batch"], label: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The probability that a prediction is of the right class; classes that are predicted alike are drawn by lot."""
        raise BadInput(f"{type(self).__name__} knows no classes. Give CrossEntropy() or SoftmaxCrossEntropy().")

    def check(self, data: Any, target: Any, outputs: tuple[int, ...]) -> None:
        """Raise `BadInput` where labels or outputs, of a shape, are not of the kind that it is made for."""

    def floor(self, law: Any, target: Any) -> Float[Array, ""] | None:
        """The mean over inputs and label noise of loss(label without noise, label), where it is closed; None otherwise.

        `law` has the `weights` of the classes.
        """
        return None


@checked
class SquaredLoss(Loss):
    """weight (f - y)^2. The weight is 1/2 in most papers and 1 in some."""

    quadratic: ClassVar[bool] = True
    weight: Positive = eqx.field(static=True, default=0.5)

    def __call__(self, prediction, label):
        return self.weight * (prediction - label) ** 2

    def floor(self, law, target):
        return self.weight * target.noise


class CrossEntropy(Loss):
    r"""The cross-entropy :math:`\log(1 + e^f) - yf` of a label y between 0 and 1 and a logit f.

    The probability is :math:`\sigma(f) = 1/(1 + e^{-f})`, so that it is :math:`-y\log\sigma(f) - (1-y)\log\sigma(-f)`.

    >>> round(float(CrossEntropy()(0.0, 1.0)), 4)
    0.6931
    """

    classifies: ClassVar[bool] = True

    def check(self, data, target, outputs):
        """A label outside of [0, 1] has no least loss."""
        labels = getattr(target.readout, "labels", None)
        if any(map(is_traced, jax.tree.leaves(target))):
            return
        labels = _some_labels(target) if labels is None else np.asarray(labels)
        outside = labels[(labels < 0) | (labels > 1)]
        if outside.size:
            raise BadInput(f"CrossEntropy needs labels between 0 and 1; got {outside[0]:g}. Give ClassLabels of 0 and 1.")

    def __call__(self, prediction, label):
        return jax.nn.softplus(prediction) - label * prediction

    def probability_correct(self, prediction, label):
        """A label between 0 and 1 is the probability of class 1, which is predicted where f is positive."""
        one = jnp.heaviside(prediction, 0.5)
        return label * one + (1 - label) * (1 - one)

    def least(self, label: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The least loss of any prediction: the entropy of the label, zero for 0 and 1."""
        return -(xlogy(label, label) + xlogy(1 - label, 1 - label))

    def floor(self, law, target):
        """For labels of classes their mean entropy, the loss of a network that is sure of every class."""
        labels = getattr(target.readout, "labels", None)
        return None if labels is None else law.weights @ self.least(labels)


class SoftmaxCrossEntropy(Loss):
    r"""The cross-entropy :math:`\log\sum_o e^{f_o} - f_y` of a class and the probabilities of C outputs.

    The class is y = 0, ..., C - 1, and its probability is :math:`e^{f_y}/\sum_o e^{f_o}`.

    >>> round(float(SoftmaxCrossEntropy()(jnp.zeros(3), 2.0)), 4)
    1.0986
    """

    classifies: ClassVar[bool] = True

    def __call__(self, prediction, label):
        return jax.nn.logsumexp(prediction, axis=0) - (prediction * self._is(prediction, label)).sum(0)

    def probability_correct(self, prediction, label):
        """The class of the largest output is predicted."""
        best = prediction == prediction.max(0)
        return (best & self._is(prediction, label)).sum(0) / best.sum(0)

    def floor(self, law, target):
        """Zero, the loss of a network that is sure of every class."""
        return jnp.zeros(())

    def check(self, data, target, outputs):
        labels, C = getattr(target.readout, "labels", None), outputs[0] if outputs else 1
        if not outputs:
            raise BadInput("SoftmaxCrossEntropy needs an output for each class; the network has one. Give TwoLayer(outputs=C).")
        if not is_traced(target.noise) and float(target.noise):
            raise BadInput(
                f"SoftmaxCrossEntropy needs labels that are classes; got noise = {float(target.noise):g}. Give noise=0."
            )
        if labels is None:
            _check_classes(target, C)
        if labels is None or is_traced(labels):
            return
        if len(labels) != data.classes or not np.isin(labels, np.arange(C)).all():
            raise BadInput(
                f"labels must be {data.classes} numbers, one for each class of the data, from 0 to {C - 1} for {C} outputs; "
                f"got {labels.tolist()}. Give ClassLabels(range(C)), and C outputs."
            )

    @staticmethod
    def _is(prediction: Float[Array, "C *batch"], label: Float[Array, "*batch"]) -> Bool[Array, "C *batch"]:
        outputs = jnp.arange(prediction.shape[0])
        return outputs.reshape(-1, *(1 for _ in range(prediction.ndim - 1))) == label


class FunctionLoss(Loss):
    """A user's own differentiable function loss(prediction, label) of a number, or of a vector of outputs, and a number."""

    fn: Callable = eqx.field(static=True)

    def __call__(self, prediction, label):
        label = jnp.asarray(label)
        if label.ndim == 0:
            return self.fn(prediction, label)
        outputs = prediction.shape[: prediction.ndim - label.ndim]
        return jax.vmap(self.fn, -1)(prediction.reshape(*outputs, -1), label.ravel()).reshape(label.shape)


def as_loss(loss: Callable, outputs: tuple[int, ...] = ()) -> Loss:
    """A loss, or one from a user's JAX function, checked: a prediction of the outputs' shape and a label in, a number out."""
    kind = "a vector of outputs and a number" if outputs else "two numbers, prediction and label"
    what = "the loss, SoftmaxCrossEntropy() if labels are classes," if outputs else "the loss"
    try_function(what, loss, kind, np.full(outputs, 0.6), np.asarray(0.5), values=not isinstance(loss, Loss))
    return loss if isinstance(loss, Loss) else FunctionLoss(loss)


def _some_labels(target: Any) -> np.ndarray:
    """The labels of a few inputs, each once."""
    fixed = np.cos(2.1 * np.arange(8 * target.teachers) + 2.1).reshape(target.teachers, 8) * 1.7
    with jax.ensure_compile_time_eval():
        return np.unique(np.asarray(target.readout(jnp.asarray(fixed))))


def _check_classes(target: Any, C: int) -> None:
    """Raise `BadInput` where the readout of a few inputs is not a class from 0 to C - 1."""
    if any(map(is_traced, jax.tree.leaves(target))):
        return
    found = _some_labels(target)
    if not np.isin(found, np.arange(C)).all():
        wrong = found[~np.isin(found, np.arange(C))][0]
        raise BadInput(
            f"SoftmaxCrossEntropy needs labels that are classes, from 0 to {C - 1}; the readout gives {wrong:g}. "
            "Give ClassLabels(range(C)), or a readout with such values."
        )

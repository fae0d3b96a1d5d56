"""Loss functions of a prediction and a label."""

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
    """A loss function of predictions and labels, evaluated entry by entry.

    Predictions are scalars, or vectors of outputs on the first axis.
    """

    classifies: ClassVar[bool] = False
    """Whether labels are classes, so that a prediction has an accuracy."""
    quadratic: ClassVar[bool] = False
    """Whether the loss is the squared residual times `weight`."""

    @abc.abstractmethod
    def __call__(self, prediction: Float[Array, "*outputs *batch"], label: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Evaluate the loss of each prediction, given its label."""

    def probability_correct(
        self, prediction: Float[Array, "*outputs *batch"], label: Float[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        """Compute the probability that the predicted class is the label; ties between classes are broken at random."""
        raise BadInput(
            f"{type(self).__name__} predicts no classes, so there is no accuracy. Use CrossEntropy() or SoftmaxCrossEntropy()."
        )

    def check(self, data: Any, target: Any, outputs: tuple[int, ...]) -> None:
        """Raise `BadInput` if the loss does not support the target's labels or the shape of the network's outputs."""

    def floor(self, law: Any, target: Any) -> Float[Array, ""] | None:
        """Compute the noise floor, the mean loss of predicting each label without its noise; None without a closed form.

        `law` provides the probabilities of the classes as `weights`.
        """
        return None


@checked
class SquaredLoss(Loss):
    """The squared loss, `weight` times (f - y)^2 for a prediction f and a label y; 1/2 in most papers and 1 in some."""

    quadratic: ClassVar[bool] = True
    weight: Positive = eqx.field(static=True, default=0.5)

    def __call__(self, prediction, label):
        return self.weight * (prediction - label) ** 2

    def floor(self, law, target):
        return self.weight * target.noise


class CrossEntropy(Loss):
    r"""The cross-entropy :math:`\log(1 + e^f) - yf` of a label y between 0 and 1 and a logit f.

    The predicted probability of the label 1 is :math:`\sigma(f) = 1/(1 + e^{-f})`, with which the loss is
    :math:`-y\log\sigma(f) - (1-y)\log\sigma(-f)`.

    >>> round(float(CrossEntropy()(0.0, 1.0)), 4)
    0.6931
    """

    classifies: ClassVar[bool] = True

    def check(self, data, target, outputs):
        """Raise `BadInput` for labels outside [0, 1], for which the loss is not bounded below."""
        labels = getattr(target.readout, "labels", None)
        # Traced labels have no values to check.
        if any(map(is_traced, jax.tree.leaves(target))):
            return
        labels = _sample_labels(target) if labels is None else np.asarray(labels)
        outside = labels[(labels < 0) | (labels > 1)]
        if outside.size:
            raise BadInput(f"CrossEntropy needs labels between 0 and 1; got {outside[0]:g}. Give ClassLabels of 0 and 1.")

    def __call__(self, prediction, label):
        return jax.nn.softplus(prediction) - label * prediction  # log(1 + e^f) without overflow

    def probability_correct(self, prediction, label):
        """Compute the probability that the predicted class is right: class 1 is predicted for a positive logit, else class 0.

        The label is the probability of class 1.
        """
        one = jnp.heaviside(prediction, 0.5)  # a tie at f = 0 counts half
        return label * one + (1 - label) * (1 - one)

    def min_loss(self, label: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Compute the minimum of the loss over predictions: the entropy of the label, zero for 0 and 1."""
        # xlogy is zero at zero, where x log x is NaN
        return -(xlogy(label, label) + xlogy(1 - label, 1 - label))

    def floor(self, law, target):
        """Compute the mean entropy of class labels; None for other labels."""
        labels = getattr(target.readout, "labels", None)
        return None if labels is None else law.weights @ self.min_loss(labels)


class SoftmaxCrossEntropy(Loss):
    r"""The cross-entropy :math:`\log\sum_o e^{f_o} - f_y` of C outputs (logits) f and a class y.

    The class is y = 0, ..., C - 1, and its predicted probability is :math:`e^{f_y}/\sum_o e^{f_o}`.

    >>> round(float(SoftmaxCrossEntropy()(jnp.zeros(3), 2.0)), 4)
    1.0986
    """

    classifies: ClassVar[bool] = True

    def __call__(self, prediction, label):
        return jax.nn.logsumexp(prediction, axis=0) - (prediction * self._one_hot(prediction, label)).sum(0)

    def probability_correct(self, prediction, label):
        """Compute the probability that the predicted class, that of the largest output, is the label."""
        best = prediction == prediction.max(0)
        return (best & self._one_hot(prediction, label)).sum(0) / best.sum(0)

    def floor(self, law, target):
        """Return the noise floor: zero, the loss of a network that predicts every class label with certainty."""
        return jnp.zeros(())

    def check(self, data, target, outputs):
        labels = getattr(target.readout, "labels", None)
        C = outputs[0] if outputs else 1
        if not outputs:
            raise BadInput("SoftmaxCrossEntropy needs an output for each class; the network has one. Give TwoLayer(outputs=C).")
        if not is_traced(target.noise) and float(target.noise):
            raise BadInput(f"SoftmaxCrossEntropy needs labels without noise; got noise={float(target.noise):g}. Give noise=0.")
        if labels is None:
            _check_classes(target, C)
        if labels is None or is_traced(labels):
            return
        classes = data.classes
        if len(labels) != classes or not np.isin(labels, np.arange(C)).all():
            raise BadInput(
                f"labels must be {classes} integers, one for each class of the data, from 0 to {C - 1} for {C} outputs; "
                f"got {labels.tolist()}. Give ClassLabels(range(C)), and C outputs."
            )

    @staticmethod
    def _one_hot(prediction: Float[Array, "C *batch"], label: Float[Array, "*batch"]) -> Bool[Array, "C *batch"]:
        """Return the labels in one-hot form, with the outputs on the first axis."""
        # By comparison instead of indexing, since labels are floating point.
        outputs = jnp.arange(prediction.shape[0])
        return outputs.reshape(-1, *(1 for _ in range(prediction.ndim - 1))) == label


class FunctionLoss(Loss):
    """A user's differentiable function loss(prediction, label) of one prediction, a scalar or a vector, and a scalar label."""

    fn: Callable = eqx.field(static=True)

    def __call__(self, prediction, label):
        label = jnp.asarray(label)
        if label.ndim == 0:
            return self.fn(prediction, label)
        # The user's function takes one prediction: all batch axes become one, over which it is mapped.
        outputs = prediction.shape[: prediction.ndim - label.ndim]
        return jax.vmap(self.fn, -1)(prediction.reshape(*outputs, -1), label.ravel()).reshape(label.shape)


def as_loss(loss: Callable, outputs: tuple[int, ...] = ()) -> Loss:
    """Convert a user's JAX function loss(prediction, label) to a `Loss`, after a check that it returns a scalar.

    A `Loss` is checked and returned unchanged; `outputs` is the shape of one prediction.
    """
    kind = "a vector of outputs and a number" if outputs else "two numbers, prediction and label"
    what = "the loss, SoftmaxCrossEntropy() if labels are classes," if outputs else "the loss"
    try_function(what, loss, kind, np.full(outputs, 0.6), np.asarray(0.5), values=not isinstance(loss, Loss))
    return loss if isinstance(loss, Loss) else FunctionLoss(loss)


def _sample_labels(target: Any) -> np.ndarray:
    """Return the distinct labels that a target gives to a few fixed inputs, on which a loss is tried."""
    # Arbitrary but fixed inputs, so that the check gives the same answer in every process.
    fixed = np.cos(2.1 * np.arange(8 * target.teachers) + 2.1).reshape(target.teachers, 8) * 1.7
    with jax.ensure_compile_time_eval():
        return np.unique(np.asarray(target.readout(jnp.asarray(fixed))))


def _check_classes(target: Any, C: int) -> None:
    """Raise `BadInput` unless the labels of a few fixed inputs are classes, integers from 0 to C - 1."""
    if any(map(is_traced, jax.tree.leaves(target))):
        return
    labels = _sample_labels(target)
    if not np.isin(labels, np.arange(C)).all():
        wrong = labels[~np.isin(labels, np.arange(C))][0]
        raise BadInput(
            f"SoftmaxCrossEntropy needs labels that are classes, from 0 to {C - 1}; the readout gives {wrong:g}. "
            "Give ClassLabels(range(C)), or a readout with such values."
        )

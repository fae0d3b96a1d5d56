"""Presets of classification: two-layer networks that learn the labels of Gaussian mixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.domain import Matrix, NotNegativeInTime, Rate, RealArray, RealArrayInTime, SignalToNoise, Size, Width, checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.expectation import Expectation
from sgdlimits.expectation.gaussian import Rule
from sgdlimits.inputs import mixture
from sgdlimits.model.activation import Activation
from sgdlimits.model.loss import CrossEntropy
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.target import ClassLabels, Target
from sgdlimits.problem.directions import InitialWeights
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.schedule import value_at


@checked
def gaussian_mixture(
    means: RealArray,
    labels: RealArray,
    weights: RealArrayInTime | None = None,
    snr: SignalToNoise = 1.0,
    ridge: NotNegativeInTime = 0.0,
    lr: Rate = 1.0,
    width: Width = 2,
    activation: str | Callable | Activation = "relu",
    gram: Matrix | None = None,
    batch: Size = 1,
    expectation: Rule | Expectation | None = None,
    algorithm: Algorithm | None = None,
) -> ProjectionProblem:
    r"""Two-layer network that learns the labels of Gaussian classes, whose means are combinations of fixed directions [2]_.

    An input of class c is :math:`x \sim N(\sum_r b_r^{(c)} e_r, I/\text{snr})`, with the fixed directions :math:`e_r`.

    The network is :math:`f = \sum_j v_j\, s(W_j\cdot x)`, the loss the cross-entropy of the label and :math:`1/(1 + e^{-f})`,
    and both layers are trained at the same learning rate with the penalty
    :math:`\frac{\text{ridge}}2(|v|^2 + \sum_j |W_j|^2)`.

    The statistics are :math:`a = v`, :math:`M_{jr} = W_j\cdot e_r` and :math:`Q_{jl} = W_j\cdot W_l`. The time of Ben Arous,
    Gheissari and Jagannath is lr t. `problem.risk` is the cross-entropy without the penalty. `RandomInit` draws
    :math:`v_j \sim N(0, 1)` and :math:`W_j \sim N(0, I/d)`.

    Parameters
    ----------
    means : b, the coefficients of each class mean along the k fixed directions, shape (classes, k)
    labels : label of each class, between 0 and 1
    weights : probability of each class; equal unless given
    snr : :math:`\lambda`, the inverse of the variance of each coordinate; inf puts every input on the mean of its class
    ridge : :math:`\alpha`, the strength of the ridge penalty
    lr : :math:`c_\delta`, the learning rate: the step size is lr/d
    width : the number of units
    activation : s
    gram : the Gram matrix of the fixed directions; they are orthonormal unless given
    batch : samples per step, over which the gradient is averaged
    expectation : how expectations are computed, such as `Sobol(12)`, if the automatic choice is not accurate enough
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    Examples
    --------
    Three classes of different weights on a line, the middle one apart:

    >>> import sgdlimits as sl
    >>> problem = sl.presets.gaussian_mixture([[-1.0], [0.0], [1.0]], [0, 1, 0], [0.3, 0.4, 0.3], snr=20.0, width=3)
    >>> problem.data.classes, problem.network.width, sl.RandomInit(d=100).one(problem).M.shape
    (3, 3, (3, 1))
    """
    problem = _classifier_problem(
        "gaussian_mixture", means, labels, snr, ridge, lr, width, activation, weights, gram, batch, expectation
    )
    return problem.with_algorithm(algorithm)


@checked
def binary_mixture(
    snr: SignalToNoise = 100.0,
    ridge: NotNegativeInTime = 0.1,
    lr: Rate = 1.0,
    width: Width = 2,
    algorithm: Algorithm | None = None,
) -> ProjectionProblem:
    r"""Two Gaussian classes at :math:`\pm\mu`, and a two-layer relu network that learns to tell them apart [2]_.

    Section 4 of Ben Arous, Gheissari and Jagannath: its :math:`v_i` is our a, its :math:`m_i` our M, its :math:`R^\perp_{ij}`
    our :math:`Q - MM^\top`, its time lr t. Class :math:`\mu` has label 1. `RandomInit` draws :math:`v_i \sim N(0, 1)` and
    :math:`W_i \sim N(0, I/(\lambda d))`; for snr = inf it takes :math:`N(0, I/d)`.

    Parameters
    ----------
    snr : :math:`\lambda`, the inverse of the variance of each coordinate; inf is allowed
    ridge : :math:`\alpha`, the strength of the ridge penalty on both layers
    lr : :math:`c_\delta`, the learning rate: the step size is lr/d
    width : the number of units, two in the paper
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    >>> import numpy as np, sgdlimits as sl
    >>> problem = sl.presets.binary_mixture(snr=float("inf"), ridge=0.1)
    >>> optimum = sl.theory.effective.ring_radius(ridge=0.1, weight=0.5)
    >>> x = np.array([optimum, -optimum])
    >>> bool(abs(problem.drift(sl.Overlaps(x, x[:, None], np.outer(x, x))).M).max() < 1e-12)
    True
    """
    problem = _classifier_problem("binary_mixture", [[1.0], [-1.0]], [1.0, 0.0], snr, ridge, lr, width, as_inputs=True)
    return problem.with_algorithm(algorithm)


@checked
def xor_mixture(
    snr: SignalToNoise = 1000.0,
    ridge: NotNegativeInTime = 0.1,
    lr: Rate = 1.0,
    width: Width = 4,
    algorithm: Algorithm | None = None,
) -> ProjectionProblem:
    r"""Four Gaussian classes at :math:`\pm\mu` (label 1) and :math:`\pm\nu` (label 0), and a two-layer relu network [2]_.

    Section 5 of Ben Arous, Gheissari and Jagannath: its :math:`v_i` is our a, its :math:`m^\mu_i, m^\nu_i` the columns of
    our M, its time lr t. `RandomInit` draws :math:`v_i \sim N(0, 1)` and :math:`W_i \sim N(0, I/d)`.

    Parameters
    ----------
    snr : :math:`\lambda`, the inverse of the variance of each coordinate; inf is allowed
    ridge : :math:`\alpha`, the strength of the ridge penalty on both layers
    lr : :math:`c_\delta`, the learning rate: the step size is lr/d
    width : the number of units, four in the paper
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    >>> import sgdlimits as sl
    >>> sl.RandomInit(d=250).sample(sl.presets.xor_mixture(), runs=5).M.shape
    (5, 4, 2)
    """
    means = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    return _classifier_problem("xor_mixture", means, [1.0, 1.0, 0.0, 0.0], snr, ridge, lr, width).with_algorithm(algorithm)


def _classifier_problem(
    name,
    means,
    labels,
    snr,
    ridge,
    lr,
    width,
    activation="relu",
    weights=None,
    gram=None,
    batch=1,
    expectation=None,
    as_inputs=False,
) -> ProjectionProblem:
    """Return the problem of a two-layer network that learns the labels of Gaussian classes, with both layers trained.

    Initial weights are Gaussian, with the scale of the inputs if `as_inputs` is true, and of scale 1 otherwise.
    """
    variance = 1 / (snr if is_traced(snr) else float(snr))  # zero for snr = inf
    data: Any = mixture(means, weights, variance)
    labels, classes = np.asarray(labels, float), data.classes
    if labels.shape != (classes,) or not ((labels >= 0) & (labels <= 1)).all():
        wanted = f"{classes} numbers between 0 and 1, one a class"
        raise BadInput(f"labels must be {wanted}; got {labels.tolist()}. Give one label for each class.")
    # the paper's initial weights have the variance of the inputs, unless that is zero
    scale = value_at(data.spread, 0.0) if as_inputs and data.spread is not None else 1.0
    return ProjectionProblem(
        target=Target(ClassLabels(labels), np.shape(means)[1], gram=gram),
        network=TwoLayer(width, activation, mean=False),
        loss=CrossEntropy(),
        algorithm=OnePassSGD(lr, lr_second=lr, ridge=ridge, batch=batch),
        data=data,
        expectation=expectation,
        initial=InitialWeights(scale=scale, second=0.0, second_spread=1.0),
        paper_time=1.0,
        name=name,
    )

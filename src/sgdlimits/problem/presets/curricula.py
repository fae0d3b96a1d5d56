"""Preset of a curriculum: easy and hard samples, which differ in the variance of their irrelevant inputs."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.checks import number
from sgdlimits.domain import NotNegative, NotNegativeInTime, Rate, RealArrayInTime, checked
from sgdlimits.errors import BadInput, shorten
from sgdlimits.expectation import Expectation
from sgdlimits.expectation.gaussian import Rule
from sgdlimits.inputs import mixture
from sgdlimits.model.activation import SIGN_ACTIVATION, Activation, Erf
from sgdlimits.model.loss import SquaredLoss
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.target import CommitteeReadout, Target
from sgdlimits.problem.projection import ProjectionProblem

LABELS: dict[str, Activation] = {"sign": SIGN_ACTIVATION, "erf": Erf()}


def _check_label(name: str, value: Any) -> str:
    """Return the value if it names a label, or raise `BadInput`."""
    if not isinstance(value, str) or value not in LABELS:
        raise BadInput(f"{name} must be sign or erf; got {shorten(value)}. Give 'sign' or 'erf'.")
    return value


Label = Annotated[str, _check_label]


@checked
def easy_and_hard(
    relevant: Annotated[float, number(above=0, below=1)] = 0.5,
    easy: NotNegative = 0.0,
    hard: NotNegative = 2.0,
    weights: RealArrayInTime | None = None,
    lr: Rate = 1.0,
    ridge: NotNegativeInTime = 0.0,
    noise: NotNegativeInTime = 0.0,
    label: Label = "sign",
    expectation: Rule | Expectation | None = None,
    algorithm: Algorithm | None = None,
) -> ProjectionProblem:
    r"""Easy and hard samples of one task, whose order is a curriculum [20]_.

    A share :math:`\rho` of the inputs is relevant, with variance 1, and the teacher acts on these alone: :math:`y =
    \mathrm{sign}(w\cdot x) + \sqrt\Delta z`, with :math:`|w| = 1` and standard normal z. The other inputs are irrelevant. Their
    variance is `easy` in a share `weights[0]` of the samples and `hard` in the others: easy samples of variance zero show which
    inputs matter. The student is one erf unit, :math:`f = \mathrm{erf}(u\cdot x/\sqrt2)`, and the loss :math:`\frac12(y-f)^2`,
    with weight decay. A schedule of the weights is a curriculum: `Steps([6.0], [[1.0, 0.0], [0.0, 1.0]])` shows easy samples
    first.

    Saglietti, Sarao Mannelli and Saxe write the student as :math:`\mathrm{erf}(W\cdot x/\sqrt{2N})`: their
    :math:`W/\sqrt N` is u, and their time, samples over N, is t. Statistics and datasets have an axis of two blocks, the
    relevant inputs first, and the risk on easy and on hard samples is `task_risk`.

    Parameters
    ----------
    relevant : :math:`\rho`, the share of relevant inputs, between 0 and 1
    easy, hard : variance of the irrelevant inputs in easy and in hard samples
    weights : probabilities of easy and hard samples, which may change with time; equal unless given
    lr : learning rate
    ridge : strength of the weight decay
    noise : :math:`\Delta`, the variance of the label noise
    label : "sign", or "erf" for a teacher like the student
    expectation : how expectations are computed, where the automatic choice is not accurate enough
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    >>> import sgdlimits as sl
    >>> problem = sl.presets.easy_and_hard(weights=[1.0, 0.0])
    >>> start = sl.Overlaps([1.0], [[[0.1]], [[0.0]]], [[[0.5]], [[0.5]]])
    >>> problem.drift(start).Q.ravel()[1].item()                  # easy samples leave irrelevant weights alone
    0.0
    """
    return ProjectionProblem(
        data=mixture(np.zeros((2, 1)), weights, np.array([[1.0, easy], [1.0, hard]]), [relevant, 1 - relevant]),
        target=Target(CommitteeReadout(LABELS[label]), noise=noise, gram=np.array([[[1.0]], [[0.0]]])),
        network=TwoLayer(1, "erf"),
        loss=SquaredLoss(),
        algorithm=OnePassSGD(lr, ridge=ridge),
        expectation=expectation,
        paper_time=None,
        name="easy_and_hard",
    ).with_algorithm(algorithm)

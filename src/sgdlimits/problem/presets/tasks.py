"""Presets of changing tasks: two teachers learnt in sequence or together, and a rotating teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.domain import NotNegative, NotNegativeInTime, Rate, RealArrayInTime, Width, checked
from sgdlimits.errors import BadInput, check_number, is_traced
from sgdlimits.expectation import Expectation
from sgdlimits.expectation.gaussian import Rule
from sgdlimits.inputs import Mixture, mixture
from sgdlimits.model.activation import Activation
from sgdlimits.model.loss import SquaredLoss
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.target import CommitteeReadout, Target
from sgdlimits.model.tasks import ClassReadouts, Rotation
from sgdlimits.problem.directions import InitialWeights
from sgdlimits.problem.projection import ProjectionProblem


def _check_overlap(name: str, value: Any) -> Any:
    """Return the value if it is a number from -1 to 1, the overlap of two unit vectors, or raise `BadInput`."""
    if not is_traced(value):
        check_number(name, value, at_least=-1)
        if float(value) > 1:
            raise BadInput(f"{name} must be a number from -1 to 1; got {float(value):g}. Give an overlap of two unit vectors.")
    return value


Overlap = Annotated[float, _check_overlap]
START_SPREAD = 0.001
"""Standard deviation of the initial weights of both layers in `two_tasks`."""


@checked
def two_tasks(
    width: Width = 2,
    activation: str | Callable | Activation = "erf",
    similarity: Overlap = 0.5,
    weights: RealArrayInTime | None = None,
    lr: Rate = 1.0,
    noise: NotNegativeInTime = 0.0,
    train_second: bool | float = True,
    expectation: Rule | Expectation | None = None,
    algorithm: Algorithm | None = None,
) -> ProjectionProblem:
    r"""Network that learns two teachers, with a separate head for each: continual learning, replay and interleaving [17]_.

    Task c has the label :math:`y = s(w_c\cdot x) + \sqrt\Delta z` of a teacher of one unit, :math:`|w_c| = 1`, and the
    teachers have the overlap :math:`w_1\cdot w_2` = similarity. The student shares its first layer,
    :math:`f_c = \sum_j a_{jc}\, s(u_j\cdot x)`, the loss is :math:`\frac12(y-f_c)^2`, and a sample of task c trains head c
    only. A sample belongs to task c with probability `weights[c]`, and a schedule of these says how tasks follow each other:
    `Steps([50.0], [[1.0, 0.0], [0.0, 1.0]])` is one after the other, and `[0.1, 0.9]` in place of the last is replay.

    The first fixed direction is :math:`w_1`, and :math:`w_2 = v e_1 + \sqrt{1-v^2}\, e_2` for the similarity v. Weights of Lee,
    Sarao Mannelli, Clopath, Goldt and Saxe have the norm :math:`\sqrt d`: their :math:`w/\sqrt d` is our u, and their time,
    steps over d, is our t. `RandomInit` draws small weights for both layers, of standard deviation 0.001 as in their code.
    Datasets have the risk on each task as `task_risk`.

    Parameters
    ----------
    width : p, the number of the student's units
    activation : s, of student and teachers
    similarity : v, the overlap of the teachers, from -1 to 1
    weights : probabilities of the two tasks, which may change with time; equal unless given
    lr : learning rate of the first layer
    noise : :math:`\Delta`, the variance of the label noise
    train_second : whether the heads are trained, at the same learning rate, or in Python its ratio to lr
    expectation : how expectations are computed, such as `Sobol(12)`, if the automatic choice is not accurate enough
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    >>> import sgdlimits as sl
    >>> problem = sl.presets.two_tasks(similarity=0.5, weights=sl.Steps([50.0], [[1.0, 0.0], [0.0, 1.0]]))
    >>> start = sl.Overlaps({"a": [[0.5, 0.1], [0.5, 0.1]]}, [[0.1, 0.0], [0.0, 0.1]], [[1.0, 0.0], [0.0, 1.0]])
    >>> [problem.drift(start, t).a["a"].any(axis=0).tolist() for t in (0.0, 50.0)]
    [[True, False], [False, True]]
    """
    v: Any = similarity if is_traced(similarity) else float(similarity)
    across = (jnp.sqrt if is_traced(v) else np.sqrt)(1 - v * v)
    xp = jnp if is_traced(v) else np
    turns = xp.stack([xp.eye(2), xp.stack([xp.stack([v, across]), xp.stack([-across, v])])])
    teacher = CommitteeReadout(activation, [2.0, 0.0])  # of the mean over two directions, the first alone
    return ProjectionProblem(
        data=Mixture(mixture(np.zeros((2, 2)), weights).class_probabilities),
        target=Target(ClassReadouts([teacher, teacher], turns), 2, noise=noise),
        network=TwoLayer(width, activation, mean=False, heads=2),
        loss=SquaredLoss(),
        algorithm=OnePassSGD(lr, lr_second=lr * train_second if train_second else None),
        expectation=expectation,
        initial=InitialWeights(scale=START_SPREAD, second=0.0, second_spread=START_SPREAD),
        paper_time=None,
        name="two_tasks",
    ).with_algorithm(algorithm)


@checked
def drifting(
    speed: NotNegative = 0.1,
    width: Width = 1,
    activation: str | Callable | Activation = "linear",
    lr: Rate = 0.5,
    noise: NotNegativeInTime = 0.1,
    train_second: bool | float = False,
    expectation: Rule | Expectation | None = None,
    algorithm: Algorithm | None = None,
) -> ProjectionProblem:
    r"""A teacher that rotates, :math:`y = s(w(t)\cdot x) + \sqrt\Delta z`, :math:`w = \cos(\omega t)e_1 + \sin(\omega t)e_2`.

    The student is the mean of p units, :math:`f = \frac1p\sum_j a_j s(u_j\cdot x)`, and the loss :math:`\frac12(y-f)^2`. It
    stays behind the teacher; a larger learning rate follows more closely and averages less of the noise away. For one linear
    unit `tracking_risk` is the risk that remains, and `tracking_lr` the learning rate that makes it smallest.

    Parameters
    ----------
    speed : :math:`\omega`, the angle that the teacher turns in a unit of t, in radians
    width : p, the number of the student's units
    activation : s, of student and teacher
    lr : the learning rate
    noise : :math:`\Delta`, the variance of the label noise
    train_second : whether the second layer is trained, at the same learning rate, or in Python its ratio to lr
    expectation : how expectations are computed, such as `Sobol(12)`, if the automatic choice is not accurate enough
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    >>> import numpy as np, sgdlimits as sl
    >>> problem = sl.presets.drifting(speed=np.pi / 2, lr=0.5, noise=0.0)
    >>> drift = problem.drift(sl.Overlaps([1.0], [[0.2, 0.0]], [[1.0]]), 1.0).M
    >>> bool(abs(drift - 0.5 * np.array([[0.0 - 0.2, 1.0 - 0.0]])).max() < 1e-12)                    # lr (w(t) - u)
    True
    """
    return ProjectionProblem(
        target=Target(ClassReadouts([CommitteeReadout(activation, [2.0, 0.0])], Rotation(speed)), 2, noise=noise),
        network=TwoLayer(width, activation),
        loss=SquaredLoss(),
        algorithm=OnePassSGD(lr, lr_second=lr * train_second if train_second else None),
        expectation=expectation,
        paper_time=None,
        name="drifting",
    ).with_algorithm(algorithm)

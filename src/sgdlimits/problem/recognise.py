"""Which problem of the papers a problem is, by its parts and never by its name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.errors import is_traced
from sgdlimits.model.activation import is_square
from sgdlimits.model.loss import SquaredLoss
from sgdlimits.model.network import TwoLayer
from sgdlimits.problem.projection import ProjectionProblem


class PhaseRetrieval(NamedTuple):
    """Phase retrieval in numbers; `lr` is that of one sample."""

    p: int
    lr: float
    noise: float
    sphere: bool
    trains_second: bool


class QuadraticNetwork(NamedTuple):
    r"""A quadratic network in numbers: p, :math:`p^*`, :math:`\eta` of one sample, :math:`\Delta`."""

    p: int
    k: int
    lr: float
    noise: float


def phase_retrieval(problem: Any) -> PhaseRetrieval | None:
    """The numbers of a problem where it is `presets.phase_retrieval`, however it was made; None where it is not.

    >>> import sgdlimits as sl
    >>> phase_retrieval(sl.presets.single_index("square", lr=0.1, batch=2))
    PhaseRetrieval(p=1, lr=0.05, noise=0.0, sphere=True, trains_second=False)
    """
    if not _squares(problem, weight=0.5) or problem.target.teachers > 1:
        return None
    lr, noise = float(problem.algorithm.lr_sample), float(problem.target.noise)
    return PhaseRetrieval(problem.network.width, lr, noise, problem.sphere, problem.trains_second)


def quadratic_network(problem: Any) -> QuadraticNetwork | None:
    """The numbers of a problem where it is `presets.quadratic_network`, however it was made; None where it is not."""
    if not _squares(problem, weight=1.0) or problem.sphere or problem.trains_second:
        return None
    lr, noise = float(problem.algorithm.lr_sample), float(problem.target.noise)
    return QuadraticNetwork(problem.network.width, problem.target.teachers, lr, noise)


def recognise_quadratic_teachers(problem: Any) -> tuple[int, float, np.ndarray, np.ndarray] | None:
    """Width, noise, form and Gram matrix of a mean of squares that learns any quadratic form; None where it is not one."""
    if not _mean_of_squares(problem, weight=1.0) or problem.sphere or problem.trains_second:
        return None
    target = problem.target
    form = target.readout.quadratic(target.teachers)
    if form is None or is_traced(target.gram):
        return None
    return problem.network.width, float(target.noise), np.asarray(form), np.asarray(target.gram)


def _squares(problem: Any, weight: float) -> bool:
    """Whether a mean of squares learns one of orthonormal fields."""
    if not _mean_of_squares(problem, weight):
        return False
    target, identity = problem.target, np.eye(problem.target.teachers)
    form = target.readout.quadratic(target.teachers)
    return form is not None and _are(form, identity / target.teachers) and _are(target.gram, identity)


def _mean_of_squares(problem: Any, weight: float) -> bool:
    """Whether a mean of squares, second layer 1, learns from standard normal inputs by a squared loss."""
    if not isinstance(problem, ProjectionProblem):
        return False
    data, network, loss = problem.data, problem.network, problem.loss
    return (
        (isinstance(loss, SquaredLoss) and loss.weight == weight)
        and (isinstance(network, TwoLayer) and network.plain and network.mean and is_square(network.activation))
        and (data.centred and _are(data.squared_length, 1.0))
        and (isinstance(problem.algorithm, OnePassSGD) and _are(problem.algorithm.ridge, 0.0))
        and (problem.initial.second == 1 and problem.initial.second_spread == 0)
    )


def _are(values: Any, numbers: Any) -> bool:
    return not is_traced(values) and np.allclose(values, numbers, rtol=1e-12, atol=1e-12)

"""Tests of whether a problem is one that a paper treats, judged by its parts and not by its name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.errors import is_traced
from sgdlimits.inputs import Mixture
from sgdlimits.model.activation import is_square
from sgdlimits.model.loss import SquaredLoss
from sgdlimits.model.network import TwoLayer
from sgdlimits.problem.projection import ProjectionProblem


class PhaseRetrieval(NamedTuple):
    """Parameters of a phase retrieval problem: width, learning rate per sample, label noise variance, and two options."""

    p: int
    lr: float
    noise: float
    sphere: bool
    trains_second: bool


class QuadraticNetwork(NamedTuple):
    r"""Parameters of a quadratic network problem: widths of student and teacher, learning rate per sample, noise variance."""

    p: int
    k: int
    lr: float
    noise: float


def recognise_phase_retrieval(problem: Any) -> PhaseRetrieval | None:
    """Return the parameters of a problem that equals a `presets.phase_retrieval`, or None for any other problem.

    >>> import sgdlimits as sl
    >>> recognise_phase_retrieval(sl.presets.single_index("square", lr=0.1, batch=2))
    PhaseRetrieval(p=1, lr=0.05, noise=0.0, sphere=True, trains_second=False)
    """
    if not _is_square_committee(problem, weight=0.5) or problem.target.teachers > 1:
        return None
    # batches count as steps of one sample at the rate per sample, which have the same limit
    lr, noise = float(problem.algorithm.lr_sample), float(problem.target.noise)
    return PhaseRetrieval(problem.network.width, lr, noise, problem.sphere, problem.trains_second)


def recognise_quadratic_network(problem: Any) -> QuadraticNetwork | None:
    """Return the parameters of a problem that equals a `presets.quadratic_network`, or None for any other problem."""
    if not _is_square_committee(problem, weight=1.0) or problem.sphere or problem.trains_second:
        return None
    lr, noise = float(problem.algorithm.lr_sample), float(problem.target.noise)
    return QuadraticNetwork(problem.network.width, problem.target.teachers, lr, noise)


def recognise_quadratic_teachers(problem: Any) -> tuple[int, float, np.ndarray, np.ndarray] | None:
    """Return the parameters of a problem in which a mean of squared units learns a quadratic form; None for other problems.

    The result is (width, noise, quadratic form, Gram matrix of the fixed directions).
    """
    if not _is_mean_of_squares(problem, weight=1.0) or problem.sphere or problem.trains_second:
        return None
    target = problem.target
    form = target.readout.quadratic(target.teachers)
    if form is None or is_traced(target.gram):
        return None
    return problem.network.width, float(target.noise), np.asarray(form), np.asarray(target.gram)


def _is_square_committee(problem: Any, weight: float) -> bool:
    """Return whether network and target are means of squared fields, and the fixed directions are orthonormal.

    `weight` is the required weight of the squared loss.
    """
    if not _is_mean_of_squares(problem, weight):
        return False
    target, identity = problem.target, np.eye(problem.target.teachers)
    form = target.readout.quadratic(target.teachers)
    return form is not None and _are_equal(form, identity / target.teachers) and _are_equal(target.gram, identity)


def _is_mean_of_squares(problem: Any, weight: float) -> bool:
    """Return whether the network is a mean of squared units trained by plain SGD on standard normal inputs.

    The loss is squared, with the given weight.
    """
    if not isinstance(problem, ProjectionProblem):
        return False
    data, network, loss = problem.data, problem.network, problem.loss
    return (
        (isinstance(loss, SquaredLoss) and loss.weight == weight)
        and (isinstance(network, TwoLayer) and network.plain and network.mean and is_square(network.activation))
        and (isinstance(data, Mixture) and data.centred and _are_equal(data.squared_length, 1.0))
        and (isinstance(problem.algorithm, OnePassSGD) and _are_equal(problem.algorithm.ridge, 0.0))
        and (problem.initial.second == 1 and problem.initial.second_spread == 0)
    )


def _are_equal(values: Any, expected: Any) -> bool:
    """Return whether values equal the expected ones up to rounding; False for traced values, which are unknown."""
    return not is_traced(values) and np.allclose(values, expected, rtol=1e-12, atol=1e-12)

"""Preset of least squares: a linear student learns a linear teacher from inputs with any spectrum."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from sgdlimits.algorithm.base import Algorithm
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.checks import array
from sgdlimits.domain import NotNegativeInTime, Rate, RealArray, Size, checked
from sgdlimits.errors import BadInput
from sgdlimits.inputs import Spectrum, gaussian
from sgdlimits.model.loss import SquaredLoss
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.target import CommitteeReadout, Target
from sgdlimits.problem.directions import InitialWeights
from sgdlimits.problem.projection import ProjectionProblem


def as_spectrum(name: str, value: Any) -> Spectrum:
    """Convert an argument to a spectrum: a list of eigenvalues has equal shares of the dimensions."""
    if isinstance(value, Spectrum):
        return value
    values = np.atleast_1d(np.asarray(array()(name, value), float))
    return Spectrum(values, np.full(np.size(values), 1 / max(1, np.size(values))))


@checked
def least_squares(
    eigenvalues: Annotated[Any, as_spectrum] = 1.0,
    coefficients: RealArray = 1.0,
    lr: Rate = 0.1,
    noise: NotNegativeInTime = 0.0,
    ridge: NotNegativeInTime = 0.0,
    batch: Size = 1,
    algorithm: Algorithm | None = None,
) -> ProjectionProblem:
    r"""Least squares by a linear student, :math:`y = w_*\cdot x + \sqrt\Delta z`, loss :math:`\frac12(y-u\cdot x)^2`.

    Inputs are Gaussian with the given spectrum. A step subtracts lr/d times the gradient, so that the learning rate
    :math:`\gamma` per step of scaling laws, such as those of Paquette et al. [21]_, is lr/d: give lr = gamma d. `RandomInit`
    starts at u = 0. `SecondMoments` has the mean risk at any d; all other levels work too.

    Parameters
    ----------
    eigenvalues : variances of the inputs: a `Spectrum`, or a list, each for an equal share of the dimensions
    coefficients : length of the teacher :math:`w_*` along each eigenvalue, or in each block; one number for the same in all
    lr : learning rate
    noise : :math:`\Delta`, the variance of the label noise
    ridge : strength of the weight decay
    batch : samples per step, over which the gradient is averaged
    algorithm : optimiser, which replaces `OnePassSGD` with the arguments given here

    >>> import sgdlimits as sl
    >>> problem = sl.presets.least_squares([2.0, 0.5], [0.6, 0.8], noise=0.1)
    >>> start = sl.RandomInit(d=100).one(problem)
    >>> float(problem.risk(start).round(6)), round((2 * 0.36 + 0.5 * 0.64 + 0.1) / 2, 6)       # before training
    (0.57, 0.57)
    """
    spectrum = as_spectrum("eigenvalues", eigenvalues)
    B = len(spectrum.shares)
    lengths = np.asarray(coefficients, float)
    if lengths.shape not in ((), (B,)) or not np.isfinite(lengths).all():
        raise BadInput(
            f"coefficients must be {B} numbers, one for each eigenvalue; got shape {lengths.shape}. "
            "Give that many, or one number for all."
        )
    squares = np.broadcast_to(lengths**2, (B,))
    return ProjectionProblem(
        data=gaussian(spectrum),
        target=Target(CommitteeReadout("linear"), noise=noise, gram=squares[:, None, None] if B > 1 else squares[:, None]),
        network=TwoLayer(1, "linear"),
        loss=SquaredLoss(),
        algorithm=OnePassSGD(lr, ridge=ridge, batch=batch),
        initial=InitialWeights(scale=0.0),
        name="least_squares",
    ).with_algorithm(algorithm)

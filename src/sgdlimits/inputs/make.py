"""Functions that make the law of inputs from arguments of users: spectra, means, variances by class and block."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from sgdlimits.checks import probabilities
from sgdlimits.domain import NotNegativeInTime, RealArray, RealArrayInTime, ScheduleCheck, Vector, checked, not_negative
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.inputs.base import Inputs
from sgdlimits.inputs.blocks import Blocks
from sgdlimits.inputs.mixture import Mixture
from sgdlimits.inputs.spectrum import Spectrum
from sgdlimits.part import as_source, is_schedule
from sgdlimits.schedule import Root
from sgdlimits.statistics.trees import as_floats


@checked
def gaussian(spectrum: Spectrum | None = None) -> Inputs:
    """Return Gaussian inputs with mean zero: standard normal ones, or with the variances of a spectrum.

    >>> gaussian().sigma.item(), gaussian(Spectrum([2.0, 0.5], [0.4, 0.6])).blocks
    (1.0, 2)
    """
    if spectrum is None:
        return Mixture(np.ones(1))
    if len(spectrum.shares) == 1:
        variance = spectrum.eigenvalues[0]
        return Mixture(np.ones(1), sigma=jnp.sqrt(variance) if is_traced(variance) else math.sqrt(variance))
    return Blocks(np.ones(1), None, spectrum.eigenvalues[None], spectrum.shares)


@checked
def mixture(
    means: RealArray,
    weights: RealArrayInTime | None = None,
    variance: RealArrayInTime = 1.0,
    shares: Vector | None = None,
) -> Inputs:
    r"""Return a mixture of Gaussian classes whose means lie in the span of the fixed directions.

    Parameters
    ----------
    means : coefficients of the mean of each class along the k fixed directions, shape (classes, k)
    weights : probabilities of the classes, some of which may be 0; equal unless given
    variance : variance of every coordinate around the mean, the inverse signal-to-noise ratio; 0 makes every input equal to the
        mean of its class. With shape (classes,) there is one for each class, and with shape (classes, B) one for each class and
        block of coordinates
    shares : fraction of the dimensions in each of the B blocks, which the classes share

    >>> mixture([[1.0, 0.0], [0.0, 1.0]], variance=0.01).classes
    2
    >>> mixture(np.zeros((2, 1)), variance=[[1.0, 0.0], [1.0, 2.0]], shares=[0.5, 0.5]).blocks
    2
    """
    rows: Any = as_floats(means)
    if rows.ndim != 2 or not rows.size:
        raise BadInput(f"means must have shape (classes, k); got {rows.shape}. Give one row for each class.")
    probability: Any = np.full(rows.shape[0], 1 / rows.shape[0]) if weights is None else as_floats(weights)
    if probability.shape != rows.shape[:1]:
        raise BadInput(
            f"weights must have shape {rows.shape[:1]}, one for each class; got {probability.shape}. "
            "Give the probability of each class."
        )
    known = [] if is_traced(probability) else [probability]
    for each in probability.examples() if is_schedule(probability) else known:
        probabilities("weights", each)
    if not is_traced(rows) and not np.isfinite(rows).all():
        raise BadInput(f"means must be finite; got {np.asarray(rows).tolist()}. Give finite means.")
    shape = variance.shape if is_schedule(variance) else np.shape(variance)
    if shape == ():
        return _one_variance(probability, rows, variance, shares)
    if shape[0] != len(rows) or len(shape) > 2:
        raise BadInput(
            f"variance must be one number or have shape ({len(rows)},) or ({len(rows)}, B); got {shape}. "
            "Give one variance for each class, or for each class and block."
        )
    own: Any = variance
    if len(shape) == 1:
        if is_schedule(variance):
            raise BadInput(
                f"a variance that changes with time must have one column for each block; got shape "
                f"{shape}. Give shape ({len(rows)}, 1)."
            )
        own = as_floats(variance)[:, None]
    if shares is None and len(shape) == 2 and shape[1] > 1:
        raise BadInput(f"variance has {shape[1]} blocks, but shares is missing. Give the share of each block, shares=[...].")
    return Blocks(probability, rows, own, (1.0,) if shares is None else tuple(np.asarray(shares, float).tolist()))


@checked
def add_noise(data: Inputs, scale: NotNegativeInTime) -> Inputs:
    r"""Return inputs to whose coordinates training adds fresh Gaussian noise, as in denoising and data augmentation.

    A step sees :math:`x + \tau\xi`, with a standard normal :math:`\xi` drawn for each sample, and the label of x. Risk and
    accuracy are those on the inputs without noise.

    Parameters
    ----------
    data : law of the inputs without noise, with a variance above 0
    scale : :math:`\tau`, the standard deviation of the noise of each coordinate, which may change with time

    >>> noisy = add_noise(gaussian(), 0.5)
    >>> noisy.noise_variance.item(), noisy.blocks
    (0.25, None)
    """
    if isinstance(data, Mixture):
        if data.spread is None:
            raise BadInput(
                "the inputs equal the means of their classes, to which input noise is not added. Give a mixture with a "
                "variance, which has the same effect."
            )
        variance: Any = data.spread**2
        data = Blocks(data.weights, data.means, variance.reshape(1, 1))
    if type(data) is not Blocks:  # rows of a data set are inputs of blocks too
        raise BadInput(f"add_noise needs Gaussian inputs; got {type(data).__name__}. Give gaussian() or a mixture.")
    if data.has_noise:
        raise BadInput(
            f"add_noise needs inputs without noise; got noise of standard deviation {as_source(data.input_noise)}. "
            "Add noise once."
        )
    return Blocks(data.weights, data.means, data.variance, data.shares, scale)


def _one_variance(weights: Any, means: Any, variance: Any, shares: Any) -> Mixture:
    """Return a mixture of Gaussian classes with the same variance in all coordinates."""
    if shares is not None:
        raise BadInput(
            "shares= are the sizes of blocks of coordinates, but variance= is one number, without blocks. "
            "Leave shares out, or give a variance for each class and block."
        )
    ScheduleCheck(not_negative)("variance", variance)
    if is_schedule(variance):
        root: Any = Root(variance)
        return Mixture(weights, means, root)
    return Mixture(weights, means, jnp.sqrt(variance) if is_traced(variance) else math.sqrt(variance))

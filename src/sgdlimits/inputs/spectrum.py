"""Spectra of the covariance of inputs: distinct variances, and the share of the dimensions that each has."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.checks import probabilities
from sgdlimits.domain import RealArray, Vector, checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import Part, is_schedule
from sgdlimits.statistics.trees import as_floats


def as_shares(shares: Any, blocks: int) -> tuple[float, ...]:
    """Convert the shares of the dimensions in each block to a tuple; raise `BadInput` unless all are positive and sum to 1."""
    values = np.asarray(shares, float)
    if values.shape != (blocks,):
        raise BadInput(f"shares must be {blocks} numbers, one for each block; got shape {values.shape}. Give that many.")
    probabilities("shares", values)
    if not (values > 0).all():
        raise BadInput(f"shares must be positive; got {values.tolist()}. Leave out empty blocks.")
    return tuple(values.tolist())


def check_variances(name: str, variance: Any) -> None:
    """Raise `BadInput` unless variances, or the values that their schedule takes, are finite, 0 or larger, and not all 0."""
    for each in variance.examples() if is_schedule(variance) else [] if is_traced(variance) else [variance]:
        values = np.asarray(each)
        if not (np.isfinite(values).all() and (values >= 0).all() and values.any(axis=-1).all()):
            raise BadInput(
                f"{name} must be 0 or larger, and not 0 in all blocks; got {values.tolist()}. "
                "Give at least one positive variance, and none below 0."
            )


@checked
class Spectrum(Part):
    """Spectrum of a covariance with B distinct eigenvalues, each the variance in a share of the d dimensions.

    Parameters
    ----------
    eigenvalues : variance in each block, shape (B,); a block of variance 0 is one in which all inputs are zero
    shares : fraction of the dimensions in each block, shape (B,), which sum to 1

    >>> Spectrum([3.0, 1.0, 0.2], [0.1, 0.3, 0.6]).sizes(25)
    (3, 7, 15)
    """

    eigenvalues: Float[Array, " blocks"]
    shares: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, eigenvalues: RealArray, shares: Vector) -> None:
        self.eigenvalues = as_floats(eigenvalues)
        if np.ndim(self.eigenvalues) != 1 or not np.shape(self.eigenvalues)[0]:
            raise BadInput(
                f"eigenvalues must be a list of numbers, one for each block; got shape {np.shape(self.eigenvalues)}. "
                "Give the variance in each block."
            )
        self.shares = as_shares(shares, np.shape(self.eigenvalues)[0])
        check_variances("eigenvalues", self.eigenvalues)

    def sizes(self, d: int) -> tuple[int, ...]:
        """Return the number of dimensions of each block in R^d."""
        return block_sizes(self.shares, d)


def block_sizes(shares: tuple[float, ...], d: int) -> tuple[int, ...]:
    """Round the shares of d dimensions to integers with the sum d, by the largest remainders.

    >>> block_sizes((0.5, 0.3, 0.2), 7)
    (4, 2, 1)
    """
    exact = np.asarray(shares) * d
    sizes = np.floor(exact + 1e-9).astype(int)
    largest = np.argsort(-(exact - sizes), kind="stable")[: d - sizes.sum()]
    sizes[largest] += 1
    return tuple(sizes.tolist())

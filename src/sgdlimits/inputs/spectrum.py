"""Spectra of the covariance of inputs: distinct variances, and the share of the dimensions that each has.

`power_law`, `marchenko_pastur` and `from_eigenvalues` bin long spectra into few nodes, and report the error as `error`.
"""

from __future__ import annotations

from typing import Annotated, Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.checks import array, integer, probabilities
from sgdlimits.domain import Count, NotNegative, Positive, RealArray, Vector, checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.inputs.bins import Bin, best_bins, gauss_nodes, kernel_error, power_law_bins, project_onto_nodes
from sgdlimits.part import Part, is_schedule
from sgdlimits.statistics.trees import as_floats

__all__ = ["PowerLaw", "Spectrum", "from_eigenvalues", "marchenko_pastur", "power_law"]

MARCHENKO_PASTUR_POINTS = 2000
"""Number of angles, equally spaced, by which integrals over the law of Marchenko and Pastur are known to rounding."""
Blocks = Annotated[int, integer(at_least=4, below=1001)]
"""Number of blocks of a binned spectrum."""


def as_shares(shares: Any, blocks: int) -> tuple[float, ...]:
    """Convert the shares of the dimensions in each block to a tuple; raise `BadInput` unless all are positive and sum to 1."""
    values = np.asarray(shares, float)
    if values.shape != (blocks,):
        raise BadInput(f"shares must be {blocks} numbers, one for each block; got shape {values.shape}. Give {blocks} shares.")
    probabilities("shares", values)
    if not (values > 0).all():
        raise BadInput(f"shares must be positive; got {values.tolist()}. Leave out empty blocks.")
    return tuple(values.tolist())


def check_variances(name: str, variance: Any) -> None:
    """Raise `BadInput` unless variances, at all times if scheduled, are finite, 0 or larger, and not all 0."""
    for each in variance.examples() if is_schedule(variance) else [] if is_traced(variance) else [variance]:
        values = np.asarray(each)
        if not (np.isfinite(values).all() and (values >= 0).all() and values.any(axis=-1).all()):
            raise BadInput(
                f"{name} must be 0 or larger, and not 0 in all blocks; got {values.tolist()}. "
                "Give at least one positive variance, and none below 0."
            )


@checked
class Spectrum(Part):
    r"""Spectrum of a covariance with B distinct eigenvalues, each the variance in a share of the d dimensions.

    Parameters
    ----------
    eigenvalues : variance in each block, shape (B,); a block of variance 0 is one in which all inputs are zero
    shares : fraction of the dimensions in each block, shape (B,), which sum to 1
    error : relative error of sums over the eigenvalues if each block stands for many, 0 if the spectrum is exact

    The functions that bin a spectrum report, as `error`, the largest relative error over all s of the sums of
    :math:`\lambda e^{-2\lambda s}` and :math:`\lambda^2 e^{-2\lambda s}` over all eigenvalues, compared with many more nodes.
    These sums give the risk of gradient flow and the noise of SGD. The shares times d are then no integers: `SecondMoments`
    takes them as they are, `Chain` and `SGD` round them.

    >>> Spectrum([3.0, 1.0, 0.2], [0.1, 0.3, 0.6]).sizes(25)
    (3, 7, 15)
    """

    eigenvalues: Float[Array, " blocks"]
    shares: tuple[float, ...] = eqx.field(static=True)
    error: float = eqx.field(static=True)

    def __init__(self, eigenvalues: RealArray, shares: Vector, error: NotNegative = 0.0) -> None:
        self.eigenvalues, self.error = as_floats(eigenvalues), float(error)
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


class PowerLaw(Spectrum):
    """Binned spectrum of the eigenvalues j^-exponent, j = 1, ..., d, with the rank j."""

    d: int = eqx.field(static=True)
    exponent: float = eqx.field(static=True)
    blocks: int = eqx.field(static=True)

    def __init__(self, d: int, exponent: float, blocks: int) -> None:
        self.d, self.exponent, self.blocks = d, exponent, blocks
        found, error = power_law_bins(d, exponent, blocks)
        super().__init__(*_nodes_and_shares(found), error)

    def __repr__(self) -> str:
        return f"PowerLaw(d={self.d}, exponent={self.exponent:g}, blocks={self.blocks}), error {self.error:.1e}"

    def source(self, exponent: float) -> Float[np.ndarray, " blocks"]:
        r"""Return the length in each block of a teacher with the coefficient j^-exponent along eigendirection j.

        These are the `coefficients` of `presets.least_squares`. Their squares are the Gram matrices of the teacher in the
        blocks, `Target(gram=)`, with the sums over ranks of the squared coefficients.

        >>> spectrum = power_law(d=10**9, exponent=1.5)
        >>> float((spectrum.source(0.6) ** 2).sum().round(3))
        5.512
        """
        array()("exponent", exponent)
        found, _ = power_law_bins(self.d, self.exponent, self.blocks)
        return np.sqrt(project_onto_nodes(found, lambda ranks: ranks ** (-2 * exponent)))


@checked
def power_law(d: Count, exponent: Positive, blocks: Blocks = 48) -> PowerLaw:
    r"""Return the spectrum of the eigenvalues :math:`j^{-\text{exponent}}`, j = 1, ..., d, binned into Gauss nodes.

    Its method `source(b)` has the coefficients of a teacher :math:`j^{-b}`. No eigenvalues are listed, so that d may be 10^9.

    Parameters
    ----------
    d : number of eigenvalues, the dimension
    exponent : decay of the eigenvalues; the capacity exponent of kernel methods
    blocks : largest number of nodes

    >>> spectrum = power_law(d=20000, exponent=1.2, blocks=48)
    >>> spectrum
    PowerLaw(d=20000, exponent=1.2, blocks=48), error 7.3e-06
    >>> d_times_trace = 20000 * (spectrum.eigenvalues @ np.array(spectrum.shares))
    >>> bool(abs(d_times_trace / (np.arange(1.0, 20001) ** -1.2).sum() - 1) < 1e-9)
    True
    """
    return PowerLaw(d, float(exponent), blocks)


@checked
def from_eigenvalues(eigenvalues: Vector, blocks: Blocks = 48) -> Spectrum:
    """Return the spectrum of given eigenvalues, one for each dimension, binned into Gauss nodes if there are many.

    Parameters
    ----------
    eigenvalues : all d eigenvalues, in any order, such as those of a covariance measured on data
    blocks : largest number of nodes; d nodes or more keep every eigenvalue

    >>> spectrum = from_eigenvalues(np.linspace(0.5, 1.5, 1000), blocks=12)
    >>> len(spectrum.shares), spectrum.error < 1e-4
    (12, True)
    """
    values = np.sort(np.asarray(eigenvalues, float))[::-1]
    check_variances("eigenvalues", values)
    found, error = best_bins(lambda ranks: np.interp(ranks, np.arange(1.0, values.size + 1), values), values.size, blocks)
    return Spectrum(*_nodes_and_shares(found), error)


@checked
def marchenko_pastur(ratio: Positive, blocks: Blocks = 24) -> Spectrum:
    r"""Return the limiting spectrum of :math:`X^\top X/n` for n standard normal samples in d dimensions, d/n = ratio.

    Its mean is 1. For a ratio above 1, a share 1 - 1/ratio of the eigenvalues is zero.

    Parameters
    ----------
    ratio : dimensions over samples
    blocks : number of Gauss nodes, which keep the first 2 blocks - 1 moments

    >>> spectrum = marchenko_pastur(0.5)
    >>> [round(float(spectrum.eigenvalues**k @ np.array(spectrum.shares)), 12) for k in (1, 2, 3)]
    [1.0, 1.5, 2.75]
    """
    angle = np.pi * (np.arange(MARCHENKO_PASTUR_POINTS) + 0.5) / MARCHENKO_PASTUR_POINTS
    x = 1 + ratio + 2 * np.sqrt(ratio) * np.cos(angle)
    w = np.sin(angle) ** 2 / x
    w *= min(1.0, 1 / ratio) / w.sum()
    nodes, counts, _ = gauss_nodes(x, w, blocks - (ratio > 1))
    found = Bin(x, w, nodes, counts, np.zeros((0, 0)))
    error = kernel_error([found], [found._replace(nodes=x, counts=w)])
    zero = ([0.0], [1 - 1 / ratio]) if ratio > 1 else ([], [])
    return Spectrum(np.concatenate([nodes[::-1], zero[0]]), np.concatenate([counts[::-1], zero[1]]), error)


def _nodes_and_shares(found: list[Bin]) -> tuple[np.ndarray, np.ndarray]:
    """Return the Gauss nodes of all bins, and the share of the eigenvalues that each node represents."""
    counts = np.concatenate([each.counts for each in found])
    return np.concatenate([each.nodes for each in found]), counts / counts.sum()


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

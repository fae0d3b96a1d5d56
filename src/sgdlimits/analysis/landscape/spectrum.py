"""The eigenvalues of the Hessian of the population risk in R^d, with their multiplicities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sgdlimits.errors import BadInput, check_count, check_number

TOLERANCE = 1e-8
MOST_EIGENVALUES = 2**62


class Index(NamedTuple):
    """How many directions are negative, null and positive."""

    negative: int
    null: int
    positive: int


class Spectrum(NamedTuple):
    """Eigenvalues that differ, ascending, and how often each occurs. It unpacks as the two.

    Parameters
    ----------
    eigenvalues : those closer than a tolerance times the largest are one, their mean; 0.0 where they are as close to zero
    multiplicities : whole numbers

    Examples
    --------
    >>> Spectrum(np.array([-4.0, 0.0]), np.array([1, 2998]))
    Spectrum of 2999 eigenvalues: 1 negative, 2998 null, 0 positive
      eigenvalue  multiplicity
              -4             1
               0          2998
    """

    eigenvalues: Float[np.ndarray, " distinct"]
    multiplicities: Int[np.ndarray, " distinct"]

    @property
    def index(self) -> Index:  # type: ignore[override]
        """How many directions are negative, null and positive."""
        return Index(*(int(self.multiplicities[np.sign(self.eigenvalues) == sign].sum()) for sign in (-1, 0, 1)))

    @property
    def size(self) -> int:
        """How many eigenvalues there are, each as often as it occurs."""
        return int(self.multiplicities.sum())

    def __repr__(self) -> str:
        index = self.index
        head = f"Spectrum of {self.size} eigenvalues: {index.negative} negative, {index.null} null, {index.positive} positive"
        pairs = zip(self.eigenvalues, self.multiplicities, strict=True)
        rows = [("eigenvalue", "multiplicity"), *((f"{value:.6g}", str(count)) for value, count in pairs)]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join(
            [head, *("  " + "  ".join(text.rjust(w) for text, w in zip(row, widths, strict=True)) for row in rows)]
        )


def spectrum_of(values: Float[np.ndarray, " n"], counts: Int[np.ndarray, " n"], tolerance: float = TOLERANCE) -> Spectrum:
    """A spectrum from eigenvalues with multiplicities, some of which may be the same up to rounding.

    >>> spectrum_of(np.array([1e-17, 2.0, 0.0, 2.0 + 1e-12]), np.array([1, 1, 5, 7])).multiplicities.tolist()
    [6, 8]
    """
    values, counts = np.asarray(values)[counts > 0], np.asarray(counts)[counts > 0]
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    near = tolerance * np.abs(values).max(initial=0.0)
    starts = np.flatnonzero(np.diff(values, prepend=-np.inf) > near)
    total = np.add.reduceat(counts, starts)
    shares = counts / np.repeat(total, np.diff(np.append(starts, values.size)))
    means = np.add.reduceat(values * shares, starts)
    return Spectrum(np.where(np.abs(means) <= near, 0.0, means), total)


@dataclass(frozen=True)
class Hessian:
    """The Hessian at statistics, in the orthonormal frame that the directions span; the same for every dimension d.

    Parameters
    ----------
    span : the block of the p units within the frame, shape (p n, p n), unit by unit
    outside : the block of the p units along each of the d - n directions outside the frame, shape (p, p)
    units : the coordinates of the units in the frame, shape (p, n)
    sphere : whether it is the Riemannian Hessian, zero along each unit itself
    """

    span: Float[np.ndarray, "pn pn"]
    outside: Float[np.ndarray, "p p"]
    units: Float[np.ndarray, "p n"]
    sphere: bool

    def spectrum(self, d: int, tolerance: float = TOLERANCE) -> Spectrum:
        """All eigenvalues in dimension `d`, on the sphere those of the tangent space, at a cost without d."""
        check_number("tolerance", tolerance, at_least=0)
        p, n = self.units.shape
        d = check_count("d", d, at_least=n, remedy=f"These directions span {n} dimensions: give d of at least {n}.")
        if p * d > MOST_EIGENVALUES:
            raise BadInput(f"there would be {p * d} eigenvalues, more than {MOST_EIGENVALUES}. Give a smaller d.")
        tangent = tangent_basis(self.units) if self.sphere else np.eye(p * n)
        inside, outside = np.linalg.eigvalsh(tangent.T @ self.span @ tangent), np.linalg.eigvalsh(self.outside)
        counts = np.repeat([1, d - n], [inside.size, p])
        return spectrum_of(np.concatenate([inside, outside]), counts, tolerance)


def tangent_basis(units: Float[np.ndarray, "p n"]) -> Float[np.ndarray, "pn tangent"]:
    """An orthonormal basis of the changes of all units that keep their norms, p (n - 1) columns."""
    p, n = units.shape
    basis = np.zeros((p, n, p, n - 1))
    for j, unit in enumerate(units):
        basis[j, :, j] = np.linalg.svd(unit[None])[2][1:].T
    return basis.reshape(p * n, p * (n - 1))

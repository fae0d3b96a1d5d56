"""The Hessian of the population risk at statistics, and its eigenvalues in R^d."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sgdlimits.errors import BadInput, check_count, check_number
from sgdlimits.theory.spectrum import TOLERANCE, Spectrum, spectrum_of

MOST_EIGENVALUES = 2**62


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

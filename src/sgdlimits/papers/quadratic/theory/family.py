"""Family of critical points of a quadratic network, and its Hessian in every dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdlimits.analysis.spectrum import HessianSpectrum, make_spectrum
from sgdlimits.domain import NotNegativeInTime, Teachers, Width, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.size import check_memory
from sgdlimits.statistics import Overlaps


class NullDirections(NamedTuple):
    """Numbers of null directions of a Hessian at a critical point: those tangent to the family of points, and the others."""

    symmetry: int
    flat: int


@checked
@dataclass(frozen=True)
class CriticalFamily:
    r"""Family of critical points of a quadratic network that learn s teacher directions, and r directions orthogonal to them.

    The range of :math:`G = W^\top W` has s directions in the teachers' span and r orthogonal to it.

    The family is one orbit of :math:`O(p)\times O(p^*)\times O(d-p^*)`. Hessians are with respect to the weights, (25).

    Parameters
    ----------
    width : p
    teachers : :math:`p^*`
    s, r : numbers of directions, with s + r at most p and s at most :math:`p^*`; r is 0 if s is :math:`p^*`
    noise : variance of the label noise
    """

    width: Width
    teachers: Teachers
    s: int
    r: int
    noise: NotNegativeInTime = 0.0

    def __post_init__(self) -> None:
        p, k, s, r = self.width, self.teachers, self.s, self.r
        if min(s, r) < 0 or s + r > p or s > k or (s == k and r):
            raise BadInput(
                f"{p} units and {k} teachers have no critical points with s = {s}, r = {r}. "
                "Use s + r of at most the width, and either s below the number of teachers, or s equal to it and r = 0."
            )

    @property
    def kind(self) -> str:
        """Name of the family: "tabula rasa", "plateau", "uncorrelated", "correlated", "solution" or "mixed"."""
        if self.s == 0:
            return {0: "tabula rasa", self.width: "plateau"}.get(self.r, "uncorrelated")
        if self.s == self.teachers:
            return "solution"
        return "mixed" if self.r else "correlated"

    @property
    def rank(self) -> int:
        """Rank s + r of the weight matrix W at every point of the family."""
        return self.s + self.r

    @property
    def alpha(self) -> float:
        r"""Eigenvalue of :math:`W^\top W` along the s directions in the teachers' span, for weights W."""
        return self.beta + self.width / self.teachers

    @property
    def beta(self) -> float:
        r"""Eigenvalue of :math:`W^\top W` along the r directions orthogonal to the teachers, for weights W.

        It is always :math:`-\frac p2\,\mathrm{tr} D`, with p the width and D as in `critical`.
        """
        return self.width * (self.teachers - self.s) / (self.teachers * (self.rank + 2))

    @property
    def risk(self) -> float:
        r"""Population risk, :math:`\frac{2(p^*-s)(p^*+r+2)}{p^{*2}(s+r+2)}` plus the noise floor.

        Here :math:`p^*` is the number of teachers.
        """
        missing = self.teachers - self.s
        return 2 * missing * (self.teachers + self.r + 2) / (self.teachers**2 * (self.rank + 2)) + self.noise

    @property
    def smallest_d(self) -> int:
        r"""Smallest dimension in which the family exists, :math:`p^* + r` with :math:`p^*` teachers."""
        return self.teachers + self.r

    def exists(self, d: int) -> bool:
        """Return whether the family exists in d dimensions, which takes r directions orthogonal to the teachers."""
        return check_count("d", d, at_least=self.teachers) >= self.smallest_d

    def weights(
        self, d: int, seed: int | None = None, rotation: Float[np.ndarray, "p n"] | None = None
    ) -> Float[np.ndarray, "p d"]:
        r"""Return weights of shape (p, d) at a point of the family, with the teachers along the first axes.

        It is :math:`W = M\, \mathrm{diag}(\alpha, \dots, \beta, \dots)^{1/2}\, O^\top`, where M and O have orthonormal columns.

        Parameters
        ----------
        d : dimension
        seed : seed of a point drawn uniformly; without a seed unit j lies along the j-th direction
        rotation : the matrix M of shape (p, s + r), with orthonormal columns, instead of a drawn one
        """
        d = self._check_dimension(d)
        check_memory([("units and directions", self.width + self.rank), ("dimensions", d)], "Take a smaller d.")
        rng = None if seed is None else np.random.default_rng(check_count("seed", seed, at_least=0))
        O = np.zeros((d, self.rank))
        # s directions inside the teachers' span, r outside of it
        O[: self.teachers, : self.s] = _orthonormal_columns(self.teachers, self.s, rng)
        O[self.teachers :, self.s :] = _orthonormal_columns(d - self.teachers, self.r, rng)
        # rotations of the units leave the function unchanged
        M = _orthonormal_columns(self.width, self.rank, rng) if rotation is None else self._check_rotation(rotation)
        return M * np.sqrt([self.alpha] * self.s + [self.beta] * self.r) @ O.T

    def statistics(self, rotation: Float[np.ndarray, "p n"] | None = None, *, seed: int | None = None) -> Overlaps:
        """Return the overlaps of a point of the family, which do not depend on d.

        The parameters are those of `weights`.
        """
        W = self.weights(self.smallest_d, seed, rotation)
        return Overlaps(jnp.ones(self.width), jnp.asarray(W[:, : self.teachers]), jnp.asarray(W @ W.T))

    def gradient_norm(self, seed: int | None = None) -> float:
        """Norm of the risk's gradient at a point of the family, computed numerically: zero up to rounding."""
        W = self.weights(self.smallest_d, seed)
        # student's matrix minus teachers' matrix
        D = W.T @ W / self.width - np.diag(np.arange(self.smallest_d) < self.teachers) / self.teachers
        return float(np.linalg.norm(4 / self.width * W @ (np.trace(D) * np.eye(len(D)) + 2 * D)))

    def blocks(self, d: int) -> list[tuple[float, int]]:
        r"""Return the Hessian's eigenvalues in dimension d with multiplicities, one pair per kind of eigenvector.

        Values may repeat, and multiplicities may be zero.

        The eigenvectors are sums of products :math:`x y^\top` of a left and a right factor. Let U and O be the left and
        right singular vectors of W, T the directions of the teachers' span orthogonal to O, and N the complement of T and O.
        In units of 8/p, with :math:`a = \alpha/p` and :math:`b = \beta/p`, and :math:`U_s`, :math:`U_r` the parts of U,

        - x orthogonal to U: :math:`-(b + \frac1{p^*})` for y in T, -b in N and 0 in O;
        - x in :math:`U_s`: 0 for y in T, :math:`\frac1{p^*}` in N; x in :math:`U_r`: :math:`-\frac1{p^*}` in T, 0 in N;
        - x in U and y in O: 0 for rotations, 2a, 2b and a + b for products of two directions, and the eigenvalues of
          :math:`\begin{pmatrix}(s+2)a & \sqrt{sr\,ab}\\ \sqrt{sr\,ab} & (r+2)b\end{pmatrix}` for changes of both norms.
        """
        d = self._check_dimension(d)
        p, k, s, r, n = self.width, self.teachers, self.s, self.r, self.rank
        a, b = self.alpha / p, self.beta / p
        # dimensions orthogonal to U, of T, and of N
        idle, missing, outside = p - n, k - s, d - k - r
        both = np.sqrt(s * r * a * b)
        # the 2 by 2 block exists only if both kinds of directions do
        norms = np.linalg.eigvalsh([[(s + 2) * a, both], [both, (r + 2) * b]]) if s and r else [(n + 2) * (a if s else b)]
        found = [
            (-(b + 1 / k), idle * missing),
            (-b, idle * outside),
            (0.0, idle * n + s * missing + r * outside + n * (n - 1) // 2),
            (1 / k, s * outside),
            (-1 / k, r * missing),
            (2 * a, s * (s + 1) // 2 - (s > 0)),
            (2 * b, r * (r + 1) // 2 - (r > 0)),
            (a + b, s * r),
            *((norm, int(n > 0)) for norm in norms),
        ]
        return [(float(8 / p * value), int(count)) for value, count in found]

    def spectrum(self, d: int) -> HessianSpectrum:
        """Return the distinct eigenvalues of the Hessian in dimension d, ascending, with multiplicities.

        It is `sgdlimits.hessian_spectrum` at the family's statistics, in closed form.

        >>> CriticalFamily(width=2, teachers=1, s=1, r=0).spectrum(d=10)
        Spectrum of 20 eigenvalues: 0 negative, 10 null, 10 positive
          eigenvalue  multiplicity
                   0            10
                   4             9
                  12             1
        """
        values, counts = zip(*self.blocks(d), strict=True)
        return make_spectrum(np.array(values), np.array(counts))

    def index(self, d: int) -> int:
        r"""Number of negative eigenvalues of the Hessian: :math:`(p-s-r)(d-s-r) + r(p^*-s)`, but zero at solutions.

        Here p is the width and :math:`p^*` the number of teachers.
        """
        return sum(count for value, count in self.blocks(d) if value < 0)

    def null(self, d: int) -> NullDirections:
        """Numbers of the Hessian's null directions: those tangent to the family, and the others.

        Only solutions of networks with p above p* have the latter. The risk grows along them as the fourth power.

        >>> CriticalFamily(width=3, teachers=2, s=2, r=0).null(d=10)
        NullDirections(symmetry=3, flat=8)
        """
        # the closed form makes these eigenvalues exactly zero
        null = sum(count for value, count in self.blocks(d) if value == 0)
        return NullDirections(self.dimension(d), null - self.dimension(d))

    def degrees_of_freedom(self, d: int) -> int:
        r"""Dimension of the set of functions in the family: :math:`s(p^* - s) + r(d - p^* - r)` for :math:`p^*` teachers.

        There is one function for each matrix :math:`W^\top W`, with W the weights.
        """
        d = self._check_dimension(d)
        return self.s * (self.teachers - self.s) + self.r * (d - self.teachers - self.r)

    def dimension(self, d: int) -> int:
        """Dimension of the manifold of weights, d numbers for each unit, at which the family's critical points lie.

        It is the number of degrees of freedom of the family's functions, plus the dimension of rotations of the units.
        """
        return self.degrees_of_freedom(d) + self.rank * self.width - self.rank * (self.rank + 1) // 2

    def _check_dimension(self, d: int) -> int:
        """Return d as an integer, or raise `BadInput` if the family does not exist in d dimensions."""
        if not self.exists(d):
            raise BadInput(
                f"the family s = {self.s}, r = {self.r} needs {self.r} directions orthogonal to the teachers; "
                f"d = {d} has only {d - self.teachers} of them. Use a d of at least {self.smallest_d}."
            )
        return int(d)

    def _check_rotation(self, rotation: Float[np.ndarray, "p n"]) -> Float[np.ndarray, "p n"]:
        """Return a rotation M of the units as an array, or raise `BadInput` unless its columns are orthonormal."""
        M, shape = np.asarray(rotation, float), (self.width, self.rank)
        if M.shape != shape or not np.allclose(M.T @ M, np.eye(self.rank), atol=1e-9):
            raise BadInput(
                f"rotation must have the shape {shape} and orthonormal columns; got the shape {M.shape}"
                f"{'' if M.shape != shape else ' and columns that are not'}. Use, for instance, numpy.linalg.qr(A)[0]."
            )
        return M


def _orthonormal_columns(rows: int, columns: int, rng: np.random.Generator | None) -> Float[np.ndarray, "rows columns"]:
    """Return a matrix with orthonormal columns: drawn uniformly, or the first axes if `rng` is None."""
    if rng is None:
        return np.eye(rows, columns)
    Q, R = np.linalg.qr(rng.normal(size=(rows, columns)))
    return Q * np.where(np.diagonal(R) < 0, -1.0, 1.0)  # Q is uniform only if R has a positive diagonal

r"""The law of the fields of one sample: all that expectations see of the inputs.

Given the class c of a sample the fields are Gaussian,

.. math:: (\lambda, \lambda^*) \mid c \sim N(\mu_c, C), \qquad
          C = \begin{pmatrix} C_{\lambda\lambda} & C_{\lambda*} \\ C_{\lambda*}^\top & C_{**} \end{pmatrix},

With standard normal x and z and :math:`LL^\top = C_{**}` they are

.. math:: \lambda = \mu_\lambda + Ax + Rz, \qquad \lambda^* = \mu_* + Lx, \qquad
          AL^\top = C_{\lambda*}, \qquad RR^\top = C_{\lambda\lambda} - AA^\top .
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from sgdlimits.statistics.frame import FieldFactor, cholesky_columns, split_by_frame, cholesky_factor


class Covariance(NamedTuple):
    """The covariance of the fields in blocks."""

    students: Float[Array, "p p"]
    cross: Float[Array, "p k"]
    fixed: Float[Array, "k k"]

    @property
    def matrix(self) -> Float[Array, "n n"]:
        """All blocks, the students first."""
        return jnp.block([[self.students, self.cross], [self.cross.T, self.fixed]])


class Conditional(NamedTuple):
    """Coefficients of the centred fields in standard normal x and z: students Ax + Rz with R R^T = `rest`, fixed Lx."""

    A: Float[Array, "p k"]
    rest: Float[Array, "p p"]
    L: Float[Array, "k k"]

    def factor(self, root: Float[Array, "p p"]) -> FieldFactor:
        """Return the factor of the covariance for a root R of `rest`."""
        return FieldFactor(jnp.hstack([self.A, root]), jnp.hstack([self.L, jnp.zeros(self.A.T.shape)]))


class FieldLaw(eqx.Module):
    """The Gaussian law of the fields of p students and k fixed directions, given the class of the sample.

    Parameters
    ----------
    weights : the probabilities of the classes
    mean : the mean of each field, with a column for each class; None where all are zero
    unit : the variance of the field of a unit vector, which sets the scale of rounding; None where fields are their means
    covariance : the covariance of the fields in every class; None where fields are their means, or where `factor` is given
    factor : F with the covariance F F^T, which keeps its accuracy where the risk is tiny
    shape : (p, k)

    None is structure, never the value of a number: rules are chosen by it.
    """

    weights: Float[Array, " classes"]
    mean: FieldFactor | None
    unit: Float[Array, ""] | None
    covariance: Covariance | None
    factor: FieldFactor | None
    shape: tuple[int, ...] = eqx.field(static=True)

    @property
    def classes(self) -> int:
        return self.weights.shape[0]

    @property
    def variance(self) -> Float[Array, ""]:
        """`unit`, or zero where it is None."""
        return jnp.zeros(()) if self.unit is None else self.unit

    @property
    def means(self) -> FieldFactor:
        """`mean`, with zeros where it is None."""
        return self.mean or FieldFactor(*(jnp.zeros((rows, self.classes)) for rows in self.shape))

    @property
    def blocks(self) -> Covariance:
        """The covariance: as given, from the factor, or zero."""
        if self.covariance is not None:
            return self.covariance
        student, fixed = self.factor or FieldFactor(*(jnp.zeros((rows, 0)) for rows in self.shape))
        return Covariance(student @ student.T, student @ fixed.T, fixed @ fixed.T)

    def conditional(self) -> Conditional:
        """Split the fields into a part along the fixed ones and the rest, differentiably at singular covariances too."""
        if self.unit is None:
            p, k = self.shape
            return Conditional(*map(jnp.zeros, ((p, k), (p, p), (k, k))))
        C = self.blocks
        L = cholesky_factor(C.fixed)
        return Conditional(*split_by_frame(C.cross, C.students, L), L)

    def triangular(self) -> Float[Array, "n p"]:
        """Factor the covariance, students first, and return the students' columns; safe where it is singular."""
        return self._columns(self.blocks.matrix)[:, : self.shape[0]]

    def triangular_factor(self) -> FieldFactor:
        """Factor the covariance with the frame's axes first; the students' part outside of it is triangular."""
        split = self.conditional()
        return split.factor(self._columns(split.rest))

    def root_of_students(self, order: Array) -> Float[Array, "p p"]:
        """Factor the covariance of the students, taken in this order."""
        return self._columns(self.blocks.students[order][:, order])

    def _columns(self, C: Float[Array, "n n"]) -> Float[Array, "n n"]:
        # pivots are compared with the variance of a unit vector's field, so that sigma changes no decision
        return cholesky_columns(C[..., None], 1.0 if self.unit is None else self.unit)[:, :, 0].T

    def place(self, F: FieldFactor, points: Float[Array, "n+1 samples"], c: Array) -> tuple[Array, Array, Array]:
        """Return (fields, fixed fields, label noise) of class `c` at standard normal points, whose last row is the noise."""
        at = lambda rows, mean: rows @ points[:-1] + mean[:, c][:, None]
        return at(F.student, self.means.student), at(F.fixed, self.means.fixed), points[-1]

    def over_classes(self, f: Callable[[Array], PyTree]) -> PyTree:
        """Average a function of the class over the classes."""
        parts = [f(jnp.asarray(c)) for c in range(self.classes)]
        return jax.tree.map(lambda *leaves: sum(w * leaf for w, leaf in zip(self.weights, leaves, strict=True)), *parts)

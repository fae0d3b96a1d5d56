r"""The Gaussian law of the fields of one sample, the only property of the inputs that expectations depend on.

Given the class c of a sample, the student fields :math:`\lambda` and the fixed fields :math:`\lambda^*` are Gaussian,

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

from sgdlimits.statistics.frame import FieldFactor, cholesky_columns, cholesky_factor, split_by_frame


class Covariance(NamedTuple):
    """Covariance of student and fixed fields, in three blocks: student-student, student-fixed and fixed-fixed."""

    students: Float[Array, "p p"]
    cross: Float[Array, "p k"]
    fixed: Float[Array, "k k"]

    @property
    def matrix(self) -> Float[Array, "n n"]:
        """Full covariance matrix of the fields; the student fields come first, then the fixed fields."""
        return jnp.block([[self.students, self.cross], [self.cross.T, self.fixed]])


class ConditionalLaw(NamedTuple):
    """Gaussian law of the student fields given the fixed fields.

    Centred fields are Ax + Rz for students, with R R^T = `residual_covariance`, and Lx for fixed directions, with standard
    normal x and z.
    """

    A: Float[Array, "p k"]
    residual_covariance: Float[Array, "p p"]
    L: Float[Array, "k k"]

    def factor(self, root: Float[Array, "p p"]) -> FieldFactor:
        """Return a factor of the covariance of all fields, given a root of the conditional covariance of the student fields."""
        return FieldFactor(jnp.hstack([self.A, root]), jnp.hstack([self.L, jnp.zeros(self.A.T.shape)]))


class FieldLaw(eqx.Module):
    """The Gaussian law of the fields of p students and k fixed directions, given the class of the sample.

    Parameters
    ----------
    weights : probabilities of the classes
    mean : mean of each field, with a column for each class; None if all are zero
    unit : variance of the field of a unit vector, which sets the scale of rounding; None if all fields equal their means
    covariance : covariance of the fields in every class, or of each class on a first axis if it depends on the class; None if
        all fields equal their means, or if `factor` is given
    factor : F with the covariance F F^T, which keeps the relative accuracy of small risks
    shape : (p, k)

    Which attributes are None belongs to the structure of the pytree, not to its values, and decides how expectations are
    computed.
    """

    weights: Float[Array, " classes"]
    mean: FieldFactor | None
    unit: Float[Array, ""] | None
    covariance: Covariance | None
    factor: FieldFactor | None
    shape: tuple[int, ...] = eqx.field(static=True)

    @property
    def classes(self) -> int:
        """Number of classes of the inputs."""
        return self.weights.shape[0]

    @property
    def variance(self) -> Float[Array, ""]:
        """The variance of the field of a unit vector, zero if all fields equal their means."""
        return jnp.zeros(()) if self.unit is None else self.unit

    def covariance_of_class(self, i: int) -> Covariance | None:
        """Return the covariance of the fields in class i; None if all fields equal their means, or if `factor` is given."""
        C = self.covariance
        return C if C is None or C.students.ndim == 2 else Covariance(*(part[i] for part in C))

    @property
    def means(self) -> FieldFactor:
        """The mean of each student and fixed field in each class; zeros if `mean` is None."""
        return self.mean or FieldFactor(*(jnp.zeros((rows, self.classes)) for rows in self.shape))

    @property
    def blocks(self) -> Covariance:
        """Covariance of the fields in three blocks: as given, computed from the factor, or zero."""
        if self.covariance is not None:
            return self.covariance
        student, fixed = self.factor or FieldFactor(*(jnp.zeros((rows, 0)) for rows in self.shape))
        return Covariance(student @ student.T, student @ fixed.T, fixed @ fixed.T)

    def condition_on_fixed(self) -> ConditionalLaw:
        """Condition the student fields on the fixed ones, differentiably also where the covariance is singular."""
        if self.unit is None:  # the covariance is zero and has no Cholesky factor
            p, k = self.shape
            return ConditionalLaw(*map(jnp.zeros, ((p, k), (p, p), (k, k))))
        C, positive = self.blocks, self.unit > 0
        # a schedule may take the variance to zero, where any frame serves as the factor that divides
        L = cholesky_factor(jnp.where(positive, C.fixed, jnp.eye(len(C.fixed))))
        return ConditionalLaw(*split_by_frame(C.cross, C.students, L), jnp.where(positive, L, 0.0))

    def student_columns(self) -> Float[Array, "n p"]:
        """Return the first p columns of the triangular factor of the (perhaps singular) covariance, students first."""
        return self._lower_factor(self.blocks.matrix)[:, : self.shape[0]]

    def triangular_factor(self) -> FieldFactor:
        """Factor the covariance of all fields by triangular matrices, with the fixed fields first."""
        split = self.condition_on_fixed()
        return split.factor(self._lower_factor(split.residual_covariance))

    def student_factor(self, order: Array) -> Float[Array, "p p"]:
        """Return the triangular factor of the covariance of the student fields, taken in the order `order`."""
        return self._lower_factor(self.blocks.students[order][:, order])

    def _lower_factor(self, C: Float[Array, "n n"]) -> Float[Array, "n n"]:
        """Return the lower triangular factor of a covariance matrix of fields."""
        # pivots are compared with the variance of a unit vector's field, so that sigma changes no decision
        return cholesky_columns(C[..., None], 1.0 if self.unit is None else self.unit)[:, :, 0].T

    def fields_at(self, F: FieldFactor, points: Float[Array, "n+1 samples"], c: Array) -> tuple[Array, Array, Array]:
        """Evaluate student fields, fixed fields and label noise of class `c` at standard normal points.

        F factors the covariance; the last row of the points is the label noise.
        """
        at = lambda rows, mean: rows @ points[:-1] + mean[:, c][:, None]
        return at(F.student, self.means.student), at(F.fixed, self.means.fixed), points[-1]

    def average_over_classes(self, f: Callable[[Array], PyTree]) -> PyTree:
        """Average a function of the class over all classes, with their probabilities."""
        # A loop over the few classes rather than a vmap, which would hold the nodes of all classes in memory.
        parts = [f(jnp.asarray(c)) for c in range(self.classes)]
        return jax.tree.map(lambda *leaves: sum(w * leaf for w, leaf in zip(self.weights, leaves, strict=True)), *parts)

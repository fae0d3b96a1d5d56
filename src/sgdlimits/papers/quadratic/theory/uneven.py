r"""Critical points of a quadratic network whose teachers are not orthonormal.

The labels are :math:`x^\top T x` with :math:`T = \frac1{p^*}\sum_l w^*_l w_l^{*\top}`, which has the eigenvalues
:math:`t_1, t_2, \dots` With :math:`D = \frac1p W^\top W - T` risk and gradient are those of `critical`. The gradient vanishes
only if :math:`G = W^\top W` commutes with T. So at a critical point the network has learnt a set S of s eigenvectors of T, and
r directions orthogonal to the teachers as if they were signal:

.. math:: G = p\,(t_i + b) \text{ on } i\in S, \quad p\,b \text{ on the r directions}, \quad 0 \text{ else}, \qquad
          b = \frac1{s+r+2}\sum_{i\notin S} t_i, \qquad R = 2\,(s+r+2)\,b^2 + 2\sum_{i\notin S} t_i^2 .

For directions y outside the range of G the Hessian has, in units of 8/p, the eigenvalues :math:`-(b+t_y)` for units of zero
weight and :math:`t_i - t_y` for units along direction i. Here :math:`t_i = 0` for the r directions, and :math:`t_y = 0` outside
the teachers' span. Within the range of G the eigenvalues are positive or zero. So a learnt eigenvector is unstable towards
every larger one that is not learnt, and at a minimum the network has learnt the largest ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdlimits.domain import NotNegativeInTime, Width, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.problem.recognise import recognise_quadratic_teachers
from sgdlimits.statistics import Overlaps

MAX_UNEVEN_FAMILIES = 10**5
"""Maximum number of families of critical points in a list; more families take minutes to list."""


@checked
@dataclass(frozen=True, eq=False)
class UnevenFamily:
    """Critical points at which some eigenvectors of the teachers' matrix are learnt, and r directions orthogonal to them.

    Parameters
    ----------
    width : p
    strengths : the eigenvalues of T in descending order; shape (k,)
    directions : row i is the eigenvector of strength i, as coefficients of the teachers' fields; shape (k, k)
    learnt : indices in `strengths` of the learnt eigenvectors
    r : number of directions orthogonal to the teachers
    noise : variance of the label noise
    """

    width: Width
    strengths: Float[np.ndarray, "k"]
    directions: Float[np.ndarray, "k k"]
    learnt: tuple[int, ...]
    r: int
    noise: NotNegativeInTime = 0.0

    @property
    def missed(self) -> Float[np.ndarray, "m"]:
        """Eigenvalues of the teachers' matrix T whose eigenvectors the network has not learnt."""
        return np.delete(self.strengths, self.learnt)

    @property
    def b(self) -> float:
        """Eigenvalue of D = WᵀW/p - T, network minus teachers, in all directions that the network uses."""
        return float(self.missed.sum() / (len(self.learnt) + self.r + 2))

    @property
    def risk(self) -> float:
        """Population risk at the critical points of the family, including the noise floor."""
        return 2 * self.b * float(self.missed.sum()) + 2 * float((self.missed**2).sum()) + self.noise

    def index(self, d: int) -> int:
        """Number of negative eigenvalues of the Hessian with respect to the weights in d dimensions."""
        k, used = self.strengths.size, len(self.learnt) + self.r
        outside = check_count("d", d, at_least=k + self.r) - k - self.r
        idle = (self.width - used) * (self.missed.size + (outside if self.b > 0 else 0))
        # exchanging a learnt direction for a stronger one lowers the risk
        turned = sum(int((self.missed > self.strengths[i]).sum()) for i in self.learnt)
        return idle + turned + self.r * int((self.missed > 0).sum())

    def statistics(self) -> Overlaps:
        """Return the overlaps at a point of the family at which each unit lies along at most one direction.

        The entries M are the overlaps with the given teachers, which need not be orthonormal.
        """
        s, k = len(self.learnt), self.strengths.size
        sizes = np.sqrt(self.width * (self.strengths[list(self.learnt)] + self.b))
        M = np.zeros((self.width, k))
        M[:s] = sizes[:, None] * self.directions[list(self.learnt)]
        norms = np.zeros(self.width)
        norms[:s], norms[s : s + self.r] = sizes**2, self.width * self.b
        return Overlaps(jnp.ones(self.width), jnp.asarray(M), jnp.diag(jnp.asarray(norms)))


@checked
def uneven_critical_points(problem: ProjectionProblem) -> tuple[UnevenFamily, ...]:
    r"""All critical points of a quadratic network for teachers with any Gram matrix, ordered by risk.

    Equal eigenvalues are listed one by one, although any basis of their eigenspace gives the same points. For orthonormal
    teachers use `critical_points`, which lists each family once.

    >>> import sgdlimits as sl
    >>> target = sl.Target(sl.CommitteeReadout("square"), 2, gram=[[1.0, 0.6], [0.6, 1.0]])
    >>> problem = sl.ProjectionProblem(target, sl.TwoLayer(2, "square"), sl.SquaredLoss(1.0), sl.OnePassSGD(0.1))
    >>> for family in uneven_critical_points(problem)[:3]:
    ...     print(family.learnt, family.r, round(family.risk, 4), family.index(d=10))
    (0, 1) 0 0.0 0
    (0,) 1 0.1 1
    (0,) 0 0.1067 9
    """
    found = recognise_quadratic_teachers(problem)
    if found is None:
        raise BadInput(
            "problem must be a quadratic network with loss (y - f)^2. "
            "Use presets.quadratic_network, or a ProjectionProblem with the same network and loss."
        )
    (p, noise), (form, gram) = found[:2], found[2:]
    root = np.linalg.cholesky(gram)
    # the labels' quadratic form in an orthonormal frame of the teachers
    strengths, vectors = np.linalg.eigh(root.T @ form @ root)
    strengths, directions = strengths[::-1], (root @ vectors[:, ::-1]).T
    if strengths[-1] <= 0:
        raise BadInput(
            f"the labels' quadratic form must be positive, but has the eigenvalue {strengths[-1]:.3g}. "
            "Use a readout with positive weights."
        )
    k = strengths.size
    if 2**k * (p + 1) > MAX_UNEVEN_FAMILIES:
        raise BadInput(
            f"{k} teachers and {p} units have up to {2**k * (p + 1)} families of critical points, more than "
            f"{MAX_UNEVEN_FAMILIES}. Use fewer teachers or units."
        )
    families = [
        UnevenFamily(p, strengths, directions, learnt, r, noise)
        for s in range(min(p, k) + 1)
        for learnt in combinations(range(k), s)
        for r in range(p - s + 1 if s < k else 1)
    ]
    return tuple(sorted(families, key=lambda family: family.risk))

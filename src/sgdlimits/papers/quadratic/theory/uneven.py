r"""Critical points of a quadratic network whose teachers are not orthonormal.

The labels are :math:`x^\top T x` with :math:`T = \frac1{p^*}\sum_l w^*_l w_l^{*\top}`, which has the eigenvalues
:math:`t_1, t_2, \dots` With :math:`D = \frac1p W^\top W - T` risk and gradient are those of `critical`. The gradient vanishes
only if :math:`G = W^\top W` commutes with T, so that a critical point has learnt a set S of s eigenvectors of T, and taken r
directions orthogonal to the teachers for signal:

.. math:: G = p\,(t_i + b) \text{ on } i\in S, \quad p\,b \text{ on the r directions}, \quad 0 \text{ else}, \qquad
          b = \frac1{s+r+2}\sum_{i\notin S} t_i, \qquad R = 2\,(s+r+2)\,b^2 + 2\sum_{i\notin S} t_i^2 .

In units of 8/p the Hessian has the eigenvalues :math:`-(b+t_y)` for units that are not used and :math:`t_i - t_y` for those
that are, :math:`t_i = 0` for the r directions, where y runs over the directions that are not in G, :math:`t_y = 0` outside the
teachers' span; and positive and null ones within G. So what is learnt is unstable towards every stronger eigenvector that is
not, and a minimum has the strongest ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.problem.recognise import quadratic_teachers
from sgdlimits.statistics import Overlaps

MOST = 10**5


@checked
@dataclass(frozen=True, eq=False)
class UnevenFamily:
    """Critical points that have learnt some eigenvectors of the teachers' matrix, and r directions orthogonal to them.

    Parameters
    ----------
    width : p
    strengths : the eigenvalues of T, falling; shape (k,)
    directions : the teachers' fields in its eigenvectors: row i is the direction with strength i; shape (k, k)
    learnt : the places in `strengths` of what is learnt
    r : the number of directions orthogonal to the teachers
    noise : variance of the label noise
    """

    width: int
    strengths: Float[np.ndarray, "k"]
    directions: Float[np.ndarray, "k k"]
    learnt: tuple[int, ...]
    r: int
    noise: float = 0.0

    @property
    def missed(self) -> Float[np.ndarray, "m"]:
        """The strengths of what is not learnt."""
        return np.delete(self.strengths, self.learnt)

    @property
    def b(self) -> float:
        """By how much every direction in use is larger than it should be, over p."""
        return float(self.missed.sum() / (len(self.learnt) + self.r + 2))

    @property
    def risk(self) -> float:
        """The population risk, with the noise floor."""
        return 2 * self.b * float(self.missed.sum()) + 2 * float((self.missed**2).sum()) + self.noise

    def index(self, d: int) -> int:
        """The number of negative eigenvalues of the Hessian with respect to the weights in d dimensions."""
        k, used = self.strengths.size, len(self.learnt) + self.r
        outside = check_count("d", d, at_least=k + self.r) - k - self.r
        idle = (self.width - used) * (self.missed.size + (outside if self.b > 0 else 0))
        turned = sum(int((self.missed > self.strengths[i]).sum()) for i in self.learnt)
        return idle + turned + self.r * int((self.missed > 0).sum())

    def statistics(self) -> Overlaps:
        """A point of the family, each unit on one direction at most; M are overlaps with the teachers as they are."""
        s, k = len(self.learnt), self.strengths.size
        sizes = np.sqrt(self.width * (self.strengths[list(self.learnt)] + self.b))
        M = np.zeros((self.width, k))
        M[:s] = sizes[:, None] * self.directions[list(self.learnt)]
        norms = np.zeros(self.width)
        norms[:s], norms[s : s + self.r] = sizes**2, self.width * self.b
        return Overlaps(jnp.ones(self.width), jnp.asarray(M), jnp.diag(jnp.asarray(norms)))


@checked
def uneven_critical_points(problem: ProjectionProblem) -> tuple[UnevenFamily, ...]:
    r"""All critical points of a quadratic network for teachers with any Gram matrix, by risk.

    Eigenvalues that agree are listed one by one, though any vectors in their span would do: for orthonormal teachers
    `critical_points` has the families as they are.

    >>> import sgdlimits as sl
    >>> target = sl.Target(sl.CommitteeReadout("square"), 2, gram=[[1.0, 0.6], [0.6, 1.0]])
    >>> problem = sl.ProjectionProblem(target, sl.TwoLayer(2, "square"), sl.SquaredLoss(1.0), sl.OnePassSGD(0.1))
    >>> for family in uneven_critical_points(problem)[:3]:
    ...     print(family.learnt, family.r, round(family.risk, 4), family.index(d=10))
    (0, 1) 0 0.0 0
    (0,) 1 0.1 1
    (0,) 0 0.1067 9
    """
    found = quadratic_teachers(problem)
    if found is None:
        raise BadInput("problem must be a quadratic network with loss (y - f)^2. Take presets.quadratic_network, or its parts.")
    (p, noise), (form, gram) = found[:2], found[2:]
    root = np.linalg.cholesky(gram)
    strengths, vectors = np.linalg.eigh(root.T @ form @ root)
    strengths, directions = strengths[::-1], (root @ vectors[:, ::-1]).T
    if strengths[-1] <= 0:
        raise BadInput(f"the labels' matrix has the eigenvalue {strengths[-1]:.3g}. Give teachers with positive weights.")
    k = strengths.size
    if 2**k * (p + 1) > MOST:
        raise BadInput(f"{k} teachers of different strength and {p} units have too many families. Give fewer.")
    families = [
        UnevenFamily(p, strengths, directions, learnt, r, noise)
        for s in range(min(p, k) + 1)
        for learnt in combinations(range(k), s)
        for r in range(p - s + 1 if s < k else 1)
    ]
    return tuple(sorted(families, key=lambda family: family.risk))

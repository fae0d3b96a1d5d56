r"""All critical points of the population risk of a quadratic network, with their Hessians: section 4.2 of the paper [3]_.

With :math:`D = \frac1p W^\top W - \frac1{p^*} P^*`, where :math:`P^*` projects on the teachers' span, risk and gradient are

.. math:: R = (\mathrm{tr} D)^2 + 2\,\mathrm{tr} D^2 + \text{noise}, \qquad \nabla R = \frac4p\, W (\mathrm{tr} D + 2 D).

The gradient vanishes only if :math:`G = W^\top W` commutes with :math:`P^*`. Then G has the eigenvalue :math:`\alpha` for s
directions in the teachers' span, :math:`\beta` for r directions orthogonal to it, and zero for all others:

.. math:: \beta = \frac{p\,(p^*-s)}{p^*(s+r+2)}, \qquad \alpha = \beta + \frac p{p^*}, \qquad s + r \le p, \quad s \le p^*,

with r = 0 if s is :math:`p^*`. The paper lists the families with r = 0 or s = 0. Its section 7.5 counts the degrees of
freedom of a network and the dimension of its manifold of solutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sgdlimits.domain import Count, Teachers, Width, checked
from sgdlimits.errors import BadInput
from sgdlimits.papers.quadratic.theory.family import CriticalFamily
from sgdlimits.problem import ProjectionProblem
from sgdlimits.problem.recognise import recognise_quadratic_network
from sgdlimits.text import format_table

MAX_FAMILIES = 10**5
"""Largest number of families in a table: more take minutes to list."""
# headings of the printed table
COLUMNS = ("kind", "s", "r", "risk", "index", "dimension", "symmetry", "flat", "from d")


@dataclass(frozen=True, repr=False)
class CriticalPoints(Sequence[CriticalFamily]):
    """All families of critical points of a quadratic network, ordered by risk; prints as a table.

    Parameters
    ----------
    families : the families, each a `CriticalFamily`
    """

    families: tuple[CriticalFamily, ...]

    def __getitem__(self, index):
        return self.families[index]

    def __len__(self) -> int:
        return len(self.families)

    def family(self, s: int, r: int) -> CriticalFamily:
        """Return the family with s directions in the teachers' span and r orthogonal to it."""
        # all families share width, teachers and noise
        like = self.families[0]
        return CriticalFamily(like.width, like.teachers, s, r, like.noise)

    def table(self, d: int | None = None) -> str:
        """Return the table of all families as text, with counts in dimension d, or as functions of d."""
        return format_table([COLUMNS, *(_format_row(family, d) for family in self.families)])

    def __repr__(self) -> str:
        return self.table()


@checked
def critical_points(problem: ProjectionProblem) -> CriticalPoints:
    r"""All critical points of the population risk of a quadratic network, as families labelled by (s, r).

    The network has learnt s directions in the span of the p* teachers, and r directions orthogonal to it; p is its width.

    They are the fixed points of gradient flow and of the ODE without corrector. Every family has a negative eigenvalue except
    the one of lowest risk, :math:`s = \min(p, p^*)` with r = 0: there are no other minima.

    Parameters
    ----------
    problem : `presets.quadratic_network`; `sgdlimits.fixed_points` searches those of any problem

    >>> import sgdlimits as sl
    >>> critical_points(sl.presets.quadratic_network(width=2, teachers=1))
    kind          s  r  risk   index   dimension  symmetry  flat   from d
    solution      1  0  0      0       1          1         d - 1  1
    plateau       0  2  2.5    2       2d - 5     2d - 5    0      3
    uncorrelated  0  1  2.667  d       d - 1      d - 1     0      2
    tabula rasa   0  0  3      2d      0          0         0      1
    """
    found = recognise_quadratic_network(problem)
    if found is None:
        raise BadInput(
            f"critical_points needs a quadratic network; got {getattr(problem, 'name', problem)!r}. "
            "Use presets.quadratic_network(width, teachers), or search with fixed_points."
        )
    p, k, _, noise = found
    if (min(p, k) + 1) * (p + 1) > MAX_FAMILIES:
        raise BadInput(
            f"width {p} and {k} teachers have about {(min(p, k) + 1) * (p + 1):.2g} families, more than can be listed. "
            "Use fewer units or teachers, or one family: CriticalFamily(width, teachers, s, r)."
        )
    # families with all teachers learnt have no directions outside
    pairs = [(s, r) for s in range(min(p, k) + 1) for r in range(p - s + 1 if s < k else 1)]
    families = (CriticalFamily(p, k, s, r, noise) for s, r in pairs)
    return CriticalPoints(tuple(sorted(families, key=lambda family: (family.risk, family.s, family.r))))


def _format_row(family: CriticalFamily, d: int | None) -> tuple[str, ...]:
    """Format the table cells of one family, with counts in dimension d, or as functions of d if d is None."""
    first = family.smallest_d

    def counts(d: int) -> tuple[int, ...]:
        """Return index, dimension and the numbers of null directions in dimension d."""
        return family.index(d), family.dimension(d), *family.null(d)

    if d is None:
        # all counts are linear in d, so two dimensions determine them
        there = [_format_linear(low, high - low, first) for low, high in zip(counts(first), counts(first + 1), strict=True)]
    else:
        there = [str(count) for count in counts(d)] if family.exists(d) else ["absent", *3 * "-"]
    return family.kind, str(family.s), str(family.r), f"{family.risk:.4g}", *there, str(first)


def _format_linear(value: int, slope: int, at: int) -> str:
    """Format a linear function of d as text, such as "2d - 5", from its slope and its value at d = `at`."""
    constant = value - slope * at
    if not slope:
        return str(constant)
    head = "d" if slope == 1 else f"{slope}d"
    return head + (f" {'+' if constant > 0 else '-'} {abs(constant)}" if constant else "")


@checked
def degrees_of_freedom(width: Width, d: Count) -> int:
    r"""Dimension of the set of matrices :math:`W^\top W` that p = `width` units can form in d dimensions (section 7.5.1).

    For :math:`p \le d` it is :math:`dp - \frac12 p(p-1)`, the number of weights less that of rotations of the units. For more
    units it is :math:`\frac12 d(d+1)`, the dimension of all symmetric matrices: units beyond d add nothing.

    >>> [degrees_of_freedom(width, d=4) for width in (1, 2, 3, 4, 5)]
    [4, 7, 9, 10, 10]
    """
    rank = min(width, d)
    return d * rank - rank * (rank - 1) // 2


@checked
def solution_dimension(width: Width, teachers: Teachers, d: Count) -> int:
    r"""Dimension of the manifold of weights with zero error, any two of which differ by a rotation of the units.

    With :math:`n = \min(p^*, d)`, the rank of the teacher's matrix, it is
    :math:`\frac12 p(p-1) - \frac12 (p-n)(p-n-1) = pn - \frac12 n(n+1)`: the rotations of p units less those that leave the
    weights unchanged (section 7.5.2). Solutions exist for :math:`p \ge n`.

    Parameters
    ----------
    width : p
    teachers : :math:`p^*`, linearly independent as far as d allows
    d : dimension

    >>> [solution_dimension(width, teachers=2, d=10) for width in (2, 3, 4)]
    [1, 3, 5]
    """
    rank = min(teachers, d)
    if width < rank:
        raise BadInput(f"{width} units cannot represent {teachers} teachers in d = {d}. Use a width of at least {rank}.")
    return width * rank - rank * (rank + 1) // 2

"""How many parameters a quadratic network has, and how many of them its solutions leave free: section 7.5 of the paper."""

from __future__ import annotations

from sgdlimits.errors import BadInput, check_count


def degrees_of_freedom(width: int, d: int) -> int:
    r"""The dimension of the set of the matrices :math:`W^\top W` that p units make in d dimensions.

    It is :math:`dp - \frac12 p(p-1)`, the weights less the rotations of units, up to p = d, and :math:`\frac12 d(d+1)`, that
    of all symmetric matrices, beyond (section 7.5.1): units beyond d add nothing.

    Parameters
    ----------
    width : p
    d : dimension

    See Also
    --------
    solution_dimension : how many the solutions leave free

    Examples
    --------
    >>> [degrees_of_freedom(width, d=4) for width in (1, 2, 3, 4, 5)]
    [4, 7, 9, 10, 10]
    """
    rank = min(check_count("width", width), check_count("d", d))
    return d * rank - rank * (rank - 1) // 2


def solution_dimension(width: int, teachers: int, d: int) -> int:
    r"""The dimension of the manifold of weights without error, which are rotations of units of one another.

    With :math:`n = \min(p^*, d)`, the rank of the teacher's matrix, it is :math:`\frac12 p(p-1) - \frac12 (p-n)(p-n-1)`, the
    rotations of p units less those that leave the weights as they are (section 7.5.2), or :math:`pn - \frac12 n(n+1)`. There
    are solutions from p = n on.

    Parameters
    ----------
    width : p
    teachers : :math:`p^*`, linearly independent as far as d allows
    d : dimension

    Examples
    --------
    >>> [solution_dimension(width, teachers=2, d=10) for width in (2, 3, 4)]
    [1, 3, 5]
    """
    rank = min(check_count("teachers", teachers), check_count("d", d))
    if check_count("width", width) < rank:
        raise BadInput(f"{width} units cannot be a network of {teachers} teachers in d = {d}. Give a width of at least {rank}.")
    return width * rank - rank * (rank + 1) // 2

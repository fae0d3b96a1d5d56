r"""Hermite tensors of a target of several directions, and the leaps by which one-pass SGD learns its directions.

Let g be the target, and z the k standard normal coordinates of an input in an orthonormal frame of the fixed directions. The
tensors are :math:`T_n = E[g(z)\,H_n(z)]`, with the entry :math:`E[g(z) \prod_i He_{\alpha_i}(z_i)]` for each multi-index
:math:`\alpha` of order n, where :math:`He_m` is the Hermite polynomial with leading coefficient 1.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.polynomial import hermite_e

from sgdlimits.domain import Count, Fraction, checked
from sgdlimits.errors import BadInput
from sgdlimits.model.target import Target

GRID_POINTS = 2**21
"""Approximate number of points of the grid on which targets are integrated."""
MAX_NODES_PER_DIRECTION = 64
"""Maximum number of quadrature nodes per direction of the grid on which targets are integrated."""
ECHELON_TOLERANCE = 1e-6
"""Distance within which a coefficient of a linear combination counts as 0 or 1, since directions are computed on a grid."""
MAX_LEAP_ORDER = 8
"""Highest order of a leap that is searched for.

Polynomials of known directions up to this order are multiplied with the Hermite polynomials of new ones.
"""


class Leap(NamedTuple):
    r"""One stage of learning, a leap, in which one-pass SGD finds new directions of the target.

    Parameters
    ----------
    order : smallest order of a Hermite polynomial of new directions with which the label is correlated, given the fields along
        known directions
    directions : an orthonormal basis of the new directions, in the frame of the fixed ones, shape (r, k)
    samples : exponent of d in the number of samples that one-pass SGD needs, max(1, order - 1); a leap of 2 has a further
        factor log d
    combinations : coefficients of the fixed directions, shape (r, k), that span the new directions; in reduced echelon form, so
        that they do not depend on the basis in `directions`
    """

    order: int
    directions: Float[np.ndarray, "r k"]
    samples: int
    combinations: Float[np.ndarray, "r k"]

    def __repr__(self) -> str:
        """Return the order, the new directions as combinations of the fixed ones, and the samples."""
        growth = {1: "d", 2: "d log d"}.get(self.order, f"d^{self.samples}")
        return f"leap of {self.order}: {', '.join(self.sums)}; {growth} samples"

    @property
    def sums(self) -> list[str]:
        """New directions as strings of combinations of the fixed directions, such as "e1 - e3"."""
        return [_format_combination(row) for row in self.combinations]


@checked
def hermite_tensor(target: Target, order: Count) -> Float[np.ndarray, "..."]:
    r"""Compute the Hermite tensor of a target, :math:`T_{i_1\dots i_n} = E[g\,(H_n)_{i_1\dots i_n}]`, shape (k, ..., k).

    Here g is the target, and :math:`H_n` is the tensor of Hermite polynomials of order n in the k coordinates of an input in an
    orthonormal frame of the fixed directions. The frame consists of these directions if their Gram matrix is the identity.

    Parameters
    ----------
    target : a target that depends on a few directions only
    order : n, the order of the tensor

    >>> import sgdlimits as sl
    >>> target = sl.Target(lambda x: x[0] + x[0] * x[1], teachers=2)
    >>> (hermite_tensor(target, 2).round(9) + 0.0).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    k = target.teachers
    moments = _hermite_moments(target, np.eye(k), order)
    shape = (k,) * order
    return np.array([moments[_to_multi_index(index, k)] for index in np.ndindex(shape)]).reshape(shape)


@checked
def leaps(target: Target, tolerance: Fraction = 1e-8) -> list[Leap]:
    r"""Compute the leaps of a target g: the order in which one-pass SGD finds its directions, and the number of samples needed.

    Let U be the span of the known directions, z a standard normal input and :math:`H_n` the tensor of Hermite polynomials of
    order n. The next leap is the smallest n for which some function :math:`\psi` has

    .. math:: E[g(z)\,\psi(z_U)\,H_n(z_{U^\perp})] \ne 0,

    and the directions that these tensors span are found next. In d dimensions a leap of 1 takes of the order of d samples, a
    leap of 2 d log d, and a leap of n > 2 :math:`d^{n-1}`. The information exponent is the first leap. Orders up to 8 of
    :math:`\psi` and of :math:`H_n` are examined.

    Parameters
    ----------
    target : a target that depends on a few directions only; integrals of smooth targets are exact, others have
        the error of a grid
    tolerance : tensors with entries below this fraction of the target's root mean square count as zero

    >>> import sgdlimits as sl
    >>> stairs = sl.Target(lambda x: x[0] + x[0] * x[1] * x[2], teachers=3)
    >>> [(leap.order, len(leap.directions)) for leap in leaps(stairs)]
    [(1, 1), (2, 2)]

    Correlated directions: the product of three has a mean product with their sum, and then with the two differences.

    >>> target = sl.Target(lambda x: x[0] * x[1] * x[2], gram=0.7 * np.eye(3) + 0.3)
    >>> leaps(target)
    [leap of 1: e1 + e2 + e3; d samples, leap of 2: e1 - e3, e2 - e3; d log d samples]
    """
    k = target.teachers
    stages, known = list[Leap](), np.zeros((0, k))
    factorials = np.array([math.factorial(n) for n in range(MAX_LEAP_ORDER + 1)], float)
    scale = np.prod(np.meshgrid(*[factorials] * k, indexing="ij"), axis=0)
    while len(known) < k:
        frame = np.concatenate([known, _orthogonal_complement(known)])
        moments = _hermite_moments(target, frame, MAX_LEAP_ORDER)
        zero = tolerance * np.sqrt(float((moments**2 / scale).sum()))
        for order in range(1, MAX_LEAP_ORDER + 1):
            new = _find_new_directions(moments, len(known), order, zero)
            if len(new):
                break
        else:
            break
        directions = new @ frame[len(known) :]
        stages.append(Leap(order, directions, max(1, order - 1), _express_in_fixed_directions(directions, target)))
        known = np.concatenate([known, directions])
    if not stages:
        raise BadInput(
            f"the Hermite tensors of the target of order 1 to {MAX_LEAP_ORDER} are below {tolerance:g} of its norm. "
            "Give a target that is not constant."
        )
    return stages


def _express_in_fixed_directions(directions: np.ndarray, target: Target) -> np.ndarray:
    """Return coefficients of the fixed directions, in reduced echelon form, that span given orthonormal directions.

    The fixed directions are the rows of the Cholesky factor B of their Gram matrix: a direction v has the coefficients v B^-1.
    """
    rows = np.linalg.solve(np.linalg.cholesky(np.asarray(target.gram)).T, directions.T).T
    rows, done = rows / np.abs(rows).max(), 0
    for column in range(rows.shape[1]):
        if done == len(rows):
            break
        pivot = done + int(np.abs(rows[done:, column]).argmax())
        if abs(rows[pivot, column]) < ECHELON_TOLERANCE:
            continue
        rows[[done, pivot]] = rows[[pivot, done]]
        rows[done] /= rows[done, column]
        others = np.arange(len(rows)) != done
        rows[others] -= np.outer(rows[others, column], rows[done])
        done += 1
    return np.where(np.abs(rows) < ECHELON_TOLERANCE, 0.0, rows)


def _format_combination(coefficients: np.ndarray) -> str:
    """Return a linear combination of the fixed directions as a string.

    >>> _format_combination(np.array([1.0, 0.0, -0.5]))
    'e1 - 0.5 e3'
    """
    terms: list[str] = []
    for i, value in enumerate(coefficients, 1):
        if value:
            size = "" if abs(abs(value) - 1) < ECHELON_TOLERANCE else f"{abs(value):.4g} "
            sign = ("-" if value < 0 else "") if not terms else ("- " if value < 0 else "+ ")
            terms.append(f"{sign}{size}e{i}")
    return " ".join(terms)


def _hermite_moments(target: Target, frame: np.ndarray, order: int) -> np.ndarray:
    r"""Compute :math:`E[g(z) \prod_i He_{\alpha_i}(z_i)]` of a target g for all :math:`\alpha_i \le` order.

    The :math:`z_i` are the standard normal coordinates of an input along the rows of `frame`.
    """
    k = len(frame)
    # An even number of nodes, so that none is at zero, where targets often have a jump.
    nodes = min(MAX_NODES_PER_DIRECTION, int(GRID_POINTS ** (1 / k)) // 2 * 2)
    if nodes <= order:
        raise BadInput(f"Hermite tensors of {k} directions need too large a grid. Give a target of fewer directions.")
    x, w = hermite_e.hermegauss(nodes)
    z = np.stack(np.meshgrid(*[x] * k, indexing="ij")).reshape(k, -1)
    B = np.linalg.cholesky(np.asarray(target.gram))
    values = np.asarray(jax.jit(lambda z: target.readout(z))(jnp.asarray(B @ frame.T @ z))).reshape((nodes,) * k)
    basis = hermite_e.hermevander(x, order).T * (w / w.sum())
    for _ in range(k):  # each product takes the first axis to the end
        values = np.tensordot(values, basis, (0, 1))
    return values


def _find_new_directions(moments: np.ndarray, known: int, order: int, zero: float) -> np.ndarray:
    """Return an orthonormal basis of the unknown directions that the Hermite tensors of a given order span.

    `moments` has one axis per coordinate, the known ones first; all powers of known coordinates are considered.
    """
    k = moments.ndim
    unknown = k - known
    columns = []
    for powers in itertools.product(range(moments.shape[0]), repeat=known):
        for rest in itertools.combinations_with_replacement(range(unknown), order - 1):
            column = [moments[(*powers, *_to_multi_index((i, *rest), unknown))] for i in range(unknown)]
            columns.append(np.array(column) / math.sqrt(math.prod(map(math.factorial, powers))))
    left, sizes, _ = np.linalg.svd(np.array(columns).T, full_matrices=False)
    return left.T[sizes > zero]


def _to_multi_index(index: tuple[int, ...], k: int) -> tuple[int, ...]:
    """Return the multi-index of a tensor index: how often each of the k coordinates occurs in it."""
    return tuple(index.count(i) for i in range(k))


def _orthogonal_complement(known: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the orthogonal complement of the known directions."""
    k = known.shape[1]
    left = np.eye(k) - known.T @ known
    values, vectors = np.linalg.eigh(left)
    return vectors[:, values > 0.5].T if len(known) else np.eye(k)

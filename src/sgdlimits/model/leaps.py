r"""Hermite tensors of a target of several directions, and the leaps in which its directions can be learnt.

For standard normal coordinates z in an orthonormal frame of the k fixed directions the tensors are
:math:`T_n = E[g(z)\,H_n(z)]`, with the entry :math:`E[g \prod_i He_{\alpha_i}(z_i)]` for each multi-index of order n.
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

POINTS = 2**21
"""About so many points has the grid that targets are integrated on."""
MOST_NODES = 64
ECHELON = 1e-6
"""Coefficients below are zero, and those this near to 1 are 1: directions are known to the accuracy of a grid."""
HIGHEST = 8
"""The highest order of a leap, and of functions of directions that are known."""


class Leap(NamedTuple):
    r"""One stage of learning.

    Parameters
    ----------
    order : the leap, the smallest order in new directions that the label has a mean product with, given those already known
    directions : an orthonormal basis of the new directions, in the frame of the fixed ones, shape (r, k)
    samples : the exponent of d in the number of samples that one-pass SGD needs for it, max(1, order - 1); with a factor
        log d for a leap of 2
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
        """The combinations of the fixed directions as text, such as "e1 - e3"."""
        return [_sum(row) for row in self.combinations]


@checked
def hermite_tensor(target: Target, order: Count) -> Float[np.ndarray, "..."]:
    r"""The Hermite tensor of a target, :math:`T_{i_1\dots i_n} = E[g\,(H_n)_{i_1\dots i_n}]`, shape (k, ..., k).

    Indices are along the orthonormal frame of the fixed directions, which for an identity Gram matrix are they themselves.

    >>> import sgdlimits as sl
    >>> target = sl.Target(lambda x: x[0] + x[0] * x[1], teachers=2)
    >>> (hermite_tensor(target, 2).round(9) + 0.0).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    k = target.teachers
    moments = _moments(target, np.eye(k), order)
    shape = (k,) * order
    return np.array([moments[_counts(index, k)] for index in np.ndindex(shape)]).reshape(shape)


@checked
def leaps(target: Target, tolerance: Fraction = 1e-8) -> list[Leap]:
    r"""In which order, and in leaps of which size, one-pass SGD can find the directions of a target.

    With U the span of the directions that are known, the next leap is the smallest n for which a function :math:`\psi` has

    .. math:: E[g(z)\,\psi(z_U)\,H_n(z_{U^\perp})] \ne 0,

    and the directions that these tensors span are found next. A leap of 1 takes of the order of d samples, of 2 d log d, of n
    :math:`d^{n-1}`. The information exponent is the first leap. Products up to order 8 are looked at.

    Parameters
    ----------
    target : of at most a few directions; smooth ones are integrated exactly, and others up to what a grid sees of them
    tolerance : tensors whose entries are below this share of the target's size count as zero

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
    found, known = list[Leap](), np.zeros((0, k))
    each = np.array([math.factorial(n) for n in range(HIGHEST + 1)], float)
    scale = np.prod(np.meshgrid(*[each] * k, indexing="ij"), axis=0)
    while len(known) < k:
        frame = np.concatenate([known, _rest(known)])
        moments = _moments(target, frame, HIGHEST)
        zero = tolerance * np.sqrt(float((moments**2 / scale).sum()))
        for order in range(1, HIGHEST + 1):
            new = _span(moments, len(known), order, zero)
            if len(new):
                break
        else:
            break
        directions = new @ frame[len(known) :]
        found.append(Leap(order, directions, max(1, order - 1), _combine(directions, target)))
        known = np.concatenate([known, directions])
    if not found:
        raise BadInput(
            f"the target has no Hermite tensor of order 1 to {HIGHEST} above {tolerance:g} of its size. Give another."
        )
    return found


def _combine(directions: np.ndarray, target: Target) -> np.ndarray:
    """Return coefficients of the fixed directions, in reduced echelon form, that span the same as rows in their frame.

    The fixed directions are the rows of a factor B of their Gram matrix, so that a row v of the frame is v / B of them.
    """
    rows = np.linalg.solve(np.linalg.cholesky(np.asarray(target.gram)).T, directions.T).T
    rows, done = rows / np.abs(rows).max(), 0
    for column in range(rows.shape[1]):
        if done == len(rows):
            break
        pivot = done + int(np.abs(rows[done:, column]).argmax())
        if abs(rows[pivot, column]) < ECHELON:
            continue
        rows[[done, pivot]] = rows[[pivot, done]]
        rows[done] /= rows[done, column]
        others = np.arange(len(rows)) != done
        rows[others] -= np.outer(rows[others, column], rows[done])
        done += 1
    return np.where(np.abs(rows) < ECHELON, 0.0, rows)


def _sum(coefficients: np.ndarray) -> str:
    """Return a combination of the fixed directions as text.

    >>> _sum(np.array([1.0, 0.0, -0.5]))
    'e1 - 0.5 e3'
    """
    terms: list[str] = []
    for i, value in enumerate(coefficients, 1):
        if value:
            size = "" if abs(abs(value) - 1) < ECHELON else f"{abs(value):.4g} "
            sign = ("-" if value < 0 else "") if not terms else ("- " if value < 0 else "+ ")
            terms.append(f"{sign}{size}e{i}")
    return " ".join(terms)


def _moments(target: Target, frame: np.ndarray, order: int) -> np.ndarray:
    r""":math:`E[g \prod_i He_{\alpha_i}(z_i)]` for all :math:`\alpha_i` up to an order, along the rows of a frame."""
    k = len(frame)
    nodes = min(MOST_NODES, int(POINTS ** (1 / k)) // 2 * 2)
    if nodes <= order:
        raise BadInput(f"Hermite tensors of {k} directions need too fine a grid. Give a target of fewer directions.")
    x, w = hermite_e.hermegauss(nodes)
    z = np.stack(np.meshgrid(*[x] * k, indexing="ij")).reshape(k, -1)
    B = np.linalg.cholesky(np.asarray(target.gram))
    values = np.asarray(jax.jit(lambda z: target.readout(z))(jnp.asarray(B @ frame.T @ z))).reshape((nodes,) * k)
    basis = hermite_e.hermevander(x, order).T * (w / w.sum())
    for _ in range(k):  # each product takes the first axis to the end
        values = np.tensordot(values, basis, (0, 1))
    return values


def _span(moments: np.ndarray, known: int, order: int, zero: float) -> np.ndarray:
    """The directions that tensors of an order in the unknown coordinates span, for all products of the known ones."""
    k = moments.ndim
    unknown = k - known
    columns = []
    for powers in itertools.product(range(moments.shape[0]), repeat=known):
        for rest in itertools.combinations_with_replacement(range(unknown), order - 1):
            column = [moments[(*powers, *_counts((i, *rest), unknown))] for i in range(unknown)]
            columns.append(np.array(column) / math.sqrt(math.prod(map(math.factorial, powers))))
    left, sizes, _ = np.linalg.svd(np.array(columns).T, full_matrices=False)
    return left.T[sizes > zero]


def _counts(index: tuple[int, ...], k: int) -> tuple[int, ...]:
    """How often each coordinate is among those of an index."""
    return tuple(index.count(i) for i in range(k))


def _rest(known: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what is orthogonal to the known directions, near the axes."""
    k = known.shape[1]
    left = np.eye(k) - known.T @ known
    values, vectors = np.linalg.eigh(left)
    return vectors[:, values > 0.5].T if len(known) else np.eye(k)

"""Symmetries of the drift: signed permutations of units and of fixed directions under which it is equivariant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from sgdlimits.analysis.fixed_points.system import System
from sgdlimits.errors import BadInput
from sgdlimits.statistics.overlaps import Overlaps

MOST_ELEMENTS = 1000
EQUAL = 1e-8
STATES = 3


@dataclass(frozen=True)
class Group:
    """A finite group of matrices g on the free coordinates, the identity first.

    Parameters
    ----------
    elements : shape (order, n, n)
    table : the element g h for each pair (g, h), shape (order, order)
    """

    elements: np.ndarray
    table: np.ndarray

    @property
    def order(self) -> int:
        return len(self.elements)


def find_symmetries(system: System, symmetries: str | Sequence[Callable], states: np.ndarray) -> Group:
    """The group of "auto" or of given generators; a given one must leave the drift at the states equivariant."""
    given = None if symmetries == "auto" else symmetries
    if isinstance(given, str):
        raise BadInput(f'symmetries must be "auto" or functions of statistics; got {given!r}. Give () for none.')
    matrices = [np.asarray(matrix) for matrix in _matrices(system, given)]
    keep = _equivariant(system, matrices, states[:STATES])
    if given is not None and not all(keep):
        raise BadInput(
            f"symmetries must leave the drift as it is, but number {keep.index(False)} does not: drift(g(x)) is not "
            'g(drift(x)). Leave it out, or give "auto".'
        )
    return _generate([matrix for matrix, kept in zip(matrices, keep, strict=True) if kept], system.size)


def candidates(like: PyTree) -> Sequence[Callable[[PyTree], PyTree]]:
    """Maps of statistics that may be symmetries.

    For overlaps these are exchanges of neighbouring units; a unit's sign, with or without that of its second-layer weight; and
    exchanges of fixed directions and signs of one or of all, with or without the sign of the second layer. For other statistics
    they are the signs of single numbers.
    """
    if not isinstance(like, Overlaps):
        negated = lambda name: lambda stats: replace(stats, **{name: -getattr(stats, name)})
        return [negated(name) for name in type(like).dims]
    p, k = like.M.shape
    exchange = lambda count, i: np.r_[:i, i + 1, i, i + 2 : count]
    exchanges = [partial(_relabel, units=exchange(p, j)) for j in range(p - 1)]
    signs = [partial(_relabel, unit_signs=sign, second_signs=second) for sign in 1 - 2 * np.eye(p) for second in (1.0, sign)]
    orders = [np.arange(k), *(exchange(k, r) for r in range(k - 1))]
    flips = [np.ones(k), *(1 - 2 * np.eye(k)), -np.ones(k)]
    turns = [
        partial(_relabel, directions=order, direction_signs=flip, second_signs=sign)
        for order, flip, sign in itertools.product(orders, flips, (1.0, -1.0))
    ]
    return exchanges + signs + turns


def _relabel(stats: Overlaps, units=None, unit_signs=1.0, directions=None, direction_signs=1.0, second_signs=1.0) -> Overlaps:
    """The overlaps of units and fixed directions with other numbers and signs."""
    units, directions = (slice(None) if order is None else order for order in (units, directions))
    sign = unit_signs * jnp.ones(len(stats.M))
    M = sign[:, None] * stats.M[units][:, directions] * direction_signs
    Q = sign[:, None] * stats.Q[units][:, units] * sign
    return Overlaps(second_signs * stats.a[units], M, Q)


@eqx.filter_jit
def _matrices(system: System, maps: Sequence[Callable[[PyTree], PyTree]] | None) -> list[Array]:
    """What each map, or each candidate, does to the free coordinates, which is linear."""
    maps = candidates(system.like) if maps is None else maps
    basis = np.concatenate([np.zeros((1, system.size)), np.eye(system.size)])
    images = [jax.vmap(lambda x, g=g: system.coordinates(g(system.stats(x))))(basis) for g in maps]
    return [(image[1:] - image[0]).T for image in images]


def _equivariant(system: System, matrices: Sequence[np.ndarray], states: np.ndarray) -> list[bool]:
    """For which g the drift has b(g x) = g b(x) at the states."""
    if not len(matrices):
        return []
    moved = np.concatenate([states @ g.T for g in matrices])
    b = system.drifts(np.concatenate([states, moved]))
    here, there = b[: len(states)], b[len(states) :].reshape(len(matrices), *states.shape)
    bound = max(EQUAL, 10 * system.problem.tolerance) * np.abs(here).max()
    return [bool(np.abs(image - here @ g.T).max() <= bound) for g, image in zip(matrices, there, strict=True)]


def _generate(generators: Sequence[np.ndarray], size: int) -> Group:
    """The group that the generators make; generators that would make it too large are left out."""
    alone = {_key(np.eye(size)): np.eye(size)}
    elements, used = alone, list[np.ndarray]()
    for generator in generators:
        if _key(generator) in elements:
            continue
        larger, fresh = alone, list(alone.values())
        while fresh and len(larger) <= MOST_ELEMENTS:
            products = {_key(product): product for product in (g @ h for g in (*used, generator) for h in fresh)}
            fresh = [product for key, product in products.items() if key not in larger]
            larger = larger | products
        if len(larger) <= MOST_ELEMENTS:
            used.append(generator)
            elements = larger
    stack = np.stack(list(elements.values()))
    return Group(stack, _table(stack))


def _table(elements: np.ndarray) -> np.ndarray:
    """Products are told from each other by one number each, u^T g h v with random vectors u and v."""
    u, v = np.random.default_rng(0).normal(size=(2, elements.shape[1]))
    left, right = np.einsum("i,gij->gj", u, elements), elements @ v
    numbers = left @ v
    order = np.argsort(numbers)
    between = (numbers[order][1:] + numbers[order][:-1]) / 2
    return order[np.searchsorted(between, left @ right.T)]


def _key(matrix: np.ndarray) -> bytes:
    return (np.round(matrix, 6) + 0.0).tobytes()

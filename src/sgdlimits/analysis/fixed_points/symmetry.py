"""Symmetries of the drift: signed permutations of units and of fixed directions under which it is equivariant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.analysis.fixed_points.system import System
from sgdlimits.errors import BadInput, shorten
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import take_run
from sgdlimits.trial import try_function

MOST_ELEMENTS = 1000
EQUAL = 1e-8
STATES = 3


@dataclass(frozen=True)
class SymmetryGroup:
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

    def halfway(self, x: np.ndarray, every: int, seed: int) -> np.ndarray:
        """Means of some rows and an image of each under a random g with g g = 1: g leaves them, and all that the flow reaches.

        Attracting within such a subspace are points that repel across it. Statistics of weights are a convex set, so that the
        means are some, too.
        """
        square = np.diagonal(self.table)
        turns = np.flatnonzero(square == 0)[1:]
        x = x[::every] if turns.size else x[:0]
        g = np.random.default_rng(seed).permutation(np.resize(turns, len(x)))
        return (x + np.einsum("rij,rj->ri", self.elements[g], x)) / 2


def find_symmetries(system: System, symmetries: str | Sequence[Callable], states: np.ndarray) -> SymmetryGroup:
    """The group of "auto" or of given generators; a given one must leave the drift at the states equivariant."""
    given = None if isinstance(symmetries, str) else list(symmetries)
    if given == []:
        return _generate([], system.size)
    matrices = _matrices(system, given)
    keep = _equivariant(system, matrices, states[:STATES])
    if given is not None and not all(keep):
        raise BadInput(
            f"symmetries must leave the drift as it is, but number {keep.index(False)} does not: drift(g(x)) is not "
            'g(drift(x)). Leave it out, or give "auto".'
        )
    return _generate([matrix for matrix, kept in zip(matrices, keep, strict=True) if kept], system.size)


def check_symmetries(symmetries: str | Sequence[Callable], like: PyTree) -> None:
    """`BadInput` unless they are "auto" or functions from statistics, such as these of one run, to statistics."""
    if isinstance(symmetries, str) and symmetries == "auto":
        return
    if isinstance(symmetries, str) or not np.iterable(symmetries):
        raise BadInput(f'symmetries must be "auto" or functions of statistics; got {shorten(symmetries)}. Give () for none.')
    for number, each in enumerate(symmetries):
        name = f"symmetries[{number}]"
        image = try_function(name, each, "the statistics of one run", like, shape=None)
        if jax.tree.map(np.shape, image) != jax.tree.map(np.shape, like):
            raise BadInput(f"{name} must return {type(like).__name__} of the same shapes; got others. Return what it takes.")


def candidates(like: PyTree, axes: Mapping[str, tuple[str, ...]]) -> Sequence[Callable[[PyTree], PyTree]]:
    """Maps of statistics that may be symmetries; `axes` are the names of those of each array.

    For overlaps these are exchanges of neighbouring units; a unit's sign, with or without that of its second-layer weights; and
    exchanges of fixed directions and signs of one or of all, with or without the sign of the second layer, or an exchange of
    outputs. For other statistics they are the signs of single numbers.
    """
    if not isinstance(like, Overlaps):
        negated = lambda name: lambda stats: replace(stats, **{name: -getattr(stats, name)})
        return [negated(name) for name in type(like).dims]
    p, k = like.M.shape
    exchange = lambda count, i: np.r_[:i, i + 1, i, i + 2 : count]
    relabel = partial(_relabel, axes=axes)
    exchanges = [partial(relabel, units=exchange(p, j)) for j in range(p - 1)]
    signs = [partial(relabel, unit_signs=sign, second_signs=second) for sign in 1 - 2 * np.eye(p) for second in (1.0, sign)]
    orders = [np.arange(k), *(exchange(k, r) for r in range(k - 1))]
    flips = [np.ones(k), *(1 - 2 * np.eye(k)), -np.ones(k)]
    seconds: list[dict[str, Any]] = [{"second_signs": sign} for sign in (1.0, -1.0)]
    seconds += [{"outputs": order} for order in _exchanged_outputs(like, axes)]
    turns = [
        partial(relabel, directions=order, direction_signs=flip, **second)
        for order, flip, second in itertools.product(orders, flips, seconds)
    ]
    return exchanges + signs + turns


def _exchanged_outputs(like: Overlaps, axes: Mapping[str, tuple[str, ...]]) -> list[np.ndarray]:
    """Exchanges of two outputs, where the scalars have several."""
    scalars = like.a if isinstance(like.a, dict) else {}
    count = max(
        (np.shape(leaf)[axes[name].index("output")] for name, leaf in scalars.items() if "output" in axes[name]), default=0
    )
    return [np.r_[:i, j, i + 1 : j, i, j + 1 : count] for i, j in itertools.combinations(range(count), 2)]


def _relabel(
    stats: Overlaps, axes, units=None, unit_signs=1.0, directions=None, direction_signs=1.0, second_signs=1.0, outputs=None
) -> Overlaps:
    """The overlaps and scalars of units, fixed directions and outputs with other numbers and signs."""
    units, directions = (slice(None) if order is None else order for order in (units, directions))
    sign = unit_signs * np.ones(len(stats.M))
    M = sign[:, None] * stats.M[units][:, directions] * direction_signs
    Q = sign[:, None] * stats.Q[units][:, units] * sign

    def moved(leaf, names: tuple[str, ...]):
        if names[:1] == ("student",):
            leaf = (second_signs * np.ones(len(stats.M))).reshape(-1, *(1 for _ in names[1:])) * leaf[units]
        return leaf if outputs is None or "output" not in names else np.take(leaf, outputs, names.index("output"))

    named = isinstance(stats.a, dict)
    a = {name: moved(leaf, axes[name]) for name, leaf in stats.a.items()} if named else moved(stats.a, axes["a"])
    return Overlaps(a, M, Q)


def _matrices(system: System, maps: Sequence[Callable[[PyTree], PyTree]] | None) -> list[np.ndarray]:
    """What each map, or each candidate, does to the free coordinates, which is linear."""
    axes = {name: axes for name, (axes, _) in system.problem.coordinates.variables(system.like).items()}
    maps = candidates(system.like, axes) if maps is None else [jax.jit(each) for each in maps]
    basis = system.batch(np.concatenate([np.zeros((1, system.size)), np.eye(system.size)]))
    ones = [take_run(basis, i) for i in range(system.size + 1)]
    images = [[g(one) for one in ones] for g in maps]
    rows = system.rows(jax.tree.map(lambda *leaves: np.stack(leaves), *itertools.chain(*images)))
    return [(image[1:] - image[0]).T for image in rows.reshape(len(maps), -1, system.size)]


def _equivariant(system: System, matrices: Sequence[np.ndarray], states: np.ndarray) -> list[bool]:
    """For which g the drift has b(g x) = g b(x) at the states."""
    moved = np.concatenate([states @ g.T for g in matrices])
    b = system.drifts(np.concatenate([states, moved]))
    here, there = b[: len(states)], b[len(states) :].reshape(len(matrices), *states.shape)
    bound = max(EQUAL, 10 * system.problem.numerics.tolerance) * np.abs(here).max()
    return [bool(np.abs(image - here @ g.T).max() <= bound) for g, image in zip(matrices, there, strict=True)]


def _generate(generators: Sequence[np.ndarray], size: int) -> SymmetryGroup:
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
    return SymmetryGroup(stack, _table(stack))


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

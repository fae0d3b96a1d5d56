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

from sgdlimits.analysis.fixed_points.system import DriftSystem
from sgdlimits.errors import BadInput, shorten
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import select_run
from sgdlimits.trial import try_function

MAX_ELEMENTS = 1000
"""Largest order of the symmetry group; generators that would exceed it are left out."""
EQUIVARIANCE_TOLERANCE = 1e-8
"""Largest deviation from equivariance, b(g x) = g b(x) for a drift b, relative to the largest drift."""
CHECKED_STATE_COUNT = 3
"""Number of states at which the equivariance of the drift is tested."""


@dataclass(frozen=True)
class SymmetryGroup:
    """Finite group of symmetries of the drift, as matrices on the free coordinates, with the identity first.

    Parameters
    ----------
    elements : shape (order, n, n)
    table : multiplication table, the index of g h for each pair (g, h), shape (order, order)
    """

    elements: np.ndarray
    table: np.ndarray

    @property
    def order(self) -> int:
        """Number of elements of the group."""
        return len(self.elements)

    def symmetrise(self, x: np.ndarray, every: int, seed: int) -> np.ndarray:
        """Return, for one in `every` of the points x, its mean with its image under a random involution of the group.

        The mean is invariant under the involution, and so are all states that the flow reaches from it. Saddles that repel
        across the subspace of invariant states may attract within it. Statistics of weights are a convex set, so that the means
        are statistics of weights too.

        Parameters
        ----------
        x : rows of coordinates
        every : spacing of the rows that are used
        seed : seed of the choice of involutions
        """
        # index of g g for each g; the identity has index 0
        square = np.diagonal(self.table)
        turns = np.flatnonzero(square == 0)[1:]
        x = x[::every] if turns.size else x[:0]
        g = np.random.default_rng(seed).permutation(np.resize(turns, len(x)))
        return (x + np.einsum("rij,rj->ri", self.elements[g], x)) / 2


def find_symmetries(system: DriftSystem, symmetries: str | Sequence[Callable], states: np.ndarray) -> SymmetryGroup:
    """Return the group of symmetries of the drift, from given generators, or from all candidate maps for "auto".

    The drift must be equivariant under given generators at the states `states`; candidates that fail this test are left out.
    """
    given = None if isinstance(symmetries, str) else list(symmetries)
    # () asks for no symmetries
    if given == []:
        return _generate_group([], system.size)
    matrices = _matrices_of(system, given)
    keep = _are_equivariant(system, matrices, states[:CHECKED_STATE_COUNT])
    if given is not None and not all(keep):
        raise BadInput(
            f"symmetries must leave the drift equivariant, but map g number {keep.index(False)} does not: drift(g(x)) differs "
            'from g(drift(x)). Leave this map out, or give "auto".'
        )
    return _generate_group([matrix for matrix, kept in zip(matrices, keep, strict=True) if kept], system.size)


def check_symmetries(symmetries: str | Sequence[Callable], like: PyTree) -> None:
    """Raise `BadInput` unless `symmetries` is "auto" or a sequence of maps from statistics of one run to statistics."""
    if isinstance(symmetries, str) and symmetries == "auto":
        return
    if isinstance(symmetries, str) or not np.iterable(symmetries):
        raise BadInput(f'symmetries must be "auto" or functions of statistics; got {shorten(symmetries)}. Give () for none.')
    for number, each in enumerate(symmetries):
        name = f"symmetries[{number}]"
        # called once, so that an error names the argument
        image = try_function(name, each, "the statistics of one run", like, shape=None)
        if jax.tree.map(np.shape, image) != jax.tree.map(np.shape, like):
            raise BadInput(
                f"{name} must return {type(like).__name__} of the shapes of its argument; got other shapes. Correct it."
            )


def list_candidate_symmetries(like: PyTree, axes: Mapping[str, tuple[str, ...]]) -> Sequence[Callable[[PyTree], PyTree]]:
    """Return maps of statistics that are symmetries of the drift for many problems, such as permutations of units.

    For overlaps the maps exchange neighbouring units; flip the sign of a unit, with or without the sign of its second-layer
    weights; exchange fixed directions; or flip the sign of one or of all fixed directions, with or without the sign of the
    second layer or an exchange of outputs. For other statistics each map negates one array.

    Parameters
    ----------
    like : statistics of one run
    axes : names of the axes of each array of scalars
    """
    if not isinstance(like, Overlaps):
        negated = lambda name: lambda stats: replace(stats, **{name: -getattr(stats, name)})
        return [negated(name) for name in type(like).dims]
    p, k = like.M.shape
    exchange = lambda count, i: np.r_[:i, i + 1, i, i + 2 : count]
    relabel = partial(_relabel_overlaps, axes=axes)
    exchanges = [partial(relabel, units=exchange(p, j)) for j in range(p - 1)]
    signs = [partial(relabel, unit_signs=sign, second_signs=second) for sign in 1 - 2 * np.eye(p) for second in (1.0, sign)]
    orders = [np.arange(k), *(exchange(k, r) for r in range(k - 1))]
    # one sign at a time suffices: products are generated by the group
    flips = [np.ones(k), *(1 - 2 * np.eye(k)), -np.ones(k)]
    seconds: list[dict[str, Any]] = [{"second_signs": sign} for sign in (1.0, -1.0)]
    seconds += [{"outputs": order} for order in _output_exchanges(like, axes)]
    turns = [
        partial(relabel, directions=order, direction_signs=flip, **second)
        for order, flip, second in itertools.product(orders, flips, seconds)
    ]
    return exchanges + signs + turns


def _output_exchanges(like: Overlaps, axes: Mapping[str, tuple[str, ...]]) -> list[np.ndarray]:
    """Return the permutations that exchange two outputs of the network; none if no scalar has an axis "output"."""
    scalars = like.a if isinstance(like.a, dict) else {}
    count = max(
        (np.shape(leaf)[axes[name].index("output")] for name, leaf in scalars.items() if "output" in axes[name]), default=0
    )
    return [np.r_[:i, j, i + 1 : j, i, j + 1 : count] for i, j in itertools.combinations(range(count), 2)]


def _relabel_overlaps(
    stats: Overlaps, axes, units=None, unit_signs=1.0, directions=None, direction_signs=1.0, second_signs=1.0, outputs=None
) -> Overlaps:
    """Permute units, fixed directions and outputs of overlaps, and flip signs.

    `units`, `directions` and `outputs` are permutations, None for the present order; `axes` names the axes of each scalar.
    """
    units, directions = (slice(None) if order is None else order for order in (units, directions))
    sign = unit_signs * np.ones(len(stats.M))
    M = sign[:, None] * stats.M[units][:, directions] * direction_signs
    Q = sign[:, None] * stats.Q[units][:, units] * sign

    def transform(leaf, names: tuple[str, ...]):
        if names[:1] == ("student",):
            leaf = (second_signs * np.ones(len(stats.M))).reshape(-1, *(1 for _ in names[1:])) * leaf[units]
        return leaf if outputs is None or "output" not in names else np.take(leaf, outputs, names.index("output"))

    named = isinstance(stats.a, dict)
    a = {name: transform(leaf, axes[name]) for name, leaf in stats.a.items()} if named else transform(stats.a, axes["a"])
    return Overlaps(a, M, Q)


def _matrices_of(system: DriftSystem, maps: Sequence[Callable[[PyTree], PyTree]] | None) -> list[np.ndarray]:
    """Return the matrices of linear maps of statistics on free coordinates; for `maps` None, of `list_candidate_symmetries`."""
    axes = {name: axes for name, (axes, _) in system.problem.coordinates.variables(system.example_statistics).items()}
    maps = list_candidate_symmetries(system.example_statistics, axes) if maps is None else [jax.jit(each) for each in maps]
    basis = system.unflatten_rows(np.concatenate([np.zeros((1, system.size)), np.eye(system.size)]))
    ones = [select_run(basis, i) for i in range(system.size + 1)]
    images = [[g(one) for one in ones] for g in maps]
    # the images of zero and of the unit vectors give the affine map; one call converts all
    rows = system.flatten_batch(jax.tree.map(lambda *leaves: np.stack(leaves), *itertools.chain(*images)))
    return [(image[1:] - image[0]).T for image in rows.reshape(len(maps), -1, system.size)]


def _are_equivariant(system: DriftSystem, matrices: Sequence[np.ndarray], states: np.ndarray) -> list[bool]:
    """Test for each matrix g whether the drift b satisfies b(g x) = g b(x) at the given states."""
    moved = np.concatenate([states @ g.T for g in matrices])
    b = system.drifts(np.concatenate([states, moved]))
    here, there = b[: len(states)], b[len(states) :].reshape(len(matrices), *states.shape)
    # drifts by quadrature are symmetric to its tolerance only
    bound = max(EQUIVARIANCE_TOLERANCE, 10 * system.problem.numerics.tolerance) * np.abs(here).max()
    return [bool(np.abs(image - here @ g.T).max() <= bound) for g, image in zip(matrices, there, strict=True)]


def _generate_group(generators: Sequence[np.ndarray], size: int) -> SymmetryGroup:
    """Return the group generated by matrices, of shape (size, size); leave out generators beyond the order `MAX_ELEMENTS`."""
    alone = {_matrix_key(np.eye(size)): np.eye(size)}
    elements, used = alone, list[np.ndarray]()
    for generator in generators:
        if _matrix_key(generator) in elements:
            continue
        larger, fresh = alone, list(alone.values())
        # close the set under multiplication by generators
        while fresh and len(larger) <= MAX_ELEMENTS:
            products = {_matrix_key(product): product for product in (g @ h for g in (*used, generator) for h in fresh)}
            fresh = [product for key, product in products.items() if key not in larger]
            larger = larger | products
        if len(larger) <= MAX_ELEMENTS:
            used.append(generator)
            elements = larger
    stack = np.stack(list(elements.values()))
    return SymmetryGroup(stack, _multiplication_table(stack))


def _multiplication_table(elements: np.ndarray) -> np.ndarray:
    """Return the multiplication table of a group, the index of g h for each pair of elements, shape (order, order).

    A product g h is identified by the number u^T g h v, with random vectors u and v, without a product of matrices.
    """
    u, v = np.random.default_rng(0).normal(size=(2, elements.shape[1]))
    left, right = np.einsum("i,gij->gj", u, elements), elements @ v
    labels = left @ v
    order = np.argsort(labels)
    between = (labels[order][1:] + labels[order][:-1]) / 2
    return order[np.searchsorted(between, left @ right.T)]


def _matrix_key(matrix: np.ndarray) -> bytes:
    """Return a dictionary key for a matrix, which is equal for matrices that agree to six digits."""
    # adding 0.0 turns -0.0, whose bytes differ, into 0.0
    return (np.round(matrix, 6) + 0.0).tobytes()

r"""Symmetries of quadrature nodes: those that averages over the nodes need to have the same symmetries as the model.

At nodes :math:`z = (z_\text{fixed}, z_\text{outside}, z_\text{noise})` the student fields are :math:`\lambda =
mz_\text{fixed} + Rz_\text{outside}`, for units of coordinates m along the orthonormalised fixed directions and of Gram matrix
Q, with the symmetric root R of :math:`Q - mm^\top`. Then a symmetry of the statistics is a signed permutation of z:

| symmetry | signed permutation of z |
|---|---|
| units are permuted | the coordinates outside are permuted likewise |
| the target is even along some fixed directions jointly | these change sign |
| the target is odd along them, and so are the units | these change sign, and all coordinates outside and the noise with them |
| the units are even, the target is not | all coordinates outside change sign |
| the target is symmetric in two fixed directions | they are exchanged |

An average over nodes with these symmetries has them too: entries that vanish or coincide by symmetry do so up to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from sgdlimits.expectation.gaussian.base import Group, enlarge_group
from sgdlimits.model.activation import Activation
from sgdlimits.model.sample import Model
from sgdlimits.model.target import Readout

# Each orbit has as many points as the group, so for a given number of nodes a larger group means fewer independent points.
MAX_GROUP_SIZE = 96
"""Maximum size of the symmetry group that quadrature nodes must have."""
MAX_OPTIONAL_GROUP_SIZE = 8
"""Maximum size of the nodes' symmetry group when symmetries that are not required are added to it."""
MAX_PERMUTED_UNITS = 4
MAX_FLIPPED_DIRECTIONS = 8
TEST_POINTS = 16
TEST_TOLERANCE = 1e-9


def model_symmetries(model: Model) -> Group:
    """Return the group of signed permutations of normal coordinates under which a model's expectations are invariant.

    The coordinates are those along the fixed directions, those outside, and the label noise. Up to four units are permuted in
    all ways, and more of them cyclically and in reverse. A readout with array parameters, which may be traced, counts as even
    along every direction. The first three rows of the table in this module's docstring enter while the group has at most 96
    elements, the others while it has at most 8.
    """
    readout = None if jax.tree.leaves(model.target.readout) else model.target.readout
    return _symmetry_group(model.width, model.teachers, readout, model.network.activation, model.centred)


@lru_cache(maxsize=64)
def _symmetry_group(p: int, k: int, readout: Readout | None, unit: Activation | None, centred: bool) -> Group:
    """Return the symmetry group of a model of p units and k fixed directions; `readout` is None if it may be traced."""
    identity, outside = np.arange(1, k + p + 2), np.arange(k, k + p)
    even, odd = (unit is not None and _is_invariant(unit, lambda x: -x, 1, sign) for sign in (1, -1))

    def preserves_readout(signed: np.ndarray, sign: int = 1) -> bool:
        act = lambda fixed: np.sign(signed[:k])[:, None] * fixed[np.abs(signed[:k]) - 1]
        return _is_invariant(readout, act, k, sign) if readout is not None else sign == 1

    def required_generators() -> Iterator[np.ndarray]:
        # Exchanges of neighbours generate all permutations; a cycle and a reversal generate the dihedral group.
        neighbours = [[*range(j), j + 1, j, *range(j + 2, p)] for j in range(p - 1)]
        for order in neighbours if p <= MAX_PERMUTED_UNITS else [[*range(1, p), 0], [*range(p)][::-1]]:
            yield _permute_entries(identity, outside, outside[order])
        sizes = [1, *([k] if k > 1 else []), *(range(2, k) if k <= MAX_FLIPPED_DIRECTIONS else [])]
        for flipped in itertools.chain.from_iterable(itertools.combinations(range(k), size) for size in sizes):
            signed = _flip_signs(identity, list(flipped))
            if preserves_readout(signed):
                yield signed
            elif odd and preserves_readout(signed, -1):
                yield _flip_signs(signed, [*outside, k + p])

    def optional_generators() -> Iterator[np.ndarray]:
        if even and not preserves_readout(-identity):
            yield _flip_signs(identity, outside)
        if readout is not None and centred:
            exchanges = (_permute_entries(identity, [r, s], [s, r]) for r, s in itertools.combinations(range(k), 2))
            yield from filter(preserves_readout, exchanges)

    as_tuples = lambda generators: (tuple(signed.tolist()) for signed in generators)
    group = enlarge_group((tuple(identity.tolist()),), as_tuples(required_generators()), MAX_GROUP_SIZE)
    return enlarge_group(group, as_tuples(optional_generators()), MAX_OPTIONAL_GROUP_SIZE)


def _is_invariant(f: Callable, act: Callable, k: int, sign: int) -> bool:
    """Return whether f(act(x)) = sign · f(x) for a readout f at random x in R^k; true if f depends on traced values."""
    # The group is static, so f is evaluated now even while the caller is being traced.
    with jax.ensure_compile_time_eval():
        points = np.random.default_rng(0).normal(size=(k, TEST_POINTS))
        here, there = (f(jnp.asarray(each)) for each in (points, act(points)))
        if any(isinstance(value, jax.core.Tracer) for value in (here, there)):
            return True
        tolerance = TEST_TOLERANCE * np.abs(here).max()
        return bool(np.allclose(here, sign * np.asarray(there), rtol=TEST_TOLERANCE, atol=tolerance))


def _flip_signs(signed: np.ndarray, flipped: list[int] | np.ndarray) -> np.ndarray:
    """Return a signed permutation with the signs of the given entries reversed."""
    changed = signed.copy()
    changed[flipped] *= -1
    return changed


def _permute_entries(signed: np.ndarray, to: list[int] | np.ndarray, origin: list[int] | np.ndarray) -> np.ndarray:
    """Return a signed permutation in which the entries at `origin` are copied to the positions `to`."""
    changed = signed.copy()
    changed[to] = signed[origin]
    return changed

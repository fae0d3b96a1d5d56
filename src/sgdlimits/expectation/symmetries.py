r"""Which turns of the nodes a model's averages keep.

At nodes :math:`z = (z_\text{fixed}, z_\text{outside}, z_\text{noise})` the fields are :math:`\lambda = mz_\text{fixed} +
Rz_\text{outside}` with the symmetric root R of :math:`Q - mm^\top`. Then a symmetry of the statistics is one of z:

| symmetry | turn of z |
|---|---|
| units change places | so do the coordinates outside |
| the target is even along some fixed directions together | these change sign |
| the target is odd along them, and so are the units | these change sign, and all outside and the noise with them |
| the units are even, the target is not | all coordinates outside change sign |
| the target is symmetric in two fixed directions | they change places |

An average over nodes with these symmetries has them too: what is zero, or equal, by symmetry is so to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from sgdlimits.expectation.gaussian.base import Group, enlarged
from sgdlimits.model.activation import Activation
from sgdlimits.model.sample import Model
from sgdlimits.model.target import Readout

LARGEST_GROUP, LARGEST_AT_WILL = 96, 8
MOST_EXCHANGED = 4
MOST_FLIPPED = 8
SAMPLES = 16
SAME = 1e-9


def symmetries(model: Model) -> Group:
    """The turns of (fixed, outside, noise) that the nodes of a model keep.

    Units change places in all ways up to four of them, and around a circle beyond. A readout with numbers of its own, which may
    be traced, counts as even along every direction. The first three rows of the table are kept while the group has at most 96
    elements, the others while it has at most 8.
    """
    readout = None if jax.tree.leaves(model.target.readout) else model.target.readout
    return _group(model.width, model.teachers, readout, model.network.activation, model.centred)


@lru_cache(maxsize=64)
def _group(p: int, k: int, readout: Readout | None, unit: Activation | None, centred: bool) -> Group:
    one, outside = np.arange(1, k + p + 2), np.arange(k, k + p)
    even, odd = (unit is not None and _same(unit, lambda x: -x, 1, sign) for sign in (1, -1))

    def is_like(turn: np.ndarray, sign: int = 1) -> bool:
        turned = lambda fixed: np.sign(turn[:k])[:, None] * fixed[np.abs(turn[:k]) - 1]
        return _same(readout, turned, k, sign) if readout is not None else sign == 1

    def needed() -> Iterator[np.ndarray]:
        neighbours = [[*range(j), j + 1, j, *range(j + 2, p)] for j in range(p - 1)]
        for order in neighbours if p <= MOST_EXCHANGED else [[*range(1, p), 0], [*range(p)][::-1]]:
            yield _moved(one, outside, outside[order])
        sizes = [1, *([k] if k > 1 else []), *(range(2, k) if k <= MOST_FLIPPED else [])]
        for flipped in itertools.chain.from_iterable(itertools.combinations(range(k), size) for size in sizes):
            turn = _signed(one, list(flipped))
            if is_like(turn):
                yield turn
            elif odd and is_like(turn, -1):
                yield _signed(turn, [*outside, k + p])

    def at_will() -> Iterator[np.ndarray]:
        if even and not is_like(-one):
            yield _signed(one, outside)
        if readout is not None and centred:
            exchanged = (_moved(one, [r, s], [s, r]) for r, s in itertools.combinations(range(k), 2))
            yield from filter(is_like, exchanged)

    turns = lambda some: (tuple(turn.tolist()) for turn in some)
    group = enlarged((tuple(one.tolist()),), turns(needed()), LARGEST_GROUP)
    return enlarged(group, turns(at_will()), LARGEST_AT_WILL)


def _same(f: Callable, turn: Callable, k: int, sign: int) -> bool:
    """Whether f at turned vectors is f, up to a sign; yes where it cannot be computed, since it depends on what is traced."""
    with jax.ensure_compile_time_eval():
        points = np.random.default_rng(0).normal(size=(k, SAMPLES))
        here, there = (f(jnp.asarray(each)) for each in (points, turn(points)))
        if any(isinstance(value, jax.core.Tracer) for value in (here, there)):
            return True
        return bool(np.allclose(here, sign * np.asarray(there), rtol=SAME, atol=SAME * np.abs(here).max()))


def _signed(one: np.ndarray, flipped: list[int] | np.ndarray) -> np.ndarray:
    turn = one.copy()
    turn[flipped] *= -1
    return turn


def _moved(one: np.ndarray, to: list[int] | np.ndarray, origin: list[int] | np.ndarray) -> np.ndarray:
    turn = one.copy()
    turn[to] = one[origin]
    return turn

r"""Connected components of the set of fixed points, found by walking between roots.

The symmetries G make :math:`|G|` images of each root. They are never all compared: a way from root i to the image g j is one
from h i to :math:`hgj` for every h. So a graph has the images as its nodes, and each way that is found enters it
:math:`|G|` times. Its components are those of the fixed points, and an orbit of components has as many copies as there are
components among the images of its roots.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from sgdlimits.analysis.fixed_points.roots import Roots, roots_near
from sgdlimits.analysis.fixed_points.symmetry import SymmetryGroup
from sgdlimits.analysis.fixed_points.system import System

SAME = 1e-6
"""Roots closer than this, relative to 1 and their size, are one."""
SHORT = 0.05
"""Steps along fixed points are shorter than this, relative to 1 and their size."""
BETWEEN = 0.8
HALVINGS = 10
NEAREST = 3
WALK_STEPS, KINK_STEPS = 15, 60
"""Steps onto the fixed points; at a kink, where the Jacobian is that of one side, they converge slowly."""
ROUNDS = 24
PAIRS, FEW_PAIRS = 48, 8
DISPLACEMENT = 1e-4
CHECKS, LINEAR = 6, 0.003
"""Displacements by which a Jacobian is checked, and the largest relative error."""
REGULAR = 0.01
TRIED, FEW_TRIED = 120, 6
"""Images beyond so many nearest ones of a root are left to other roots of its component."""


class Atlas:
    """Roots up to symmetry, and the graph of their images.

    Attributes
    ----------
    roots : no two of which are images of each other
    owner : for each of the roots that were given, which of these it is an image of
    points, images : their coordinates; those of all images, one element of the group after another, shape (order roots, n)
    alone : roots that are isolated, as their Jacobian is regular and right
    edges, failed : (i, g, j): root i and the image g of root j are connected; no way was found between them
    """

    def __init__(self, system: System, group: SymmetryGroup, roots: Roots) -> None:
        self.system, self.group = system, group
        self.edges: list[tuple[int, int, int]] = []
        self.failed: set[tuple[int, int, int]] = set()
        self.owner, images = np.empty(len(roots.x), int), np.empty((0, system.size))
        first: list[int] = []
        for r, x in enumerate(roots.x):
            gaps, same = np.linalg.norm(images - x, axis=1), SAME * (1 + np.linalg.norm(x))
            if gaps.size and gaps.min() < same:
                self.owner[r] = gaps.argmin() // group.order
                continue
            i, own = len(first), group.elements @ x
            self.edges += [(i, int(g), i) for g in np.flatnonzero(np.linalg.norm(own - x, axis=1) < same) if g]
            self.owner[r] = i
            first.append(r)
            images = np.concatenate([images, own])
        self.roots, self.alone = roots.at(np.array(first, int)), np.zeros(len(first), bool)
        self.points = self.roots.x
        self.images = images.reshape(-1, group.order, system.size).swapaxes(0, 1).reshape(-1, system.size)

    def labels(self) -> np.ndarray:
        """The component of the image g of root i, shape (order, roots)."""
        order, count = self.group.order, len(self.points)
        if not count:
            return np.empty((order, 0), int)
        i, g, j = np.array(self.edges, int).reshape(-1, 3).T
        h = np.arange(order)[:, None]
        ends = (h * count + i).ravel(), (self.group.table[:, g] * count + j).ravel()
        graph = coo_array((np.ones(ends[0].size), ends), (order * count, order * count))
        return connected_components(graph, directed=False)[1].reshape(order, count)

    def connect(self, towards: np.ndarray) -> None:
        """Walk between near roots of different components, until no two are found connected any more."""
        for i in np.flatnonzero(~smooth(self.system, self.roots, towards)):
            self.system.watch.stage("Jacobians where units coincide, root", int(i) + 1, len(self.points))
            measured = measure(self.system, self.points[i], towards)
            self.roots.jacobian[i] = self.roots.jacobian[i] if measured is None else measured
        values, zero = self.roots.spectra
        regular = np.flatnonzero((np.abs(values) > zero[:, None]).all(1))
        self.alone[regular] = smooth(self.system, self.roots.at(regular), towards)
        each_target = False
        for walks in range(ROUNDS):
            pairs = self._candidates(each_target)
            self.system.watch.stage(f"{len(self.points)} roots, round {walks + 1} of ways between them")
            joined = self._walk(pairs)
            if not joined and each_target:
                return
            each_target = not joined

    def locate(self, roots: np.ndarray) -> np.ndarray:
        """The number of a point whose component, or an image of it, each root belongs to; -1 where none is found."""
        where = np.full(len(roots), -1)
        for rank in range(1, 1 + min(NEAREST, len(self.images))):
            lost = np.flatnonzero(where < 0)
            nearest = KDTree(self.images).query(roots[lost], [rank])[1][:, 0]
            found = connected(self.system, roots[lost], self.images[nearest])
            where[lost] = np.where(found, nearest % len(self.points), -1)
        return where

    def between(self, labels: np.ndarray, root: int) -> Roots:
        """Fixed points between random pairs of images in the component of a root: searches tend to end at its edges."""
        images = self.images[(labels == labels[0, root]).ravel()]
        pairs = np.random.default_rng(0).integers(len(images), size=(FEW_PAIRS if self.system.costly else PAIRS, 2))
        apart = np.linalg.norm(images[pairs[:, 0]] - images[pairs[:, 1]], axis=1)
        pairs = pairs[apart > SAME * (1 + np.linalg.norm(images[pairs[:, 0]], axis=1))]
        middle = roots_near(self.system, images[pairs].mean(1))
        inside = middle.found
        inside[inside] = connected(self.system, images[pairs[inside, 0]], middle.x[inside])
        return middle.at(inside)

    def _candidates(self, each_target: bool) -> list[tuple[int, int, int]]:
        """The nearest images outside its component of each orbit of components, a few in all or for each other component.

        The symmetries carry ways between two components to ways between their images, but not to other pairs of the same
        orbits: a ring in two parts may be nearer to images that it is not connected with. So each pair has a turn, up to
        symmetry.
        """
        labels, pair_of = self.labels(), dict[tuple[int, int], tuple[int, int]]()
        orbits = labels.min(0)
        tried = FEW_TRIED if self.system.costly and not each_target else TRIED
        best: dict[tuple, list[tuple[float, tuple[int, int, int]]]] = {}
        for i in np.flatnonzero(~self.alone):
            gaps = cdist(self.points[[i]], self.images).reshape(labels.shape)
            gaps[labels == labels[0, i]] = np.inf
            gaps[:, self.alone] = np.inf
            for flat in np.argsort(gaps, axis=None)[:tried]:
                g, j = divmod(int(flat), len(self.points))
                if not np.isfinite(gaps[g, j]) or (int(i), g, j) in self.failed:
                    continue
                key: tuple[int, ...] = (int(orbits[i]),)
                if each_target:
                    ends = int(labels[0, i]), int(labels[g, j])
                    if ends not in pair_of:
                        images = np.stack([labels[:, i], labels[self.group.table[:, g], j]])
                        pair_of[ends] = tuple(images[:, np.lexsort(images[::-1])[0]].tolist())
                    key = pair_of[ends]
                best.setdefault(key, []).append((gaps[g, j], (int(i), g, j)))
        return [pair for pairs in best.values() for _, pair in sorted(pairs)[:NEAREST]]

    def _walk(self, pairs: list[tuple[int, int, int]]) -> bool:
        """Whether any of the pairs is found connected; all are remembered."""
        if not pairs:
            return False
        i, g, j = np.array(pairs).T
        joined = connected(self.system, self.points[i], self.images[g * len(self.points) + j])
        for pair, good in zip(pairs, joined, strict=True):
            self.edges.append(pair) if good else self.failed.add(pair)
        return bool(joined.any())


def smooth(system: System, roots: Roots, towards: np.ndarray) -> np.ndarray:
    """At which roots the Jacobian says what small displacements do, each towards random statistics.

    It does not at a kink. Nor does it always where units coincide or are zero: there Omega is singular, so that statistics of
    weights lie on one side only, and derivatives of expectations may be lost.
    """
    step = displacements(roots.x, towards[:CHECKS])
    drift = system.drifts((roots.x[:, None] + step).reshape(-1, system.size)).reshape(step.shape)
    wrong = np.linalg.norm(drift - np.einsum("rij,rwj->rwi", roots.jacobian, step), axis=2)
    scale = np.linalg.norm(roots.jacobian, axis=(1, 2))[:, None] * np.linalg.norm(step, axis=2)
    return (wrong <= LINEAR * scale).all(1)


def measure(system: System, x: np.ndarray, towards: np.ndarray) -> np.ndarray | None:
    """A root's Jacobian by differences towards random statistics; None where they are not linear, or it may be singular."""
    step = 10 * displacements(x[None], towards[: 2 * system.size])[0]
    near, far = (system.drifts(x + length * step) for length in (1, 2))
    slope = (4 * near - far) / 2
    J = np.linalg.lstsq(step, slope, rcond=None)[0].T
    scale = np.linalg.norm(J)
    linear = np.linalg.norm(slope - step @ J.T, axis=1) <= LINEAR * scale * np.linalg.norm(step, axis=1)
    return J if len(step) > system.size and linear.all() and np.abs(np.linalg.eigvals(J)).min() > REGULAR * scale else None


def displacements(points: np.ndarray, towards: np.ndarray) -> np.ndarray:
    """Small steps from each point towards other statistics, shape (points, ways, n). Statistics of weights are a convex set."""
    direction = towards - points[:, None]
    size = DISPLACEMENT * (1 + np.linalg.norm(points, axis=1))[:, None]
    return direction * np.minimum(1, size / np.maximum(np.linalg.norm(direction, axis=2), SAME))[..., None]


def connected(system: System, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether a way along fixed points leads from each root x to its root y.

    The midpoint of the segment is projected onto the fixed points. It must come to lie between its ends, at most `BETWEEN` of
    their distance from either; and so on for both halves, until they are short. A midpoint between separate components
    projects onto one of them, at the whole distance from the other. Where weights at both ends are not independent, their
    midpoint is tried first: the drift has a kink where units are parallel, which the midpoint of statistics leaves.
    """
    length, size = np.linalg.norm(y - x, axis=1), 1 + np.linalg.norm(x, axis=1)
    joined, short = np.ones(len(x), bool), np.minimum(SHORT * size, length / 6)
    owner, left, right = np.arange(len(x)), x, y
    for _ in range(HALVINGS):
        gap = np.linalg.norm(right - left, axis=1)
        long = joined[owner] & (gap > np.maximum(short[owner], SAME * size[owner]))
        owner, left, right, gap = owner[long], left[long], right[long], gap[long]
        if not owner.size:
            return joined
        halfway, straight = system.between(left, right), (left + right) / 2
        flat = np.isfinite(halfway).all(1)
        steps = KINK_STEPS if flat.any() else WALK_STEPS
        middle = roots_near(system, np.where(flat[:, None], halfway, straight), steps=steps)
        farther = _farther(middle, left, right)
        lost = np.flatnonzero(flat & ~(farther < BETWEEN * gap))
        if lost.size:
            again = roots_near(system, straight[lost], steps=WALK_STEPS)
            middle.x[lost], farther[lost] = again.x, _farther(again, left[lost], right[lost])
        joined[owner[~(farther < BETWEEN * gap)]] = False
        owner, left, right = np.tile(owner, 2), np.concatenate([left, middle.x]), np.concatenate([middle.x, right])
    joined[owner] = False
    return joined


def _farther(middle: Roots, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The larger of the distances of a root from both ends; infinite where none was found."""
    farther = np.maximum(np.linalg.norm(middle.x - left, axis=1), np.linalg.norm(right - middle.x, axis=1))
    return np.where(middle.found, farther, np.inf)

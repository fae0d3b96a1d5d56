r"""Connected components of the set of fixed points, found by following paths of fixed points between roots.

The symmetry group G maps each root to :math:`|G|` images, which are the nodes of a graph. A path of fixed points from root i to
the image g j of root j is mapped by every symmetry h to a path from h i to hg j, so that each path that is found adds
:math:`|G|` edges, and most pairs need no comparison. The connected components of the graph are those of the set of fixed
points, and an orbit of components has as many copies as there are components among the images of its roots.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from sgdlimits.analysis.fixed_points.roots import Roots, refine_roots
from sgdlimits.analysis.fixed_points.symmetry import SymmetryGroup
from sgdlimits.analysis.fixed_points.system import DriftSystem

SAME_ROOT_DISTANCE = 1e-6
"""Largest distance at which two roots of the drift count as one, relative to 1 plus the norm of the root."""
MAX_SEGMENT_LENGTH = 0.05
"""Length, relative to 1 plus the norm of the root, below which a segment between two fixed points is not halved again."""
MAX_MIDPOINT_SHARE = 0.8
"""Largest distance of a projected midpoint from either end of its segment, as a fraction of the segment's length."""
# segments of 1/1000 of the distance; longer paths count as not found
MAX_SEGMENT_HALVINGS = 10
NEAREST_IMAGE_COUNT = 3
"""Number of nearest images that are examined as candidates for a path, for each pair of components."""
PATH_STEP_COUNT, KINK_PATH_STEP_COUNT = 15, 60
"""Numbers of Levenberg-Marquardt steps that project a midpoint onto the fixed points: elsewhere than at kinks of the drift, and
at kinks, where the Jacobian is one-sided and the steps converge slowly."""
# each round either connects roots or ends the search
MAX_CONNECT_ROUNDS = 24
MIDPOINT_PAIR_COUNT, COSTLY_MIDPOINT_PAIR_COUNT = 48, 8
"""Numbers of random pairs of images whose midpoints are projected onto the fixed points, for cheap and for costly drifts."""
DISPLACEMENT_LENGTH = 1e-4
"""Length of the displacements by which a Jacobian is checked, relative to 1 plus the norm of the root."""
JACOBIAN_CHECK_COUNT, MAX_NONLINEARITY = 6, 0.003
"""Number of displacements that check a Jacobian, and the largest relative error of its prediction that is accepted."""
MIN_REGULAR_EIGENVALUE = 0.01
"""Smallest |eigenvalue|, relative to the norm, that a Jacobian from finite differences must have to be accepted."""
MAX_IMAGES_TRIED, COSTLY_IMAGES_TRIED = 120, 6
"""Numbers of nearest images that are compared with a root, for cheap and for costly drifts."""


class RootGraph:
    """Roots of the drift, one per orbit under the symmetries, and the known paths of fixed points between images of the roots.

    Attributes
    ----------
    roots : one representative of each orbit of roots under the symmetries
    owner : index in `roots` of the representative of each root that was given
    points : coordinates of `roots`, shape (roots, n)
    images : coordinates of all images, one element of the group after another, shape (order roots, n)
    isolated : mask of roots that are isolated, as their Jacobian is regular and agrees with the drift
    edges : triples (i, g, j) of a root i connected with the image of root j under element g of the group
    failed : triples (i, g, j) for which no path was found
    """

    def __init__(self, system: DriftSystem, group: SymmetryGroup, roots: Roots) -> None:
        self.system, self.group = system, group
        self.edges: list[tuple[int, int, int]] = []
        self.failed: set[tuple[int, int, int]] = set()
        self.owner, images = np.empty(len(roots.x), int), np.empty((0, system.size))
        first: list[int] = []
        for r, x in enumerate(roots.x):
            gaps = np.linalg.norm(images - x, axis=1)
            same = SAME_ROOT_DISTANCE * (1 + np.linalg.norm(x))
            if gaps.size and gaps.min() < same:
                self.owner[r] = gaps.argmin() // group.order
                continue
            i, own = len(first), group.elements @ x
            # elements other than the identity that leave the root where it is
            self.edges += [(i, int(g), i) for g in np.flatnonzero(np.linalg.norm(own - x, axis=1) < same) if g]
            self.owner[r] = i
            first.append(r)
            images = np.concatenate([images, own])
        self.roots = roots.select(np.array(first, int))
        self.isolated = np.zeros(len(first), bool)
        self.points = self.roots.x
        self.images = images.reshape(-1, group.order, system.size).swapaxes(0, 1).reshape(-1, system.size)

    def component_labels(self) -> np.ndarray:
        """Return the index of the connected component of each image, as an array of shape (group elements, roots)."""
        order, count = self.group.order, len(self.points)
        if not count:
            return np.empty((order, 0), int)
        # an edge (i, g, j) stands for the edges (h i, h g j) of all h
        i, g, j = np.array(self.edges, int).reshape(-1, 3).T
        h = np.arange(order)[:, None]
        ends = (h * count + i).ravel(), (self.group.table[:, g] * count + j).ravel()
        graph = coo_array((np.ones(ends[0].size), ends), (order * count, order * count))
        return connected_components(graph, directed=False)[1].reshape(order, count)

    def connect(self, free_coordinate_directions: np.ndarray) -> None:
        """Search for paths of fixed points between nearby roots of different components, until a round finds no further path.

        Parameters
        ----------
        towards : rows of coordinates, the directions in which Jacobians are checked
        """
        for i in np.flatnonzero(~has_valid_jacobian(self.system, self.roots, free_coordinate_directions)):
            self.system.watch.show_stage("Jacobians where units coincide, root", int(i) + 1, len(self.points))
            measured = measure_jacobian(self.system, self.points[i], free_coordinate_directions)
            self.roots.jacobian[i] = self.roots.jacobian[i] if measured is None else measured
        values, zero = self.roots.spectra
        regular = np.flatnonzero((np.abs(values) > zero[:, None]).all(1))
        self.isolated[regular] = has_valid_jacobian(self.system, self.roots.select(regular), free_coordinate_directions)
        # the few nearest pairs of all first; pairs of every two components only once these bring no more
        each_target = False
        for finished in range(MAX_CONNECT_ROUNDS):
            pairs = self._candidate_pairs(each_target)
            self.system.watch.show_stage(f"{len(self.points)} roots, round {finished + 1} of paths between them")
            joined = self._connect_pairs(pairs)
            # an exhaustive round found nothing either
            if not joined and each_target:
                return
            each_target = not joined

    def locate(self, roots: np.ndarray) -> np.ndarray:
        """Return, for each root, the index in `points` of a root in the same component up to symmetry, or else -1."""
        where = np.full(len(roots), -1)
        for rank in range(1, 1 + min(NEAREST_IMAGE_COUNT, len(self.images))):
            lost = np.flatnonzero(where < 0)
            nearest = KDTree(self.images).query(roots[lost], [rank])[1][:, 0]
            found = are_connected(self.system, roots[lost], self.images[nearest])
            where[lost] = np.where(found, nearest % len(self.points), -1)
        return where

    def interior_roots(self, labels: np.ndarray, root: int) -> Roots:
        """Return fixed points in the interior of the component of root number `root`, from midpoints of pairs of its images.

        Searches tend to end at the boundary of a manifold of fixed points; midpoints lie inside it. `labels` has the component
        of each image.
        """
        images = self.images[(labels == labels[0, root]).ravel()]
        count = COSTLY_MIDPOINT_PAIR_COUNT if self.system.costly else MIDPOINT_PAIR_COUNT
        pairs = np.random.default_rng(0).integers(len(images), size=(count, 2))
        apart = np.linalg.norm(images[pairs[:, 0]] - images[pairs[:, 1]], axis=1)
        # a root may be an image of itself
        pairs = pairs[apart > SAME_ROOT_DISTANCE * (1 + np.linalg.norm(images[pairs[:, 0]], axis=1))]
        # statistics of weights are a convex set, which contains the mean
        middle = refine_roots(self.system, images[pairs].mean(1))
        inside = middle.found
        inside[inside] = are_connected(self.system, images[pairs[inside, 0]], middle.x[inside])
        return middle.select(inside)

    def _candidate_pairs(self, each_target: bool) -> list[tuple[int, int, int]]:
        """Return triples (i, g, j) such that root i and the image of root j under g are near but in different components.

        There are `NEAREST_IMAGE_COUNT` triples for each orbit of components, or for each pair of components, up to symmetry, if
        `each_target` is true. Symmetries map a path between two components to paths between their images, but not to paths
        between other pairs of the same orbits, and the nearest images may be unconnected ones; so each pair is examined then.
        """
        labels, pair_of = self.component_labels(), dict[tuple[int, int], tuple[int, int]]()
        orbits = labels.min(0)
        tried = COSTLY_IMAGES_TRIED if self.system.costly and not each_target else MAX_IMAGES_TRIED
        best: dict[tuple, list[tuple[float, tuple[int, int, int]]]] = {}
        for i in np.flatnonzero(~self.isolated):
            gaps = cdist(self.points[[i]], self.images).reshape(labels.shape)
            gaps[labels == labels[0, i]] = np.inf
            gaps[:, self.isolated] = np.inf
            for flat in np.argsort(gaps, axis=None)[:tried]:
                g, j = divmod(int(flat), len(self.points))
                if not np.isfinite(gaps[g, j]) or (int(i), g, j) in self.failed:
                    continue
                key: tuple[int, ...] = (int(orbits[i]),)
                if each_target:
                    ends = int(labels[0, i]), int(labels[g, j])
                    if ends not in pair_of:
                        # of all images of the pair, the lexicographically first names its orbit
                        images = np.stack([labels[:, i], labels[self.group.table[:, g], j]])
                        pair_of[ends] = tuple(images[:, np.lexsort(images[::-1])[0]].tolist())
                    key = pair_of[ends]
                best.setdefault(key, []).append((gaps[g, j], (int(i), g, j)))
        return [pair for pairs in best.values() for _, pair in sorted(pairs)[:NEAREST_IMAGE_COUNT]]

    def _connect_pairs(self, pairs: list[tuple[int, int, int]]) -> bool:
        """Search for a path for each triple (i, g, j), record it in `edges` or `failed`, and return whether any was found."""
        if not pairs:
            return False
        i, g, j = np.array(pairs).T
        joined = are_connected(self.system, self.points[i], self.images[g * len(self.points) + j])
        for pair, good in zip(pairs, joined, strict=True):
            self.edges.append(pair) if good else self.failed.add(pair)
        return bool(joined.any())


def has_valid_jacobian(system: DriftSystem, roots: Roots, free_coordinate_directions: np.ndarray) -> np.ndarray:
    """Test whether the Jacobian at each root predicts the drift after small displacements; return a mask, shape (roots,).

    The test fails at a kink. It may also fail where units coincide or are zero: the covariance Omega of the fields is singular
    there, so that statistics of weights lie on one side only, and derivatives of expectations may be inaccurate.

    Parameters
    ----------
    towards : rows of coordinates; each displacement is a short step in the direction of one of them
    """
    step = make_displacements(roots.x, free_coordinate_directions[:JACOBIAN_CHECK_COUNT])
    drift = system.drifts((roots.x[:, None] + step).reshape(-1, system.size)).reshape(step.shape)
    # the drift at a root is zero, so that the linear prediction is J times the step
    wrong = np.linalg.norm(drift - np.einsum("rij,rwj->rwi", roots.jacobian, step), axis=2)
    scale = np.linalg.norm(roots.jacobian, axis=(1, 2))[:, None] * np.linalg.norm(step, axis=2)
    return (wrong <= MAX_NONLINEARITY * scale).all(1)


def measure_jacobian(system: DriftSystem, x: np.ndarray, free_coordinate_directions: np.ndarray) -> np.ndarray | None:
    """Estimate the Jacobian at a root x by finite differences in the directions of the statistics `free_coordinate_directions`.

    Return None if the differences are not linear in the displacement, or if the Jacobian may be singular.
    """
    step = 10 * make_displacements(x[None], free_coordinate_directions[: 2 * system.size])[0]
    near, far = (system.drifts(x + length * step) for length in (1, 2))
    slope = (4 * near - far) / 2  # Richardson: the drift at the root is zero, and the quadratic term cancels
    # more directions than coordinates, so that the residual tests linearity
    J = np.linalg.lstsq(step, slope, rcond=None)[0].T
    scale = np.linalg.norm(J)
    linear = np.linalg.norm(slope - step @ J.T, axis=1) <= MAX_NONLINEARITY * scale * np.linalg.norm(step, axis=1)
    if len(step) <= system.size or not linear.all():
        return None
    return J if np.abs(np.linalg.eigvals(J)).min() > MIN_REGULAR_EIGENVALUE * scale else None


def make_displacements(points: np.ndarray, free_coordinate_directions: np.ndarray) -> np.ndarray:
    """Return small displacements from each point towards each row of `free_coordinate_directions`, shape (points, rows, n).

    The statistics of weights are a convex set, so that points displaced in this way remain statistics of weights.
    """
    direction = free_coordinate_directions - points[:, None]
    # never beyond the target: the whole segment consists of statistics of weights
    size = DISPLACEMENT_LENGTH * (1 + np.linalg.norm(points, axis=1))[:, None]
    return direction * np.minimum(1, size / np.maximum(np.linalg.norm(direction, axis=2), SAME_ROOT_DISTANCE))[..., None]


def are_connected(system: DriftSystem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Test whether a path of fixed points connects each root in x with the root in the same row of y; return a mask.

    The midpoint of the segment between two roots is projected onto the fixed points. The distance of the projection from either
    end must be at most `MAX_MIDPOINT_SHARE` of the segment's length, and both halves are tested in the same way until they are
    short. A midpoint between separate components projects onto one of the components, far from the end in the other. Where the
    weights at both ends are linearly dependent, the midpoint of the weights is tried first: units that are parallel at both
    ends, at a kink of the drift, are parallel at the midpoint of the weights, but not at that of the statistics.
    """
    length, size = np.linalg.norm(y - x, axis=1), 1 + np.linalg.norm(x, axis=1)
    joined = np.ones(len(x), bool)
    short = np.minimum(MAX_SEGMENT_LENGTH * size, length / 6)
    owner, left, right = np.arange(len(x)), x, y
    for _ in range(MAX_SEGMENT_HALVINGS):
        gap = np.linalg.norm(right - left, axis=1)
        long = joined[owner] & (gap > np.maximum(short[owner], SAME_ROOT_DISTANCE * size[owner]))
        owner, left, right, gap = owner[long], left[long], right[long], gap[long]
        if not owner.size:
            return joined
        halfway, straight = system.midpoints_of_weights(left, right), (left + right) / 2
        dependent = np.isfinite(halfway).all(1)
        steps = KINK_PATH_STEP_COUNT if dependent.any() else PATH_STEP_COUNT
        middle = refine_roots(system, np.where(dependent[:, None], halfway, straight), steps=steps)
        farther = _distance_of_farther_end(middle, left, right)
        # `~(a < b)` rather than `a >= b`: the distance may be NaN
        lost = np.flatnonzero(dependent & ~(farther < MAX_MIDPOINT_SHARE * gap))
        if lost.size:
            again = refine_roots(system, straight[lost], steps=PATH_STEP_COUNT)
            middle.x[lost] = again.x
            farther[lost] = _distance_of_farther_end(again, left[lost], right[lost])
        joined[owner[~(farther < MAX_MIDPOINT_SHARE * gap)]] = False
        # both halves of each segment, for the next round
        owner, left, right = np.tile(owner, 2), np.concatenate([left, middle.x]), np.concatenate([middle.x, right])
    joined[owner] = False  # segments that are still long after the last halving
    return joined


def _distance_of_farther_end(middle: Roots, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return each projected midpoint's distance from the farther end of its segment; infinity where the projection failed."""
    farther = np.maximum(np.linalg.norm(middle.x - left, axis=1), np.linalg.norm(right - middle.x, axis=1))
    return np.where(middle.found, farther, np.inf)

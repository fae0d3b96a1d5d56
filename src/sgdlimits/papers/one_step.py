"""One step of SGD in plain NumPy, averaged on grids exact for polynomials: an independent check of closed forms."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.polynomial.hermite_e import hermegauss


def gauss_grid(*nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points and weights of a product Gauss-Hermite grid for standard normal variables.

    The points have the shape (dimensions, number of points). With n nodes in a dimension the grid is exact up to degree 2 n - 1
    in that variable.
    """
    lines = [hermegauss(n) for n in nodes]
    # the product grid of all dimensions
    points = np.stack([axis.ravel() for axis in np.meshgrid(*(x for x, _ in lines), indexing="ij")])
    weights = np.prod(np.meshgrid(*(w / w.sum() for _, w in lines), indexing="ij"), axis=0).ravel()
    return points, weights


def random_weights(p: int, n: int, seed: int = 0, norm: float | None = None) -> np.ndarray:
    """Draw Gaussian weights of p units in R^n, of mean squared norm 1 or, with `norm`, of that norm exactly."""
    W = np.random.default_rng(seed).normal(size=(p, n)) / np.sqrt(n)
    return W if norm is None else norm * W / np.linalg.norm(W, axis=1, keepdims=True)


class SquaredUnits:
    """Squared units and squared teachers with their one-step increments, on a Gauss-Hermite grid of inputs.

    The students have weights W and second layer a, the teachers weights E, and the labels are y = mean of (E x)^2 + sqrt(noise)
    z for an input x and a normal variate z. With the network's output f, the error e = y - f and the fields l = W x and l* = E
    x, the increments in units of the step are M_jr = 2 e a_j l_j l*_r and Q_jl = 2 e (a_j + a_l) l_j l_l + 4 step e^2 a_j a_l
    l_j l_l. The step is lr/p for the loss (y - f)^2/2 and 2 lr/p for (y - f)^2, with lr the learning rate and p the number of
    students, and |x|^2 is d.
    """

    def __init__(self, W: np.ndarray, E: np.ndarray, noise: float = 0.0, a: np.ndarray | None = None, nodes: int = 4) -> None:
        self.W, self.E, self.noise = np.atleast_2d(W), np.atleast_2d(E), noise
        self.a = np.ones(len(self.W)) if a is None else np.asarray(a)
        points, self.weights = gauss_grid(*[nodes] * self.W.shape[1], 3 if noise else 1)
        self.x = points[:-1]
        self.fields, self.fixed = self.W @ self.x, self.E @ self.x
        self.error = (self.fixed**2).mean(0) + np.sqrt(noise) * points[-1] - (self.a @ self.fields**2) / len(self.W)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Average an array over its last axis, that of the grid of inputs."""
        return values @ self.weights

    @property
    def risk(self) -> float:
        """Population risk, half the mean squared error over the grid of inputs."""
        return float(self.mean(self.error**2)) / 2

    @cached_property
    def M(self) -> np.ndarray:
        """Return increments of the overlaps with teachers in one step, in units of the step, at each input of the grid."""
        return 2 * self.error * (self.a[:, None] * self.fields)[:, None] * self.fixed

    def Q(self, step: float) -> np.ndarray:
        """Return increments of the overlaps between students in one step, in units of the step, at each input of the grid."""
        one, products = self.a[:, None, None], self.fields[:, None] * self.fields
        two = np.swapaxes(one, 0, 1)
        return (2 * self.error * (one + two) + 4 * step * self.error**2 * one * two) * products

    def covariance(self, *increments: np.ndarray) -> np.ndarray:
        """Return the joint covariance of increments, each given as an array over the grid of inputs."""
        rows = np.concatenate([each.reshape(-1, self.weights.size) for each in increments])
        rows = rows - self.mean(rows)[:, None]
        return (rows * self.weights) @ rows.T


def step_on_sphere(m: float, lr: float, noise: float, d: float, nodes: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Return a squared unit's overlap m after one exact step on the sphere, at each point of a grid, and the grid's weights.

    The grid is over fields, label noise, and the squared length of the other components of the input in d dimensions.
    """
    points, weights = gauss_grid(nodes, nodes, 5)
    fixed, own, z = points
    field = m * fixed + np.sqrt(1 - m**2) * own
    c = 2 * lr / d * (fixed**2 + np.sqrt(noise) * z - field**2) * field
    rest = d - 2 + np.sqrt(2 * (d - 2)) * np.array([[-1.0], [1.0]])  # the moments of chi-square that matter
    # the norm after the step, of which the orthogonal inputs contribute by their sum of squares
    after = (m + c * fixed) / np.sqrt(1 + 2 * c * field + c**2 * (fixed**2 + own**2 + rest))
    return after.ravel(), np.tile(weights, 2) / 2


def sphere_drift(m: float, lr: float, noise: float = 0.0, d: float = 1e7) -> float:
    """Return the mean change of a squared unit's overlap m in one exact step on the sphere in d dimensions.

    The change is per unit of the paper's time.
    """
    after, weights = step_on_sphere(m, lr, noise, d)
    return float(d * ((after - m) @ weights) / lr)

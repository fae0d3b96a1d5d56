"""Inputs made from a user's data: the Gaussian inputs that resemble them, and the rows themselves."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from sgdlimits.checks import array, integer
from sgdlimits.domain import Vector, checked
from sgdlimits.errors import AccuracyWarning, BadInput, check_choice
from sgdlimits.inputs.blocks import Blocks
from sgdlimits.inputs.data import measure, note_on_rows
from sgdlimits.inputs.gaussianity import MAX_LENGTH_RATIO, FieldTest, field_tests, length_ratio
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.text import format_count, format_table

ORDERS = ("random", "given")
"""Orders in which SGD takes rows: at random with replacement, or one after the other as they are given, again and again."""
BlockCount = Annotated[int, integer()]


def check_data(name: str, value: Any) -> Any:
    """Return data as they are; raise `BadInput` unless they are a matrix of finite numbers, and say so for a fingerprint."""
    if isinstance(value, str):
        raise BadInput(f"files do not hold the rows, only a fingerprint: {value}. Pass the problem, with its rows, to rerun.")
    return array(ndim=2)(name, value)


Data = Annotated[ArrayLike, check_data]


@checked
class Rows(Blocks):
    """Rows of a user's data, on which `SGD(d)` trains; d is the number of columns.

    The mean of all rows is subtracted, and the mean of y. Coordinates are rotated to the eigenvectors of the covariance within
    classes, under which SGD does not change. All other levels describe Gaussian inputs with the same class means and the same
    variance in each block of coordinates, so that a simulation with `SGD(d)` shows what these levels miss. With `y`, labels are
    those given, whatever the target of the problem, which other levels use.

    Parameters
    ----------
    X : data, shape (samples, d)
    y : a real label of each row; None takes the labels of the problem's target
    labels : a class label of each row; None for a single class
    blocks : maximum number of blocks into which the eigenvalues are merged
    order : "random" draws rows with replacement, "given" takes them one after the other, again and again

    >>> X = np.random.default_rng(0).normal(size=(200, 6))
    >>> rows = Rows(X, y=X[:, 0], blocks=2)
    >>> rows.blocks, rows.gram.shape, rows.block_sizes(6)
    (2, (2, 1, 1), (2, 4))
    """

    recorded: ClassVar[dict[str, str]] = {"X": "fingerprint", "y": "none", "labels": "none", "blocks": "block_limit"}
    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"] | None
    c: Int[np.ndarray, " n"]
    line: Float[np.ndarray, " d"] | None
    gram: Float[np.ndarray, "*blocks k k"] | None
    noise: float
    eigenvalues: Float[np.ndarray, " d"]
    block_limit: int = eqx.field(static=True)
    order: str = eqx.field(static=True)

    def __init__(
        self,
        X: Data,
        y: Vector | None = None,
        labels: Any = None,
        blocks: BlockCount = 30,
        order: str = "random",
    ) -> None:
        moments = measure(X, y, labels, blocks)
        super().__init__(moments.weights, moments.means, moments.variance, np.array(moments.sizes) / moments.eigenvalues.size)
        self.x, self.y, self.c, self.line = moments.rows, moments.y, moments.c, moments.target
        gram = moments.gram
        self.gram = gram if gram is None or len(gram) > 1 else gram[0]
        self.noise, self.eigenvalues = moments.noise, moments.eigenvalues
        self.block_limit, self.order = blocks, check_choice("order", order, ORDERS)

    @property
    def fingerprint(self) -> str:
        """Short text that identifies the data; files record it instead of the rows."""
        content = hashlib.sha256(np.ascontiguousarray(self.x).tobytes())
        for part in (self.y, self.c):
            content.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
        return f"{len(self.x)} rows of {self.x.shape[1]} columns, {content.hexdigest()[:16]}"

    @property
    def none(self) -> None:
        """None, which files record for the arrays that belong to the rows."""
        return None

    def block_sizes(self, d):
        if d != self.x.shape[1]:
            raise BadInput(f"the rows have {self.x.shape[1]} columns; got d = {d}. Use d = {self.x.shape[1]}.")
        return super().block_sizes(d)

    def draw_vectors(self, stream, sizes, d, B, add_mean):
        b, L = sizes.samples, sizes.inputs
        at = self._draw_indices(stream, b)
        x, c = jnp.asarray(self.x)[at], jnp.asarray(self.c)[at].astype(jnp.int32)
        if b < L or self.y is None:
            normal = stream.split_into_samples(L).normal_rows(Purpose.INPUT, d + 1).reshape(stream.steps, L, -1, d + 1)
            x = jnp.concatenate([x, normal[:, b:, :, :-1]], axis=1)
        return x, normal[:, :b, :, -1] if self.y is None else jnp.asarray(self.y)[at], c

    def _draw_indices(self, stream: Stream, samples: int) -> Int[Array, "steps samples runs"]:
        """Draw the index of the row of each sample, or return those of the given order."""
        n, shape = len(self.x), (stream.steps, samples, stream.runs.size)
        own = stream.split_into_samples(samples)
        if self.order == "random":
            u = own.uniform(Purpose.CLASS, 1).reshape(shape)
            return jnp.minimum((u * n).astype(jnp.int32), n - 1)
        number = own.first + jnp.arange(own.steps).astype(np.uint64)
        return jnp.broadcast_to((number % np.uint64(n)).astype(jnp.int32).reshape(*shape[:2], 1), shape)


@dataclass(frozen=True, repr=False)
class GaussianFit:
    """Gaussian inputs fitted to an array of data, with tests of how far from Gaussian the data are.

    Parameters
    ----------
    rows : the rows themselves, inputs for `SGD(d)`
    tests : departures of fields along random directions, and along the target, from a Gaussian law
    length_ratio : variance of the squared length of rows, relative to Gaussian rows of the same covariance
    notes : sentences on what was found in the data
    """

    rows: Rows
    tests: tuple[FieldTest, ...]
    length_ratio: float
    notes: tuple[str, ...]

    @property
    def d(self) -> int:
        """Number of columns of the data."""
        return self.eigenvalues.size

    @property
    def eigenvalues(self) -> Float[np.ndarray, " d"]:
        """Eigenvalues of the covariance within classes, the largest first."""
        return self.rows.eigenvalues

    @property
    def noise(self) -> float:
        """Variance of the labels y around their best linear prediction, for `Target(noise=)`; 0 without labels y."""
        return self.rows.noise

    @cached_property
    def inputs(self) -> Blocks:
        """Gaussian inputs with the class means of the data, and with the variance of the data in each class and block."""
        rows = self.rows
        return Blocks(rows.weights, rows.means, rows.variance, rows.shares)

    @property
    def gram(self) -> Float[np.ndarray, "*blocks k k"] | None:
        """Gram matrix of the fixed directions in each block, for `Target(gram=)`: those of class means, and the target last."""
        return self.rows.gram

    @property
    def is_near_gaussian(self) -> bool:
        """Whether the data are so close to Gaussian that predictions for Gaussian inputs can be trusted."""
        return all(test.is_near for test in self.tests) and self.length_ratio <= MAX_LENGTH_RATIO

    @property
    def verdict(self) -> str:
        """Sentence on whether predictions for Gaussian inputs can be trusted."""
        if self.is_near_gaussian:
            return "The fields are near Gaussian: levels for Gaussian inputs should describe SGD on these rows."
        worst = max(self.tests, key=lambda test: (not test.is_near, test.distance))
        return (
            f"The inputs are far from Gaussian ({worst.direction}: excess kurtosis {worst.kurtosis:.2g}, distance "
            f"{worst.distance:.2g}; variance of the squared length {self.length_ratio:.2g} times that of Gaussian inputs): do "
            f"not trust other levels before you have compared them with SGD(d={self.d}) on rows."
        )

    def __repr__(self) -> str:
        head = (
            f"Gaussian inputs fitted to {format_count(len(self.rows.x), 'row')} of {format_count(self.d, 'column')}: "
            f"{format_count(self.rows.classes, 'class', 'classes')}, {format_count(len(self.rows.shares), 'block')}, "
            f"variances from {self.rows.variance.max():.3g} to {self.rows.variance.min():.3g}"
        )
        lines = [("fields along", "skewness", "excess kurtosis", "distance")]
        numbers = [(test.direction, (test.skewness, test.kurtosis, test.distance)) for test in self.tests]
        numbers.append(("by chance, up to", self.tests[0].errors))
        lines += [
            (name, f"{skewness:.3f}", f"{kurtosis:.3f}", f"{distance:.3f}") for name, (skewness, kurtosis, distance) in numbers
        ]
        length = f"variance of the squared length: {self.length_ratio:.3g} times that of Gaussian inputs"
        return "\n".join([head, format_table(lines, "<>", indent="  "), f"  {length}", *self.notes, self.verdict])


@checked
def from_data(X: Data, y: Vector | None = None, labels: Any = None, blocks: BlockCount = 30) -> GaussianFit:
    r"""Fit Gaussian inputs to an array of data, and test how far from Gaussian the data are.

    The eigenvalues of the covariance, of that within classes if there are classes, are merged to at most `blocks` blocks. With
    `labels`, the inputs are a mixture with the means of the classes and their variances in each block. With `y`, the last fixed
    direction is the best linear prediction :math:`w\cdot x` of y from the centred rows, with the length in each block with
    which its field keeps its variance :math:`\sum_i\lambda_i w_i^2` there, and the rest of y is noise. An `AccuracyWarning`
    tells if predictions for Gaussian inputs should not be trusted.

    Parameters
    ----------
    X : data, shape (samples, d)
    y : a real label of each row, for a regression
    labels : a class label of each row
    blocks : maximum number of blocks; each has at least as many dimensions as there are fixed directions

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4000, 20)) * np.repeat([2.0, 1.0], 10)
    >>> fit = from_data(X, y=X[:, 0] + rng.normal(size=4000), blocks=2)
    >>> fit.inputs.variance.round(1).tolist(), round(fit.noise, 1), fit.is_near_gaussian
    ([[4.0, 1.0]], 1.0, True)
    """
    rows = Rows(X, y, labels, blocks)
    constant = int((np.ptp(np.asarray(X, float), axis=0) == 0).sum())
    notes = tuple(note_on_rows(len(rows.x), rows.x.shape[1], constant))
    fit = GaussianFit(rows, field_tests(rows.x, rows.c, rows.line), length_ratio(rows.x, rows.c), notes)
    if not fit.is_near_gaussian:
        warnings.warn(fit.verdict, AccuracyWarning, stacklevel=2)
    return fit

r"""Eigenvalues, blocks, class means and a linear target of an array of data, from which Gaussian inputs are made.

The centred rows are rotated to the eigenvectors of their covariance within classes. Neighbouring eigenvalues are merged to
blocks. Within a block coordinates are treated as equivalent, so that each block can be rotated once more: the fixed directions,
which are the principal directions of the class means and the target, then lie along its first axes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sgdlimits.errors import BadInput
from sgdlimits.size import check_memory
from sgdlimits.statistics.blocks import block_factor
from sgdlimits.text import format_count

MIN_EIGENVALUE = 1e-10
"""Eigenvalues below this size, relative to the largest one, count as zero."""
MIN_RESOLVED = 1e-6
"""Eigenvalues below this size, relative to their mean, are not told apart when they are merged to blocks."""


class DataMoments(NamedTuple):
    """First and second moments of an array of data, and its rows in the coordinates of the blocks.

    Parameters
    ----------
    weights, means : probabilities of the classes, and coefficients of the class means along the k fixed directions, or None
    variance : variance in each class and block
    sizes : number of dimensions of each block
    gram : Gram matrix of the fixed directions in each block, or None if there are neither classes nor a target
    noise : variance of the labels around the linear target
    eigenvalues : all eigenvalues of the covariance within classes, the largest first
    rows : centred rows, rotated within the eigenspaces of each block so that the fixed directions lie along its first axes
    y, c : centred labels, and the class of each row
    target : direction of the linear target in the coordinates of `rows`, or None
    """

    weights: Float[np.ndarray, " classes"]
    means: Float[np.ndarray, "classes k"] | None
    variance: Float[np.ndarray, "classes blocks"]
    sizes: tuple[int, ...]
    gram: Float[np.ndarray, "blocks k k"] | None
    noise: float
    eigenvalues: Float[np.ndarray, " d"]
    rows: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"] | None
    c: Int[np.ndarray, " n"]
    target: Float[np.ndarray, " d"] | None


def measure(X: Any, y: Any, labels: Any, blocks: int) -> DataMoments:
    """Compute the moments of rows X with labels y of a regression, or class labels, in at most `blocks` blocks."""
    X, y, c = _check_rows(X, y, labels)
    n, classes = len(X), int(c.max()) + 1
    X, share = X - X.mean(0), np.bincount(c) / n
    centres = np.stack([X[c == i].mean(0) for i in range(classes)])
    inside = X - centres[c]
    values, vectors = np.linalg.eigh(inside.T @ inside / n)
    values, vectors = values[::-1], vectors[:, ::-1]
    if values[0] <= MIN_EIGENVALUE * (X**2).sum() / n:
        raise BadInput("all rows of a class are equal. Give rows that differ.")
    values = np.where(values > MIN_EIGENVALUE * values[0], values, 0.0)
    rows, centres = X @ vectors, centres @ vectors
    coefficients, directions = _principal_means(share, centres)
    target, noise = (None, 0.0) if y is None else _linear_target(rows, y)
    k = len(directions) + (target is not None)
    sizes = merge_eigenvalues(values, blocks, max(k, 1))
    edges = np.cumsum(sizes)[:-1]
    average = np.array([part.mean() for part in np.split(values, edges)])
    squares = np.stack([((rows[c == i] - centres[i]) ** 2).mean(0) for i in range(classes)])
    variance = np.stack([part.mean(1) for part in np.split(squares, edges, axis=1)], axis=1) * (average > 0)
    if target is None:
        fixed, line = directions, None
    else:
        # the length in a block is the one with which the field of the target keeps its variance there
        line = np.concatenate([
            _rescale(part, np.sqrt((own * part**2).sum() / mean) if mean else 0.0)
            for part, own, mean in zip(np.split(target, edges), np.split(values, edges), average, strict=True)
        ])  # fmt: skip
        fixed = np.concatenate([directions, line[None]])
        coefficients = np.pad(coefficients, ((0, 0), (0, 1)))
    parts = np.split(fixed, edges, axis=1)
    gram = np.stack([part @ part.T for part in parts])
    factors = block_factor(gram) if k else gram
    turn = [_turn_to_axes(part, B) for part, B in zip(parts, factors, strict=True)]
    rows = np.concatenate([part @ R for part, R in zip(np.split(rows, edges, axis=1), turn, strict=True)], axis=1)
    if target is not None:
        target = np.concatenate([part @ R for part, R in zip(np.split(target, edges), turn, strict=True)])
    means = coefficients if len(directions) else None
    return DataMoments(share, means, variance, sizes, gram if k else None, noise, values, rows, y, c, target)


def merge_eigenvalues(values: Float[np.ndarray, " d"], blocks: int, min_size: int) -> tuple[int, ...]:
    """Return the sizes of at most `blocks` blocks of neighbouring eigenvalues, each of at least `min_size` eigenvalues.

    The two neighbours are merged for which the sum of squares of the logarithms around their means in a block grows least.

    >>> merge_eigenvalues(np.array([9.0, 1.1, 1.0, 0.9, 0.0, 0.0]), 3, 1)
    (1, 3, 2)
    """
    means = np.log(np.maximum(values, MIN_RESOLVED * values.mean()))
    sizes = np.ones(len(values), int)
    while len(sizes) > blocks or (len(sizes) > 1 and sizes.min() < min_size):
        left, right = sizes[:-1], sizes[1:]
        cost = left * right / (left + right) * np.diff(means) ** 2
        if len(sizes) <= blocks:
            cost = np.where(np.minimum(left, right) < min_size, cost, np.inf)
        i = int(np.argmin(cost))
        total = sizes[i] + sizes[i + 1]
        means[i] = (sizes[i] * means[i] + sizes[i + 1] * means[i + 1]) / total
        sizes[i] = total
        sizes, means = np.delete(sizes, i + 1), np.delete(means, i + 1)
    return tuple(sizes.tolist())


def _check_rows(X: Any, y: Any, labels: Any) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return rows, centred labels and classes as arrays; raise `BadInput` if they cannot be described."""
    X = np.asarray(X, float)
    if X.ndim != 2 or len(X) < 2 or not X.shape[1]:
        raise BadInput(f"X must have two rows or more, one for each sample; got shape {X.shape}. Give shape (samples, d).")
    if not np.ptp(X, axis=0).any():
        raise BadInput("all columns of X are constant. Give rows that differ.")
    check_memory([("columns", X.shape[1]), ("columns", X.shape[1])], "Give fewer columns, such as projections of them.")
    c = np.zeros(len(X), int)
    for name, value in (("y", y), ("labels", labels)):
        if value is not None and np.shape(value) != X.shape[:1]:
            raise BadInput(f"{name} must have one entry for each of the {len(X)} rows of X; got shape {np.shape(value)}.")
    if labels is not None:
        c = np.unique(np.asarray(labels), return_inverse=True)[1].ravel()
        if not c.any():
            raise BadInput(f"labels has a single class, {shorten_label(labels)}. Leave labels out.")
    if y is not None:
        y = np.asarray(y, float)
        if not np.ptp(y):
            raise BadInput(f"y is constant, {y[0]:g}. Give labels that differ, or leave y out.")
        y = y - y.mean()
    return X, y, c


def shorten_label(labels: Any) -> str:
    """Return the first of an array of labels as a string, for an error message."""
    return repr(np.asarray(labels).ravel()[0].item())


def _principal_means(
    share: Float[np.ndarray, " classes"], centres: Float[np.ndarray, "classes d"]
) -> tuple[Float[np.ndarray, "classes r"], Float[np.ndarray, "r d"]]:
    """Return orthonormal directions that span the class means, and the coefficients of the means along them."""
    scale, right = np.linalg.svd(np.sqrt(share)[:, None] * centres, full_matrices=False)[1:]
    directions = right[scale > MIN_EIGENVALUE**0.5 * max(scale[0], 1e-300)] if len(share) > 1 else right[:0]
    return centres @ directions.T, directions


def _linear_target(rows: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " d"], float]:
    """Return the coefficients of the best linear prediction of y, the shortest of all, and the mean squared rest."""
    w = np.linalg.lstsq(rows, y, rcond=MIN_EIGENVALUE**0.5)[0]
    if np.square(rows @ w).mean() <= 1e-12 * np.square(y).mean():
        raise BadInput("y has no linear dependence on X. Leave y out, or give columns on which y depends.")
    return w, float(np.square(y - rows @ w).mean())


def _rescale(vector: Float[np.ndarray, " n"], length: float) -> Float[np.ndarray, " n"]:
    """Return the vector of the same direction with a given length; zero remains zero."""
    norm = np.linalg.norm(vector)
    return vector * (length / norm) if norm else vector


def _turn_to_axes(part: Float[np.ndarray, "k size"], B: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "size size"]:
    """Return an orthogonal matrix R for which `part` R has the columns B first and zeros after them; B B^T = part part^T.

    All other axes are random: the eigenvectors of the block are not, and would differ in their variance.
    """
    size = part.shape[1]
    values = (B**2).sum(0)  # the columns of B are orthogonal
    known = np.flatnonzero(values > MIN_EIGENVALUE * max(values.max(initial=0.0), 1e-300))
    axes = (B[:, known] / values[known]).T @ part
    # further axes, orthogonal to those of the fixed directions, in the places that these leave
    more = np.linalg.svd(axes, full_matrices=True)[2][len(known) :] if len(known) else np.eye(size)
    more = np.linalg.qr(np.random.default_rng(0).normal(size=(len(more), len(more))))[0] @ more
    turn = np.empty((size, size))
    turn[known], turn[np.setdiff1d(np.arange(size), known)] = axes, more
    return turn.T


def note_on_rows(n: int, d: int, constant: int) -> list[str]:
    """Return sentences on an array with few rows or with constant columns; an empty list if there is nothing to say."""
    notes = []
    if n < 5 * d:
        notes.append(
            f"There are {n} rows for {format_count(d, 'column')}: the spectrum and the target are those of this sample, "
            "and other samples have others."
        )
    if constant:
        notes.append(f"{format_count(constant, 'column is', 'columns are')} constant, with variance 0.")
    return notes

"""The orthogonal part of the overlaps, which a quadratic network keeps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from sgdlimits.analysis.origin import origin
from sgdlimits.errors import BadInput, check_number
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.trajectory.record import from_json
from sgdlimits.trajectory.schema import check as check_dataset, statistics

COMMUTES = 1e-10
"""A commutator below this fraction of the matrices' norms is zero."""
SINGULAR = 1e-13
"""Singular values below this fraction of the largest are zero."""


def phase(stats: Overlaps) -> Float[Array, "p k"]:
    r"""S, the orthogonal part of the overlaps of one run, :math:`M = S\,(M^\top M)^{1/2}`: equation (22) of [3]_.

    From singular vectors, :math:`M = A\Sigma B^\top`, :math:`S = AB^\top`, so that it is as exact for small M as for large.
    For p < k it is :math:`(MM^\top)^{-1/2} M`. Differentiable, also where singular values are equal.

    >>> import sgdlimits as sl
    >>> phase(sl.Overlaps([1.0, 1.0], [[2e-9], [0.0]], [[1.0, 0.0], [0.0, 1.0]])).ravel().tolist()
    [1.0, 0.0]

    References
    ----------
    .. [3] Bocchi, Regimbeau, Lucibello, Saglietti, Cammarota, *Escape dynamics and implicit bias of one-pass SGD in
       overparameterized quadratic networks*.
    """
    return _differentiable_part(stats.M)


@jax.custom_jvp
def _differentiable_part(M: Float[Array, "p k"]) -> Float[Array, "p k"]:
    A, _, B = jnp.linalg.svd(M, full_matrices=False)
    return A @ B


@_differentiable_part.defjvp
def _differentiable_part_jvp(primals, tangents):
    (M,), (dM,) = primals, tangents
    A, values, B = jnp.linalg.svd(M, full_matrices=False)
    X = A.T @ dM @ B.T
    inside = A @ ((X - X.T) / (values[:, None] + values)) @ B
    left, right = dM - A @ (A.T @ dM), dM - (dM @ B.T) @ B
    return A @ B, inside + left @ (B.T / values) @ B + A @ (A / values).T @ right


def polar(dataset: xr.Dataset, *, tolerance: float = 1e-6) -> xr.Dataset:
    r"""The orthogonal part S of M along the runs of a dataset, and whether it stays what it was.

    For squared units with a fixed second layer of equal entries, off the sphere, and orthonormal teachers, S stands still under
    the ODE if and only if Q commutes with :math:`MM^\top`. If they commute at the start, such as from `OrthogonalInit`, they do
    so for ever, at any learning rate (docs/implicit_bias.md). For other teachers it is enough that also Q commutes with
    :math:`MPM^\top` and P with :math:`M^\top M`. At finite d S diffuses by :math:`d^{-1/2}`.

    Parameters
    ----------
    dataset : of `simulate`, with overlaps M of full rank at all times
    tolerance : how far an entry of S may move to count as conserved

    Returns
    -------
    xarray.Dataset with `S` over run, t, student and teacher; over run and t `drift`, the largest change of an entry since the
    first saved time, `frobenius`, the norm of the change, and `least`, the smallest singular value of M, to which an error in M
    is to be compared; per run `commutator`, the largest of these commutators at the first saved time relative to the norms of
    the matrices, `commutes`, whether it is below 1e-10, and `conserved`.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.1)
    >>> runs = sl.simulate(problem, sl.ODE(), sl.OrthogonalInit(0.1), t_max=100, save=5)
    >>> found = polar(runs)
    >>> bool(found.commutes[0]), bool(found.drift.max() < 1e-12)
    (True, True)
    """
    check_number("tolerance", tolerance, above=0)
    stats = overlaps_in(dataset)
    S, least = orthogonal_part(stats.M)
    change = S - S[:, :1]
    drift = np.abs(change).max((-2, -1))
    P = np.asarray(from_json(dataset.attrs["problem"]).directions.gram)
    commutator = _commutator(np.asarray(stats.M)[:, 0], np.asarray(stats.Q)[:, 0], P)
    return xr.Dataset(
        {
            "S": (("run", "t", "student", "teacher"), S, {"long_name": "orthogonal part of M"}),
            "drift": (("run", "t"), drift, {"long_name": "largest change of an entry of S"}),
            "frobenius": (("run", "t"), np.linalg.norm(change, axis=(-2, -1)), {"long_name": "norm of the change of S"}),
            "least": (("run", "t"), least, {"long_name": "smallest singular value of M"}),
            "commutator": ("run", commutator, {"long_name": "largest commutator at the start, relative"}),
            "commutes": ("run", commutator <= COMMUTES),
            "conserved": ("run", drift.max(1) <= tolerance),
        },
        coords={"run": dataset.run.values, "t": dataset.t.values},
        attrs={"tolerance": tolerance, **origin(dataset)},
    )


def orthogonal_part(M) -> tuple[np.ndarray, np.ndarray]:
    """(S, smallest singular value) of a batch of matrices, or `BadInput` where a rank is not full."""
    A, values, B = np.linalg.svd(np.asarray(M), full_matrices=False)
    if not (values[..., -1] > SINGULAR * values[..., 0]).all():
        worst = min(values.reshape(-1, values.shape[-1]).tolist(), key=lambda row: row[-1])
        raise BadInput(
            f"M must have full rank, which says where each direction goes; its singular values are {worst}. "
            "Start from independent overlaps, such as those of OrthogonalInit(0.01)."
        )
    return A @ B, values[..., -1]


def _commutator(M: np.ndarray, Q: np.ndarray, P: np.ndarray) -> np.ndarray:
    """The largest commutator of Q and M M^T, Q and M P M^T, P and M^T M, relative to their norms."""
    norm = lambda X: np.linalg.norm(X, axis=(-2, -1))
    apart = lambda X, Y: norm(X @ Y - Y @ X) / (norm(X) * norm(Y))
    turned = M.swapaxes(-1, -2)
    return np.max([apart(Q, M @ turned), apart(Q, M @ P @ turned), apart(P, turned @ M)], axis=0)


def overlaps_in(dataset: xr.Dataset) -> Overlaps:
    stats = statistics(check_dataset(dataset))
    if not isinstance(stats, Overlaps):
        raise BadInput(f"a dataset with M and Q is needed; got one of {type(stats).__name__}. Simulate a quadratic network.")
    return stats

"""The regimes over a grid of exponents, computed."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput, check_count, check_number
from sgdlimits.gaussian import Sobol
from sgdlimits.problem import ProjectionProblem, presets
from sgdlimits.start import FixedInit
from sgdlimits.statistics import Overlaps
from sgdlimits.statistics.frame import loading
from sgdlimits.statistics.trees import add
from sgdlimits.theory.regimes.exponents import classify, largest

SAMPLES = Sobol(log2_points=9)
"""The samples behind the spread of the increments."""


def phase_diagram(
    kappas: Sequence[float],
    deltas: Sequence[float],
    *,
    widths: Sequence[int] = (4, 8, 16),
    teachers: int = 2,
    noise: float = 1.0,
    overlap: float = 0.1,
    tolerance: float = 0.1,
) -> xr.Dataset:
    r"""The regimes over a grid of exponents, computed from the drift and the one-sample increments of erf committees.

    At each :math:`\kappa` the networks have the given widths in :math:`d = p^{1/\kappa}` dimensions; at :math:`\kappa = 0`
    all have the first width, and d is :math:`10^4, 10^6, \dots` At each :math:`\delta` their learning rate is
    :math:`d^{-\delta}`. Three sizes are taken in a unit of the paper's time: the largest entries of the population drift and
    of the corrector, and the largest standard deviation of the sum of all increments. A fit of each gives its exponent of d,
    and `classify` the regime; :math:`\kappa` and :math:`\delta` enter through the problems alone.

    Parameters
    ----------
    kappas, deltas : the grid
    widths : at least two, increasing; wider ones cost more and have exponents nearer to their limits
    teachers, noise : of the committee
    overlap : of every student with every teacher, in the state in which the sizes are taken (`FixedInit`)
    tolerance : exponents that differ by no more than this count as equal

    Returns
    -------
    Dataset over (kappa, delta): `regime`, and the exponents `population`, `corrector` and `fluctuation`.

    See Also
    --------
    regime : the same by formula

    Examples
    --------
    >>> found = phase_diagram(kappas=[0.0], deltas=[-0.75, -0.25, 0.0, 0.5], widths=(1, 2))
    >>> found.regime.values[0].tolist()
    ['no limit', 'noise-dominated', 'high-dimensional', 'gradient flow']
    """
    kappa, delta = _exponents("kappas", kappas), _exponents("deltas", deltas)
    if (kappa < 0).any():
        raise BadInput(f"kappas must be at least 0; got {kappa.min():g}. Give such exponents.")
    check_number("tolerance", tolerance, at_least=0)
    checked = np.array([check_count("widths", width) for width in widths])
    if checked.size < 2 or (np.diff(checked) <= 0).any():
        raise BadInput(f"widths must be at least two increasing widths; got {list(widths)}. Give, for instance, (4, 8, 16).")
    p = np.where(kappa[:, None] > 0, checked, checked[0])
    d = np.where(
        kappa[:, None] > 0, p ** (1 / np.where(kappa > 0, kappa, 1.0))[:, None], 10.0 ** (4 + 2 * np.arange(p.shape[1]))
    )
    lr = d[:, None, :] ** -delta[:, None]
    sizes = np.empty((3, *lr.shape))
    for width in np.unique(p):
        problem = presets.committee(int(width), teachers, noise=noise)
        here = np.broadcast_to((p == width)[:, None], lr.shape)
        start = FixedInit(jnp.asarray(overlap)).one(problem)
        sizes[:, here] = np.stack(_sizes(problem, start, jnp.asarray(lr[here])))
    sizes[2] /= np.sqrt(d)[:, None]
    x = (np.log(d) - np.log(d).mean(-1, keepdims=True))[:, None]
    slopes = (x * np.log(sizes)).sum(-1) / (x**2).sum(-1)
    grid = ("kappa", "delta")
    return xr.Dataset(
        {"regime": (grid, np.vectorize(classify)(*slopes, tolerance))}
        | {name: (grid, slope) for name, slope in zip(("population", "corrector", "fluctuation"), slopes, strict=True)},
        coords={"kappa": kappa, "delta": delta},
        attrs={"widths": list(widths), "teachers": teachers, "noise": noise, "overlap": overlap, "tolerance": tolerance},
    )


@eqx.filter_jit
def _sizes(problem: ProjectionProblem, stats: Overlaps, lr: Float[Array, " n"]) -> tuple[Float[Array, " n"], ...]:
    """Largest population drift, largest corrector, and root d times the largest spread, in a unit of the paper's time."""

    def at(lr):
        other = eqx.tree_at(lambda problem: problem.algorithm.lr, problem, lr)
        population, corrector = map(largest, other.drift_parts(stats))
        return population / other.rate, corrector / other.rate, largest(_spread(other, stats)) / jnp.sqrt(other.rate)

    return jax.lax.map(at, lr)


def _spread(problem: ProjectionProblem, stats: Overlaps) -> Overlaps:
    """The standard deviation of d times the one-sample increment, entry by entry."""
    F, column, c = loading(stats, problem.frame), jax.tree.map(lambda leaf: leaf[..., None], stats), jnp.asarray(0)

    def change(points):
        fields, fixed, z = problem.model.place(F, points, c)
        products = problem.model.products(fields, fixed, jnp.broadcast_to(column.a, fields.shape), z, c)
        each = add(*problem.changes(column, products))
        return each, jax.tree.map(jnp.square, each)

    mean, square = SAMPLES.average(change, problem.network.width + problem.target.teachers + 1)
    return jax.tree.map(lambda mean, square: jnp.sqrt(square - mean**2), mean, square)


def _exponents(name: str, values: Sequence[float]) -> np.ndarray:
    """Exponents as an array of numbers, or `BadInput`."""
    try:
        numbers = np.array(values, float, ndmin=1)
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
        raise BadInput(f"{name} must be finite numbers; got {values!r}. Give, for instance, [0.0, 0.5, 1.0].")
    return numbers

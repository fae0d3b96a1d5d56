"""Plot of a variable of a sweep against two of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from scipy.interpolate import NearestNDInterpolator

from sgdlimits.analysis.plot.curves import axes_or_new
from sgdlimits.checks import array
from sgdlimits.domain import Function, checked
from sgdlimits.errors import BadInput, shorten

MAX_OUTLINED_CELLS = 400
"""Number of cells along each axis of the grid on which scattered points are drawn."""


@checked
def phase_diagram(
    dataset: xr.Dataset,
    x: str,
    y: str,
    value: str,
    ax: Axes | None = None,
    *,
    theory: Function | None = None,
    levels: Annotated[Sequence[float], array(ndim=1)] | None = None,
    log: bool = False,
    label: str | None = None,
    theory_label: str | None = None,
) -> Axes:
    """Plot a variable of a sweep against two parameters of the sweep, with contours of a theoretical prediction.

    A cell shows the mean over runs and over all other parameters. An axis is logarithmic if the logarithms of its values are
    evenly spaced. If points are missing from the grid, as after a refinement, a cell has the value of the nearest point.

    Parameters
    ----------
    dataset : a dataset of `sweep` or `collect`
    x, y : parameters, the dimensions or coordinates of the dataset
    value : the variable shown by colour
    ax : axes to draw in; by default those of a new figure
    theory : a function of x and y, both arrays, whose contours are drawn within the range of the points
    levels : levels of the contours of `theory`; None draws the zero level
    log : whether the colour scale is logarithmic
    label : label of the colour bar; by default the name of `value`
    theory_label : label of the contours in the legend

    >>> import numpy as np, xarray as xr, sgdlimits as sl
    >>> values = xr.DataArray(np.eye(3), dims=("lr", "noise"), coords={"lr": [0.1, 0.2, 0.3], "noise": [0.0, 1.0, 2.0]})
    >>> ax = sl.plot.phase_diagram(values.to_dataset(name="learnt"), "lr", "noise", "learnt", theory=lambda lr, noise: lr - 0.2)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('lr', 'noise')
    """
    for name in (x, y, value):
        if name not in dataset.variables or (name != value and dataset[name].dtype.kind not in "fiu"):
            known = ", ".join(map(str, dataset.variables))
            raise BadInput(f"{shorten(name)} is not a number that the dataset has at each point. Give one of {known}.")
    if x == y:
        raise BadInput(f"x= and y= must be different parameters; both are {shorten(x)}. Give two parameters.")
    shown = dataset[value].astype(float)
    shown = shown.mean([dim for dim in shown.dims if dim not in (x, y, "point")], skipna=True)
    # a refined grid has holes: draw its points by their nearest neighbours
    if "point" not in shown.dims and not np.isfinite(shown).all():
        shown = shown.stack(point=(x, y), create_index=False)
    ax = axes_or_new(ax)
    scales = {name: _is_log(np.unique(dataset[name].values)) for name in (x, y)}
    if "point" in shown.dims:
        edges, cells = _nearest_cells(shown[x].values, shown[y].values, shown.values, scales[x], scales[y])
    else:
        edges = [_cell_edges(dataset[name].values.astype(float), scales[name]) for name in (x, y)]
        cells = shown.transpose(y, x).values
    finite = cells[np.isfinite(cells) & (cells > 0)] if log else cells[np.isfinite(cells)]
    if not finite.size:
        raise BadInput(f"{value} has no finite values to draw. Name another variable as value=.")
    # LogNorm rejects an empty range
    bounds = float(finite.min()), float(finite.max())
    norm = LogNorm(*bounds) if log and bounds[0] < bounds[1] else Normalize(*bounds)
    mesh = ax.pcolormesh(*edges, cells, norm=norm, cmap="viridis", rasterized=True)
    ax.figure.colorbar(mesh, ax=ax, label=label or value.replace("_", " "))
    for name, axis, each in ((x, "x", edges[0]), (y, "y", edges[1])):
        ax.set(**{f"{axis}label": name, f"{axis}scale": "log" if scales[name] else "linear", f"{axis}lim": (each[0], each[-1])})
    if theory is not None:
        inside = [(float(dataset[name].min()), float(dataset[name].max())) for name in (x, y)]
        _draw_contours(ax, theory, inside, scales[x], scales[y], levels, theory_label)
    return ax


def _draw_contours(ax: Axes, theory: Callable, inside: Any, log_x: bool, log_y: bool, levels: Any, label: str | None) -> None:
    """Draw contours of the function `theory` of two arrays at the values `levels`, and add a legend.

    The contours are within the rectangle `inside` = ((x_min, x_max), (y_min, y_max)).
    """
    # finer than the cells, so that contours are smooth
    spaced = lambda ends, log: (np.geomspace if log else np.linspace)(ends[0], ends[1], 200)
    X, Y = np.meshgrid(spaced(inside[0], log_x), spaced(inside[1], log_y))
    with np.errstate(all="ignore"):
        try:
            values = np.broadcast_to(np.asarray(theory(X, Y), float), X.shape)
        except Exception as reason:
            words = str(reason).split("\n")[0].rstrip(".")
            raise BadInput(f"theory fails on arrays of x and y: {words}. Give a function of two arrays.") from reason
    lines = ax.contour(X, Y, values, levels=[0.0] if levels is None else sorted(levels), colors="white", linewidths=1.6)
    if levels is not None and len(levels) > 1:
        ax.clabel(lines, fmt="%g", fontsize=7)
    if label:
        ax.plot([], [], color="white", linewidth=1.6, label=label)
        ax.legend(facecolor="0.35", labelcolor="white", framealpha=0.8, frameon=True, loc="best")


def _is_log(values: np.ndarray) -> bool:
    """Return whether the logarithms of values are clearly more evenly spaced than the values."""
    if values.size < 3 or values.min() <= 0:
        return False
    uneven = lambda gaps: np.std(gaps) / np.mean(gaps)
    # by a factor of two: nearly equal spacings count as linear
    return bool(uneven(np.diff(np.log(values))) < uneven(np.diff(values)) / 2)


def _cell_edges(values: np.ndarray, log: bool) -> np.ndarray:
    """Return the edges of cells that are centred on values, on a linear or a logarithmic scale."""
    if values.size == 1:
        return values[0] + np.array([-0.5, 0.5]) * (abs(values[0]) or 1.0)
    flat = np.log(values) if log else values
    middle = (flat[1:] + flat[:-1]) / 2
    edges = np.concatenate([[1.5 * flat[0] - 0.5 * flat[1]], middle, [1.5 * flat[-1] - 0.5 * flat[-2]]])
    return np.exp(edges) if log else edges


def _nearest_cells(x: np.ndarray, y: np.ndarray, values: np.ndarray, log_x: bool, log_y: bool):
    """Return x edges, y edges and values of a fine grid of cells, each with the value of the nearest of scattered points."""
    unit, edges = [], []
    for each, log in ((x, log_x), (y, log_y)):
        flat = np.log(each) if log else each.astype(float)
        even = np.linspace(flat.min(), flat.max(), MAX_OUTLINED_CELLS + 1)
        # distances in units of the ranges, as neither axis has the other's unit
        unit.append((flat - even[0]) / (even[-1] - even[0] or 1.0))
        edges.append(np.exp(even) if log else even)
    known = np.isfinite(values)
    middle = (np.arange(MAX_OUTLINED_CELLS) + 0.5) / MAX_OUTLINED_CELLS
    X, Y = np.meshgrid(middle, middle)
    return edges, NearestNDInterpolator(np.stack(unit, 1)[known], values[known])(X, Y)

"""Plot of risk and overlaps side by side."""

from __future__ import annotations

from typing import Annotated, Any

from matplotlib.axes import Axes

from sgdlimits.analysis.plot.curves import PlottableDatasets, common_dimension, label_datasets
from sgdlimits.analysis.plot.overlaps import overlaps
from sgdlimits.analysis.plot.risk import risk
from sgdlimits.analysis.plot.style import samples_axis
from sgdlimits.checks import axes, check_each
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput

SHARED_OPTIONS = ("singles", "band")
"""Options that apply to both panels."""


@checked
def overview(
    datasets: PlottableDatasets,
    axes: Annotated[tuple[Axes, Axes], check_each(axes)] | None = None,
    *,
    excess: float | None = None,
    log: bool = False,
    what: str | None = None,
    clock: str = "t",
    **options: Any,
) -> tuple[Axes, Axes]:
    """Plot the risk and the overlaps of the same runs in two panels, side by side.

    An upper axis counts samples if all datasets have the same dimension. A new figure has its legend below both panels; given
    axes get none.

    Parameters
    ----------
    datasets : one dataset of `simulate`, several, or a dict from labels to datasets
    axes : two axes to draw in; by default those of a new figure
    excess, log : options of `risk`
    what : option of `overlaps`
    clock, **options : options of both `risk` and `overlaps`, such as `singles` and `band`

    >>> import sgdlimits as sl
    >>> run = sl.simulate(sl.presets.phase_retrieval(lr=0.05), sl.ODE(), sl.FixedInit(0.1), t_max=20)
    >>> left, right = sl.plot.overview(run)
    """
    named = label_datasets(datasets)
    figure = None
    if axes is None:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.9), layout="constrained")
    if len(axes) != 2:
        raise BadInput(f"axes= must be two axes, for the risk and for the overlaps; got {len(axes)}. Give two.")
    for name in options:
        if name not in SHARED_OPTIONS:
            raise BadInput(f"{name}= is not an option of overview. Use one of {', '.join(SHARED_OPTIONS)}.")
    left, right = axes
    risk(named, left, excess=excess, log=log, clock=clock, legend=False, **options)
    overlaps(named, right, what=what, clock=clock, legend=False, **options)
    d = common_dimension(named)
    if d and clock == "t":
        for ax in axes:
            samples_axis(ax, d)
    # given axes may share a legend with others
    if figure is not None:
        labelled = left if len(named) > 1 else right  # one dataset has a curve for each overlap
        figure.legend(*labelled.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return left, right

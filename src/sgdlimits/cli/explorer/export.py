"""Export of the explorer's page: its figure, its datasets as netCDF, and its curves as CSV."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sgdlimits.cli.explorer.views import MAX_SINGLE_RUNS, drawable_quantities, drop_diverged_unless_all
from sgdlimits.errors import BadInput

# the colours and dashes of the page's stylesheet
SIDE_COLOURS = ("#0072b2", "#d55e00")
LEVEL_COLOURS = {"chain": SIDE_COLOURS[0], "ode": "#16181d", "sde": "#009e73", "mean_field": "#aa4499"}
LEVEL_DASHES = {"ode": (0, (4.5, 2)), "mean_field": (0, (1.2, 2)), "sde": (0, (1, 1.5))}
LEVEL_DASHES |= {"noisy_ode": (0, (7, 2)), "backward": (0, (3, 4))}
LEGEND_NAMES = {"chain": "exact chain", "ode": "ODE", "sde": "SDE, 10 % to 90 %", "mean_field": "mean field"}
LEGEND_NAMES |= {"quenched": "quenched", "noisy_ode": "noisy ODE", "backward": "backward equation"}


def export_page(job: Any, message: dict[str, Any]) -> tuple[str, bytes]:
    """Return the file name and the content of an export of the page, in the format that the message names, such as png."""
    name, form = job.settings[0].preset, str(message.get("format"))
    every = {f"{'AB'[side]} {level}" if len(job.settings) > 1 else level: dataset
             for side in range(len(job.settings)) for level, dataset in job.datasets(side).items()}  # fmt: skip
    if form in ("png", "svg", "pdf"):
        left = str(message.get("left") or "risk")
        right = str(message.get("right") or "largest overlap")
        log, log_time = bool(message.get("log")), bool(message.get("logt"))
        return f"{name}.{form}", _draw_figure(job, form, left=left, right=right, log=log, log_time=log_time)
    if form == "nc":
        return f"{name}.nc", _write_netcdf(every)
    if form == "csv":
        return f"{name}.csv", _write_csv(every).encode()
    raise BadInput(f"format must be one of png, svg, pdf, nc, csv; got {form[:40]!r}. Give one of them.")


def _write_netcdf(datasets: dict[str, Any]) -> bytes:
    """Return a netCDF file with the chain's dataset, which `load` reads, and each other level's dataset in a group."""
    from sgdlimits.run.io import save

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.nc"
        for order, (name, dataset) in enumerate(datasets.items()):
            if order:
                dataset.to_netcdf(path, mode="a", group=name.replace(" ", "_"), engine="h5netcdf")
            else:
                save(dataset, path)
        return path.read_bytes()


def _write_csv(datasets: dict[str, Any]) -> str:
    """Return a CSV table of the means over runs, with a line for each level, quantity and time."""
    rows = ["level,t,quantity,mean"]
    for level, dataset in datasets.items():
        for name, values in drawable_quantities(dataset).items():
            mean = values.mean(0)
            rows += [
                f'"{level}",{t!r},"{name}",{value!r}' for t, value in zip(dataset.t.values.tolist(), mean.tolist(), strict=True)
            ]
    return "\n".join(rows) + "\n"


def _draw_figure(job: Any, form: str, *, left: str, right: str, log: bool, log_time: bool) -> bytes:
    """Draw the page's figure: two quantities against time, exit times, the phase portrait and the Hessian's spectrum.

    Panels for which there is no data yet stay empty.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from sgdlimits.analysis.plot import PAPER

    with rc_context(PAPER):
        drawn = Figure(figsize=(10, 6.4), layout="constrained")
        axes = drawn.subplot_mosaic([[0, 0, 0, 1, 1, 1], [2, 2, 3, 3, 4, 4]])
        for place, name in enumerate((left, right)):
            _draw_curves(axes[place], job, name)
            axes[place].set(xlabel=r"$t$, samples per dimension", ylabel=name, yscale="log" if log else "linear")
            axes[place].set_xscale("log" if log_time else "linear")
        drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
        below = {"exits": ("exit times", _draw_exits), "portrait": ("phase portrait", _draw_portrait)}
        below["spectrum"] = ("Hessian spectrum", _draw_spectrum)
        for place, (kind, (title, draw)) in enumerate(below.items(), 2):
            axes[place].set_title(title)
            views = [(view, SIDE_COLOURS[side]) for (each, side), view in sorted(job.views.items()) if each == kind]
            if views:
                draw(axes[place], views)
            else:
                axes[place].set_axis_off()
        buffer = io.BytesIO()
        drawn.savefig(buffer, format=form)
    return buffer.getvalue()


def _draw_curves(ax: Any, job: Any, name: str) -> None:
    """Draw the curves of the quantity called `name` against time, for all levels."""
    many = len(job.settings) > 1
    for side in range(len(job.settings)):
        for level, dataset in job.datasets(side).items():
            values = drawable_quantities(drop_diverged_unless_all(dataset)).get(name)
            if values is None:
                continue
            t, colour = dataset.t.values, SIDE_COLOURS[side] if many else LEVEL_COLOURS[level]
            label = f"{'AB'[side]}: {LEGEND_NAMES[level]}" if many else LEGEND_NAMES[level]
            if level == "sde":
                low, high = np.quantile(values, (0.1, 0.9), axis=0)
                ax.fill_between(t, low, high, color=colour, alpha=0.16, linewidth=0, label=label)
                continue
            if level == "chain":
                ax.plot(t, values[:MAX_SINGLE_RUNS].T, color=colour, alpha=0.3, linewidth=0.5)
            ax.plot(t, values.mean(0), color=colour, linestyle=LEVEL_DASHES.get(level, "-"), linewidth=1.6, label=label)


def _draw_exits(ax: Any, views: list) -> None:
    """Draw histograms of exit times, with the theoretical times as lines."""
    for view, colour in views:
        if view["exited"]:
            ax.hist(view["exited"], 24, color=colour, alpha=0.6)
        for name, t in view["marks"].items():
            if t is not None:
                one = {} if len(views) > 1 else {"label": LEGEND_NAMES[name].split(",")[0]}
                tone = colour if len(views) > 1 else LEVEL_COLOURS.get(name, SIDE_COLOURS[1])
                ax.axvline(t, color=tone, linestyle=LEVEL_DASHES.get(name, "-"), linewidth=1.2, **one)
    ax.set(xlabel=r"exit time $t$", ylabel="runs")
    if len(views) == 1:
        ax.legend(fontsize=7, handlelength=2)


def _draw_portrait(ax: Any, views: list) -> None:
    """Draw the phase portrait of the page's first setting: drift, fixed points and trajectories."""
    view, colour = views[0]
    grid, drift = np.array(view["grid"], float), np.array(view["drift"], float)
    points = [(each["at"] if view["y"] else (each["at"][0], 0.0), each["stability"]) for each in view["points"]]
    if view["y"]:
        # arrows of equal length on the page, whatever the units of the axes
        size = np.hypot(*(drift / np.ptp(grid, axis=0)).T)
        arrows = drift / np.where(size > 0, size, 1)[:, None]
        ax.quiver(*grid.T, *arrows.T, color="0.7", angles="xy", pivot="mid", width=0.003)
        for tracks, look in (
            (view["chain"], {"color": colour}),
            (view["ode"], {"color": "k", "linestyle": LEVEL_DASHES["ode"]}),
        ):
            for track in tracks:
                ax.plot(*np.array(track, float).T, linewidth=0.9, **look)
    else:
        ax.axhline(0, color="0.6", linewidth=0.6)
        ax.plot(grid[:, 0], drift[:, 0], color="k")
    for at, stability in points:
        ax.plot(*at, "o", markeredgecolor="k", color="k" if stability == "stable" else "w", zorder=5)
    ax.set(xlabel=view["x"], ylabel=view["y"] or f"d {view['x']} / dt")


def _draw_spectrum(ax: Any, views: list) -> None:
    """Draw the eigenvalues of the Hessian against their multiplicities."""
    for view, colour in views:
        ax.vlines(view["values"], 0.5, view["counts"], color=colour, linewidth=3, alpha=0.8)
    low, high = (pick([0.0, *(value for view, _ in views for value in view["values"])]) for pick in (min, max))
    margin = 0.08 * (high - low or 1)
    ax.set(xlabel="eigenvalue", ylabel="multiplicity", yscale="log", ylim=(0.5, None), xlim=(low - margin, high + margin))

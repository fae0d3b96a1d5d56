"""Open question: escape and critical points for activations other than the square, with zero first Hermite coefficient [1]_.

The panels show exit times of the exact chain against the dimension for four activations, the largest learning rate at every
overlap, and the Hermite coefficients of student and target for which there are traps on the way to the teacher.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import xarray as xr
from numpy.polynomial import hermite_e

import sgdlimits as sl
from sgdlimits.analysis.single_index import drift_parts, exit_time
from sgdlimits.papers import figure as base
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, Axes, DrawnFigure, Figure, SaveDataset, Size, make_panels, sizes
from sgdlimits.papers.mediocrity.escape import critical_points, escape

RATE_REDUCTION = 20
"""Ratio of the largest learning rate to that of the trajectories, slow enough to follow the population's drift into traps."""
TRAP_START = 0.05
"""Overlap at the start of the trajectories."""


def build_hermite_sum(*even: float) -> sl.Polynomial:
    """Build the even polynomial with the given coefficients along the Hermite polynomials He_2, He_4, ..."""
    return sl.Polynomial(hermite_e.herme2poly([0, *(each for pair in even for each in (0, pair))]))


def cosine(x):
    """Evaluate -cos(x), a bounded even activation."""
    return -jnp.cos(x)


def wave(x):
    """Evaluate -cos(1.5 x), the students' activation in the panels on traps; its Hermite coefficients alternate in sign."""
    return -jnp.cos(1.5 * x)


# students of the first panels, each learning its own activation
ACTIVATIONS: dict[str, str | Callable] = {
    "$x^2$": "square",
    "$|x|$": "abs",
    r"$-\cos x$": cosine,
    r"$\mathrm{He}_2 - \mathrm{He}_4/10$": build_hermite_sum(1, -0.1),
}
TRAP_TARGETS = {
    "no trap": build_hermite_sum(1, 0.1),
    "trap": build_hermite_sum(1, 4 / 9),
    "trap, then barrier": build_hermite_sum(1, 14 / 15, 64 / 243),
}
"""Targets of the student `wave` by their critical points between zero overlap and the teacher."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    runs=("runs by dimension", {100: 128, 1024: 128, 4096: 128}, {100: 64, 300: 64}),
    activations=("activations", 4, 2),
    cases=("cases of traps", 3, 2),
    d=("dimension of their trajectories", 300, 100),
    shown=("their runs", 6, 4),
    length=("their length", 60.0, 20.0),
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate escapes with several activations and runs in landscapes with traps, and draw both with theory."""
    exits, rates = measure_escapes(size, seed)
    save_dataset("exits", exits)
    datasets = {"exits": exits, "rates": rates}
    for name in list(TRAP_TARGETS)[: size.cases]:
        datasets[to_file_name(name)] = save_dataset(to_file_name(name), simulate_case(name, size, seed))
    return DrawnFigure(_draw_figure(datasets, size), _write_caption(datasets, size))


def to_file_name(name: str) -> str:
    """Convert the name of a target, such as "trap, then barrier", to a part of a file name."""
    return name.replace(", ", "-").replace(" ", "-")


def measure_escapes(size: Size, seed: int) -> tuple[xr.Dataset, xr.Dataset]:
    """Tabulate the chain's mean exit times with theory, and the largest learning rate by overlap, for each activation."""
    m, rows, curves = np.linspace(0.02, 0.98, 49), [], []
    for name, fn in base.bar(list(ACTIVATIONS.items())[: size.activations], desc="activations"):
        one = escape(fn)
        problem = sl.presets.single_index(fn, lr=one.best_lr)
        population, corrector = drift_parts(problem, jnp.asarray(m))
        # the rate at which the drift vanishes at each overlap
        curves.append(-one.best_lr * np.asarray(population / corrector) / one.max_lr)
        for d, runs in size.runs.items():
            # the ODE from the typical start, corrected for random starts and noise
            theory = exit_time(problem, d, 0.5) + one.delay(one.best_lr)
            how: dict = dict(t_max=30 * theory, runs=runs, seed=seed, until=base.half_overlap_margin, progress=False)
            t = sl.exit_times(sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), **how), base.half_overlap_margin).t.values
            rows.append({"name": name, "d": d, "t": t.mean(), "error": base.standard_error(t), "theory": theory})
    coords = {"m": m, "name": list(ACTIVATIONS)[: size.activations]}
    return base.tabulate(rows), xr.Dataset({"share": (("name", "m"), curves)}, coords)


def simulate_case(name: str, size: Size, seed: int) -> xr.Dataset:
    """Simulate the chain with the student `wave` and the target of that name in `TRAP_TARGETS`.

    The coordinate `growth` of the result is time in units of the growth time at zero overlap.
    """
    one = escape(wave, TRAP_TARGETS[name])
    # far below the largest rate, so that the landscape rather than noise decides
    lr = one.max_lr / RATE_REDUCTION
    problem = sl.presets.single_index(wave, TRAP_TARGETS[name], lr=lr)
    start, t_max = sl.FixedInit(TRAP_START), size.length / one.rate(lr)
    found = sl.simulate(problem, sl.Chain(size.d), start, t_max=t_max, runs=size.shown, seed=seed, save=201, progress=False)
    return found.assign_coords(growth=("t", found.t.values * one.rate(lr)))


def classify_targets(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Classify targets by the roots of 1 + x u + y u^2 in 0 < u < 1, where u is the squared overlap.

    The class is 0 for no trap, 1 for a trap, and 2 for a trap and a barrier; x and y are the coordinates of a target.
    """
    one = 1 + x + y < 0
    # both roots of the quadratic real and between 0 and 1
    two = (y > 0) & (x < 0) & (x**2 > 4 * y) & (-x < 2 * y) & ~one
    return np.where(two, 2, np.where(one, 1, 0))


def diagram_coordinates(target: sl.Polynomial) -> tuple[float, float]:
    """Return the coordinates (x, y) of a target in the diagram of traps.

    They are ratios of products of Hermite coefficients of the target and of the student `wave`.
    """
    s, g = sl.hermite_coefficients(wave, 6), sl.hermite_coefficients(target, 6)
    return s[4] * g[4] / (6 * s[2] * g[2]), s[6] * g[6] / (120 * s[2] * g[2])


def _draw_figure(datasets: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, axes = make_panels(2, 2, figsize=(9.2, 7.0))
    for name, colour, marker in zip(list(ACTIVATIONS)[: size.activations], OKABE_ITO_COLOURS, "osvD", strict=False):
        rows = base.select_rows(datasets["exits"], name=name)
        axes[0, 0].plot(rows.d, rows.theory, color=colour, linewidth=1.1)
        axes[0, 0].errorbar(rows.d, rows.t, 1.96 * rows.error, fmt=marker, color=colour, markersize=4, capsize=2, label=name)
        axes[0, 1].plot(datasets["rates"].m, datasets["rates"].share.sel(name=name), color=colour, label=name)
    axes[0, 0].set(xscale="log", xlabel="$d$", ylabel="$t$ to the overlap 0.5", ylim=(0, None))
    axes[0, 0].set_title("(a) chain (dots) and theory, best rate each", loc="left")
    axes[0, 0].legend()
    axes[0, 1].axhline(0.5, color="0.7", linewidth=0.8, linestyle="--", zorder=0)
    axes[0, 1].set(xlabel="overlap $m$", ylabel=r"largest rate $\Gamma(m)/\Gamma(0)$", ylim=(0, None))
    axes[0, 1].set_title("(b) rates at which $m$ grows; dashed: the best one", loc="left")
    axes[0, 1].legend(loc="lower left")
    _draw_diagram(axes[1, 0], size)
    _draw_trajectories(axes[1, 1], datasets, size)
    return figure


def _draw_diagram(ax: Axes, size: Size) -> None:
    """Draw the regions of targets with and without traps in the plane of Hermite coefficients, with the simulated targets."""
    x, y = np.meshgrid(np.linspace(-6, 2, 401), np.linspace(-3, 6, 451))
    ax.contourf(x, y, classify_targets(x, y), levels=[-0.5, 0.5, 1.5, 2.5], colors=["1.0", "#cfe3f3", "#f6d8c0"])
    for name, colour in zip(list(TRAP_TARGETS)[: size.cases], OKABE_ITO_COLOURS, strict=False):
        ax.plot(*diagram_coordinates(TRAP_TARGETS[name]), "o", color=colour, markersize=6)
    for at, text in (
        ((-0.9, 4.0), "no trap"),
        ((-4.3, -0.5), "trap,\n$m = 1$ unstable"),
        ((-5.9, 5.05), "trap,\nthen barrier"),
    ):
        ax.annotate(text, at, fontsize=7)
    ax.set(xlabel=r"$x = s_4 g_4/(6\, s_2 g_2)$", ylabel=r"$y = s_6 g_6/(120\, s_2 g_2)$")
    ax.set_title("(c) critical points between 0 and 1", loc="left")


def _draw_trajectories(ax: Axes, datasets: dict[str, xr.Dataset], size: Size) -> None:
    """Draw overlaps of the chain against time in landscapes with and without traps, with the critical points."""
    for number, (name, colour) in enumerate(zip(list(TRAP_TARGETS)[: size.cases], OKABE_ITO_COLOURS, strict=False)):
        found = datasets[to_file_name(name)]
        lines = ax.plot(found.growth, np.abs(found.M.values[..., 0, 0]).T, color=colour, linewidth=0.6)
        lines[0].set_label(name)
        for point in critical_points(wave, TRAP_TARGETS[name])[1:]:
            how: dict = {} if point.stable else {"markerfacecolor": "white"}
            ax.plot(size.length * (1.03 + 0.03 * number), point.m, "o", color=colour, markersize=5, clip_on=False, **how)
    ax.set(xlabel="time times the rate of escape", ylabel="$|m|$", ylim=(0, 1.03), xlim=(0, size.length))
    ax.set_title("(d) chain; dots: stable (full) and unstable points", loc="left")
    ax.legend(loc="lower right")


def _write_caption(datasets: dict[str, xr.Dataset], size: Size) -> list[str]:
    sentences = [
        "Escape with activations other than the square, which the paper says is the same up to constants, without a figure.",
        "One unit on the sphere, without label noise. (a) Mean time of the exact chain from random starts to the overlap",
        "0.5 with target equal to activation, at the rate of the fastest escape; lines: ODE with random start and SGD's",
        "noise near zero overlap.",
    ]
    for name in list(ACTIVATIONS)[: size.activations]:
        one, last = escape(ACTIVATIONS[name]), base.select_rows(datasets["exits"], name=name).isel(point=-1)
        sentences.append(
            f"{base.strip_markup(name)}: best lr {one.best_lr:.4g}, {one.samples:.3f} d log d samples, "
            "perfect recovery stable below "
            f"{one.final_lr / one.best_lr:.2f} of it; at d = {int(last.d)} t = {float(last.t):.2f} ± "
            f"{float(last.error):.2f}, in theory {float(last.theory):.2f}."
        )
    sentences += [
        "(b) The overlap grows at rates below the curve; for phase retrieval it is flat.",
        "(c) Signs of the population's drift 1 + x m^2 + y m^4.",
        f"(d) The student -cos(1.5 x) and {size.cases} targets, at a twentieth of the largest rate, "
        f"d = {size.d}, from the overlap {TRAP_START:g}.",
    ]
    for name in list(TRAP_TARGETS)[: size.cases]:
        late = np.abs(datasets[to_file_name(name)].M.values[:, 150:, 0, 0]).mean()  # the last quarter of the saved times
        places = critical_points(wave, TRAP_TARGETS[name])[1:]
        points = ", ".join(f"{each.m:.3f} ({'stable' if each.stable else 'unstable'})" for each in places)
        sentences.append(f"{name.capitalize()}: critical points {points}; the chain ends at {late:.3f} on average.")
    return sentences

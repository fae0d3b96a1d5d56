r"""Leaving the plateau of a committee with Muon and ending with SGD: the time to a small risk, against each of the two alone.

The plateau and its units are those of `which_optimiser`: k erf units learn k orthonormal teachers, from random starts. A run
has arrived when its risk is below a share of that of the plateau. Muon's steps do not get shorter, so that its risk stops at
a floor; what follows is Muon at a rate that decays, or SGD. The two algorithms are joined at one time for all runs, by a
schedule of their shares (`MixedSteps`), or when the units of a run are near their teachers, by a second simulation from the end
of the first.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
import xarray as xr
from scipy.optimize import minimize

import sgdlimits as sl
from sgdlimits.algorithm.base import Wrapper
from sgdlimits.domain import NotNegativeInTime
from sgdlimits.level.condition import Condition
from sgdlimits.papers.figure import (
    OKABE_ITO_COLOURS,
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    bar,
    make_panels,
    select_rows,
    sizes,
    tabulate,
)
from sgdlimits.papers.new_results.figures import which_optimiser as which
from sgdlimits.statistics.trees import as_floats

TARGET_RISK = 2e-5
"""Risk at which a run counts as arrived, scaled as by Saad and Solla; the plateau of three units has 0.02."""
SEARCH_STARTS: dict[str, tuple[tuple[float, ...], ...]] = {
    "sgd": ((2.8,), (2.0,), (3.4,)),
    "muon": ((2.3, 80.0, 8.0), (2.8, 60.0, 12.0), (1.8, 90.0, 6.0)),
    "shared": ((2.0, 80.0, 2.8), (2.8, 60.0, 2.8), (1.6, 90.0, 3.2)),
    "own": ((2.5, 3.5, 0.1), (2.8, 3.0, 0.2), (2.0, 3.5, 0.05)),
}
"""Starts of the search by protocol: tuning parameters of the rates, time of a common change, and span of the decay.

The last parameter of `own` is the missing squared cosine at which a run changes its algorithm.
"""
NEAR_SQUARED_COSINE = 0.9
"""Squared cosine of units with their teachers at which Muon's rate decays on a run's own clock."""
PROTOCOL_LABELS = {
    "sgd": "SGD",
    "muon": "Muon, decay at a common time",
    "clock": "Muon, decay at each run's own time",
    "shared": "Muon, then SGD at a common time",
    "own": "Muon, then SGD at each run's own time",
}
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    k=("units", 3, 2),
    d=("dimension", 1000, 300),
    many=("batch", 16),
    tuning=("runs for tuning", 16, 8),
    evaluations=(
        "evaluations of each search",
        {"sgd": 30, "own": 20, "shared": 20, "muon": 20},
        {"sgd": 8, "own": 8, "shared": 8, "muon": 8},
    ),
    starts=("starts of the search", 3, 1),
    runs=("runs that are measured", 128, 32),
    cap=("longest time over k^2", 30.0),
    saves=("saved times", 160, 80),
)


class MixedSteps(Wrapper):
    """Algorithm whose step is a mixture of the steps of two other algorithms, with a share that may be a schedule.

    Parameters
    ----------
    base, second : two algorithms without memory, with equal batches
    share : share of the step of `base`; the rest is that of `second`
    """

    second: sl.Algorithm
    share: NotNegativeInTime = eqx.field(converter=as_floats)

    def step(self, now):
        first, second = (each.step(now)["student"] for each in (self.base, self.second))
        return {"student": self.share * first + (1 - self.share) * second}


class AlignmentReached(Condition):
    """Stop condition: each teacher has a unit whose squared cosine with it is at least `cosine`."""

    cosine: Any = eqx.field(converter=as_floats)

    def margin(self, problem, stats, memory):
        return which.specialisation_margin(stats) + 0.5 - self.cosine


# --- the protocols -----------------------------------------------------------------------------------------------------------


def build_algorithm(name: str, c: float, size: Any) -> Any:
    """Build the algorithm SGD or Muon at a value c of the tuning parameter of `which_optimiser`."""
    return which.algorithm_at(name, size.k, float(c), size.many)


def simulate_algorithm(
    algorithm: sl.Algorithm, runs: int, seed: int, size: Any, start: Any = None, until: Any = None
) -> xr.Dataset:
    """Simulate the chain from random weights, or from `start`, such as the final states of other runs.

    The simulation ends when the stop condition `until` is met, if one is given.
    """
    how: dict[str, Any] = dict(t_max=size.cap * size.k**2, runs=runs, seed=seed, save=size.saves, until=until, progress=False)
    begin = which.random_start(size.k, size.d) if start is None else start
    return sl.simulate(which.plateau_problem(size.k, algorithm), sl.Chain(size.d), begin, **how)


def simulate_protocol(name: str, x: np.ndarray, runs: int, seed: int, size: Any) -> xr.Dataset:
    """Simulate the named protocol with the parameters x; return its risk, scaled as by Saad and Solla.

    If runs change their algorithm at different times, the variable `left` has the time of the change.
    """
    if name == "sgd":
        found = simulate_algorithm(build_algorithm("SGD", x[0], size), runs, seed, size)
    elif name == "muon":
        full = build_algorithm("Muon", x[0], size)
        # the floor of the risk is quadratic in the rate
        decay = sl.Power(float(full.lr), 2.0, x[2]).shift(x[1])
        found = simulate_algorithm(sl.Muon(decay, batch=size.many), runs, seed, size)
    elif name == "shared":
        share = sl.Steps([x[1]], [1.0, 0.0])
        found = simulate_algorithm(
            MixedSteps(build_algorithm("Muon", x[0], size), build_algorithm("SGD", x[2], size), share), runs, seed, size
        )
    else:
        return _join_stages(*_simulate_own(name, x, runs, seed, size), size)
    return xr.Dataset({"risk": size.k**2 * found.risk.reset_coords(drop=True)})


def _simulate_own(name: str, x: np.ndarray, runs: int, seed: int, size: Any) -> tuple[xr.Dataset, xr.Dataset]:
    """Simulate runs of Muon until their units are near their teachers, and SGD or Muon from there.

    Muon then has a decaying learning rate. The named protocol has the parameters x.
    """
    full = build_algorithm("Muon", x[0], size)
    if name == "clock":
        near, after = NEAR_SQUARED_COSINE, sl.Muon(sl.Power(float(full.lr), 2.0, x[2]), batch=size.many)
    else:
        near, after = 1 - min(float(x[2]), 0.5), build_algorithm("SGD", x[1], size)
    escape = simulate_algorithm(full, runs, seed, size, until=AlignmentReached(near))
    # the second simulation begins at zero for each run, and needs another seed
    return escape, simulate_algorithm(after, runs, seed + 10**6, size, start=escape)


def _join_stages(escape: xr.Dataset, later: xr.Dataset, size: Any) -> xr.Dataset:
    """Join the risks of two simulations, where a run of the second begins when the same run of the first ends."""
    t, left = escape.t.values, escape.t_end.values
    joined = [
        np.where(t < end, first, np.exp(np.interp(t - end, t, np.log(second))))
        for end, first, second in zip(left, escape.risk.values, later.risk.values, strict=True)
    ]
    return xr.Dataset({"risk": (("run", "t"), size.k**2 * np.array(joined)), "left": ("run", left)}, {"t": t})


def find_arrival_times(data: xr.Dataset) -> np.ndarray:
    """Return for each run the time from which it stays below the risk to be reached.

    For runs that end above that risk, the time is t_max with a penalty that grows with the final risk.
    """
    log_risk = np.log(data.risk.values / TARGET_RISK)
    t = data.t.values
    # the last time above, since a run that is below by chance has not arrived
    above = np.where(log_risk > 0, np.arange(t.size), 0).max(axis=1)
    late = above == t.size - 1
    i, run = np.minimum(above, t.size - 2), np.arange(above.size)
    low, high = log_risk[run, i], log_risk[run, i + 1]
    crossed = t[i] + (t[i + 1] - t[i]) * low / np.where(late, 1.0, low - high)
    return np.where(late, t[-1] * (1 + 0.1 * np.maximum(log_risk[:, -1], 0.0)), crossed)


def tune_protocol(name: str, size: Any, seed: int) -> list[tuple[float, np.ndarray]]:
    """Minimise the mean time of arrival over the parameters of the named protocol, from several starts.

    The results are sorted, the best first.
    """

    def mean_time(log_x: np.ndarray) -> float:
        return float(find_arrival_times(simulate_protocol(name, np.exp(log_x), size.tuning, seed, size)).mean())

    found = []
    for guess in SEARCH_STARTS[name][: size.starts]:
        x = np.log(guess)
        simplex = np.vstack([x, x + 0.25 * np.eye(x.size)])
        options = {"maxfev": size.evaluations[name], "initial_simplex": simplex, "xatol": 0.01, "fatol": 0.1}
        done = minimize(mean_time, x, method="Nelder-Mead", options=options)
        found.append((float(done.fun), np.exp(done.x)))
    return sorted(found, key=lambda each: each[0])


# --- the figure --------------------------------------------------------------------------------------------------------------


def make_figure(size: Any, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Tune the protocols on one seed, measure them on another, and draw risk and arrivals."""
    rows, risks, times = [], {}, {}
    tuned: list[tuple[float, np.ndarray]] = []
    for name in bar(PROTOCOL_LABELS, desc="protocols"):
        # a decay on each run's own clock keeps rate and span of that at a common time, the protocol before it
        tuned = tuned if name == "clock" else tune_protocol(name, size, seed)
        risks[name], times[name], row = measure_protocol(name, tuned, size, seed + 1)
        rows.append(row)
    risk = save_dataset("risk", xr.Dataset(risks))
    arrivals = save_dataset("arrivals", xr.Dataset(times, attrs={"d": size.d}))
    table = save_dataset("table", tabulate(rows, k=size.k, d=size.d, runs=size.runs, target=TARGET_RISK))
    return DrawnFigure(_draw_figure(risk, arrivals), _write_caption(table))


def measure_protocol(
    name: str, tuned: list[tuple[float, np.ndarray]], size: Any, seed: int
) -> tuple[xr.DataArray, Any, dict[str, Any]]:
    """Simulate a tuned protocol on a new seed; return its risk over time, its times of arrival, and a table row.

    The risk is given by quantiles over runs, and the row summarises the times of arrival with the best parameters.
    """
    data = simulate_protocol(name, tuned[0][1], size.runs, seed, size)
    times, values = find_arrival_times(data), [value for value, _ in tuned]
    row: dict[str, Any] = {"protocol": name, "x": ", ".join(f"{each:.3g}" for each in tuned[0][1])}
    # runs that do not arrive leave the median and mostly the last tenth as they are, but not the mean
    drawn = np.random.default_rng(0).choice(times, (1000, times.size))
    for word, share in (("median", 0.5), ("late", 0.9)):
        row |= {word: np.quantile(times, share), f"{word}_error": np.quantile(drawn, share, axis=1).std()}
    row["lost"] = int((times > data.t.values[-1]).sum())
    row |= {"tuned": values[0], "spread": max(values) - min(values)}
    return data.risk.quantile([0.1, 0.5, 0.9], "run"), ("run", np.sort(times)), row


def _draw_figure(risk: xr.Dataset, arrivals: xr.Dataset) -> Figure:
    figure, axes = make_panels(1, 2, figsize=(10.5, 4.4))
    colours = dict(zip(PROTOCOL_LABELS, OKABE_ITO_COLOURS, strict=False))
    _draw_risk(axes[0], risk, colours)
    _draw_arrivals(axes[1], arrivals, colours)
    # later times are penalties
    axes[1].set_xlim(0, float(risk.t[-1]))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_risk(ax: Axes, risk: xr.Dataset, colours: dict[str, str]) -> None:
    """Draw the median risk of each protocol against time, with the range of the middle 80 % of the runs."""
    for name, label in PROTOCOL_LABELS.items():
        low, middle, high = risk[name].values
        ax.plot(risk.t, middle, color=colours[name], label=label, linewidth=1.6)
        ax.fill_between(risk.t, low, high, color=colours[name], alpha=0.15, linewidth=0)
    ax.axhline(TARGET_RISK, color="0.6", linewidth=0.8, zorder=0)
    ax.set(yscale="log", ylim=(TARGET_RISK / 20, 0.3), xlabel="$t$, samples per dimension", ylabel="risk, median of the runs")
    ax.set_title("(a) the risk, with 80 % of the runs", loc="left")


def _draw_arrivals(ax: Axes, arrivals: xr.Dataset, colours: dict[str, str]) -> None:
    """Draw the share of the runs that have arrived against time, one curve for each protocol."""
    share = (np.arange(arrivals.sizes["run"]) + 1) / arrivals.sizes["run"]
    for name in PROTOCOL_LABELS:
        ax.step(arrivals[name], share, where="post", color=colours[name], linewidth=1.6)
    ax.set(ylim=(0, 1.02), xlabel="$t$, samples per dimension", ylabel="share of runs that have arrived")
    ax.set_title(f"(b) arrival at ${TARGET_RISK * 1e5:g}\\cdot10^{{-5}}$, $d = {arrivals.attrs['d']}$", loc="left")


def _write_caption(table: xr.Dataset) -> list[str]:
    attrs = table.attrs
    sentences = [
        f"The time until the risk of {attrs['k']} erf units that learn {attrs['k']} orthonormal teachers stays below",
        f"{attrs['target']:g} (the plateau of three units has 0.02), in {attrs['runs']} runs of the exact chain at",
        f"d = {attrs['d']} from random starts. Rates and times were tuned for the smallest mean time on one seed and measured",
        "on another, with two standard errors.",
    ]
    for name, label in PROTOCOL_LABELS.items():
        row = select_rows(table, protocol=name).isel(point=0)
        lost = f"; {int(row.lost)} runs not done" if int(row.lost) else ""
        how = f"parameters {row.x.values}; tuned to {float(row.tuned):.1f}, starts of the search within {float(row.spread):.1f}"
        how = "rate and span of the former, not tuned" if name == "clock" else how
        sentences.append(
            f"{label} ({how}): half by {float(row['median']):.1f} ± {2 * float(row.median_error):.1f}, 90 % by "
            f"{float(row.late):.1f} ± {2 * float(row.late_error):.1f}{lost}."
        )
    return sentences

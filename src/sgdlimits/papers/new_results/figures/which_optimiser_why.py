r"""Why Muon leaves a committee's plateau before SGD, and where it does not: rates at the plateau, linearised and measured.

On the plateau every unit has the overlap R with every teacher, and units have the overlap C with each other and the squared
norm C + D. Departures of M whose rows and columns add up to zero grow at one rate, by symmetry: the slope of the drift along
one of them. Muon with a batch b much larger than p steps along :math:`E[GG^\top]^{-1/2}G`, so that as d grows

.. math:: \dot M = -\gamma E[GG^\top]^{-1/2}E[G\lambda_*^\top], \qquad
          \dot Q = -\gamma E[GG^\top]^{-1/2}E[G\lambda^\top] + (\cdot)^\top + \gamma^2, \qquad \gamma = \text{lr}/\sqrt b .
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
import xarray as xr
from scipy.integrate import solve_ivp

import sgdlimits as sl
from sgdlimits.algorithm.weights import inverse_square_root
from sgdlimits.papers.figure import (
    OKABE_ITO_COLOURS,
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    bar,
    make_panels,
    select_rows,
    sizes,
    tabulate,
)
from sgdlimits.papers.new_results.figures import which_optimiser as which

TRIAL_RATES = {"SGD": (0.5, 1.0, 1.5, 2.0), "Muon": (0.1, 0.2, 0.4, 0.8), "Muon 0.9": (0.1, 0.2, 0.4, 0.8)}
"""Learning rates of an earlier trial with three units, d = 1000 and batches of 16, whose gradients are summed."""
INITIAL_DEPARTURE = 0.01
"""Size of the departure from the plateau with which measurements of slopes begin."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    k=("units", 3, 2),
    ks=("numbers of units", (2, 3, 4, 6, 8), (2, 3)),
    rates=("values of c", np.geomspace(0.25, 16, 13), np.geomspace(0.5, 8, 5)),
    own=("values of c for Muon's own ODE", (0.5, 1.0, 2.0, 4.0), (1.0,)),
    log2_points=("binary logarithm of its points", 10, 8),
    d=("dimension", 1000, 300),
    many=("batch", 16),
    batches=("other batches", (4,), ()),
    noises=("variances of label noise", (0.1, 0.5), ()),
    runs=("runs that are measured", 32),
    tuning=("runs for tuning", 8),
    tried=("values of c for tuning", which.FULL_SIZE.tried),
    cap=("longest time over k^2", 22.0),
    slopes=("dimension and runs behind the slopes", (10**5, 16), (10**4, 16)),
    late=("end of the risk", 1000.0, 200.0),
    trial=("earlier trial", (1000, 16, 250.0), None),
)


# --- rates at the plateau ----------------------------------------------------------------------------------------------------

# (k, rate, statistics) to their drift
Drift = Callable[[int, Any, sl.Overlaps], sl.Overlaps]


def sgd_drift(k: int, rate, stats: sl.Overlaps) -> sl.Overlaps:
    """Return the drift of the overlaps of k units under plain SGD at a learning rate."""
    return which.plateau_problem(k, sl.OnePassSGD(rate)).drift(stats)


def normalised_drift(k: int, rate, stats: sl.Overlaps) -> sl.Overlaps:
    """Return the drift of the overlaps of k units under normalised SGD, in the limit of large batches."""
    return sgd_drift(k, rate / jnp.sqrt(jnp.trace(_moments(k, stats).gradient_gradient)), stats)


def muon_drift(k: int, rate, stats: sl.Overlaps) -> sl.Overlaps:
    """Return the drift of the overlaps of k units under Muon, in the limit of large batches."""
    means = _moments(k, stats)
    step = -rate * inverse_square_root(means.gradient_gradient)
    Q = step @ means.gradient_field
    return sl.Overlaps(jnp.zeros(k), step @ means.gradient_fixed, Q + Q.T + rate**2 * jnp.eye(k))


def finite_batch_muon_drift(k: int, rate, stats: sl.Overlaps, *, batch: int, log2_points: int) -> sl.Overlaps:
    """Return the drift of the overlaps of k units under Muon at a finite batch size.

    The average over batches is over 2^`log2_points` Sobol points.
    """
    return (
        which.plateau_problem(k, sl.Muon(np.sqrt(batch) * rate, batch=batch))
        .with_expectation(sl.Sobol(log2_points))
        .drift(stats)
    )


def _moments(k: int, stats: sl.Overlaps):
    """Return the moments of one sample's gradient for k erf units and k teachers, at given overlaps."""
    problem = which.plateau_problem(k, sl.OnePassSGD(1.0))
    return problem.expectation.moments(problem.model, stats.a, problem.model.law(stats))


# drifts as the batch grows
ALGORITHM_DRIFTS: dict[str, Drift] = {"SGD": sgd_drift, "Normalised": normalised_drift, "Muon": muon_drift}


def normalise_rate(name: str, k: int, c: float) -> float:
    """Convert the tuning parameter c of the named algorithm, for k units, to the algorithm's learning rate at batch size 1."""
    return (
        k
        * c
        * {"SGD": 1.0, "Normalised": which.typical_gradient_norm(k), "Muon": which.typical_gradient_norm(k) / np.sqrt(k)}[name]
    )


def symmetric_state(k: int, y) -> sl.Overlaps:
    """Build the overlaps of k equal students from y = (R, log D, log E).

    Here R is the overlap with each teacher, D (1 - 1/k) the squared norm of a student's difference from the mean of all
    students, and E the squared norm of that mean outside the span of the teachers.
    """
    R, D = y[0], jnp.exp(y[1])
    return sl.Overlaps(jnp.ones(k), jnp.full((k, k), R), jnp.exp(y[2]) + k * R**2 + D * (jnp.eye(k) - 1 / k))


@partial(jax.jit, static_argnums=(0, 1))
def _plateau_drift(drift: Drift, k: int, rate, y):
    """Return the time derivative of y, the parameters of `symmetric_state`, under a drift of the overlaps."""
    change = drift(k, rate, symmetric_state(k, y))
    R, mean, trace = change.M.mean(), change.Q.mean(), jnp.trace(change.Q)
    return jnp.stack([R, (trace - k * mean) / (k - 1) * jnp.exp(-y[1]), (mean - 2 * k * y[0] * R) * jnp.exp(-y[2])])


def escape_direction(k: int) -> np.ndarray:
    """Return the matrix of norm 1 along which the teacher overlaps M change as two units turn to two teachers."""
    a = np.eye(k)[0] - np.eye(k)[1]
    return np.outer(a, a) / 2


@partial(jax.jit, static_argnums=(0, 1))
def _departure_growth(drift: Drift, k: int, rate, y):
    """Return the growth rate of departures from the symmetric state of y along `escape_direction`."""
    at, e = symmetric_state(k, y), escape_direction(k)
    move = lambda size: drift(k, rate, sl.Overlaps(at.a, at.M + size * e, at.Q)).M
    return (jax.jvp(move, (0.0,), (1.0,))[1] * e).sum()


def escape(drift: Drift, k: int, rate: float, y: np.ndarray, relax: float = 1500.0) -> tuple[float, np.ndarray]:
    """Find the plateau near the `symmetric_state` of y, and return its escape rate and the plateau's parameters.

    The rate is NaN if no plateau is found. The state follows the drift for a time `relax`, then a root finder takes over.
    """
    f = lambda y: np.asarray(_plateau_drift(drift, k, rate, y))
    if relax:
        # relaxation is slow beside the decay of the norms: a stiff problem
        y = solve_ivp(lambda t, y: f(y), (0, relax), y, method="BDF", rtol=1e-5, atol=1e-7).y[:, -1]
    found = scipy.optimize.root(f, y, tol=1e-8)
    if not np.abs(found.fun).max() < 1e-5:
        return np.nan, y
    return float(_departure_growth(drift, k, rate, found.x)), found.x


def guess_plateau(k: int) -> np.ndarray:
    """Return a guess of y, the parameters of `symmetric_state`, for the plateau at small rates."""
    return np.array([float(which.symmetric_plateau(k).M[0, 0]), np.log(0.05), np.log(0.01)])


def escape_curve(name: str, k: int, values: np.ndarray) -> list[dict[str, Any]]:
    """Return table rows with an algorithm's escape rate and plateau, at given values of c and at the best c.

    Here c is the tuning parameter of `which_optimiser`, and k the number of units.
    """
    rows, y = [], guess_plateau(k)
    for c in values:
        speed, y = escape(ALGORITHM_DRIFTS[name], k, normalise_rate(name, k, c), y)
        # y of one c is the guess for the next: continuation
        rows.append(make_row(name, k, c, speed, y))
    return sorted([*rows, fastest_row(rows, values[1] / values[0])], key=lambda row: row["c"])


def fastest_row(rows: list[dict[str, Any]], factor: float) -> dict[str, Any]:
    """Return the table row at the tuning parameter c of the largest escape rate.

    It is refined between rows whose values of c differ by `factor`.
    """
    at = max(rows, key=lambda row: np.nan_to_num(row["rate"], nan=-np.inf))
    name, k, y = at["rule"], at["k"], read_plateau(at)
    leave = lambda log_c: escape(ALGORITHM_DRIFTS[name], k, normalise_rate(name, k, np.exp(log_c)), y)
    # the neighbours of the best value bracket the maximum
    span = np.log(at["c"]) + np.log(factor) * np.array([-1, 1])
    slowness = lambda log_c: -np.nan_to_num(leave(log_c)[0])  # no plateau found: as slow as standing still
    best = scipy.optimize.minimize_scalar(slowness, bounds=span, method="bounded", options={"xatol": 1e-3}).x
    return make_row(name, k, float(np.exp(best)), *leave(best))


def make_row(name: str, k: int, c: float, speed: float, y: np.ndarray) -> dict[str, Any]:
    """Build a table row from tuning parameter c, escape rate `speed` and plateau parameters y.

    The plateau's risk is in Saad and Solla's units.
    """
    excess = k**2 * float(which.plateau_problem(k, sl.OnePassSGD(1.0)).risk(symmetric_state(k, y)))
    return {"rule": name, "k": k, "c": c, "rate": speed, "risk": excess, "R": y[0], "log_D": y[1], "log_E": y[2]}


def read_plateau(row: Any) -> np.ndarray:
    """Return the plateau in a table row, as the parameters y of `symmetric_state`."""
    return np.array([row[name] for name in ("R", "log_D", "log_E")], float)


def measure_slope(algorithm: sl.Algorithm, point: sl.Overlaps, d: int, runs: int, t: float, seed: int) -> xr.Dataset:
    """Simulate the chain from near the plateau `point`, and return the departure's mean and its growth rate.

    The mean is over runs, at times up to t.
    """
    k = point.M.shape[0]
    e, times = escape_direction(k), np.linspace(0, t, 25)
    start = sl.Overlaps(point.a, point.M + INITIAL_DEPARTURE * e, point.Q)
    how: dict[str, Any] = dict(t_max=t, save=times, runs=runs, seed=seed, progress=False)
    found = sl.simulate(which.plateau_problem(k, algorithm), sl.Chain(d), start, **how)
    apart = (found.M.values * e).sum((-1, -2))
    rng = np.random.default_rng(seed)
    # the mean over runs, and 200 bootstrap resamples of it
    means = np.stack([apart, *(apart[rng.integers(runs, size=runs)] for _ in range(200))]).mean(1)
    # a floor under means that fluctuate below zero
    slopes = np.polyfit(found.t.values, np.log(np.maximum(means, INITIAL_DEPARTURE / 10)).T, 1)[0]
    return xr.Dataset({"apart": ("t", means[0]), "slope": slopes[0], "error": slopes[1:].std()}, {"t": found.t.values})


# --- the figure --------------------------------------------------------------------------------------------------------------


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Compute and measure rates of escape from a plateau for several optimisers, and draw them.

    The risk after the escape is drawn too.
    """
    datasets = {"rates": _compute_rates(size)}
    best = {name: _fastest_escape(datasets["rates"], name, size.k) for name in ALGORITHM_DRIFTS}
    datasets["slopes"] = _measure_slopes(size, best, seed)
    datasets["late"] = _follow_risk(size, best, seed)
    datasets |= _compare_conditions(size, seed) | _repeat_trial(size, seed)
    for name, dataset in datasets.items():
        save_dataset(name, dataset)
    return DrawnFigure(_draw_figure(datasets, size), _write_caption(datasets, size))


def _fastest_escape(rates: xr.Dataset, name: str, k: int) -> dict[str, Any]:
    """Return the tuning parameter, escape rate and plateau parameters y of an algorithm's fastest escape.

    They are read from the table of rates, for k units.
    """
    rows = select_rows(rates, rule=name, k=k)
    at = rows.isel(point=int(np.nanargmax(rows.rate.values)))
    return {"c": float(at.c), "rate": float(at.rate), "y": read_plateau(at)}


def _compute_rates(size: Size) -> xr.Dataset:
    """Tabulate the escape rates of all algorithms in large batches, and of Muon in a finite batch.

    The rates are functions of the tuning parameter c.
    """
    rows = [row for k in bar(size.ks, desc="rates") for name in ALGORITHM_DRIFTS for row in escape_curve(name, k, size.rates)]
    drift = partial(finite_batch_muon_drift, batch=size.many, log2_points=size.log2_points)
    near = [row for row in rows if (row["rule"], row["k"]) == ("Muon", size.k)]
    for c in bar(size.own, desc="Muon's own ODE"):
        # the plateau at large batches is a good first guess
        y = read_plateau(min(near, key=lambda row: abs(np.log(row["c"] / c))))
        speed, y = escape(drift, size.k, normalise_rate("Muon", size.k, c), y, relax=0.0)
        rows.append(make_row(f"Muon, batch {size.many}", size.k, c, speed, y))
    return tabulate(rows)


def _measure_slopes(size: Size, best: dict[str, dict[str, Any]], seed: int) -> xr.Dataset:
    """Measure in the chain the growth rate of departures from the plateau, for SGD and Muon.

    Each has the tuning parameter c of its fastest escape.
    """
    drift, found = partial(finite_batch_muon_drift, batch=size.many, log2_points=size.log2_points), []
    for name in bar(("SGD", "Muon"), desc="slopes"):
        c, rate, y = best[name]["c"], best[name]["rate"], best[name]["y"]
        if name == "Muon":
            rate, y = escape(drift, size.k, normalise_rate(name, size.k, c), y, relax=0.0)
        d, runs = size.slopes
        # a growth by a factor of 5, within the linear regime
        t = np.log(5) / best[name]["rate"]
        one = measure_slope(which.algorithm_at(name, size.k, c, size.many), symmetric_state(size.k, y), d, runs, t, seed)
        found.append(one.rename(t="save").assign(t=("save", one.t.values), rate=rate, c=c).drop_vars("save"))
    return xr.concat(found, "rule").assign_coords(rule=["SGD", "Muon"])


def _follow_risk(size: Size, best: dict[str, dict[str, Any]], seed: int) -> xr.Dataset:
    """Simulate SGD and Muon past the escape, and return the median excess risk against time at two learning rates."""
    times, found = np.concatenate([[0.0], np.geomspace(1, size.late, 40)]), {}
    for name in ("SGD", "Muon"):
        for share in (1.0, 0.25):
            problem = which.plateau_problem(size.k, which.algorithm_at(name, size.k, share * best[name]["c"], size.many))
            how: dict[str, Any] = dict(t_max=size.late, save=times, runs=size.tuning, seed=seed, progress=False)
            data = sl.simulate(problem, sl.Chain(size.d), which.random_start(size.k, size.d), **how)
            found[f"{name}, {share:g}"] = ("t", size.k**2 * np.median(data.risk.values, axis=0))
    return xr.Dataset(found, {"t": data.t.values})


def _compare_conditions(size: Size, seed: int) -> dict[str, xr.Dataset]:
    """Tune SGD and Muon, and tabulate their median exit times, at other batch sizes and with label noise."""
    plan = [(name, batch, 0.0) for batch in size.batches for name in ("SGD", "Muon")]
    plan += [(name, size.many, noise) for noise in size.noises for name in ("SGD", "Muon")]
    tuned = lambda name, batch, noise: which.tune_and_measure(name, size.k, batch, size, seed, noise / size.k**2)
    return {"conditions": tabulate([tuned(*each) for each in bar(plan, desc="conditions")])} if plan else {}


def _repeat_trial(size: Size, seed: int) -> dict[str, xr.Dataset]:
    """Tabulate exit times at the learning rates of an earlier trial, whose steps sum the gradients of 16 samples."""
    if not size.trial:
        return {}
    rows, b, (d, runs, end) = [], 16, size.trial
    make_figure: dict[str, Callable[[float], sl.Algorithm]] = {
        "SGD": lambda eta: sl.OnePassSGD(b * 9 * eta, batch=b),
        "Muon": lambda eta: sl.Muon(eta * b / np.sqrt(d), batch=b),
        "Muon 0.9": lambda eta: sl.Muon(eta * b / np.sqrt(d), 0.9, batch=b),
    }
    for name, eta in bar([(name, eta) for name, etas in TRIAL_RATES.items() for eta in etas], desc="trial"):
        time, low, high, left = which.median_exit(which.simulate_exits(make_figure[name](eta), 3, d, runs, seed + 1, end))
        rows.append({"rule": name, "eta": eta, "time": time, "low": low, "high": high, "left": left, "cap": end})
    return {"trial": tabulate(rows)}


def _draw_figure(datasets: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, axes = make_panels(2, 2, figsize=(10.5, 7.6))
    _draw_rates(axes[0, 0], datasets, size)
    _draw_slopes(axes[0, 1], datasets["slopes"], size)
    _draw_ratios(axes[1, 0], datasets["rates"], size)
    _draw_late_risk(axes[1, 1], datasets["late"], size)
    return figure


ALGORITHM_COLOURS = dict(zip(ALGORITHM_DRIFTS, OKABE_ITO_COLOURS, strict=False))


def _draw_rates(ax: Axes, datasets: dict[str, xr.Dataset], size: Size) -> None:
    """Draw escape rates against the tuning parameter c, with the rates measured in the chain."""
    rates, slopes = datasets["rates"], datasets["slopes"]
    for name, colour in ALGORITHM_COLOURS.items():
        rows = select_rows(rates, rule=name, k=size.k)
        ax.plot(rows.c, rows.rate, color=colour, label=name + (", large batches" if name == "Muon" else ""))
    rows = select_rows(rates, rule=f"Muon, batch {size.many}")
    ax.plot(rows.c, rows.rate, "^", color=ALGORITHM_COLOURS["Muon"], label=f"Muon, batch {size.many}")
    colours = [ALGORITHM_COLOURS[name] for name in slopes.rule.values]
    for c, slope, error, colour in zip(slopes.c.values, slopes.slope.values, slopes.error.values, colours, strict=True):
        ax.errorbar(c, slope, 2 * error, fmt="o", color=colour, markerfacecolor="white", capsize=2, zorder=5)
    ax.errorbar([], [], [], fmt="o", color="0.4", markerfacecolor="white", capsize=2, label="measured")
    ax.set(xscale="log", xlabel="rate $c$", ylabel="escape rate, per unit of $t$", ylim=(0, None))
    which.set_plain_ticks(ax.xaxis)
    ax.set_title(f"(a) at the plateau, $k = {size.k}$", loc="left")
    ax.legend(loc="upper left", fontsize=8)


def _draw_slopes(ax: Axes, slopes: xr.Dataset, size: Size) -> None:
    """Draw the departure from the plateau in the chain against time, with the linearised growth."""
    for name in slopes.rule.values:
        one = slopes.sel(rule=name)
        ax.plot(one.t, one.apart, "o", markersize=3.5, color=ALGORITHM_COLOURS[name], label=f"{name}, chain")
        ax.plot(
            one.t,
            INITIAL_DEPARTURE * np.exp(float(one.rate) * one.t),
            color=ALGORITHM_COLOURS[name],
            label=f"{name}, linearised",
        )
    ax.set(yscale="log", xlabel="$t$", ylabel="departure from the plateau")
    ax.set_title(f"(b) $d = 10^{{{np.log10(size.slopes[0]):g}}}$, batch {size.many}, mean of {size.slopes[1]} runs", loc="left")
    ax.legend(fontsize=8)


def _draw_ratios(ax: Axes, rates: xr.Dataset, size: Size) -> None:
    """Draw the ratio of each algorithm's fastest escape rate to that of SGD against the number of units."""
    fastest = {name: np.array([_fastest_escape(rates, name, k)["rate"] for k in size.ks]) for name in ALGORITHM_DRIFTS}
    for name in ("Muon", "Normalised"):
        ax.plot(size.ks, fastest[name] / fastest["SGD"], "o-", color=ALGORITHM_COLOURS[name], label=name)
    ax.set(xlabel="$k$ units and teachers", ylabel="fastest escape, over SGD's", ylim=(0, None))
    ax.set_xticks(size.ks)
    ax.set_title("(c) large batches, as $d$ grows", loc="left")
    ax.legend()


def _draw_late_risk(ax: Axes, late: xr.Dataset, size: Size) -> None:
    """Draw the median excess risk after the escape against time, for SGD and Muon at two learning rates."""
    for key in late.data_vars:
        name, share = str(key).split(", ")
        dashes, words = ("-", "fastest rate") if share == "1" else ("--", "a quarter of it")
        ax.plot(late.t[1:], late[key][1:], dashes, color=ALGORITHM_COLOURS[name], label=f"{name}, {words}")
    ax.set(xscale="log", yscale="log", ylim=(1e-8, None), xlabel="$t$", ylabel="risk, in units of Saad and Solla")
    ax.set_title(f"(d) later on, $d = {size.d}$, batch {size.many}", loc="left")
    ax.legend(fontsize=8, loc="lower left")


def _write_caption(datasets: dict[str, xr.Dataset], size: Size) -> list[str]:
    rates, slopes, late = datasets["rates"], datasets["slopes"], datasets["late"]
    sentences = ["Rates at which a committee leaves its symmetric plateau. Fastest rates, linearised, large batches:"]
    for k in size.ks:
        best = {name: _fastest_escape(rates, name, k) for name in ALGORITHM_DRIFTS}
        words = ", ".join(f"{name} {each['rate']:.4f} at c = {each['c']:.2f}" for name, each in best.items())
        sentences.append(f"k = {k}: {words}; Muon over SGD {best['Muon']['rate'] / best['SGD']['rate']:.2f}.")
    own = select_rows(rates, rule=f"Muon, batch {size.many}")
    words = ", ".join(f"{rate:.4f} at c = {c:g}" for c, rate in zip(own.c.values, own.rate.values, strict=True))
    sentences.append(f"Muon's own ODE at batch {size.many} and k = {size.k}: {words}.")
    for name in slopes.rule.values:
        one = slopes.sel(rule=name)
        words = f"{float(one.slope):.4f} +- {float(one.error):.4f}, linearised {float(one.rate):.4f}, at c = {float(one.c):.2f}"
        sentences.append(f"Measured by the chain at d = {size.slopes[0]}, {name}: {words}.")
    words = "; ".join(f"{key}: {float(late[key][-1]):.1e}" for key in late.data_vars)
    sentences.append(f"Median risk at t = {size.late:g}, by algorithm and share of the fastest rate: {words}.")
    for r in which.rows_as_dicts(datasets["conditions"]) if "conditions" in datasets else ():
        label = f"{r['rule']}, batch {r['batch']}, noise {size.k**2 * r['noise']:.1f}"
        sentences.append(f"{label}: {which.describe_time(r)} at c = {r['c']:.2f}.")
    if "trial" in datasets:
        words = "; ".join(f"{r['rule']} {r['eta']:g}: {which.describe_time(r)}" for r in which.rows_as_dicts(datasets["trial"]))
        sentences.append(f"The rates of the trial: {words}.")
    return sentences

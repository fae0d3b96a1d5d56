r"""The best learning rate for escaping mediocrity and then reaching a small risk, at a fixed time and on each run's own clock.

One squared unit on the sphere learns another, with label noise. A run has arrived when its excess risk is below a share of
that of the plateau. `optimise_schedule` finds the schedule for the overlap of a typical run, :math:`z\sqrt{(1+\kappa)/d}`: the
noise of the departure multiplies the variance of the start by :math:`1+\kappa` (`noise_gain`). Since the state is one number,
the best rate is a function of it, and the least time is known in closed form (`find_least_time`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from scipy.optimize import minimize
from scipy.special import logit, ndtri

import sgdlimits as sl
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

NOISE = 1.0
TARGET_RISK_SHARE = 0.01
"""Share of the plateau's excess risk at which a run counts as arrived."""
LATE_RUN_SHARE = 0.9
"""Share of the runs that should have arrived by the time that the schedule for late runs minimises."""
HALF_RISK_OVERLAP = np.sqrt(0.5)
"""Overlap at which the excess risk has halved, which starts a run's own clock."""
PROTOCOLS = {
    "constant": "best constant",
    "decay": "$1/t$ after the escape of a typical run",
    "best": "best for a typical run",
    "late": "best for a late run",
    "own": "best, decay on each run's own clock",
}
"""Names of the protocols (ways to choose the learning rate), with their labels."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    runs=("runs by dimension", {10**3: 512, 10**4: 256, 10**5: 64, 10**6: 16}, {1000: 64}),
    pieces=("pieces of the schedule", 64, 24),
    shown=("dimension of (a) and (b)", 10**4, 1000),
    largest=("largest dimension by protocol", {"decay": 10**5, "late": 10**5}),
)


# --- the problem, and the best rate in closed form ---------------------------------------------------------------------------


def problem(lr: Any) -> sl.ProjectionProblem:
    """Build phase retrieval by one unit on the sphere, with label noise, at a learning rate or schedule."""
    return sl.presets.phase_retrieval(lr=lr, noise=NOISE)


def arrival_margin(stats: sl.Overlaps):
    """Return the overlap minus the overlap at which the excess risk is `TARGET_RISK_SHARE` of the plateau's excess risk."""
    return jnp.abs(stats.M[0, 0]) - np.sqrt(1 - TARGET_RISK_SHARE)


def half_margin(stats: sl.Overlaps):
    """Return the overlap minus the overlap at which the excess risk is half of the plateau's excess risk."""
    return jnp.abs(stats.M[0, 0]) - HALF_RISK_OVERLAP


def find_best_rate(excess: Any) -> Any:
    r"""Return the learning rate :math:`\gamma` at which the excess risk R falls fastest, :math:`R/(12R + 2\Delta)`.

    Here :math:`\Delta` is the variance of the label noise, and m the overlap with the teacher.

    With :math:`u = 1 - m^2 = R/2` the ODE is :math:`\dot m = 4\gamma um - 2\gamma^2(12u + \Delta)m`, a parabola in the rate.
    """
    return excess / (12 * excess + 2 * NOISE)


def find_least_time(m: float, last: float = np.sqrt(1 - TARGET_RISK_SHARE)) -> float:
    r"""Return the least time in which the ODE goes from the overlap m to `last`, at `find_best_rate` all the way.

    With :math:`u = 1 - m^2`, which goes from :math:`u_0` to :math:`u_1`, and the variance :math:`\Delta` of the label noise,

    .. math:: \dot u = -\frac{4(1-u)u^2}{12u+\Delta} \quad\Rightarrow\quad
        t = \frac{12+\Delta}4\,\big[\mathrm{logit}\,u\big]_{u_1}^{u_0} + \frac\Delta4\Big(\frac1{u_1} - \frac1{u_0}\Big).
    """
    first, end = 1 - m**2, 1 - last**2
    return float((12 + NOISE) / 4 * (logit(first) - logit(end)) + NOISE / 4 * (1 / end - 1 / first))


def estimate_effective_overlap(d: int, lr: float, share: float) -> float:
    """Return the initial overlap from which the ODE leaves the plateau when a share of the runs has left it.

    Near the plateau a run with the noise of SGD is a run of the ODE from a normal overlap of variance (1 + kappa)/d, where
    kappa is the noise gain at the learning rate lr of the departure.
    """
    gain = float(sl.theory.mediocrity.noise_gain(1, lr, NOISE))
    return float(ndtri(1 - share / 2) * np.sqrt((1 + gain) / d))


# --- the protocols -----------------------------------------------------------------------------------------------------------


class Protocol(NamedTuple):
    """Schedule of the learning rate, with the rate at which its runs leave the plateau.

    A schedule on a run's own clock begins when the run's excess risk has halved.
    """

    name: str
    schedule: Any
    departure: float
    uses_own_clock: bool = False

    def predict_arrival(self, d: int, share: float) -> float:
        """Return the time at which a share of the runs has arrived, as predicted by the ODE; infinite if they do not arrive.

        A run has arrived when its excess risk is the share `TARGET_RISK_SHARE` of the plateau's.
        """
        start = estimate_effective_overlap(d, self.departure, share)
        if not self.uses_own_clock:
            return find_arrival_time(self.schedule, start)
        return find_arrival_time(self.departure, start, half_margin) + find_arrival_time(self.schedule, HALF_RISK_OVERLAP)


def find_arrival_time(schedule: Any, m: float, until: Any = arrival_margin) -> float:
    """Return the time at which the ODE, started at the overlap m, first makes the margin `until` positive.

    The time is infinite if that does not happen within a long time.
    """
    solved = sl.simulate(problem(schedule), sl.ODE(), sl.FixedInit(m), t_max=5000.0, until=until, progress=False)
    return float(solved.t_end[0]) if str(solved.status.values[0]) == "stopped" else np.inf


def optimise_schedule(m: float, t_max: float, pieces: int) -> tuple[sl.Steps, Any]:
    """Return the schedule of the learning rate with which the ODE arrives first from an overlap m, and its `Optimum`.

    The returned schedule keeps its last rate after the arrival. `t_max` bounds the time, and `pieces` is the number of pieces.
    """
    control = sl.Control(pieces, low=0.0, high=float(sl.theory.mediocrity.max_lr(1, NOISE)) * 0.75)
    # with an exit at this share of the initial excess risk, a start at any overlap has the same end
    threshold = 1 - TARGET_RISK_SHARE / (1 - m**2)
    found = sl.optimise(problem, sl.FixedInit(m), t_max, {"lr": control}, sl.exits(threshold), gradients=400, progress=False)
    steps = found.controls["lr"]
    used = int((steps.times < found.value).sum())
    return sl.Steps(steps.times[:used], steps.values[: used + 1]), found


def find_best_constant(m: float) -> float:
    """Return the constant learning rate at which the ODE arrives first from an overlap m."""
    time = lambda x: find_arrival_time(float(np.exp(x[0])), m)
    limit = sl.theory.mediocrity.lr_for_risk(1, NOISE, 2 * TARGET_RISK_SHARE)
    return float(np.exp(minimize(time, [np.log(0.9 * float(limit))], method="Nelder-Mead", options={"xatol": 1e-3}).x[0]))


def build_decay_after_escape(m: float) -> Any:
    """Return the schedule with which the ODE arrives first from an overlap m, among constant rates followed by 1/t.

    The rate, the time at which the decay begins, and its time scale are optimised.
    """
    form = lambda x: sl.Power(float(np.exp(x[0])), 1.0, float(np.exp(x[2]))).shift(float(np.exp(x[1])))
    lr = float(sl.theory.mediocrity.optimal_lr(1, NOISE))
    guess = np.log([lr, find_arrival_time(lr, m, half_margin), 2.0])
    time = lambda x: find_arrival_time(form(x), m)
    return form(minimize(time, guess, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-3}).x)


def build_protocols(d: int, pieces: int, own: sl.Steps) -> tuple[list[Protocol], dict[str, float]]:
    """Return the protocols (schedules of the learning rate) at dimension d, and the evidence for the two optima.

    The optimal schedules have the given number of pieces; `own` is the schedule on a run's own clock, after its escape.
    """
    escape = float(sl.theory.mediocrity.optimal_lr(1, NOISE))
    typical, late = (estimate_effective_overlap(d, escape, share) for share in (0.5, LATE_RUN_SHARE))
    constant = find_best_constant(typical)
    # a search for the constants, too, must arrive before its end
    best, found = optimise_schedule(typical, 1.05 * find_arrival_time(constant, typical), pieces)
    best_late, found_late = optimise_schedule(late, 1.05 * find_arrival_time(constant, late), pieces)
    evidence = {
        "spread": max(found.spread, found_late.spread),
        "certificate": max(found.certificate, found_late.certificate),
        "least": find_least_time(typical),
    }
    return [
        Protocol("constant", constant, constant),
        Protocol("decay", build_decay_after_escape(typical), escape),
        Protocol("best", best, escape),
        Protocol("late", best_late, escape),
        Protocol("own", own, escape, uses_own_clock=True),
    ], evidence


def simulate_arrivals(each: Protocol, d: int, runs: int, seed: int, cap: float) -> np.ndarray:
    """Return the times at which runs of the chain arrive from random weights under a protocol.

    The time is infinite for runs that do not arrive by `cap`.
    """
    how: dict[str, Any] = dict(runs=runs, progress=False)
    if not each.uses_own_clock:
        found = sl.simulate(
            problem(each.schedule), sl.Chain(d), sl.RandomInit(d), t_max=cap, seed=seed, until=arrival_margin, **how
        )
        return np.where(found.status == "stopped", found.t_end, np.inf)
    escape = sl.simulate(problem(each.departure), sl.Chain(d), sl.RandomInit(d), t_max=cap, seed=seed, until=half_margin, **how)
    # a second simulation has a clock that begins at zero for every run, and needs another seed
    later = sl.simulate(problem(each.schedule), sl.Chain(d), escape, t_max=cap, seed=seed + 10**6, until=arrival_margin, **how)
    total = escape.t_end.values + later.t_end.values
    return np.where((escape.status == "stopped") & (later.status == "stopped") & (total <= cap), total, np.inf)


# --- the figure --------------------------------------------------------------------------------------------------------------


def quantile_interval(times: np.ndarray, share: float) -> tuple[float, float]:
    """Return the time by which a share of the runs has arrived, with its standard error by bootstrap."""
    drawn = np.random.default_rng(0).choice(times, (1000, times.size))
    found = np.quantile(drawn, share, axis=1, method="higher")
    return float(np.quantile(times, share, method="higher")), float(found[np.isfinite(found)].std())


def measure_protocols(
    d: int, runs: int, size: Any, seed: int, own: sl.Steps
) -> tuple[list[dict], list[np.ndarray], list[Protocol]]:
    """Simulate the runs of each protocol in dimension d; return table rows, the arrival times of the runs, and the protocols.

    `own` is the schedule on a run's own clock.
    """
    rows, arrivals = [], []
    each, evidence = build_protocols(d, size.pieces, own)
    # late runs of a schedule for typical ones take longest
    cap = 3 * find_arrival_time(each[0].schedule, estimate_effective_overlap(d, each[0].departure, 0.5))
    for one in each:
        simulated = d <= size.largest.get(one.name, d)
        times = simulate_arrivals(one, d, runs, seed, cap) if simulated else np.zeros(0)
        row: dict[str, Any] = {"protocol": one.name, "d": d, "simulated": simulated, "runs": times.size} | evidence
        for word, share in (("typical", 0.5), ("late", LATE_RUN_SHARE)):
            value, error = quantile_interval(times, share) if simulated else (np.inf, 0.0)
            row |= {word: value, f"{word}_error": error, f"{word}_ode": one.predict_arrival(d, share)}
        rows.append(row | {"arrived": float(np.isfinite(times).mean()) if simulated else 0.0})
        arrivals.append(times)
    return rows, arrivals, each


def sample_rates(each: list[Protocol], d: int, end: float) -> xr.Dataset:
    """Return the learning rates at times up to `end`, of the protocols in which all runs have the same rate at the same t.

    The best rate at the state of a typical run is among them.
    """
    t = np.linspace(0.0, end, 400)
    rate = lambda schedule: np.array([float(schedule(x)) for x in t]) if callable(schedule) else np.full(t.size, schedule)
    found = {one.name: ("t", rate(one.schedule)) for one in each if not one.uses_own_clock}
    m = np.geomspace(estimate_effective_overlap(d, each[2].departure, 0.5), 1 - 1e-9, 4000)
    m = m[1 - m**2 >= TARGET_RISK_SHARE]
    when = np.array([find_least_time(m[0], x) for x in m])
    found["closed"] = ("t", np.interp(t, when, find_best_rate(2 * (1 - m**2)), right=np.nan))
    return xr.Dataset(found, {"t": t}, {"d": d})


def make_figure(size: Any, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Optimise and simulate the protocols at each dimension, and draw rates, arrivals and times."""
    rows: list[dict] = []
    own, found = optimise_schedule(HALF_RISK_OVERLAP, 1.6 * find_least_time(HALF_RISK_OVERLAP), size.pieces)
    for d, runs in bar(size.runs.items(), desc="dimensions"):
        more, arrivals, each = measure_protocols(d, runs, size, seed, own)
        rows += more
        if d == size.shown:
            samples = {one.name: ("run", np.sort(times)) for one, times in zip(each, arrivals, strict=True)}
            runs_shown = save_dataset("arrivals", xr.Dataset(samples, attrs={"d": d}))
            rates = save_dataset("rates", sample_rates(each, d, 1.3 * more[3]["late_ode"]))
    table = save_dataset(
        "table", tabulate(rows, noise=NOISE, share=TARGET_RISK_SHARE, late=LATE_RUN_SHARE, own_spread=found.spread)
    )
    return DrawnFigure(_draw_figure(table, runs_shown, rates), _write_caption(table))


def _draw_figure(table: xr.Dataset, arrivals: xr.Dataset, rates: xr.Dataset) -> Figure:
    figure, axes = make_panels(1, 3, figsize=(13.0, 4.3))
    colours = dict(zip(PROTOCOLS, OKABE_ITO_COLOURS, strict=False))
    _draw_rates(axes[0], rates, colours)
    _draw_arrivals(axes[1], arrivals, table, colours)
    _draw_times(axes[2], table, colours)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def format_dimension(d: int) -> str:
    """Format a dimension in LaTeX, as a power of ten if it is one."""
    power = round(float(np.log10(d)))
    return f"10^{power}" if power > 3 and 10**power == d else f"{d}"


def _draw_rates(ax: Axes, rates: xr.Dataset, colours: dict[str, str]) -> None:
    """Draw learning rates against time t, for the protocols in which all runs have the same rate at the same t."""
    for name, dashes in {"constant": "-", "decay": "--", "best": "-", "late": "-"}.items():
        ax.plot(rates.t, rates[name], dashes, color=colours[name], linewidth=1.6)
    ax.plot(rates.t, rates.closed, ":", color="0.35", linewidth=2.2, label=r"$R/(12R+2\Delta)$, typical run")
    ax.set(yscale="log", xlabel="$t$, samples per dimension", ylabel="learning rate")
    ax.legend(loc="lower left", fontsize=8)
    ax.set_title(f"(a) the rate, $d = {format_dimension(rates.attrs['d'])}$", loc="left")


def _draw_arrivals(ax: Axes, arrivals: xr.Dataset, table: xr.Dataset, colours: dict[str, str]) -> None:
    """Draw the share of the chain's runs that have arrived against time, one curve for each protocol."""
    share = (np.arange(arrivals.sizes["run"]) + 1) / arrivals.sizes["run"]
    for name, label in PROTOCOLS.items():
        ax.step(arrivals[name], share, where="post", color=colours[name], label=label, linewidth=1.6)
    end = 1.5 * float(select_rows(table, d=arrivals.attrs["d"], protocol="constant").typical_ode[0])
    ax.set(xlim=(0, end), ylim=(0, 1.02), xlabel="$t$, samples per dimension", ylabel="share of runs that have arrived")
    for level in (0.5, LATE_RUN_SHARE):
        ax.axhline(level, color="0.75", linewidth=0.8, zorder=0)
    ax.set_title(f"(b) arrival in the chain, $d = {format_dimension(arrivals.attrs['d'])}$", loc="left")


def _draw_times(ax: Axes, table: xr.Dataset, colours: dict[str, str]) -> None:
    """Draw the times by which half of the runs, and the share `LATE_RUN_SHARE` of them, have arrived, against d.

    The times are those of chain and ODE.
    """
    for name in PROTOCOLS:
        rows = select_rows(table, protocol=name)
        for word, dashes, fill in (("typical", "-", colours[name]), ("late", "--", "white")):
            if word == "late" and name in ("constant", "decay"):
                continue
            ax.plot(rows.d, rows[f"{word}_ode"], dashes, color=colours[name], linewidth=1.2)
            # of few runs, the last tenth says little
            enough = (rows.runs.values >= 100) | (word == "typical")
            seen = rows.isel(point=rows.simulated.values & np.isfinite(rows[word].values) & enough)
            how: dict[str, Any] = dict(fmt="o", color=colours[name], markerfacecolor=fill, markersize=5, capsize=2)
            ax.errorbar(seen.d, seen[word], 2 * seen[f"{word}_error"], **how)
    ax.set(xscale="log", xlabel="dimension $d$", ylabel="time of arrival")
    ax.set_ylim(bottom=0)
    ax.set_title(f"(c) half (full, solid) and {100 * LATE_RUN_SHARE:g} % (open, dashed)", loc="left")


def _write_caption(table: xr.Dataset) -> list[str]:
    attrs = table.attrs
    late = f"{100 * attrs['late']:g} %"
    sentences = [
        f"Phase retrieval by one unit on the sphere with label noise {attrs['noise']:g}: the time until the excess risk of",
        f"a run is {100 * attrs['share']:g} % of that of the plateau, from random weights. Lines: ODE, from the overlap of a",
        f"typical run and of one later than {late} of the runs, with the noise of the departure. Points: exact chain, with",
        "two standard errors. On its own clock a run keeps the rate of the fastest escape until its risk has halved.",
    ]
    for d in np.unique(table.d):
        rows = {name: select_rows(table, d=d, protocol=name).isel(point=0) for name in PROTOCOLS}
        best = rows["best"]
        ode = {name: float(row.typical_ode) for name, row in rows.items()}
        sentences.append(
            f"d = {int(d)}: a typical run of the ODE takes {ode['best']:.2f} with the best schedule ({float(best.least):.2f} "
            f"with the best rate at every state; three starts of the search differ by {float(best.spread):.1g}), "
            f"{ode['decay']:.2f} with 1/t, {ode['constant']:.1f} with a constant."
        )
        words = [
            f"{name} {float(row.typical):.1f} ± {2 * float(row.typical_error):.1f} ({ode[name]:.1f}), {late} by "
            f"{float(row.late):.1f} ± {2 * float(row.late_error):.1f} ({float(row.late_ode):.1f})"
            for name, row in rows.items()
            if bool(row.simulated)
        ]
        sentences.append(f"Half of {int(best.runs)} runs of the chain (ODE): {'; '.join(words)}.")
        if bool(rows["constant"].simulated):
            error = np.hypot(float(best.typical_error), float(rows["constant"].typical_error))
            gain = float(rows["constant"].typical) - float(best.typical)
            expected = ode["constant"] - ode["best"]
            sentences.append(f"The best schedule gains {gain:.1f} ± {2 * error:.1f} over the constant (ODE {expected:.1f}).")
    return sentences

r"""Which optimiser leaves the plateau first: all algorithms at equal tuning effort, against d and against k.

Two plateaus: that of Saad and Solla (k erf units learn k orthonormal ones), and that of phase retrieval (one squared unit,
k = 1), with free weights. A run has left when each teacher has a unit whose squared cosine with it is above 1/2; no unit can
serve two teachers. Time counts samples over d. Each algorithm has one number to tune, c: a typical step at the plateau is then
as long as that of plain SGD at the rate kc for one sample (phase retrieval: c/16). Twelve values are tried on one seed, eight a
factor of two apart and four around the best; the exit times are measured on another seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

import sgdlimits as sl
from sgdlimits.algorithm.coordinates import CoordinatewiseAlgorithm
from sgdlimits.level.base import Level
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

COARSE_GRID = tuple(2.0 ** np.array([2, 1, 3, 0, 4, -1, -2, -3]))
"""Values of the tuning parameter c that are tried first, in the order of trial."""
FINE_GRID = tuple(2.0 ** (np.array([-2, -1, 1, 2]) / 3))
"""Factors by which the best value of `COARSE_GRID` is multiplied in the second search."""
FOLLOWED_ALGORITHMS = ("SGD", "Normalised", "Muon")
"""Names of the algorithms that are measured at several dimensions and numbers of units."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    k=("units", 3, 2),
    d=("dimension", 1000, 300),
    many=("larger batch", 16),
    batches=("batches", (1, 16)),
    runs=("runs that are measured", 32, 16),
    tuning=("runs for tuning", 8, 4),
    tried=("values of c that are tried", (COARSE_GRID, FINE_GRID)),
    rules=("algorithms", None, ("SGD", "Muon")),
    teachers=("other numbers of units", (2, 4, 6, 8), (3,)),
    dimensions=("runs in more dimensions", {10**4: 32, 10**5: 32, 10**6: 16}, {3000: 8}),
    most=("largest dimension of an algorithm at k units", {"Normalised": {3: 10**4}}),
    limits=("dimensions of the ODE's starts", (10**3, 10**4, 10**5, 10**6), (300, 3000)),
    cap=("longest time over k^2", 22.0),
    final=("times of the final risk", (400.0,), (100.0,)),
)


# --- the problems and the algorithms -----------------------------------------------------------------------------------------


def plateau_problem(k: int, algorithm: sl.Algorithm, noise: float = 0.0) -> sl.ProjectionProblem:
    """Build a problem with a plateau: an erf committee of k units and k teachers, or phase retrieval if k is 1.

    Here `noise` is the variance of the label noise.
    """
    if k > 1:
        return sl.presets.committee(k, k, noise=noise, algorithm=algorithm)
    return sl.presets.phase_retrieval(noise=noise, sphere=False, algorithm=algorithm)


def chain_problem(k: int, algorithm: sl.Algorithm, noise: float = 0.0) -> sl.ProjectionProblem:
    """Build `plateau_problem` in a form that has an exact chain.

    For sign SGD and Adam it is the limit of weights spread evenly over all entries.
    """
    problem = plateau_problem(k, algorithm, noise)
    return problem.limit if isinstance(algorithm, CoordinatewiseAlgorithm) else problem


def random_start(k: int, d: int) -> sl.RandomInit:
    """Return the distribution of starts for k units in d dimensions.

    The weights are random, of norm about 1/2, or about 1 for a single unit.
    """
    return sl.RandomInit(d, scale=0.5 if k > 1 else 1.0)


def symmetric_plateau(k: int) -> sl.Overlaps:
    """Return the overlaps on the plateau of k units at small learning rates.

    They are those of equal students, or of one unit orthogonal to its teacher.
    """
    if k == 1:
        # norm learning of one unit ends at Q = 1/3
        return sl.Overlaps(jnp.ones(1), jnp.zeros((1, 1)), jnp.full((1, 1), 1 / 3))
    return sl.Overlaps(jnp.ones(k), jnp.full((k, k), 1 / np.sqrt(k * (2 * k - 1))), jnp.full((k, k), 1 / (2 * k - 1)))


def specialisation_margin(stats: sl.Overlaps):
    """Return the stop margin of an exit: positive if each teacher has a unit whose squared cosine with it is above 1/2.

    It is the largest squared cosine of a teacher with a unit, for the teacher at which it is smallest, minus 1/2.
    """
    return (stats.M**2 / jnp.diagonal(stats.Q)[:, None]).max(0).min() - 0.5


@lru_cache(maxsize=64)
def typical_gradient_norm(k: int, noise: float = 0.0) -> float:
    """Return the root mean square norm of one sample's gradient at the plateau of k units."""
    problem = plateau_problem(k, sl.OnePassSGD(1.0), noise)
    products = jax.jit(
        lambda stats: problem.expectation.moments(problem.model, stats.a, problem.model.law(stats)).gradient_gradient
    )
    return float(np.sqrt(np.trace(products(symmetric_plateau(k)))))


ALGORITHM_BUILDERS: dict[str, Callable[[float, float, int], sl.Algorithm]] = {
    "SGD": lambda r, g, b: sl.OnePassSGD(b * r, batch=b),
    "Heavy ball": lambda r, g, b: sl.HeavyBall(0.1 * b * r, 0.9, batch=b),
    "Nesterov": lambda r, g, b: sl.Nesterov(0.1 * b * r, 0.9, batch=b),
    "Averaged": lambda r, g, b: sl.Averaged(sl.OnePassSGD(b * r, batch=b), rate=0.1),
    "Clipped": lambda r, g, b: sl.Clipped(sl.OnePassSGD(b * r, batch=b), g / np.sqrt(b)),
    "Normalised": lambda r, g, b: sl.Normalised(np.sqrt(b) * r * g, batch=b),
    "AdaGrad-norm": lambda r, g, b: sl.AdaGradNorm(10 * b * r * g, 100 * g**2, batch=b),
    "SAM": lambda r, g, b: sl.SAM(sl.OnePassSGD(b * r, batch=b), 0.1),
    "Extragradient": lambda r, g, b: sl.Extragradient(b * r, batch=b),
    "Repeated": lambda r, g, b: sl.Repeated(sl.OnePassSGD(b * r / 2, batch=b), 2),
    "Private": lambda r, g, b: sl.Private(sl.OnePassSGD(b * r, batch=b), g, 0.3),
    "Decayed": lambda r, g, b: sl.Decayed(sl.OnePassSGD(b * r, batch=b), 1e-3 * b),
    "Sign SGD": lambda r, g, b: sl.SignSGD(np.sqrt(b) * r * g, batch=b),
    "Adam": lambda r, g, b: sl.Adam(np.sqrt(b) * r * g, begin=g**2 / b, batch=b),
    "Muon": lambda r, g, b: sl.Muon(np.sqrt(b) * r * g, batch=b),
    "Muon 0.9": lambda r, g, b: sl.Muon(np.sqrt(0.1 * b) * r * g, 0.9, batch=b),
}
"""Builders of algorithms: (rate of plain SGD for one sample, typical gradient norm, batch size) to algorithm."""


def algorithm_at(name: str, k: int, c: float, batch: int, noise: float = 0.0) -> sl.Algorithm:
    """Build the named algorithm for k units and a batch size, at the value c of its tuning parameter."""
    # norms of single units or coordinates rather than of the whole gradient
    each = np.sqrt(k) if name in {"Sign SGD", "Adam", "Muon", "Muon 0.9"} else 1.0
    return ALGORITHM_BUILDERS[name](c * k if k > 1 else c / 16, typical_gradient_norm(k, noise) / each, batch)


# --- exit times --------------------------------------------------------------------------------------------------------------


def simulate_exits(
    algorithm: sl.Algorithm, k: int, d: int, runs: int, seed: int, t_max: float, noise: float = 0.0, level: Level | None = None
) -> xr.Dataset:
    """Simulate the chain from random starts, and return the exit times, censored at t_max.

    Another level, such as SGD, takes the chain's place if `level` is given. The plateau is that of k units in d dimensions.
    """
    how: dict[str, Any] = dict(t_max=t_max, runs=runs, seed=seed, until=specialisation_margin, progress=False)
    problem = chain_problem(k, algorithm, noise) if level is None else plateau_problem(k, algorithm, noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sl.DivergedWarning)
        found = sl.simulate(problem, level or sl.Chain(d), random_start(k, d), **how)
    return sl.exit_times(found, specialisation_margin)


def median_exit(exits: xr.Dataset) -> tuple[float, float, float, float]:
    """Return the median exit time with its 95 % interval, and the share of the runs that left the plateau.

    Runs that diverged count as never leaving.
    """
    t = exits.t.where(exits.status != "diverged", np.inf).values
    # censored runs count as later than all others: the median needs no more
    left = np.where(exits.censored, np.inf, t)
    # bootstrap; "higher" and "nearest" keep medians infinite rather than NaN
    drawn = np.random.default_rng(0).choice(left, (1000, left.size))
    medians = np.quantile(drawn, 0.5, axis=1, method="higher")
    low, high = np.quantile(medians, (0.025, 0.975), method="nearest")
    return float(np.quantile(left, 0.5, method="higher")), float(low), float(high), float(np.isfinite(left).mean())


def tune(times: Callable[[float, float], xr.Dataset], cap: float, tried: Sequence[Sequence[float]]) -> float:
    """Return the tuning parameter c with the smallest median exit time, from a coarse grid and then a finer one.

    Here `times` simulates the exit times at a value of c up to a time limit, `cap` is the first limit, and `tried` has the
    values of the coarse grid and the finer grid's factors of the best of them. Runs are followed up to the smallest median so
    far, beyond which a value cannot win. If no median is below the cap, the largest share of runs that left the plateau wins.
    """
    best, score = tried[0][0], (np.inf, 0.0)
    # the second grid has factors of the best value of the first
    for centred, grid in enumerate(tried):
        centre = best if centred else 1.0
        for c in grid:
            median, _, _, share = median_exit(times(centre * c, min(cap, score[0])))
            if (median, -share) < score:
                best, score = centre * c, (median, -share)
    return best


def tune_and_measure(name: str, k: int, batch: int, size: Size, seed: int, noise: float = 0.0) -> dict[str, Any]:
    """Tune an algorithm at the first dimension, and return a table row with its median exit time on another seed.

    The problem has k units and label noise of variance `noise`.
    """
    cap = size.cap * max(k, 2) ** 2
    times = lambda c, end: simulate_exits(algorithm_at(name, k, c, batch, noise), k, size.d, size.tuning, seed, end, noise)
    case = {"rule": name, "batch": batch, "k": k, "noise": noise, "c": tune(times, cap, size.tried)}
    # another seed: the best of many medians is biased
    return measure_exits(case, size.d, size.runs, seed + 1, cap)


def measure_exits(case: dict[str, Any], d: int, runs: int, seed: int, cap: float, level: Level | None = None) -> dict[str, Any]:
    """Simulate the algorithm and problem of a `case`, and return a table row with the median exit time.

    A case is a dict with the algorithm's name (`rule`), its tuning parameter c, k, batch and noise, such as an earlier row.
    """
    name, batch, k, noise, c = (case[each] for each in ("rule", "batch", "k", "noise", "c"))
    median, low, high, left = median_exit(
        simulate_exits(algorithm_at(name, k, c, batch, noise), k, d, runs, seed, cap, noise, level)
    )
    found = dict(rule=name, batch=batch, k=k, d=d, noise=noise, c=c, runs=runs, cap=cap, level=(level or sl.Chain(d)).name)
    return found | {"time": median, "low": low, "high": high, "left": left}


def final_risks(name: str, k: int, batch: int, c: float, size: Size, seed: int) -> np.ndarray:
    """Return the median excess risk of a tuned algorithm at the times `size.final`, in Saad and Solla's units.

    Here c is the tuning parameter and k the number of units.
    """
    problem = chain_problem(k, algorithm_at(name, k, c, batch))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sl.DivergedWarning)
        how: dict[str, Any] = dict(t_max=size.final[-1], save=np.array(size.final), runs=size.tuning, seed=seed, progress=False)
        found = sl.simulate(problem, sl.Chain(size.d), random_start(k, size.d), **how)
    # averaging algorithms are judged by their average
    risk = found.get("risk_average", found.risk).where(found.status != "diverged", np.inf)
    return k**2 * np.median(risk.values, axis=0)


# --- the figure --------------------------------------------------------------------------------------------------------------


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Tune and simulate all algorithms on two plateaus, and draw their median exit times, also against k and d."""
    datasets = {}
    for part, found in (
        ("committee", compare_algorithms(size.k, size, seed)),
        ("phase-retrieval", compare_algorithms(1, size, seed)),
    ):
        datasets[part] = save_dataset(part, tabulate(list(found)))
    plan = [(name, k) for k in size.teachers for name in FOLLOWED_ALGORITHMS if name != "Normalised"]
    datasets["teachers"] = tabulate(
        [tune_and_measure(name, k, size.many, size, seed) for name, k in bar(plan, desc="teachers")]
    )
    save_dataset("teachers", datasets["teachers"])
    datasets["dimensions"] = save_dataset("dimensions", tabulate(list(vary_dimension(datasets, size, seed))))
    both = [*rows_as_dicts(datasets["committee"]), *rows_as_dicts(datasets["phase-retrieval"])]
    # their chain is the limit of diffuse weights, which runs on weights check
    if again := [r for r in both if r["rule"] in {"Sign SGD", "Adam"}]:
        same = (
            measure_exits(r, size.d, size.tuning, seed + 2, r["cap"], sl.SGD(size.d)) for r in bar(again, desc="weights in R^d")
        )
        datasets["space"] = save_dataset("space", tabulate(list(same)))
    return DrawnFigure(_draw_figure(datasets, size), _write_caption(datasets, size))


def compare_algorithms(k: int, size: Size, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a table row with exit time and final risks for each algorithm and batch, on the plateau of k units.

    Muon is left out for one unit and for batches of one sample, where it equals `Normalised`.
    """
    names = [name for name in ALGORITHM_BUILDERS if size.rules is None or name in size.rules]
    plan = [(name, batch) for name in names for batch in size.batches]
    # a rank-one gradient has itself, normalised, as polar factor
    plan = [(name, batch) for name, batch in plan if (name, batch) != ("Muon", 1) and not (k == 1 and "Muon" in name)]
    for name, batch in bar(plan, desc=f"k = {k}"):
        found = tune_and_measure(name, k, batch, size, seed)
        risks = final_risks(name, k, batch, found["c"], size, seed + 1)
        yield found | {f"risk_{t:g}": risk for t, risk in zip(size.final, risks, strict=True)}


def vary_dimension(datasets: dict[str, xr.Dataset], size: Size, seed: int) -> Iterator[dict[str, Any]]:
    """Yield table rows of a few algorithms at further dimensions, and of SGD by its ODE.

    The learning rates are those tuned at the first dimension.
    """
    first = [
        r for part in ("committee", "phase-retrieval") for r in rows_as_dicts(select_rows(datasets[part], batch=size.many))
    ]
    few = [r for r in first if r["rule"] in FOLLOWED_ALGORITHMS]
    # some algorithms are too slow to measure at large d
    fits = lambda r, d: d <= size.most.get(r["rule"], {}).get(r["k"], d)
    plan: list[tuple[dict[str, Any], int, int, Level | None]] = []
    plan += [(r, d, runs, None) for d, runs in size.dimensions.items() for r in few if fits(r, d)]
    plan += [(r, d, size.runs, sl.ODE()) for d in size.limits for r in few if r["rule"] == "SGD"]
    for r, d, runs, level in bar(plan, desc="dimensions"):
        yield measure_exits(r, d, runs, seed + 1, 2 * r["cap"], level)


def _draw_figure(datasets: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, axes = make_panels(2, 2, figsize=(11.0, 8.4), height_ratios=(1.5, 1))
    _draw_comparison(axes[0, 0], datasets["committee"], f"(a) erf committee, $p = k = {size.k}$", size)
    _draw_comparison(axes[0, 1], datasets["phase-retrieval"], "(b) phase retrieval", size)
    _draw_against_d(axes[1, 0], datasets, size)
    _draw_against_k(axes[1, 1], datasets, size)
    return figure


def _error_bars(rows: xr.Dataset) -> tuple[xr.Dataset, np.ndarray]:
    """Return the table rows with a finite median, and error bars, cut at the longest time if an interval is open."""
    rows = rows.isel(point=np.isfinite(rows.time.values))
    return rows, np.stack([rows.time - rows.low, np.maximum(np.minimum(rows.high, rows.cap) - rows.time, 0)])


def _draw_comparison(ax: Axes, rows: xr.Dataset, title: str, size: Size) -> None:
    """Draw the median exit time of each algorithm with its interval, one line each.

    Algorithms whose runs never left the plateau are marked.
    """
    names = list(dict.fromkeys(rows.rule.values.tolist()))
    place = {name: -i for i, name in enumerate(names)}
    for batch, colour, shift in zip(size.batches, OKABE_ITO_COLOURS, (0.15, -0.15), strict=False):
        some = select_rows(rows, batch=batch)
        left, arms = _error_bars(some)
        y = np.array([place[name] for name in left.rule.values]) + shift
        how: dict[str, Any] = dict(fmt="o", color=colour, capsize=2, markersize=5, label=f"batch {batch}")
        ax.errorbar(left.time, y, xerr=arms, **how)
        for name, cap in zip(some.rule.values, some.cap.values, strict=True):
            if name not in left.rule.values:
                ax.annotate("not left", (cap, place[name] + 1.6 * shift), color=colour, ha="right", va="center")
        for plain in select_rows(left, rule="SGD").time.values:
            ax.axvline(plain, color=colour, linewidth=0.8, linestyle=":", zorder=0)
    ax.set_yticks(list(place.values()), names)
    ax.set(xscale="log", ylim=(-len(names) + 0.5, 0.5), xlabel=f"median time to leave, $t$, at $d = {size.d}$")
    set_plain_ticks(ax.xaxis)
    ax.set_title(title, loc="left")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)


def set_plain_ticks(axis: Any) -> None:
    """Set ticks at 1, 2, 5, 10, ... on a logarithmic axis, or at round values if the axis spans less than a factor of 4."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 4 * low else MaxNLocator(5, steps=(1, 2, 5, 10)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _draw_against_d(ax: Axes, datasets: dict[str, xr.Dataset], size: Size) -> None:
    """Draw median exit times of a few algorithms against the dimension, with those of SGD's ODE."""
    for part, dashes, mark in (("committee", "-", "o"), ("phase-retrieval", "--", "s")):
        for name, colour in zip(FOLLOWED_ALGORITHMS, OKABE_ITO_COLOURS, strict=False):
            first = select_rows(datasets[part], rule=name, batch=size.many)
            if not first.sizes["point"]:
                continue
            more = select_rows(datasets["dimensions"], rule=name, k=first.k.values[0])
            # the first dimension was measured with the tuning
            rows, arms = _error_bars(xr.concat([first[list(more.data_vars)], select_rows(more, level="chain")], "point"))
            label = name if part == "committee" else None
            ax.errorbar(rows.d, rows.time, arms, fmt=mark + dashes, color=colour, label=label, capsize=2, markersize=5)
            limit = select_rows(more, level="ode")
            ax.plot(limit.d, limit.time, "x", color=colour, label="SGD by its ODE" if label and limit.sizes["point"] else None)
    below = float(select_rows(datasets["phase-retrieval"], rule="SGD", batch=size.many).time[0])
    if np.isfinite(below):
        ax.annotate("phase retrieval", (size.d, below), (8, 9), textcoords="offset points")
    ax.set(xscale="log", ylim=(0, None), xlabel="$d$", ylabel="median time to leave")
    ax.set_title(f"(c) against $d$, batch {size.many}", loc="left")
    ax.legend(loc="upper left", fontsize=8)


def _draw_against_k(ax: Axes, datasets: dict[str, xr.Dataset], size: Size) -> None:
    """Draw median exit times of SGD and Muon against the number of units k."""
    for name, colour in zip(FOLLOWED_ALGORITHMS[::2], OKABE_ITO_COLOURS[::2], strict=False):
        first = select_rows(datasets["committee"], rule=name, batch=size.many)
        more = select_rows(datasets["teachers"], rule=name)
        rows = xr.concat([first[list(more.data_vars)], more], "point").sortby("k")
        rows, arms = _error_bars(rows)
        ax.errorbar(rows.k, rows.time, arms, fmt="o-", color=colour, label=name, capsize=2, markersize=5)
    ax.set(xscale="log", yscale="log", xlabel="$k$ units and teachers", ylabel="median time to leave")
    ks = sorted({size.k, *size.teachers})
    ax.set_xticks(ks, [str(k) for k in ks])
    ax.minorticks_off()
    set_plain_ticks(ax.yaxis)
    ax.set_title(f"(d) against $k$, $d = {size.d}$, batch {size.many}", loc="left")
    ax.legend()


def _write_caption(datasets: dict[str, xr.Dataset], size: Size) -> list[str]:
    sentences = [
        "Time to leave the plateau, in samples over d: median and 95 % interval, each algorithm at the best of twelve rates,",
        f"chosen on one seed and measured on another ({size.runs} runs, d = {size.d}). A run has left when each teacher has a",
        "unit with a squared cosine above 0.5. Intervals are those of runs at the chosen rate: they leave out the chance in",
        "tuning, and that many algorithms are compared. Only c is tuned; momentum, norms and radii are fixed. Muon has the",
        "exact polar factor and no Nesterov momentum.",
    ]
    for part, where in (("committee", f"Committee of {size.k}"), ("phase-retrieval", "Phase retrieval")):
        for batch in size.batches:
            rows = select_rows(datasets[part], batch=batch)
            words = [
                f"{r['rule']} {describe_time(r)} at c = {r['c']:.2f}, then risk {_describe_final_risks(r, size)}"
                for r in rows_as_dicts(rows)
            ]
            sentences.append(f"{where}, batch {batch}: {'; '.join(words)}.")
    for part, along in (("teachers", "k"), ("dimensions", "d")):
        words = [
            f"{r['rule']}{_describe_condition(r)}, {along} = {r[along]}: {describe_time(r)}"
            for r in rows_as_dicts(datasets[part])
        ]
        sentences.append(f"Batch {size.many}: {'; '.join(words)}.")
    for r in rows_as_dicts(datasets["space"]) if "space" in datasets else ():
        sentences.append(
            f"{r['rule']}{_describe_condition(r)}, batch {r['batch']}, in R^d, {r['runs']} runs: {describe_time(r)}."
        )
    return sentences


def rows_as_dicts(rows: xr.Dataset) -> list[dict[str, Any]]:
    """Convert a table to a list of dicts, one per row."""
    return [{str(name): rows[name].values[i].item() for name in rows.data_vars} for i in range(rows.sizes["point"])]


def describe_time(r: dict[str, Any]) -> str:
    """Describe the median exit time of a table row with its interval, or that it exceeds the time limit."""
    if not np.isfinite(r["time"]):
        return f"not by {r['cap']:g} ({100 * r['left']:.0f} % left)"
    return f"{r['time']:.1f} [{r['low']:.1f}, {r['high']:.1f}]"


def _describe_final_risks(r: dict[str, Any], size: Size) -> str:
    """Describe the excess risks in a table row at the times `size.final`."""
    return ", ".join(f"{r[f'risk_{t:g}']:.1e} at t = {t:g}" for t in size.final)


def _describe_condition(r: dict[str, Any]) -> str:
    """Describe the problem and the level (such as the chain) of a table row for a caption.

    The result is empty for the chain and a committee.
    """
    return (", phase retrieval" if r["k"] == 1 else "") + (" by the ODE" if r["level"] == "ode" else "")

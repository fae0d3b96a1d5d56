"""Tables of docs/noise.md, learning_rate.md and exit_times.md: exit times and ends of learning, chain against theory.

    python benchmarks/mediocrity.py [noise] [delays] [widths] [laws] [ends] [gains] [ways] [--processes N]

prints all of them or those named, rows in N processes. Most of the time goes into the chain at d = 10^6.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np

import sgdlimits as sl
from sgdlimits.papers.mediocrity import theory as mediocrity


class Table(NamedTuple):
    """A table by its head, its cases, and how a case becomes a row."""

    head: tuple[str, ...]
    cases: Iterable[tuple]
    row: Callable[..., tuple]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES], metavar="table", help=", ".join(TABLES))
    parser.add_argument("--processes", type=int, default=1, help="rows computed at once")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.processes, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in arguments.tables or TABLES:
            table = TABLES[name]
            print(f"\n{name}\n\n| {' | '.join(table.head)} |\n|{'---|' * len(table.head)}", flush=True)
            for row in pool.map(table.row, *zip(*table.cases, strict=True)):
                print(f"| {' | '.join(map(str, row))} |", flush=True)


def exit_time_of_one_unit(d: int, lr: float, noise: float, threshold: float, runs: int) -> tuple:
    """Mean exit times of one unit in the paper's time."""
    problem, kappa = sl.presets.phase_retrieval(lr=lr, noise=noise), mediocrity.noise_gain(1, lr, noise)
    theory = (mediocrity.exit_time(problem, d, threshold, which) * lr for which in ("ode", "noisy_ode", "backward"))
    measured = chain(problem, d, threshold, runs)
    return f"{d:,}", f"{lr:.4f}", noise, threshold, f"{kappa:.2f}", runs, measured, *(f"{t:.3f}" for t in theory)


def delays(lr: float) -> tuple:
    """By how much noise delays the mean exit of one unit from given starts, and the share of random starts it delays."""
    values = mediocrity.noise_delay(1, lr, 0.0, STARTS)
    share = 100 * float(mediocrity.delayed_share(lr))
    return f"{lr:.4f}", f"{mediocrity.noise_gain(1, lr):.2f}", *(f"{value:+.3f}" for value in values), f"{share:.0f} %"


def ways_to_learn(d: int, runs: int) -> tuple:
    """Samples per dimension after which half of the plateau's excess risk is gone: one pass, reused data, random features."""
    once = mediocrity.exit_time(sl.presets.phase_retrieval(lr=1 / 12), d, 0.5, "backward")
    counts = np.unique(np.rint(d * np.geomspace(0.5, 8 + d / 2, 24)).astype(int))
    reused = first_below(counts[counts <= 4 * d], lambda n: gradient_descent(d, n, runs))
    features = first_below(counts, lambda n: random_features(d, n, runs))
    return d, runs, f"{once:.1f}", f"{reused / d:.1f}", f"{features / d:.1f}"


def first_below(counts: np.ndarray, excess: Callable[[int], np.ndarray]) -> float:
    """Where the median excess risk falls below 1/2, between two numbers of samples, and stays there for the next."""
    medians = np.array([np.median(excess(int(n))) for n in counts])
    last = int(np.flatnonzero(medians >= 0.5)[-1])
    return (
        float(np.interp(0.5, medians[last : last + 2][::-1], counts[last : last + 2][::-1]))
        if last + 1 < len(counts)
        else np.nan
    )


def gradient_descent(d: int, n: int, runs: int) -> np.ndarray:
    """The excess risk after gradient descent on the empirical risk of n samples: d free units, to the paper's time 20."""
    problem = sl.presets.phase_retrieval(d, sphere=False, algorithm=sl.OnePassSGD(0.2 * d, batch=n))
    t = 20 / float(problem.rate)
    return sl.simulate(problem, sl.SGD(d, reuse=n), sl.RandomInit(d), t_max=t, runs=runs, save=2, progress=False).risk.values[
        :, -1
    ]


def random_features(d: int, n: int, runs: int) -> np.ndarray:
    """The excess risk of the smallest interpolation by infinitely many squared units with random weights."""
    found = []
    for seed in range(runs):
        x = np.random.default_rng(seed).standard_normal((n, d))
        norm = (x**2).sum(1)
        weights = np.linalg.lstsq(2 * (x @ x.T) ** 2 + np.outer(norm, norm), x[:, 0] ** 2, rcond=1e-12)[0]
        K = np.diag(np.eye(d)[0]) - 2 * (x.T * weights) @ x - weights @ norm * np.eye(d)
        found.append(np.trace(K @ K) + np.trace(K) ** 2 / 2)
    return np.array(found)


def exit_time_of_several_units(p: int, g: float, threshold: float, d: int, runs: int) -> tuple:
    """Mean exit times at the learning rate g p in the paper's time."""
    problem, kappa = sl.presets.phase_retrieval(p, lr=g * p), mediocrity.noise_gain(p, g * p)
    averages = ("annealed", "quenched", "ode", "noisy_ode")
    theory = (mediocrity.exit_time(problem, d, threshold, which) * g for which in averages)
    return p, g, threshold, f"{kappa:.2f}", runs, chain(problem, d, threshold, runs), *(f"{t:.3f}" for t in theory)


def law_of_exit_times(name: str, d: int, runs: int) -> tuple:
    """Quantiles of the exit time in t, of the chain with a normal interval of one standard error, and of `exit_law`."""
    problem, threshold = NETWORKS[name]
    shares = np.array([0.1, 0.5, 0.9])
    law = mediocrity.exit_law(problem, d, threshold)
    how: dict = dict(t_max=law.quantile(0.999) * 1.5, runs=runs, until=sl.exits(threshold), progress=False)
    t = np.sort(sl.exit_times(sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), **how), threshold).t.values)
    error = np.sqrt(shares * (1 - shares) / runs) / law.pdf(law.quantile(shares))
    measured = (f"{q:.2f} ± {e:.2f}" for q, e in zip(np.quantile(t, shares), error, strict=True))
    return name, f"{d:,}", runs, *(f"{a}; {b:.2f}" for a, b in zip(measured, law.quantile(shares), strict=True))


NETWORKS = {
    "two units": (sl.presets.phase_retrieval(2, lr=0.2), 0.1),
    "five units": (sl.presets.phase_retrieval(5, lr=0.4), 0.1),
    "two, off the sphere": (sl.presets.phase_retrieval(2, lr=0.05, sphere=False), 0.4),
    "two, both layers": (sl.presets.phase_retrieval(2, lr=0.05, sphere=False, train_second=True), 0.4),
}


def end_of_learning(p: int, noise: float, name: str) -> tuple:
    """Excess risk at the end: ODE from random starts, chain averaged over its last tenth, learnt state, and (8)."""
    usable = float(mediocrity.usable_lr(p, noise))
    lr = {"published optimum": float(mediocrity.optimal_lr(p, noise))}.get(name) or float(name.split()[0]) * usable
    g, start = lr / p, sl.RandomInit(2000)
    problem = sl.presets.phase_retrieval(p, lr=lr, noise=noise)
    limit = sl.simulate(problem, sl.ODE(), start, t_max=500 / g, runs=4, save=2, progress=False).risk[:, -1]
    late = np.linspace(54, 60, 200) / g
    walk = sl.simulate(problem, sl.Chain(2000), start, t_max=60 / g, runs=8, save=late, progress=False).risk
    theory = float(mediocrity.asymptotic_excess_risk(p, lr, noise))
    eight = g * noise / (1 - 6 * g) if g * (12 + noise) < 2 else np.nan
    values = (float(limit.mean()) - noise / 2, float(walk.mean()) - noise / 2, theory, eight)
    return p, noise, f"{g:.4f}", name, *("" if np.isnan(value) else f"{value:.3f}" for value in values)


def gains(noise: float) -> tuple:
    """How many times fewer samples than one unit: published, and within the usable rates."""
    pairs = ((mediocrity.overparametrisation_gain(p, noise), mediocrity.usable_gain(p, noise)) for p in WIDTHS)
    return noise, *(f"{published:.2f}, {usable:.2f}" for published, usable in pairs)


def chain(problem: sl.ProjectionProblem, d: int, threshold: float, runs: int) -> str:
    """Mean and standard error of the chain's exit times, in the paper's time."""
    stop = sl.exits(threshold)
    found = sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), t_max=2000, runs=runs, until=stop, progress=False)
    times = sl.exit_times(found, threshold)
    if times.censored.any():
        return "censored"
    values = times.t.values * float(problem.rate)
    return f"{values.mean():.3f} ± {values.std() / np.sqrt(runs):.3f}"


STARTS = (0.125, 0.25, 0.5, 1.0, 2.0, 3.0)
WIDTHS = (2, 3, 5, 10, 20, np.inf)
RATES = ("0.5 usable", "0.97 usable", "1.03 usable", "published optimum")
TABLES = {
    "noise": Table(
        ("d", "lr", "noise", "T", "κ", "runs", "chain", "quenched ODE", "less δ", "backward"),
        [
            (10**3, 1 / 12, 0.0, 0.1, 8192),
            (10**4, 1 / 12, 0.0, 0.1, 4096),
            (10**5, 1 / 12, 0.0, 0.1, 1024),
            (10**6, 1 / 12, 0.0, 0.1, 128),
            (10**3, 0.03, 0.0, 0.2, 8192),
            (10**3, 0.12, 0.0, 0.2, 8192),
            (10**3, 1 / 12.5, 0.5, 0.2, 8192),
            (10**3, 1 / 12, 0.0, 0.5, 8192),
            (10**3, 1 / 12, 0.0, 0.9, 8192),
        ],
        exit_time_of_one_unit,
    ),
    "delays": Table(("lr", "κ", *(f"{y:g}" for y in STARTS), "delayed"), [(0.03,), (1 / 12,), (0.12,)], delays),
    "widths": Table(
        ("p", "lr/p", "T", "κ", "runs", "chain", "annealed (47)", "quenched (46)", "quenched ODE", "less δ"),
        [
            (p, g, T, 10**4, runs)
            for p, runs in ((1, 2048), (2, 2048), (5, 1024), (20, 128))
            for g, T in ((0.05, 0.05), (0.1, 0.05), (0.1, 0.5), (0.16, 0.05))
        ],
        exit_time_of_several_units,
    ),
    "laws": Table(
        ("network", "d", "runs", "10 %: chain; law", "50 %", "90 %"),
        [
            *((name, 10**3, 2048) for name in NETWORKS),
            *((name, 10**4, 512) for name in NETWORKS),
            ("two units", 10**5, 256),
            ("two units", 10**6, 32),
        ],
        law_of_exit_times,
    ),
    "ends": Table(
        ("p", "noise", "lr/p", "rate", "ODE", "chain", "learnt state", "(8)"),
        [(p, noise, name) for p in (2, 5, 20) for noise in (0.0, 1.0) for name in RATES],
        end_of_learning,
    ),
    "gains": Table(
        ("noise", *(f"p = {p:g}" if np.isfinite(p) else "p → ∞" for p in WIDTHS)),
        [(0.0,), (0.1,), (1.0,), (5.0,), (10.0,)],
        gains,
    ),
    "ways": Table(
        ("d", "runs", "one pass, one unit", "reused, d units", "random features"), [(12, 16), (24, 16), (48, 8)], ways_to_learn
    ),
}

if __name__ == "__main__":
    main()

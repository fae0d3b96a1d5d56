"""What a sweep costs beside its simulations: CPU seconds of all processes. Usage: python benchmarks/sweeps.py [--full]

The diagram is the one that users wait for: 20 x 20 points of lr and noise at d = 1000 with 64 runs each. With `--full` a
cluster of dask computes 1,000 units while one of its two workers is killed.
"""

from __future__ import annotations

import io
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import sgdlimits as sl


def cpu() -> float:
    """User and system seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measured(work) -> tuple[float, float]:
    begin, clock = cpu(), time.perf_counter()
    work()
    return cpu() - begin, time.perf_counter() - clock


def diagram() -> None:
    over = sl.grid(lr=np.linspace(0.02, 0.3, 20), noise=np.linspace(0, 8, 20))
    how = dict(over=over, runs=64, t_max=20, keep="relative_risk", progress=False)
    with tempfile.TemporaryDirectory() as folder:
        sweep = lambda: sl.sweep("phase_retrieval", sl.Chain(1000), sl.RandomInit(1000), folder=folder, **how)
        first, again = measured(sweep), measured(sweep)
    print(f"20 x 20 diagram, d = 1000, 64 runs, t = 20: {first[0]:.1f} CPU s, {first[1]:.1f} s")
    print(f"the same, when all is there:               {again[0]:.1f} CPU s, {again[1]:.1f} s")


def overhead(units: int = 8) -> None:
    """Units of about a second each, in a sweep and without one."""
    rates, level, start = np.linspace(0.05, 0.1, units), sl.Chain(1000), sl.RandomInit(1000)
    how = dict(runs=256, t_max=200.0)
    one = lambda lr: sl.simulate(sl.presets.phase_retrieval(lr=lr), level, start, save=2, progress=False, **how)
    one(0.04)  # compiles
    alone, swept = [], []
    for lr in rates.tolist():  # by turns: the machine may be busy
        alone.append(measured(lambda lr=lr: one(lr))[0])
        with tempfile.TemporaryDirectory() as folder:
            over = sl.grid(lr=[lr])
            work = lambda over=over, folder=folder: sl.sweep(
                "phase_retrieval", level, start, over=over, folder=folder, keep="final_risk", progress=False, **how
            )
            swept.append(measured(work)[0])
    share = np.median(swept) / np.median(alone) - 1
    print(f"units of {np.median(alone):.2f} CPU s: {np.median(swept):.2f} in a sweep, {100 * share:.1f}% more")


def together(units: int = 32) -> None:
    """One run at each point, by turns as one batch and point by point."""
    from sgdlimits.run.sweeps.job import Sweep
    from sgdlimits.run.sweeps.recipe import Recipe
    from sgdlimits.run.sweeps.unit import compute_unit, compute_units

    recipe = Recipe.of("phase_retrieval", sl.Chain(30_000), sl.RandomInit(30_000), t_max=30.0, keep="final_risk")
    points = Sweep.of(recipe, sl.grid(lr=np.linspace(0.05, 0.1, units)), 1, "nowhere").units
    compute_unit(recipe, points[0])  # compiles
    batch, alone = [], []
    for _ in range(3):
        batch.append(measured(lambda: list(compute_units(recipe, points)))[0])
        alone.append(measured(lambda: [compute_unit(recipe, unit) for unit in points])[0])
    spent = f"{np.median(batch):.2f} CPU s as one batch, {np.median(alone):.2f} point by point"
    print(f"{units} points with one run, d = 30,000, t = 30: {spent}")


def files(count: int = 30) -> None:
    """A small file as it is written here, and by xarray, by turns."""
    from sgdlimits.run import netcdf

    go = dict(t_max=2, runs=4, save=5, progress=False)
    dataset = sl.simulate(sl.presets.phase_retrieval(lr=0.05), sl.Chain(100), sl.RandomInit(100), **go)
    ways = {"here": lambda: netcdf.write(dataset, io.BytesIO()), "xarray": lambda: dataset.to_netcdf(engine="h5netcdf")}
    spent = {name: measured(way)[0] for name, way in ways.items()}  # imports
    for _ in range(3):
        for name, way in ways.items():
            spent[name] = min(spent[name], measured(lambda way=way: [way() for _ in range(count)])[0] / count)
    print("a small file: " + ", ".join(f"{1e3 * seconds:.1f} CPU ms {name}" for name, seconds in spent.items()))


def cluster(units: int = 1000) -> None:
    from distributed import Client, LocalCluster

    from sgdlimits.run.sweeps.cluster import Dask
    from sgdlimits.run.sweeps.job import Sweep
    from sgdlimits.run.sweeps.recipe import Recipe
    from sgdlimits.run.sweeps.store import Folder

    recipe = Recipe.of("phase_retrieval", sl.Chain(30), sl.RandomInit(30), t_max=1.0, keep="final_risk")
    with tempfile.TemporaryDirectory() as folder:
        job = Sweep.of(recipe, sl.grid(lr=np.linspace(0.01, 0.1, units)), 4, folder)
        done, begin = [], time.perf_counter()
        with LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=None, silence_logs=50) as local:
            with Client(local) as client:
                victim = min(client.run(os.getpid).values())
            for outcome in Dask(local.scheduler_address).run(recipe, Folder(folder), job.units):
                done.append(outcome)
                if len(done) == units // 3:
                    os.kill(victim, 9)
        names, files = {outcome.unit.name for outcome in done}, len(list(Path(folder).glob("*.nc")))
        print(
            f"dask, one of two workers killed: {len(done)} results, {len(names)} units, {files} files, "
            f"{sum(outcome.what != 'done' for outcome in done)} failures, {time.perf_counter() - begin:.0f} s"
        )


if __name__ == "__main__":
    diagram()
    overhead()
    together()
    files()
    if "--full" in sys.argv:
        cluster()

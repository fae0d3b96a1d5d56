"""Size, estimated duration and progress of a sweep, as rows of tables for the command line."""

from __future__ import annotations

import os
import time
import warnings

from sgdlimits.progress import format_duration
from sgdlimits.run.simulate import simulate_runs
from sgdlimits.run.sweeps.job import Sweep
from sgdlimits.run.sweeps.store import Folder, missing_units
from sgdlimits.run.sweeps.unit import Unit
from sgdlimits.text import format_bytes, format_count

TRIAL_SECONDS = 1.0
"""Approximate time in seconds spent on trial simulations at each point that is tried for an estimate."""
OVERHEAD_SECONDS = 0.035
"""Time in seconds of a work unit beside its steps: building the problem and the dataset, and writing the file."""
OVERHEAD_BYTES = 20_000
"""Bytes in the file of a work unit beside its values."""
RATE_WINDOW_SECONDS = 600.0
"""Length in seconds of the recent period over which the rate of finished work units is measured."""


def estimate_sweep(job: Sweep) -> dict[str, str]:
    """Estimate the size of a sweep and the time left, from short simulations at its first, middle and last point.

    The result maps the names of quantities, such as "runs", to strings for a table.
    """
    units = job.units
    left = list(missing_units(Folder(job.folder), units)) if os.path.isdir(job.folder) else units
    tries = list({unit.key: unit for unit in (units[0], units[len(units) // 2], units[-1])}.values())
    found = [_measure_unit(job, unit) for unit in tries]
    seconds = sum(one for one, _ in found) / len(found)
    size = max(bytes_ for _, bytes_ in found)
    kept = OVERHEAD_BYTES + (size if not job.recipe.keep else 8 * 4 * job.runs)
    time_left = f"about {format_duration(seconds * len(left))} on one core"
    return {
        "points": str(len(job.design)),
        "units": f"{len(units)}, of which {len(left)} are left to compute",
        "runs": f"{sum(unit.last - unit.first for unit in units)} in all",
        "memory": f"about {format_bytes(3 * size + 2**28)} for one unit",
        "disk": f"about {format_bytes(kept * len(units))} for all",
        "time": f"{time_left}, from a try at {len(tries)} of the points; less where runs stop",
    }


def _measure_unit(job: Sweep, unit: Unit) -> tuple[float, float]:
    """Estimate the processor time in seconds and the size in bytes of a work unit from shorter simulations.

    The simulated fraction of `t_max` grows until the simulation takes long enough to be measured.
    """
    problem, level, start, t_max = job.recipe.build_simulation(unit.point).values()
    least = 2.0 * problem.numerics.samples_per_step / (getattr(level, "d", None) or 1)  # the time of two steps
    runs, seed = range(unit.first, unit.last), unit.whole["seed"]
    simulate = lambda share: simulate_runs(problem, level, start, runs, seed=seed, t_max=max(least, share * t_max), save=2)
    share = 1 / 512
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulate(share)  # compiles
        while True:
            begin = time.process_time()
            dataset = simulate(share)
            spent = time.process_time() - begin
            # Each attempt is four times as long as the one before: all together take about `TRIAL_SECONDS`.
            if spent > TRIAL_SECONDS / 8 or share >= 1:
                break
            share = min(1.0, share * 4)
    times = job.recipe.save if isinstance(job.recipe.save, int) else len(job.recipe.save) if job.recipe.save else 200
    return OVERHEAD_SECONDS + spent / share, dataset.nbytes / dataset.sizes["t"] * times


def report_progress(job: Sweep) -> dict[str, str]:
    """Report the progress of a sweep from the files in its folder; any process may compute the sweep.

    The result maps the names of quantities, such as "done", to strings for a table.
    """
    total = len(job.units)
    if not os.path.isdir(job.folder):
        return {"done": f"0 of {format_count(total, 'unit')}", "last result": "none yet"}
    folder = Folder(job.folder)
    left, now = list(missing_units(folder, job.units)), time.time()
    done = total - len({unit.key for unit in left})
    rows = {"done": f"{done} of {format_count(total, 'unit')}"}
    if failed := sum(folder.read_failure(unit) is not None for unit in left):
        rows["failed"] = f"{failed}; the notes *.failed.json in {job.folder} say why"
    ages = sorted(now - entry.path.lstat().st_mtime for entry in folder.list_files())
    # The rate of recent files: a sweep may have been interrupted for days, or have gained workers.
    lately = [age for age in ages if age < RATE_WINDOW_SECONDS]
    if len(lately) > 2 and done < total:
        rate = (len(lately) - 1) / max(lately[-1] - lately[0], 1e-9)
        rows |= {"rate": f"{rate:.3g} units a second", "time left": format_duration((total - done - failed) / rate)}
    return rows | {"last result": f"{format_duration(ages[0])} ago" if ages else "none yet"}

"""How large a sweep is, about how long it takes, from a short try, and how far it is: rows of a table, by name."""

from __future__ import annotations

import os
import time
import warnings

from sgdlimits.progress import format_duration
from sgdlimits.run.simulate import simulate_runs
from sgdlimits.run.sweeps.job import Sweep
from sgdlimits.run.sweeps.store import Folder, missing
from sgdlimits.run.sweeps.unit import Unit
from sgdlimits.text import count, format_bytes

TRY_SECONDS = 1.0
"""About how long a calibration may take at each of the points that are tried."""
OVERHEAD_SECONDS, OVERHEAD_BYTES = 0.035, 20_000
"""What a unit costs beside its steps: it is built, looked at, and written."""
LATELY = 600.0
"""Seconds over which the rate of a sweep is taken."""


def estimate(job: Sweep) -> dict[str, str]:
    """The size of a sweep and the time that is left, from short simulations at its first, middle and last point."""
    units = job.units
    left = list(missing(Folder(job.folder), units)) if os.path.isdir(job.folder) else units
    tries = list({unit.key: unit for unit in (units[0], units[len(units) // 2], units[-1])}.values())
    found = [_tried(job, unit) for unit in tries]
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


def _tried(job: Sweep, unit: Unit) -> tuple[float, float]:
    """Seconds of processor time and bytes of a unit, from a share of its time that grows until it can be measured."""
    problem, level, start, t_max = job.recipe.simulation(unit.point).values()
    least = 2.0 * problem.numerics.samples_per_step / (getattr(level, "d", None) or 1)
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
            if spent > TRY_SECONDS / 8 or share >= 1:
                break
            share = min(1.0, share * 4)
    times = job.recipe.save if isinstance(job.recipe.save, int) else len(job.recipe.save) if job.recipe.save else 200
    return OVERHEAD_SECONDS + spent / share, dataset.nbytes / dataset.sizes["t"] * times


def status(job: Sweep) -> dict[str, str]:
    """How far a sweep is, from its folder alone: whoever computes it, wherever."""
    total = len(job.units)
    if not os.path.isdir(job.folder):
        return {"done": f"0 of {count(total, 'unit')}", "last result": "none yet"}
    folder = Folder(job.folder)
    left, now = list(missing(folder, job.units)), time.time()
    done = total - len({unit.key for unit in left})
    rows = {"done": f"{done} of {count(total, 'unit')}"}
    if failed := sum(folder.failure(unit) is not None for unit in left):
        rows["failed"] = f"{failed}; the notes *.failed.json in {job.folder} say why"
    ages = sorted(now - entry.path.lstat().st_mtime for entry in folder.entries())
    lately = [age for age in ages if age < LATELY]
    if len(lately) > 2 and done < total:
        rate = (len(lately) - 1) / max(lately[-1] - lately[0], 1e-9)
        rows |= {"rate": f"{rate:.3g} units a second", "time left": format_duration((total - done - failed) / rate)}
    return rows | {"last result": f"{format_duration(ages[0])} ago" if ages else "none yet"}

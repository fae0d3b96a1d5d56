"""The verb: simulate a problem at many points, and lose nothing."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import xarray as xr

from sgdlimits.domain import Positive, SavedTimes, Seed, Size, checked
from sgdlimits.errors import BadInput, check_count, shorten
from sgdlimits.files import clear
from sgdlimits.progress import bar
from sgdlimits.run.sweeps.cluster import Dask
from sgdlimits.run.sweeps.collect import collect
from sgdlimits.run.sweeps.design import Design, as_design
from sgdlimits.run.sweeps.engine import Here, SweepEngine
from sgdlimits.run.sweeps.pool import Pool
from sgdlimits.run.sweeps.recipe import END, OPTIMISER, Recipe
from sgdlimits.run.sweeps.refine import Refine, as_refine
from sgdlimits.run.sweeps.store import Folder, missing
from sgdlimits.run.sweeps.unit import Unit, unit_of
from sgdlimits.run.sweeps.worker import DONE, UNWRITTEN, Outcome
from sgdlimits.text import count

_BAR = "{desc}: {n_fmt} of {total_fmt} units|{bar}| {elapsed}<{remaining}, {rate_fmt}{postfix}"
SHOWN = 3
"""How many failures are told in full."""


class SweepStopped(KeyboardInterrupt):
    """Ctrl-C during a sweep. What is done is in its folder, and the same sweep goes on from there."""


class SweepFailed(UserWarning):
    """Some units of a sweep could not be computed; the folder has notes that say why."""


@dataclass(frozen=True)
class Sweep:
    """A sweep that was checked: a recipe, its points, how many runs of each, and the folder. `shard` is (i, n)."""

    recipe: Recipe
    design: Design
    runs: int
    folder: str
    shard: tuple[int, int] | None = None
    refine: Refine | None = None

    @classmethod
    def of(
        cls, recipe: Recipe, over: Any, runs: int, folder: str | os.PathLike, shard: Any = None, refine: Any = None
    ) -> Sweep:
        design = as_design(over)
        fixed = {name: [value] for name, value in recipe.fixed.items()}
        varied = {name: design.values(name) for name in design.names}
        wrong = list(mistakes(recipe, {**fixed, **varied}, varied.get(OPTIMISER)))
        wrong += [f"{name} is both fixed and varied. Leave one of them out." for name in varied if name in fixed]
        if wrong:
            raise BadInput(wrong[0] if len(wrong) == 1 else "\n  ".join([f"there are {len(wrong)} mistakes:", *wrong]))
        recipe.simulation(design.points[0])
        found = None if refine is None else as_refine(refine, recipe, design)
        return cls(recipe, design, runs, os.fspath(folder), refine=found).part(shard)

    def part(self, shard: tuple[int, int] | None) -> Sweep:
        """The i-th of n parts, for (i, n)."""
        if self.refine is not None and shard is not None:
            raise BadInput("refine needs all points, and a shard has some. Refine when all shards are done.")
        return dataclasses.replace(self, shard=shard)

    @cached_property
    def units(self) -> list[Unit]:
        """All units, or those of the shard, as their points come."""
        units = [unit_of(self.recipe, point, 0, self.runs) for point in self.design.points]
        index, shards = self.shard or (1, 1)
        return [unit for unit in {unit.key: unit for unit in units}.values() if int(unit.key, 16) % shards == index - 1]


def mistakes(recipe: Recipe, columns: dict[str, list], optimisers: Iterable[Any] | None = None) -> Iterable[str]:
    """What is wrong with values of parameters, a sentence each; `optimisers` are those that the points have."""
    known = list(optimisers or [recipe.fixed.get(OPTIMISER)])
    for name, values in columns.items():
        try:
            for optimiser, value in product(known, values):
                recipe.check(name, value, optimiser)
            if name not in (OPTIMISER, END) and not any(recipe.users(name, optimiser) for optimiser in known):
                yield f"{name} is a parameter of none of the optimisers {', '.join(map(str, known))}. Leave it out."
        except BadInput as reason:
            yield str(reason)


@checked
def sweep(
    preset: Any,
    level: Any,
    start: Any,
    *,
    over: Any,
    folder: str | os.PathLike,
    runs: Size = 1,
    t_max: Positive | None = None,
    seed: Seed = 0,
    keep: Any = None,
    engine: Any = None,
    fixed: dict[str, Any] | None = None,
    save: SavedTimes | None = None,
    until: Any = None,
    common: bool = False,
    refine: Any = None,
    shard: tuple[int, int] | None = None,
    retry: bool = False,
    progress: bool = True,
    kernel: str | None = None,
) -> xr.Dataset:
    """Simulate a problem at many points, each a unit whose file is skipped where it is there already.

    The same call goes on after any interruption. More values or more runs compute only what is new, and what comes out is, bit
    by bit, that of one larger sweep.

    Parameters
    ----------
    preset : the name of a preset, or a function that returns a problem, by which parameters it takes
    level : such as `Chain(d=3000)`, or its name, "chain", where points or `fixed` give its parameters
    start : such as `RandomInit(d=3000)`, or its name: "random", "orthogonal" or "fixed"
    over : the points: `grid(lr=[...], noise=[...])`, `random_points(...)`, or a list of dictionaries. Parameters are those of
        the problem, the level and the start by name (`d` is that of the level and of the start), `optimiser` with the
        parameters of algorithms, and `t_max`
    folder : where results are kept, a file for each unit
    runs, t_max, save, until, kernel : as for `simulate`, at each point
    seed : a whole number; each point has random numbers of its own, which follow from it and from all parameters
    keep : None for whole trajectories, or what to keep of each: "final_risk", "excess_risk", "relative_risk", "learnt",
        "overlap", "accuracy", "exit_time", "fixed_point_count", several of them, a dictionary with their options, or functions
        of the dataset of `simulate`. Where it is the exit time alone, runs stop there
    engine : where it is computed: None, in this process; a number of processes; "local", "slurm", the address of a scheduler,
        or a cluster such as `distributed.LocalCluster`, through dask (docs/sweeps.md). The same files come out
    fixed : parameters that all points share
    common : whether all points have the same random numbers, for differences between points; otherwise these are independent
    refine : what to refine the grid along a boundary of: the name of a variable, or `Refine(...)`
    shard : (i, n) computes the i-th of n parts, the first is 1
    retry : whether to try units again that failed before
    progress : whether to show how far it is

    Returns
    -------
    xarray.Dataset, that of `collect` for these points and runs; empty where a shard has none

    Examples
    --------
    >>> import tempfile, sgdlimits as sl
    >>> over = sl.grid(lr=[0.05, 0.1], noise=[0.0, 1.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     risk = sl.sweep("phase_retrieval", sl.Chain(100), sl.RandomInit(100), over=over, folder=folder, runs=8, t_max=5,
    ...                     keep="final_risk").final_risk
    >>> dict(risk.sizes)
    {'lr': 2, 'noise': 2, 'run': 8}
    """
    how: dict[str, Any] = {"fixed": fixed, "t_max": t_max, "save": save, "until": until, "keep": keep, "kernel": kernel}
    recipe = Recipe.of(preset, level, start, seed=seed, common=common, **how)
    job = Sweep.of(recipe, over, runs, folder, as_shard(shard), refine)
    done = compute_sweep(job, engine, retry=retry, progress=progress)
    return collect(folder, keys=[unit.key for unit in done], runs=runs) if done else xr.Dataset()


def compute(job: Sweep, engine: Any = None, *, retry: bool = False, progress: bool = True) -> list[Unit]:
    """Compute what is missing, and refine: all units of the sweep in the end."""
    folder, where = Folder(job.folder, make=True), as_engine(engine)
    units, refine = _computed(job, folder, where, retry, progress), job.refine
    while refine is not None and refine.rounds > 0:
        points, refine = refine.more(job.recipe, job.design, folder, job.runs)
        if not points:
            break
        job = dataclasses.replace(job, design=Design((*job.design.points, *points), job.design.axes))
        units = _computed(job, folder, where, retry, progress)
    return units


def _computed(job: Sweep, folder: Folder, engine: Any, retry: bool, progress: bool) -> list[Unit]:
    units = job.units
    todo = list(missing(folder, units))
    failed = {unit.name: error for unit in todo if not retry and (error := folder.failure(unit))}
    alike = lambda unit: repr([value for value in unit.point.values() if not isinstance(value, float)])
    todo = sorted((unit for unit in todo if unit.name not in failed), key=alike)  # those that compile alike are neighbours
    done, total = len(units) - len({unit.key for unit in todo}) - len(failed), len(units)
    if todo:
        turn = os.getpid() % len(todo)  # sweeps into one folder at once begin at different units
        with bar(total=total, initial=done, disable=not progress, desc="sweep", unit="unit", bar_format=_BAR) as shown:
            computing = engine.run(job.recipe, folder, todo[turn:] + todo[:turn])
            running = _until_asked(computing)
            try:
                for unit, what, error in running:
                    if what == UNWRITTEN:  # all others would meet the same
                        raise BadInput(error)
                    if what != DONE:
                        folder.fail(unit, error)
                        failed[unit.name] = error
                        shown.set_postfix_str(count(len(failed), "failure"), refresh=False)
                    done += what == DONE
                    shown.update()
            except KeyboardInterrupt:
                kept = f"{done} of {count(total, 'unit')} are done and kept in {job.folder}"
                raise SweepStopped(f"interrupted; {kept}, and the same sweep goes on") from None
            finally:
                running.close()
                computing.close()
                clear(folder.path)  # what processes that were killed have left
    if failed:
        _tell(job.folder, failed, total)
    return units


def _until_asked(outcomes: Iterator[Outcome]) -> Generator[Outcome, None, None]:
    """Outcomes up to Ctrl-C, also where it came in code that cannot raise it, such as that of a weak reference."""
    asked: list[int] = []
    before: dict[int, Any] = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: Any) -> None:
        try:
            before[number](number, frame)
        except KeyboardInterrupt:
            asked.append(number)
            raise

    heard = [each for each, handler in before.items() if callable(handler)]
    main, usual = threading.current_thread() is threading.main_thread(), sys.unraisablehook
    try:
        sys.unraisablehook = lambda told: None if told.exc_type is KeyboardInterrupt else usual(told)
        for each in heard if main else ():
            signal.signal(each, ask)
        for outcome in outcomes:
            yield outcome
            if asked:
                raise KeyboardInterrupt
    finally:
        sys.unraisablehook = usual
        for each in heard if main else ():
            signal.signal(each, before[each])


def _tell(folder: str, failed: dict[str, str], total: int) -> None:
    each = list(dict.fromkeys(failed.values()))
    words = "; ".join(each[:SHOWN]) + (f"; and {len(each) - SHOWN} other reasons" if len(each) > SHOWN else "")
    what = (
        f"{len(failed)} of {count(total, 'unit')} failed: {words.rstrip('.')}. The notes *.failed.json in {folder} say which."
    )
    if len(failed) == total:
        raise BadInput(f"{what} Correct what they have in common, and give retry=True to try them again.")
    warnings.warn(f"{what} Give retry=True to try them again.", SweepFailed, stacklevel=4)


def as_engine(engine: Any) -> SweepEngine:
    """An engine from what users give: None, a number of processes, a scheduler's address, or an engine."""
    if engine is None:
        return Here()
    if isinstance(engine, SweepEngine):
        return engine
    if isinstance(engine, int) and not isinstance(engine, bool) and engine >= 1:
        return Pool(engine)
    if isinstance(engine, str):
        return Dask.of(engine)
    if isinstance(address := getattr(engine, "scheduler_address", None), str):  # a cluster of dask, such as LocalCluster
        return Dask.of(address)
    if isinstance(address := getattr(getattr(engine, "scheduler", None), "address", None), str):  # its Client
        return Dask.of(address)
    raise BadInput(
        f"engine must be a number of processes, the address of a dask scheduler, a dask cluster, or 'local' or 'slurm'; got "
        f"{shorten(engine)}. "
        "Leave it out to compute in this process."
    )


def as_shard(shard: Any) -> tuple[int, int] | None:
    """(i, n) from what users give."""
    if shard is None:
        return None
    try:
        index, shards = (check_count("shard", int(each) if isinstance(each, str) else each) for each in shard)
        if index > shards:
            raise ValueError
    except (TypeError, ValueError):
        raise BadInput(
            f"shard must be (i, n) with i from 1 to n; got {shorten(shard)}. Give such as (1, 10); 1/10 on a command line."
        ) from None
    return index, shards

"""`sweep`: simulate a problem at many parameter values, resumable after any interruption."""

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
from sgdlimits.files import remove_partial_files
from sgdlimits.progress import bar
from sgdlimits.run.sweeps.cluster import Dask
from sgdlimits.run.sweeps.collect import collect
from sgdlimits.run.sweeps.design import Design, as_design
from sgdlimits.run.sweeps.engine import InProcessEngine, SweepEngine
from sgdlimits.run.sweeps.pool import PoolEngine
from sgdlimits.run.sweeps.recipe import FINAL_TIME, OPTIMISER, Recipe
from sgdlimits.run.sweeps.refine import Refine, as_refine
from sgdlimits.run.sweeps.store import Folder, missing_units
from sgdlimits.run.sweeps.unit import Unit, make_unit
from sgdlimits.run.sweeps.worker import DONE, NOT_WRITTEN, UnitOutcome
from sgdlimits.text import format_count

_BAR_FORMAT = "{desc}: {n_fmt} of {total_fmt} units|{bar}| {elapsed}<{remaining}, {rate_fmt}{postfix}"
MAX_REASONS = 3
"""Maximum number of different error messages quoted in the warning about failed work units."""


class SweepStopped(KeyboardInterrupt):
    """Exception for Ctrl-C during a sweep. Its finished results are stored, and the same call of `sweep` continues it."""


class SweepFailed(UserWarning):
    """Warning that some results of a sweep could not be computed; notes in its folder give the reasons."""


@dataclass(frozen=True)
class Sweep:
    """Sweep to compute: its points, the recipe of the simulation at a point, the runs per point, and the folder of results.

    `Sweep.from_arguments` checks the arguments.

    Parameters
    ----------
    recipe : problem, level, start and options, from which the simulation at a point is built
    design : points of the sweep
    runs : number of runs of each point
    folder : folder of the results
    shard : (i, n) for the i-th of n parts, from 1 on; None for the whole sweep
    refine : adaptive refinement, if any
    """

    recipe: Recipe
    design: Design
    runs: int
    folder: str
    shard: tuple[int, int] | None = None
    refine: Refine | None = None

    @classmethod
    def from_arguments(
        cls, recipe: Recipe, over: Any, runs: int, folder: str | os.PathLike, shard: Any = None, refine: Any = None
    ) -> Sweep:
        """Return the sweep with the given arguments, checked at all points; raise one `BadInput` with all mistakes."""
        design = as_design(over)
        fixed = {name: [value] for name, value in recipe.fixed.items()}
        varied = {name: design.values(name) for name in design.parameter_names}
        wrong = list(find_mistakes(recipe, {**fixed, **varied}, varied.get(OPTIMISER)))
        wrong += [f"{name} is both fixed and varied. Leave it out of one of them." for name in varied if name in fixed]
        if wrong:
            raise BadInput(wrong[0] if len(wrong) == 1 else "\n  ".join([f"there are {len(wrong)} mistakes:", *wrong]))
        recipe.build_simulation(design.points[0])  # a trial: errors that the checks miss are raised before any unit is computed
        found = None if refine is None else as_refine(refine, recipe, design)
        return cls(recipe, design, runs, os.fspath(folder), refine=found).take_shard(shard)

    def take_shard(self, shard: tuple[int, int] | None) -> Sweep:
        """Return the i-th of n parts of the sweep, for `shard` = (i, n); None returns the whole sweep."""
        if self.refine is not None and shard is not None:
            raise BadInput("refine needs all points of a sweep, and a shard has only some. Refine when all shards are done.")
        return dataclasses.replace(self, shard=shard)

    @cached_property
    def units(self) -> list[Unit]:
        """Work units of the sweep or of its shard, in the order of the points; a unit is some runs at one point."""
        units = [make_unit(self.recipe, point, 0, self.runs) for point in self.design.points]
        index, shards = self.shard or (1, 1)
        # Shards are chosen by the hash of a unit: every process agrees on them without knowing the others.
        return [unit for unit in {unit.key: unit for unit in units}.values() if int(unit.key, 16) % shards == index - 1]


def find_mistakes(recipe: Recipe, columns: dict[str, list], optimisers: Iterable[Any] | None = None) -> Iterable[str]:
    """Yield a sentence for each mistake in the names and values of a sweep's parameters.

    Parameters
    ----------
    recipe : the recipe of the sweep
    columns : values of each parameter
    optimisers : optimisers of the points; None for that of the recipe
    """
    known = list(optimisers or [recipe.fixed.get(OPTIMISER)])
    for name, values in columns.items():
        try:
            for optimiser, value in product(known, values):
                recipe.check(name, value, optimiser)
            if name not in (OPTIMISER, FINAL_TIME) and not any(
                recipe.constructors_with_argument(name, optimiser) for optimiser in known
            ):
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
    """Simulate a problem at many parameter values and store each result in a file; points with a file are skipped.

    The same call resumes after any interruption. A call with more values or more runs computes only the new ones, and gives,
    bit by bit, the results of one larger sweep.

    Parameters
    ----------
    preset : name of a preset, or a function that returns a problem; its arguments are parameters of the sweep
    level : level of description such as `Chain(d=3000)`, or its name, "chain", if points or `fixed` have its parameters
    start : initial condition such as `RandomInit(d=3000)`, or its name: "random", "orthogonal" or "fixed"
    over : the points: `grid(lr=[...], noise=[...])`, `random_points(...)`, or a list of dictionaries. Parameters are those of
        the problem, the level and the start by name (`d` is that of the level and of the start), `optimiser` with the
        parameters of algorithms, and `t_max`
    folder : folder of the results, with a file for each point
    runs, t_max, save, until, kernel : arguments of `simulate` at each point
    seed : an integer; the random numbers of a point follow from it and from all parameters of the point
    keep : None to store whole trajectories, or the values to store of each: "final_risk", "excess_risk", "relative_risk",
        "learnt", "overlap", "accuracy", "exit_time", "fixed_point_count", several of them, a dictionary with their options, or
        functions of the dataset of `simulate`. With "exit_time" alone, runs stop at the exit
    engine : None to compute in this process, or a number of processes; for dask (docs/sweeps.md) "local", "slurm", the address
        of a scheduler, or a cluster such as `distributed.LocalCluster`. The files are the same
    fixed : parameters that all points share
    common : whether all points use the same random numbers, which reduces the variance of differences between points
    refine : variable by whose variation within cells the grid is refined, by name or as `Refine(...)`
    shard : (i, n) to compute only the i-th of n parts, counted from 1; None computes all
    retry : whether to try again the work units that failed before
    progress : whether to show a progress bar

    Returns
    -------
    xarray.Dataset of `collect` for these points and runs; empty if a shard has no points

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
    options: dict[str, Any] = {"fixed": fixed, "t_max": t_max, "save": save, "until": until, "keep": keep, "kernel": kernel}
    recipe = Recipe.from_arguments(preset, level, start, seed=seed, common=common, **options)
    job = Sweep.from_arguments(recipe, over, runs, folder, as_shard(shard), refine)
    done = compute_sweep(job, engine, retry=retry, progress=progress)
    return collect(folder, keys=[unit.key for unit in done], runs=runs) if done else xr.Dataset()


def compute_sweep(job: Sweep, engine: Any = None, *, retry: bool = False, progress: bool = True) -> list[Unit]:
    """Compute the results of a sweep that have no file yet, and those that its refinement adds.

    Return the work units (some runs at one point) of all points.
    """
    folder = Folder(job.folder, make=True)
    where = as_engine(engine)
    units = _compute_missing(job, folder, where, retry, progress)
    refine = job.refine
    while refine is not None and refine.rounds > 0:
        points, refine = refine.next_round(job.recipe, job.design, folder, job.runs)
        if not points:
            break
        job = dataclasses.replace(job, design=Design((*job.design.points, *points), job.design.axes))
        units = _compute_missing(job, folder, where, retry, progress)
    return units


def _compute_missing(job: Sweep, folder: Folder, engine: Any, retry: bool, progress: bool) -> list[Unit]:
    """Compute the work units of a sweep that have no file, and return all its work units.

    A progress bar is shown, and notes on failures are written.
    """
    units = job.units
    todo = list(missing_units(folder, units))
    failed = {unit.name: error for unit in todo if not retry and (error := folder.read_failure(unit))}
    # Values of floats are inputs of compiled code, others change it: neighbours in this order share code and batches.
    discrete = lambda unit: repr([value for value in unit.point.values() if not isinstance(value, float)])
    todo = sorted((unit for unit in todo if unit.name not in failed), key=discrete)
    total = len(units)
    done = total - len({unit.key for unit in todo}) - len(failed)
    if todo:
        first = os.getpid() % len(todo)  # simultaneous sweeps into one folder begin at different units
        with bar(total=total, initial=done, disable=not progress, desc="sweep", unit="unit", bar_format=_BAR_FORMAT) as shown:
            computing = engine.run(job.recipe, folder, todo[first:] + todo[:first])
            running = _until_interrupted(computing)
            try:
                for unit, status, error in running:
                    if status == NOT_WRITTEN:  # the disk is full or read-only: no other file could be written either
                        raise BadInput(error)
                    if status != DONE:
                        folder.record_failure(unit, error)
                        failed[unit.name] = error
                        shown.set_postfix_str(format_count(len(failed), "failure"), refresh=False)
                    done += status == DONE
                    shown.update()
            except KeyboardInterrupt:
                kept = f"{done} of {format_count(total, 'unit')} are done and kept in {job.folder}"
                raise SweepStopped(f"interrupted; {kept}, and the same call resumes the sweep") from None
            finally:
                running.close()
                computing.close()
                remove_partial_files(folder.path)  # partial files of workers that were killed
    if failed:
        _report_failures(job.folder, failed, total)
    return units


def _until_interrupted(outcomes: Iterator[UnitOutcome]) -> Generator[UnitOutcome, None, None]:
    """Yield outcomes until Ctrl-C; raise `KeyboardInterrupt` even if Python discarded it inside a callback.

    An exception in the callback of a weak reference or a finalizer is printed and forgotten. The signal handlers therefore
    record that they were called, and the loop checks the record after each outcome.
    """
    received: list[int] = []
    handlers: dict[int, Any] = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def record_signal(number: int, frame: Any) -> None:
        try:
            handlers[number](number, frame)
        except KeyboardInterrupt:
            received.append(number)
            raise

    # Python allows signal handlers in the main thread only; SIG_DFL and SIG_IGN are not callable and stay.
    main = threading.current_thread() is threading.main_thread()
    replaced = [each for each, handler in handlers.items() if callable(handler)] if main else []
    usual_hook = sys.unraisablehook
    try:
        sys.unraisablehook = lambda ignored: None if ignored.exc_type is KeyboardInterrupt else usual_hook(ignored)
        for each in replaced:
            signal.signal(each, record_signal)
        for outcome in outcomes:
            yield outcome
            if received:
                raise KeyboardInterrupt
    finally:
        sys.unraisablehook = usual_hook
        for each in replaced:
            signal.signal(each, handlers[each])


def _report_failures(folder: str, failed: dict[str, str], total: int) -> None:
    """Warn of failed work units and quote their errors; raise `BadInput` if all units failed."""
    errors = list(dict.fromkeys(failed.values()))
    words = "; ".join(errors[:MAX_REASONS])
    if len(errors) > MAX_REASONS:
        words += f"; and {len(errors) - MAX_REASONS} other reasons"
    what = (
        f"{len(failed)} of {format_count(total, 'unit')} failed: {words.rstrip('.')}. "
        f"The notes *.failed.json in {folder} name them."
    )
    if len(failed) == total:
        raise BadInput(f"{what} Correct the common cause, and give retry=True to try the units again.")
    warnings.warn(f"{what} Give retry=True to try these units again.", SweepFailed, stacklevel=4)


def as_engine(engine: Any) -> SweepEngine:
    """Convert the argument `engine` of `sweep`, such as a number of processes or an address, to an engine."""
    if engine is None:
        return InProcessEngine()
    if isinstance(engine, SweepEngine):
        return engine
    if isinstance(engine, int) and not isinstance(engine, bool) and engine >= 1:
        return PoolEngine(engine)
    if isinstance(engine, str):
        return Dask.from_address(engine)
    if isinstance(address := getattr(engine, "scheduler_address", None), str):  # a cluster of dask, such as LocalCluster
        return Dask.from_address(address)
    if isinstance(address := getattr(getattr(engine, "scheduler", None), "address", None), str):  # a dask Client
        return Dask.from_address(address)
    raise BadInput(
        f"engine must be a number of processes, the address of a dask scheduler, a dask cluster, or 'local' or 'slurm'; got "
        f"{shorten(engine)}. "
        "Leave it out to compute in this process."
    )


def as_shard(shard: Any) -> tuple[int, int] | None:
    """Convert the argument `shard` of `sweep`, (i, n) or a string such as 1/10, to a pair; raise `BadInput` if invalid."""
    if shard is None:
        return None
    try:
        index, shards = (check_count("shard", int(each) if isinstance(each, str) else each) for each in shard)
        if index > shards:
            raise ValueError
    except (TypeError, ValueError):
        raise BadInput(
            f"shard must be (i, n) with i from 1 to n; got {shorten(shard)}. Give, say, (1, 10), or 1/10 on a command line."
        ) from None
    return index, shards

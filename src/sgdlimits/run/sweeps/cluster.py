"""Engine of sweeps on a cluster, through dask.distributed: a running scheduler, workers on this machine, or SLURM jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sgdlimits.errors import BadInput
from sgdlimits.run.sweeps.engine import MAX_RETRIES, EngineTask, SweepEngine, make_tasks
from sgdlimits.run.sweeps.recipe import Recipe
from sgdlimits.run.sweeps.store import Folder
from sgdlimits.run.sweeps.unit import Unit, hash_json
from sgdlimits.run.sweeps.worker import FAILED, UnitOutcome, attempt_units_json
from sgdlimits.settings import setup_jax

DASK_SETTINGS = {
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.allowed-failures": MAX_RETRIES,
    "distributed.worker.daemon": False,
}
"""Settings of dask: no tasks wait on workers, and a task during which more than `MAX_RETRIES` workers die is given up."""
SLURM_DEFAULTS = {"cores": 1, "processes": 1, "memory": "4GB", "walltime": "04:00:00"}
"""Default resources of a SLURM job."""


class Dask(SweepEngine):
    """Engine that computes a sweep on single-threaded dask workers, which write results to the sweep's shared folder.

    Parameters
    ----------
    where : "local", "slurm", or the address of a scheduler
    workers : number of processes or SLURM jobs
    settings : resources of jobs, keywords of `dask_jobqueue.SLURMCluster`
    """

    def __init__(self, where: str, workers: int = 2, settings: dict[str, Any] | None = None) -> None:
        self.where, self.workers, self.settings = where, workers, settings or {}

    @classmethod
    def from_address(cls, where: str, **more: Any) -> Dask:
        """Return the dask engine for "local", "slurm" or the address of a scheduler; raise `BadInput` for other values."""
        try:
            import distributed  # noqa: F401
        except ImportError as reason:
            raise BadInput("dask is not installed. Install sgdlimits[cluster].") from reason
        if where not in ("local", "slurm") and "://" not in where:
            raise BadInput(f"engine must be local, slurm or an address; got {where!r}. Give, for instance, tcp://host:8786.")
        return cls(where, **more)

    def batch_script(self, folder: str) -> str:
        """Return the batch script of one SLURM job, or an empty string if the engine does not use SLURM."""
        if self.where != "slurm":
            return ""
        from dask_jobqueue.slurm import SLURMJob

        with _explain_settings_error():
            job = SLURMJob(scheduler="SCHEDULER", name="sgdlimits", **self._job_settings())
        return f"# {self.workers} of these jobs, each with the scheduler's address; results in {folder}\n{job.job_script()}"

    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[UnitOutcome]:
        import dask
        from distributed import as_completed

        text = recipe.to_json()
        where = str(folder.path.resolve())
        sweep = hash_json([text, where])  # keys must differ between sweeps that use one scheduler for different folders
        with dask.config.set(DASK_SETTINGS), self._connect() as client:
            under_way: dict[str, EngineTask] = {}
            ending = as_completed(raise_errors=False)

            def submit(task: EngineTask) -> None:
                key = f"{sweep}-{task.units[0].name}-{len(task.units)}-{task.attempt_count}"
                texts = [unit.to_json() for unit in task.units]
                # No retries by dask: it would repeat the whole task, where only its failed units are to be tried again.
                future = client.submit(_run_on_worker, text, where, texts, key=key, pure=False, retries=0)
                under_way[future.key] = task
                ending.add(future)

            # A running scheduler may have more workers than this engine would have started.
            workers = max(self.workers, len(client.scheduler_info()["workers"]))
            for task in make_tasks(recipe, units, workers):
                submit(task)
            for future in ending:
                task = under_way.pop(future.key)
                known = {unit.name: unit for unit in task.units}
                if future.status == "finished":
                    outcomes = [UnitOutcome(known[name], status, error) for name, status, error in future.result()]
                else:
                    error = f"{type(future.exception()).__name__}: {future.exception()}"
                    outcomes = [UnitOutcome(unit, FAILED, error) for unit in task.units]
                future.release()  # frees the result in the memory of the worker
                yield from task.final_outcomes(outcomes, submit)

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        """Provide a client connected to the dask scheduler; a local or SLURM cluster is started for the block if needed."""
        from distributed import Client

        if "://" in self.where:
            try:
                client = Client(self.where, timeout="10s")
            except (TimeoutError, OSError, ValueError) as reason:
                raise BadInput(f"no scheduler answers at {self.where}: {reason}. Start one with dask scheduler.") from reason
            with client:
                yield client
            return
        with self._start_cluster() as cluster, Client(cluster) as client:
            if self.where == "slurm":
                cluster.scale(jobs=self.workers)
            yield client

    def _start_cluster(self) -> Any:
        """Start a dask cluster on this machine or of SLURM jobs, and return it."""
        if self.where == "slurm":
            from dask_jobqueue import SLURMCluster

            with _explain_settings_error():
                return SLURMCluster(**self._job_settings())
        from distributed import LocalCluster

        how: dict[str, Any] = {"memory_limit": 0, "dashboard_address": None, "silence_logs": 50}
        return LocalCluster(n_workers=self.workers, threads_per_worker=1, **how)

    def _job_settings(self) -> dict[str, Any]:
        """Return the resources of one SLURM job, by the names that dask_jobqueue uses."""
        given = {**SLURM_DEFAULTS, **self.settings}
        return given | {name: int(given[name]) for name in ("cores", "processes")}


def _run_on_worker(recipe: str, folder: str, units: list[str]) -> list[tuple[str, str, str]]:
    """Compute work units of a sweep on a dask worker, and return name, status and error of each."""
    import dask

    setup_jax()
    # On a worker xarray would ask dask's scheduler for a lock before it writes a file.
    with dask.config.set(scheduler="synchronous"):
        return list(attempt_units_json(recipe, folder, units))


@contextmanager
def _explain_settings_error() -> Iterator[None]:
    """Turn errors of dask_jobqueue about unknown or invalid settings of SLURM jobs into a `BadInput`."""
    try:
        yield
    except (TypeError, ValueError) as reason:
        raise BadInput(f"the SLURM job cannot be created: {reason}. Give settings of dask_jobqueue.SLURMCluster.") from reason

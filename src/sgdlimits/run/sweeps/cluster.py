"""Units on a cluster through dask.distributed: a scheduler's address, this machine, or the jobs of SLURM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sgdlimits.errors import BadInput
from sgdlimits.run.sweeps.engine import RETRIES, SweepEngine, Task, tasks
from sgdlimits.run.sweeps.recipe import Recipe
from sgdlimits.run.sweeps.store import Folder
from sgdlimits.run.sweeps.unit import Unit, hashed
from sgdlimits.run.sweeps.worker import FAILED, Outcome, attempts_text
from sgdlimits.settings import setup_jax

SETTINGS = {
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.allowed-failures": RETRIES,
    "distributed.worker.daemon": False,
}
"""No task waits at a worker that is busy; a task that kills so many workers is given up."""
SLURM = {"cores": 1, "processes": 1, "memory": "4GB", "walltime": "04:00:00"}
"""What a job of SLURM asks for unless it is told otherwise."""


class Dask(SweepEngine):
    """Workers of dask, of one thread each. Results go into the folder, which all workers must see, and not through dask.

    Parameters
    ----------
    where : "local", "slurm", or the address of a scheduler
    workers : how many processes, or jobs
    settings : of jobs, as `dask_jobqueue.SLURMCluster` has them
    """

    def __init__(self, where: str, workers: int = 2, settings: dict[str, Any] | None = None) -> None:
        self.where, self.workers, self.settings = where, workers, settings or {}

    @classmethod
    def of(cls, where: str, **more: Any) -> Dask:
        """The engine of a word or an address."""
        try:
            import distributed  # noqa: F401
        except ImportError as reason:
            raise BadInput("dask is not installed. Install sgdlimits[cluster].") from reason
        if where not in ("local", "slurm") and "://" not in where:
            raise BadInput(f"engine must be local, slurm or an address; got {where!r}. Give, for instance, tcp://host:8786.")
        return cls(where, **more)

    def script(self, folder: str) -> str:
        """The script of one job of SLURM; nothing elsewhere."""
        if self.where != "slurm":
            return ""
        from dask_jobqueue.slurm import SLURMJob

        with _refused():
            job = SLURMJob(scheduler="SCHEDULER", name="sgdlimits", **self._job())
        return f"# {self.workers} of these jobs, each with the scheduler's address; results in {folder}\n{job.job_script()}"

    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[Outcome]:
        import dask
        from distributed import as_completed

        text, where = recipe.to_json(), str(folder.path.resolve())
        sweep = hashed([text, where])  # a scheduler may have others, with the same units for other folders
        with dask.config.set(SETTINGS), self._client() as client:
            under_way: dict[str, Task] = {}
            ending = as_completed(raise_errors=False)

            def submit(task: Task) -> None:
                named = f"{sweep}-{task.units[0].name}-{len(task.units)}-{task.tries}"
                texts = [unit.to_json() for unit in task.units]
                future = client.submit(_attempts, text, where, texts, key=named, pure=False, retries=0)
                under_way[future.key] = task
                ending.add(future)

            workers = max(self.workers, len(client.scheduler_info()["workers"]))
            for task in tasks(recipe, units, workers):
                submit(task)
            for future in ending:
                task = under_way.pop(future.key)
                known = {unit.name: unit for unit in task.units}
                if future.status == "finished":
                    outcomes = [Outcome(known[name], what, error) for name, what, error in future.result()]
                else:
                    error = f"{type(future.exception()).__name__}: {future.exception()}"
                    outcomes = [Outcome(unit, FAILED, error) for unit in task.units]
                future.release()  # nothing that is finished stays on a worker
                yield from task.settled(outcomes, submit)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        from distributed import Client

        if "://" in self.where:
            try:
                client = Client(self.where, timeout="10s")
            except (TimeoutError, OSError, ValueError) as reason:
                raise BadInput(f"no scheduler answers at {self.where}: {reason}. Start one with dask scheduler.") from reason
            with client:
                yield client
            return
        with self._cluster() as cluster, Client(cluster) as client:
            if self.where == "slurm":
                cluster.scale(jobs=self.workers)
            yield client

    def _cluster(self) -> Any:
        if self.where == "slurm":
            from dask_jobqueue import SLURMCluster

            with _refused():
                return SLURMCluster(**self._job())
        from distributed import LocalCluster

        how: dict[str, Any] = {"memory_limit": 0, "dashboard_address": None, "silence_logs": 50}
        return LocalCluster(n_workers=self.workers, threads_per_worker=1, **how)

    def _job(self) -> dict[str, Any]:
        given = {**SLURM, **self.settings}
        return given | {name: int(given[name]) for name in ("cores", "processes")}


def _attempts(recipe: str, folder: str, units: list[str]) -> list[tuple[str, str, str]]:
    """On a worker, where xarray would otherwise ask the scheduler for a lock before it writes."""
    import dask

    setup_jax()
    with dask.config.set(scheduler="synchronous"):
        return list(attempts_text(recipe, folder, units))


@contextmanager
def _refused() -> Iterator[None]:
    """Settings that a job does not have are one sentence."""
    try:
        yield
    except (TypeError, ValueError) as reason:
        raise BadInput(f"a job of SLURM cannot be made: {reason}. Give settings of dask_jobqueue.SLURMCluster.") from reason

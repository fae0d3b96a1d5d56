"""Whichever engine computes a sweep, the same files come out; who dies is replaced, and what fails is noted."""

from __future__ import annotations

import importlib
import json
import os
import sys

import pytest

import sgdlimits as sl
from sgdlimits.run.sweeps.cluster import Dask

MODULE = """
import os, signal
from pathlib import Path
import sgdlimits as sl

def build(lr, mood="well"):
    marker = Path(__file__).with_name(f"tried-{lr}")
    tries = len(marker.read_bytes()) if marker.exists() else 0
    marker.write_bytes(b"x" * (tries + 1))
    if mood == "dies" or (mood == "dies once" and not tries):
        os.kill(os.getpid(), signal.SIGKILL)
    if mood == "fails":
        raise RuntimeError("no such luck")
    return sl.presets.phase_retrieval(lr=lr)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of a user with a function that builds a problem, in some mood."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "moody.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("moody", None)


def moody(folder, moods, **more):
    points = [{"lr": 0.05 + 0.01 * i, "mood": mood} for i, mood in enumerate(moods)]
    given = {"runs": 2, "t_max": 1, "keep": "final_risk", "progress": False, **more}
    return sl.sweep("moody:build", sl.Chain(30), sl.RandomInit(30), over=points, folder=folder, **given)


@pytest.mark.parametrize("where", ["runner.Simulation._make_runner", "simulate.join_pieces", "runner.Runner.next_dataset"])
def test_an_interruption_is_one_wherever_it_comes(where, small, monkeypatch):
    """Before the first step, too: it is not taken for a unit that fails."""

    def interrupted(*given):
        raise KeyboardInterrupt

    small("a", over=sl.grid(lr=[0.05]))
    importlib.import_module("sgdlimits.run.simulate")  # which `sgdlimits.run.simulate`, the function, hides
    module, *owner, name = where.split(".")
    found = sys.modules[f"sgdlimits.run.{module}"]
    monkeypatch.setattr(getattr(found, owner[0]) if owner else found, name, interrupted)
    with pytest.raises(sl.SweepStopped, match="1 of 2 units are done"):
        small("a", over=sl.grid(lr=[0.05, 0.1]))


def test_shards_together_are_the_whole(small, contents):
    for i in (1, 2, 3):
        small("parts", shard=(i, 3))
    small("whole")
    assert contents("parts") == contents("whole")


def test_a_pool_makes_the_same_files(small, contents):
    small("pool", engine=1, over=sl.grid(lr=[0.05, 0.1]))
    small("here", over=sl.grid(lr=[0.05, 0.1]))
    assert contents("pool") == contents("here")


@pytest.mark.full
def test_a_pool_replaces_who_dies_and_notes_what_fails(mine, tmp_path, contents, monkeypatch):
    """One unit kills its process once; one always; one fails always. All others are those of this process."""
    monkeypatch.setattr("sgdlimits.run.sweeps.engine.MAX_RETRIES", 1)
    with pytest.warns(sl.SweepFailed, match="2 of 4 units failed: "):
        moody(tmp_path / "pool", ["well", "dies once", "dies", "fails"], engine=1)
    for marker in mine.glob("tried-*"):
        marker.unlink()
    moody(tmp_path / "here", ["well"])
    files = contents("pool")
    assert sorted(name.split(".", 1)[1] for name in files) == 2 * ["failed.json"] + 2 * ["nc"]
    assert contents("here").items() <= files.items()
    notes = [json.loads(content) for name, content in files.items() if name.endswith("json")]
    assert {note["error"] for note in notes} == {
        "RuntimeError: no such luck", "the process that computed the unit ended by signal SIGKILL"
    }  # fmt: skip


def test_a_unit_that_failed_is_left_alone_until_it_is_to_be_tried_again(mine, tmp_path):
    with pytest.warns(sl.SweepFailed, match="1 of 2 units failed"):
        moody(tmp_path / "x", ["well", "fails"])
    assert (mine / "tried-0.060000000000000005").stat().st_size == 4  # with the others, alone, and twice again
    with pytest.warns(sl.SweepFailed, match=r"no such luck.*Give retry=True"):
        moody(tmp_path / "x", ["well", "fails"])
    assert (mine / "tried-0.060000000000000005").stat().st_size == 4
    (mine / "moody.py").write_text(MODULE.replace('mood == "fails"', "False"))
    sys.modules.pop("moody")
    assert moody(tmp_path / "x", ["well", "fails"], retry=True).final_risk.notnull().all()
    assert not list((tmp_path / "x").glob("*.json"))


def test_other_processes_cannot_be_given_functions_without_a_name(tmp_path):
    with pytest.raises(sl.BadInput, match="known to this process only"):
        sl.sweep(
            lambda lr: sl.presets.phase_retrieval(lr=lr), sl.ODE(), sl.FixedInit(0.3), over={"lr": [0.1]}, folder=tmp_path,
            t_max=1, engine=1,
        )  # fmt: skip


def test_the_script_of_a_job_of_slurm():
    script = Dask("slurm", 7, {"queue": "cpu", "walltime": "01:00:00", "cores": "2"}).batch_script("results")
    for line in ("# 7 of these jobs", "#SBATCH -p cpu", "#SBATCH -t 01:00:00", "#SBATCH --cpus-per-task=2", "results"):
        assert line in script
    with pytest.raises(sl.BadInput, match="the SLURM job cannot be created"):
        Dask("slurm", 1, {"colour": "red"}).batch_script("x")


def test_an_address_where_nobody_is(small):
    with pytest.raises(sl.BadInput, match="engine must be local, slurm or an address"):
        small("a", engine="somewhere")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of threads and sockets of dask
def test_a_cluster_of_dask_makes_the_same_files_though_a_worker_is_killed(small, contents, monkeypatch):
    """A real LocalCluster of two workers; one is killed when 15 units are done. None is lost and none is there twice.

    `benchmarks/sweeps.py` does so with 1,000 units.
    """
    import numpy as np
    from distributed import Client, LocalCluster

    over = sl.grid(lr=np.linspace(0.01, 0.1, 5), noise=np.linspace(0, 1, 8))
    with LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=None, silence_logs=50) as cluster:
        with Client(cluster) as client:
            victim = min(client.run(os.getpid).values())
        done: list = []
        run = Dask.run

        def watched(self, *given):
            for outcome in run(self, *given):
                done.append(outcome)
                if len(done) == 15:
                    os.kill(victim, 9)
                yield outcome

        monkeypatch.setattr(Dask, "run", watched)
        found = small("dask", over, engine=cluster.scheduler_address)
    assert len(done) == len({outcome.unit.name for outcome in done}) == 40
    assert {outcome.status for outcome in done} == {"done"}
    assert found.final_risk.notnull().all()
    small("here", over)
    assert contents("dask") == contents("here")


def test_a_cluster_or_a_client_of_dask_is_an_engine():
    pytest.importorskip("distributed")
    from types import SimpleNamespace

    from sgdlimits.run.sweeps.job import as_engine

    for given in (
        SimpleNamespace(scheduler_address="tcp://127.0.0.1:8786"),
        SimpleNamespace(scheduler=SimpleNamespace(address="tcp://127.0.0.1:8786")),
    ):
        assert as_engine(given).where == "tcp://127.0.0.1:8786"

"""Schedules typed on the command line and in the files of sweeps and optimisations."""

from __future__ import annotations

import re

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.problem.over_time import find_schedules
from sgdlimits.run.record import from_json

RUN = ["run", "phase_retrieval", "--d", "40", "--t-max", "1", "--runs", "2", "--save", "3", "--quiet", "--out", "it.nc"]
BAD = {
    "cosine(1/12, 0)": r"--lr must be a number or a schedule; 'cosine\(1/12, 0\)' is no schedule: cosine takes \(first, last",
    "cosine(0.1, -0.2, 1)": r"--lr must be a finite number of at least 0; got -0.2",
    "steps([2, 1], [1, 2, 3])": r"times must be above 0 and increase",
    "(lambda: 3)()": "is not allowed in a schedule",
    "fast": "'--lr': 'fast' is not a number",
}
SWEEP = """
preset = "phase_retrieval"
level = "chain"
t_max = 1
runs = 2
save = 3
fixed = {d = 40, noise = "steps([0.5], [0, 1/3])"}
grid.lr = ["cosine(1/12, 0, 50)", "steps([0.5], [0.1, 0.01])", 0.05]
"""


def test_a_schedule_is_typed_as_a_number_is(command, tmp_path):
    assert command([*RUN, "--lr", "cosine(1/12, 0, 50)", "--noise", "0.1/(1 + t)"]).exit_code == 0
    saved = sl.load(tmp_path / "it.nc")
    problem = sl.presets.phase_retrieval(lr=sl.Cosine(1 / 12, 0, 50), noise=lambda t: 0.1 / (1 + t))
    data = sl.simulate(problem, sl.Chain(40), sl.RandomInit(40), t_max=1, runs=2, save=3, progress=False)
    for name in ("M", "Q", "risk", "lr", "noise"):
        np.testing.assert_allclose(saved[name], data[name], rtol=1e-12)
    assert command("rerun it.nc --out again.nc --quiet").exit_code == 0
    assert sl.load(tmp_path / "again.nc").risk.equals(saved.risk)


@pytest.mark.parametrize("typed", BAD)
def test_a_bad_schedule_is_refused_in_a_sentence(typed, command, tmp_path):
    result = command([*RUN, "--lr", typed])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert re.search(BAD[typed], result.stderr), result.stderr
    assert not (tmp_path / "it.nc").exists()


def test_a_sweep_over_schedules_is_collected_by_their_texts(command, tmp_path):
    (tmp_path / "rates.toml").write_text(SWEEP)
    result = command("sweep rates.toml --quiet")
    assert result.exit_code == 0, result.output
    found = sl.collect(tmp_path / "rates")
    texts = ["cosine(1/12, 0, 50)", "steps([0.5], [0.1, 0.01])", "0.05"]
    assert sorted(map(str, found.lr.values)) == sorted(texts)
    assert found.scheduled_lr.dims[:1] == ("lr",)
    kept = next(path for path in (tmp_path / "rates").rglob("*.nc") if "cosine" in sl.load(path).attrs["problem"].lower())
    assert set(find_schedules(from_json(sl.load(kept).attrs["problem"]))) == {"lr", "noise"}
    wrong = SWEEP.replace("cosine(1/12, 0, 50)", "cosine(1/12, 0)").replace("[0, 1/3]", "[0, -1]")
    (tmp_path / "wrong.toml").write_text(wrong)
    result = command("sweep wrong.toml --quiet")
    assert result.exit_code == 2
    assert "2 mistakes" in result.stderr
    assert "grid.lr must be a number or a schedule; " in result.stderr
    assert "fixed.noise must be a finite number of at least 0; got -1" in result.stderr

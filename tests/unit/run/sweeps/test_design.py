"""The size of a sweep is known before its points are made."""

from __future__ import annotations

import os

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.run.sweeps.store import SweepWarning
from sgdlimits.run.sweeps.toml import read_spec

HOW = {"fixed": {"d": 50}, "t_max": 1, "progress": False}
LARGE = {
    "range": lambda: sl.grid(lr=range(10**12)),
    "range beyond 2^63": lambda: sl.grid(lr=range(10**30)),
    "product": lambda: sl.grid(lr=range(1, 2001), noise=range(2000)),
    "generator": lambda: sl.grid(lr=iter(range(10**12))),
    "drawn": lambda: sl.random_points(10**7, lr=(0.1, 1.0)),
}
SPEC = 'preset = "phase_retrieval"\nt_max = 1.0\n[fixed]\nd = 50\n'


WRONG = {
    "a point of over must be a dictionary": {"over": [3]},
    "over must be a dictionary with names": {"over": {1: [0.1]}},
    "lr must be a list of values": {"over": {"lr": np.array(0.1)}},
    "fixed must be a dictionary": {"fixed": [("noise", 0.1)]},
    "keep['final_risk'] must be a dictionary": {"keep": {"final_risk": 3}},
    "shard must be (i, n)": {"shard": (1.5, 3)},
    "common must be True or False": {"common": "yes"},
    "retry must be True or False": {"retry": 1},
    "no scheduler answers at tcp://": {"engine": "tcp://"},
}
"""Arguments of a sweep that cannot be right."""


@pytest.mark.parametrize("sentence", WRONG)
def test_an_argument_of_another_kind_is_refused_in_a_sentence(sentence, tmp_path):
    with pytest.raises(sl.BadInput) as caught:
        sl.sweep("phase_retrieval", "chain", "random", **{"over": {"lr": [0.1]}, "folder": tmp_path, **HOW, **WRONG[sentence]})
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


def test_options_of_refine_and_collect_are_checked(tmp_path):
    with pytest.raises(sl.BadInput, match="rounds must be an integer"):
        sl.Refine("final_risk", rounds=-1)
    with pytest.raises(sl.BadInput, match="keys must be a sequence"):
        sl.collect(tmp_path, keys=3)


@pytest.mark.parametrize("case", LARGE)
def test_more_points_than_files_are_refused_at_once(case):
    with pytest.raises(sl.BadInput, match="a sweep has at most 1000000 points"):
        LARGE[case]()


@pytest.mark.parametrize("table", [
    "[grid]\nlr = {from = 0.1, to = 1, count = 100000000}\n", "[random]\ncount = 10000000\nlr = [0.1, 1.0]\n",
])  # fmt: skip
def test_a_specification_of_too_many_points_is_refused_at_once(table, tmp_path):
    (tmp_path / "s.toml").write_text(SPEC + table)
    with pytest.raises(sl.BadInput, match="a sweep has at most 1000000 points"):
        read_spec(tmp_path / "s.toml")


def test_a_pipe_is_no_specification(tmp_path):
    os.mkfifo(tmp_path / "s.toml")
    with pytest.raises(sl.BadInput, match="is not a regular file"):
        read_spec(tmp_path / "s.toml")


def test_two_sweeps_with_different_runs_and_variables_are_collected_together(tmp_path):
    """What a sweep did not keep, and runs that it did not have, are NaN."""
    first, second = {"keep": "final_risk", "runs": 2}, {"keep": "overlap", "runs": 3}
    for lr, how in ((0.1, first), (0.2, second)):
        sl.sweep("phase_retrieval", "chain", "random", over=sl.grid(lr=[lr]), folder=tmp_path, **how, **HOW)
    both = sl.collect(tmp_path)
    assert both.sizes["run"] == 3
    assert int(np.isfinite(both.final_risk).sum()) == 2
    assert int(np.isfinite(both.overlap).sum()) == 3


def test_a_pipe_among_the_files_of_a_sweep_is_left_out(tmp_path):
    sl.sweep("phase_retrieval", "chain", "random", over=sl.grid(lr=[0.1]), folder=tmp_path, keep="final_risk", **HOW)
    os.mkfifo(tmp_path / f"{'a' * 24}-0-1.nc")
    os.symlink("loop", tmp_path / f"{'b' * 24}-0-1.nc")
    with pytest.warns(SweepWarning, match="not a regular file"):
        assert sl.collect(tmp_path).sizes["run"] == 1

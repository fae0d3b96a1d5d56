"""`sgdlimits optimise`: the result of a file, all mistakes at once, and an interruption."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sgdlimits as sl

GOOD = """
preset = "single_index"
start = "fixed"
t_max = 6
fixed = {activation = "linear", noise = 0.5, sphere = false, overlap = 0}
controls.lr = {pieces = 6, low = 0, high = 1.5}
"""
MANY = """
preset = "single_index"
t_max = -1
objective = "rsk"
strts = 3
[fixed]
width = 0
lr = 3
[controls]
lr = {pieces = 50, low = 3, high = 2}
noise = {pieces = 5, low = -1, high = 2}
nois = {pieces = 50, low = 0, high = 2}
[budgets]
ridge = 3
[check]
runs = 3
"""
BAD = {
    "no file": (None, ["there is no file rate.toml. Give the path of a TOML file for an optimisation"]),
    "no TOML": ("t_max = = 1", ["rate.toml is not TOML"]),
    "many": (MANY, [
        "11 mistakes", "t_max must be a finite number above 0; got -1", "objective must be risk, exit", "check.d is missing",
        "strts is not a key of an optimisation. Did you mean starts?", "fixed.width must be", "fixed.lr is a control as well",
        "controls.lr: low must be below high", "controls.noise must be a finite number of at least 0; got -1",
        "controls.nois is not a parameter of the problem. Did you mean noise?", "budgets.ridge is the budget of no control",
        "d is missing, which the start random needs",
    ]),
    "no controls": (GOOD.split("controls")[0], ["controls is missing"]),
    "pieces": (GOOD.replace("pieces = 6", "pieces = 0"), ["controls.lr.pieces"]),
    "word": (GOOD.replace("high = 1.5", "high = 1.5, top = 3"), ["controls.lr.top is not a key", "pieces, low, high"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_all_mistakes_of_a_file_are_reported_at_once(case, command, tmp_path):
    text, words = BAD[case]
    if text is not None:
        (tmp_path / "rate.toml").write_text(text)
    result = command("optimise rate.toml")
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for each in words:
        assert each in result.stderr


def test_a_file_finds_what_the_keywords_find(command, tmp_path):
    (tmp_path / "rate.toml").write_text(GOOD + "check = {d = 100, runs = 8}\n")
    result = command("optimise rate.toml --quiet --out rate.json")
    assert result.exit_code == 0, result.output
    for words in ("final risk", "best constants", "6 pieces", "in 8 runs of the chain at d = 100", "Saved rate.json"):
        assert words in result.output
    found = json.loads((tmp_path / "rate.json").read_text())
    make = lambda lr: sl.presets.single_index("linear", lr=lr, noise=0.5, sphere=False)
    best = sl.optimise(make, sl.FixedInit(0.0), 6.0, {"lr": sl.Control(6, 0.0, 1.5)}, progress=False)
    np.testing.assert_allclose(found["controls"]["lr"]["values"], best.controls["lr"].values, rtol=1e-12)
    assert found["checks"][0]["runs"] == 8
    assert command("optimise rate.toml --out rate.json").exit_code == 2
    assert "must end in .json or .nc" in command("optimise rate.toml --out rate.csv").stderr


def test_an_interruption_prints_the_best_so_far(command, monkeypatch, tmp_path):
    from sgdlimits.analysis import optimise

    (tmp_path / "rate.toml").write_text(GOOD)
    evaluate, calls = optimise._Search.evaluate_objective, []

    def interrupted(self, z):
        calls.append(z)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return evaluate(self, z)

    monkeypatch.setattr(optimise._Search, "evaluate_objective", interrupted)
    result = command("optimise rate.toml --out rate.nc")
    assert result.exit_code == 130
    assert "the best schedules so far" in result.stderr
    assert "had not ended" in result.output
    assert sl.load(tmp_path / "rate.nc").risk.sizes["t"] == 7

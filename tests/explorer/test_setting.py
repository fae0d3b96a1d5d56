"""What the page says as Python and as a command line is what it shows; what it cannot show is refused in a sentence."""

from __future__ import annotations

import pytest

import sgdlimits as sl
from sgdlimits.algorithm import ALGORITHMS
from sgdlimits.cli.explorer.controls import page_contents
from sgdlimits.cli.explorer.setting import Setting
from sgdlimits.problem.presets import PRESETS
from sgdlimits.run.record import to_json

CONTENTS = page_contents()
SCENES = [(name, scene) for name, preset in CONTENTS["presets"].items() for scene in preset["scenes"]]
BAD = {
    "nan": {"parameters": {"lr": float("nan")}}, "negative": {"parameters": {"noise": -1}},
    "too wide": {"parameters": {"width": 2**40}},
    "large d": {"d": 2**40}, "text": {"d": "many"}, "list": {"parameters": {"lr": [1]}}, "unknown": {"parameters": {"x": 1}},
    "no preset": {"preset": "x"}, "no optimiser": {"optimiser": ["muon"]}, "half an optimiser": {"optimiser": "sam"},
    "not an object": [1],
    "by zero": {"parameters": {"lr": "1/0"}}, "no end": {"t_max": float("inf")}, "threshold": {"threshold": 2},
    "optimiser of a tensor": {"preset": "spiked_tensor", "optimiser": "muon"}, "half a run": {"runs": 1.5},
}  # fmt: skip


def usual(optimiser: str) -> dict:
    return {
        each["name"]: each["default"] for each in CONTENTS["optimisers"][optimiser]["controls"] if each["default"] is not None
    }


def problem_of(text: str):
    """The problem that a program builds before it simulates."""
    names: dict = {}
    exec(text.split("chain = ")[0], names)
    return names["problem"], names["start"]


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_what_cannot_be_shown_is_refused_in_a_sentence(given):
    with pytest.raises(sl.BadInput, match=r"\. \w"):
        _ = Setting.from_message(given).problem


@pytest.mark.parametrize(("preset", "scene"), SCENES, ids=[f"{name}: {scene['title']}" for name, scene in SCENES])
def test_python_builds_the_problem_of_each_scene(preset, scene):
    for other in ({}, scene["other"] or {}):
        setting = Setting.from_message({"preset": preset, **scene["setting"], **other})
        problem, start = problem_of(setting.as_python())
        assert (to_json(problem), to_json(start)) == (to_json(setting.problem), to_json(setting.start))


@pytest.mark.parametrize("optimiser", ALGORITHMS)
def test_python_builds_the_problem_of_each_optimiser(optimiser):
    setting = Setting.from_message(
        {"preset": "committee", "parameters": {"noise": 0.1}, "optimiser": optimiser, "optimiser_parameters": usual(optimiser)}
    )
    assert to_json(problem_of(setting.as_python())[0]) == to_json(setting.problem)


def test_every_preset_and_optimiser_has_controls_and_scenes():
    assert set(CONTENTS["presets"]) == set(PRESETS)
    assert set(CONTENTS["optimisers"]) == set(ALGORITHMS)
    assert all(2 <= len(preset["scenes"]) <= 3 for preset in CONTENTS["presets"].values())
    for preset in CONTENTS["presets"].values():
        for each in preset["controls"]:
            assert each["kind"] in ("tick", "words", "number")
            assert each["help"], each["name"]


SLOW = ("xor_mixture", "binary_mixture")


@pytest.mark.parametrize("preset", [pytest.param(each, marks=pytest.mark.full) if each in SLOW else each for each in PRESETS])
def test_the_command_line_is_the_same_simulation(preset, tmp_path, monkeypatch):
    """The dataset's attributes hold the problem, the level, the start, the seed and the times."""
    from click.testing import CliRunner

    from sgdlimits.cli import main

    few = {"width": 1} if preset in SLOW else {}
    setting = Setting.from_message({"preset": preset, "parameters": few, "d": 60, "t_max": 0.5, "runs": 2})
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, [*setting.as_command().split()[1:], "--out", "it.nc", "--quiet"])
    assert answer.exit_code == 0, answer.output
    attributes = sl.load("it.nc").attrs
    how = setting.stream_arguments("chain")
    here = sl.simulate(setting.problem, setting.levels["chain"], setting.start, **how, progress=False)
    assert {name: attributes[name] for name in ("problem", "start", "level_parameters", "seed")} == {
        name: here.attrs[name] for name in ("problem", "start", "level_parameters", "seed")
    }
    assert sl.load("it.nc").risk.equals(here.risk)


def test_a_parameter_of_preset_and_optimiser_is_two_options():
    noisy = {"optimiser": "private", "optimiser_parameters": {"norm": 1, "noise": 0.2}}
    command = Setting.from_message({"preset": "committee", "parameters": {"noise": 0.1}, **noisy}).as_command()
    assert " --noise 0.1 --norm 1 --optimiser-noise 0.2 --optimiser private " in command

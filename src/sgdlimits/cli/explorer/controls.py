"""Controls of the explorer's page for each preset and optimiser (sliders, boxes), generated from their signatures."""

from __future__ import annotations

import typing
from typing import Any

from sgdlimits.algorithm import ALGORITHMS
from sgdlimits.checks import ScheduleCheck
from sgdlimits.cli.explorer.scenes import SCENES
from sgdlimits.cli.explorer.setting import STARTS, Setting, optimiser_parameters, preset_parameters
from sgdlimits.docstring import describe
from sgdlimits.domain import checks_of
from sgdlimits.model.activation import ACTIVATIONS
from sgdlimits.problem.presets import PRESETS

SLIDERS: dict[str, tuple[float, float, str]] = {
    "width": (1, 16, "whole"), "teachers": (1, 8, "whole"), "batch": (1, 64, "whole"), "order": (2, 5, "whole"),
    "lr": (1e-3, 20, "log"), "noise": (0, 4, "linear"), "snr": (0.1, 1e4, "log"), "ridge": (0, 1, "linear"),
    "rho": (0.1, 4, "log"), "beta": (0, 0.99, "linear"), "friction": (0.1, 100, "log"), "norm": (0.1, 100, "log"),
    "radius": (0, 1, "linear"), "times": (1, 8, "whole"), "offset": (0.01, 100, "log"), "decay": (0.01, 1, "log"),
    "rate": (0.01, 100, "log"), "begin": (0.01, 100, "log"),
    "d": (10, 1e9, "log whole"), "t_max": (1, 2000, "log"), "runs": (1, 256, "whole"), "threshold": (0.01, 1, "linear"),
}  # fmt: skip
"""Lower end, upper end and scale of the slider of each numerical argument. The boxes beside the sliders accept all valid
values."""
INITIAL_VALUES = {"norm": 1.0, "radius": 0.1, "times": 2, "noise": 0.1, "decay": 0.5, "beta": 0.9}
"""Initial values of the optimisers' numerical arguments that have no default."""


def describe_control(name: str, annotation: Any, default: Any, words: str) -> dict[str, Any]:
    """Return a dict that describes the control of one argument: a checkbox, a list of choices, or a slider with a box.

    `words` is the description of the argument.
    """
    members = {annotation, *typing.get_args(annotation)}
    about = {"name": name, "default": default, "help": words, "optional": type(None) in members}
    # before numbers, of which bool is a subclass
    if bool in members:
        return {**about, "kind": "tick", "default": bool(default)}
    if str in members:
        return {**about, "kind": "words", "words": list(ACTIVATIONS)}
    low, high, scale = SLIDERS.get(name, (0, 1, "linear"))
    return {**about, "kind": "number", "low": low, "high": high, "scale": scale}


def preset_controls(name: str) -> list[dict[str, Any]]:
    """Return a dict for the control of each argument of a preset."""
    words = describe(PRESETS[name]).parameters
    return [
        describe_control(key, each.annotation, each.default, words.get(key, "")) | _over_time(PRESETS[name], key)
        for key, each in preset_parameters(name).items()
    ]


def _over_time(thing: Any, name: str) -> dict[str, bool]:
    """Return a dict of two bools: whether an argument may be a schedule, and whether users may draw the schedule as a line."""
    scheduled = isinstance(checks_of(thing).get(name), ScheduleCheck)
    return {"schedule": scheduled, "drawn": scheduled and name.startswith("lr")}


def optimiser_controls(name: str) -> list[dict[str, Any]]:
    """Return a dict for the control of each argument of an optimiser."""
    words = describe(ALGORITHMS[name]).parameters
    controls = []
    for key, each in optimiser_parameters(name).items():
        default = each.default
        initial = INITIAL_VALUES.get(key) if default is each.empty or (key == "beta" and default is None) else default
        annotation = bool if isinstance(default, bool) else float | None if default is None else float
        controls.append(describe_control(key, annotation, initial, words.get(key, "")) | _over_time(ALGORITHMS[name], key))
    return controls


def page_contents() -> dict[str, Any]:
    """Return the presets, optimisers, starts and run options with their controls, as a JSON object for the page."""
    default_setting = Setting()
    runs = {"d": "dimension", "t_max": "the end, in samples per dimension", "runs": "number of independent runs",
            "seed": "the same seed gives the same numbers",
            "threshold": "a run exits when it has lost this share of its excess risk"}  # fmt: skip
    return {
        "presets": {name: {"summary": describe(preset).summary, "controls": preset_controls(name), "scenes": SCENES[name]}
                    for name, preset in PRESETS.items()},
        "optimisers": {name: {"summary": describe(cls).summary, "controls": optimiser_controls(name)}
                  for name, cls in ALGORITHMS.items()},
        "starts": {name: {"number": number, "default": default} for name, (number, default) in STARTS.items()},
        "runs": [describe_control(name, float, getattr(default_setting, name), words)
                 | ({"kind": "box"} if name == "seed" else {}) for name, words in runs.items()],
    }  # fmt: skip

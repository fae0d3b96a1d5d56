"""What a simulation goes on from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from sgdlimits.errors import BadInput
from sgdlimits.level.base import FINISHED, Clock, Engine
from sgdlimits.run.record import to_json
from sgdlimits.run.schema import INTERRUPTED, State, check_form, state_of


class Old(NamedTuple):
    """What a batch of runs goes on from: a dataset, the state at its last time, the clock from there, and who had ended."""

    dataset: xr.Dataset
    state: np.ndarray
    clock: Clock
    ended: np.ndarray


class Before(NamedTuple):
    """What a simulation goes on from: a dataset, or nothing; and whether time zero is saved."""

    dataset: xr.Dataset | None
    state: State
    from_zero: bool

    @property
    def runs(self) -> int:
        return 0 if self.dataset is None else self.dataset.sizes["run"]

    def groups(self) -> list[int]:
        """How many neighbouring runs each stand at one time."""
        if self.dataset is None:
            return []
        t = self.state.t
        return np.diff(np.flatnonzero(np.concatenate([[True], t[1:] != t[:-1], [True]]))).tolist()

    def of(self, which: np.ndarray, clock: Clock) -> Old | None:
        """What these runs go on from, or None where they set out."""
        if self.dataset is None or which[0] >= self.runs:
            return None
        state = State(*(part[which] for part in self.state))
        mine = self.dataset.isel(run=which, t=self.dataset.t.values <= state.t[0])
        mine.encoding = {"state": state}
        later = clock.t > state.t[0] * (1 + 1e-12)
        rest = [
            np.concatenate([here.values[-1:], there[later]]) for here, there in zip((mine.t, mine.step), clock, strict=True)
        ]
        return Old(mine, state.numbers, Clock(*rest), ~np.isin(mine.status.values, (FINISHED, INTERRUPTED)))


def earlier(resume: xr.Dataset | None, engine: Engine, attributes: dict, runs: int, from_zero: bool) -> Before:
    """What a dataset holds for the same simulation to go on from, or nothing. `BadInput` where it is of another one."""
    if resume is None:
        return Before(None, State(np.zeros((0, 0)), np.zeros(0)), from_zero)
    attrs = check_form(resume).attrs
    same = {**attributes, "level_parameters": to_json(engine.level)}
    for name in ("problem", "level_parameters", "start", "seed", "until", "observe"):
        if attrs.get(name, "{}" if name == "observe" else None) != same[name]:
            raise BadInput(
                f"resume must be a dataset of the same simulation, but its {name} differs. Give the same, or leave out resume."
            )
    if resume.sizes["run"] > runs:
        raise BadInput(f"resume has {resume.sizes['run']} runs, more than runs = {runs}. Give at least as many runs.")
    state = state_of(resume)
    if state is None or len(state.t) != resume.sizes["run"] or not np.isin(state.t.max(), resume.t.values):
        raise BadInput(
            "resume does not hold the state of its runs at its last time: it was cut, is too large, or was written by an older "
            "version. Simulate from the start."
        )
    if attributes["t_max"] < state.t.max() * (1 - 1e-12):
        raise BadInput(f"resume has runs at t = {state.t.max():g}, beyond t_max = {attributes['t_max']:g}. Give a later t_max.")
    return Before(resume, state, from_zero)

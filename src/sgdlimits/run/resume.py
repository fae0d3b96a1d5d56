"""Checkpoints: datasets from which interrupted or extended simulations resume."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from sgdlimits.errors import BadInput
from sgdlimits.level.base import RUN_FINISHED, Clock, Engine
from sgdlimits.run.record import to_json
from sgdlimits.run.schema import INTERRUPTED, ResumeState, check_form, resume_state_of


class BatchCheckpoint(NamedTuple):
    """State from which one batch of runs resumes, with the times saved before and the times still to save.

    `dataset` has the saved times so far, `rows` the state of the stepper in a row of floats for each run, `clock` the time of
    the checkpoint and the saved times after it, and `ended` marks the runs that had stopped or diverged.
    """

    dataset: xr.Dataset
    rows: np.ndarray
    clock: Clock
    ended: np.ndarray


class Checkpoint(NamedTuple):
    """Dataset from which a simulation resumes, and the state of its runs; for a new simulation the dataset is None."""

    dataset: xr.Dataset | None
    state: ResumeState

    @property
    def runs(self) -> int:
        """Number of runs that resume from the dataset."""
        return 0 if self.dataset is None else self.dataset.sizes["run"]

    def group_sizes(self) -> list[int]:
        """Return the sizes of the groups of consecutive runs that resume from the same time."""
        if self.dataset is None:
            return []
        t = self.state.t
        return np.diff(np.flatnonzero(np.concatenate([[True], t[1:] != t[:-1], [True]]))).tolist()

    def for_runs(self, runs: np.ndarray, clock: Clock) -> BatchCheckpoint | None:
        """Return the checkpoint of the runs with the given indices, or None if the runs with these indices start at time zero.

        `clock` has all saved times of the simulation.
        """
        if self.dataset is None or runs[0] >= self.runs:
            return None
        state = ResumeState(*(part[runs] for part in self.state))
        mine = self.dataset.isel(run=runs, t=self.dataset.t.values <= state.t[0])
        mine.encoding = {"state": state}
        later = clock.t > state.t[0] * (1 + 1e-12)  # times that agree up to rounding are one saved time
        rest = [
            np.concatenate([here.values[-1:], there[later]]) for here, there in zip((mine.t, mine.step), clock, strict=True)
        ]
        return BatchCheckpoint(mine, state.rows, Clock(*rest), ~np.isin(mine.status.values, (RUN_FINISHED, INTERRUPTED)))


def read_checkpoint(resume: xr.Dataset | None, engine: Engine, attributes: dict, runs: int) -> Checkpoint:
    """Return the checkpoint in the dataset `resume`; raise `BadInput` if a different simulation made it.

    `attributes` are those of the simulation that resumes, with `runs` runs.
    """
    if resume is None:
        return Checkpoint(None, ResumeState(np.zeros((0, 0)), np.zeros(0)))
    attrs = check_form(resume).attrs
    # The bound level has the parameters that it chose for itself; they must agree too.
    same = {**attributes, "level_parameters": to_json(engine.level)}
    for name in ("problem", "level_parameters", "start", "seed", "until", "observe"):
        if attrs.get(name, "{}" if name == "observe" else None) != same[name]:
            raise BadInput(
                f"resume must be a dataset of the same simulation, but its {name} differs. "
                f"Give the same {name}, or leave out resume."
            )
    if resume.sizes["run"] > runs:
        raise BadInput(
            f"resume has {resume.sizes['run']} runs, more than runs = {runs}. Give runs={resume.sizes['run']} or more."
        )
    state = resume_state_of(resume)
    if state is None or len(state.t) != resume.sizes["run"] or not np.isin(state.t.max(), resume.t.values):
        raise BadInput(
            "resume does not hold the state of its runs at its last time: it was cut, is too large, or was written by an older "
            "version. Simulate from the start."
        )
    if attributes["t_max"] < state.t.max() * (1 - 1e-12):
        raise BadInput(f"resume has runs at t = {state.t.max():g}, beyond t_max = {attributes['t_max']:g}. Give a later t_max.")
    return Checkpoint(resume, state)

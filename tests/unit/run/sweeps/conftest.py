"""A small sweep, whose units take no time."""

from __future__ import annotations

import pytest

import sgdlimits as sl


@pytest.fixture
def small(tmp_path):
    """A function that runs a sweep of tiny units into a folder: `small("a", over=..., runs=4)`."""

    def run(folder, over=None, level=None, start=None, **more):
        given = {"runs": 4, "t_max": 1, "keep": "final_risk", "progress": False, **more}
        over = sl.grid(lr=[0.05, 0.1], noise=[0.0, 0.5, 1.0]) if over is None else over
        return sl.sweep(
            "phase_retrieval", level or sl.Chain(30), start or sl.RandomInit(30), over=over, folder=tmp_path / folder, **given
        )

    return run


@pytest.fixture
def contents(tmp_path):
    """A function that gives the files of a folder, by name. A process that is ending may yet have a partial one there."""
    return lambda folder: {path.name: path.read_bytes() for path in (tmp_path / folder).glob("[!.]*")}

"""Points that differ in numbers are one batch: their units are computed together, and are bit by bit what each is alone."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.lanes import Lanes
from sgdlimits.run.sweeps.engine import make_tasks
from sgdlimits.run.sweeps.job import Sweep
from sgdlimits.run.sweeps.recipe import Recipe
from sgdlimits.run.sweeps.unit import compute_unit, compute_units

RATES = [0.05, 0.1, 0.2]
CASES = {
    "chain": ("phase_retrieval", sl.Chain(50), sl.grid(lr=RATES, noise=[0.0, 0.5]), {"save": 4}),
    "until": ("phase_retrieval", sl.Chain(50), sl.grid(lr=[0.1, 0.4], noise=[0.1, 0.2]), {"until": sl.exits(0.1)}),
    "diverges": ("phase_retrieval", sl.Chain(50), sl.grid(lr=[0.1, 5.0]), {"fixed": {"sphere": False}}),
    "sde": ("phase_retrieval", sl.SDE(50), sl.grid(lr=RATES), {"save": [0.33, 0.77, 1.5]}),
    "optimisers": (
        "phase_retrieval", sl.Chain(50), sl.grid(optimiser=["sgd", "heavy_ball"], lr=RATES), {"fixed": {"beta": 0.5}},
    ),
    "lengths": ("phase_retrieval", sl.Chain(50), sl.grid(lr=RATES, t_max=[1.0, 1.5]), {}),
    "dimensions": ("phase_retrieval", "chain", sl.grid(lr=RATES, d=[30, 40]), {}),
    "ode": ("phase_retrieval", sl.ODE(), sl.grid(lr=RATES), {}),
}  # fmt: skip


def asked(name, runs=3):
    """A recipe and its units."""
    preset, level, over, more = CASES[name]
    start = "random" if isinstance(level, str) else sl.RandomInit(50)
    recipe = Recipe.from_arguments(preset, level, start, **{"t_max": 1.5, **more})
    return recipe, Sweep.from_arguments(recipe, over, runs, "nowhere").units


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:.*diverged")
def test_units_computed_together_are_those_computed_alone(name):
    recipe, units = asked(name)
    found = {unit.name: dataset for unit, dataset in compute_units(recipe, units)}
    assert set(found) == {unit.name for unit in units}
    for unit in units:
        assert found[unit.name].identical(compute_unit(recipe, unit))


def test_steps_of_points_that_differ_in_numbers_fill_common_vectors(monkeypatch):
    """Eight points with two runs each are one vector of sixteen, not eight."""
    packed: list[int] = []
    run = Lanes.run

    def counted(self, arrays, span):
        packed.append(int((arrays.end < 0).sum()))
        return run(self, arrays, span)

    monkeypatch.setattr(Lanes, "run", counted)
    recipe = Recipe.from_arguments("phase_retrieval", sl.Chain(50), sl.RandomInit(50), t_max=1.0, keep="final_risk")
    units = Sweep.from_arguments(recipe, sl.grid(lr=np.linspace(0.1, 0.2, 8)), 2, "nowhere").units
    assert len(list(compute_units(recipe, units))) == 8
    assert set(packed) == {16}


def test_neighbours_are_put_together_as_far_as_that_saves_something():
    recipe, units = asked("chain", runs=20)
    sizes = lambda **how: [len(task.units) for task in make_tasks(recipe, units, **how)]
    assert sizes() == [3, 3]
    assert sizes(workers=6) == [1] * 6
    assert [len(task.units) for task in make_tasks(*asked("ode", runs=1))] == [1] * 3
    assert [len(task.units) for task in make_tasks(*asked("chain", runs=100))] == [1] * 6


def test_one_that_cannot_be_computed_spoils_nothing_for_the_others(small):
    over = sl.grid(lr=[0.05, 0.1], d=[1, 30])
    with pytest.warns(sl.SweepFailed, match="2 of 4 units failed: .*a larger d"):
        found = small("a", over, level="chain", start=sl.OrthogonalInit(0.01))
    assert found.final_risk.sel(d=30).notnull().all()

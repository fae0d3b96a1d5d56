"""What a problem says of its statistics and of how it is computed, by name."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.problem.directions import Directions

MAX_MEMBERS = 40


class Still(sl.Problem):
    """A problem that defines methods of its coordinates and numerics itself."""

    directions, rate, size = Directions(1, np.eye(1), sl.InitialWeights()), 1.0, 7

    def from_overlaps(self, overlaps):
        return sl.Spike(overlaps.M[:, 0, 0], overlaps.Q[:, 0, 0])

    def _drift_parts(self, stats):
        return stats, stats

    def _covariance(self, stats):
        return np.zeros((2, 2))

    def _risk(self, stats):
        return stats.m


def members(cls):
    """Methods, properties, fields and attributes of a class itself, private ones included."""
    names = {*vars(cls), *vars(cls).get("__annotations__", {})}
    return {name for name in names if not (name.startswith("__") or name == "_abc_impl")}


def test_the_interface_is_small():
    assert len(members(sl.Problem)) + len(members(sl.ProjectionProblem)) < MAX_MEMBERS


def test_a_problem_may_define_methods_of_its_views():
    problem = Still()
    assert problem.numerics.size == 7
    assert problem.numerics.tolerance == 1e-9
    assert type(sl.RandomInit(d=10).one(problem)) is sl.Spike
    assert problem.coordinates.names(sl.Spike(0.1, 0.2)) == ("m", "r2")


def test_old_names_work_with_a_warning():
    problem = sl.presets.committee(2, 1)
    stats = sl.FixedInit(0.3).one(problem)
    with pytest.warns(DeprecationWarning, match="ProjectionProblem.names is now ProjectionProblem.coordinates.names"):
        assert problem.names(stats) == problem.coordinates.names(stats)
    with pytest.warns(DeprecationWarning, match="numerics.samples_per_step"):
        assert problem.samples_per_step == 1
    with pytest.raises(AttributeError, match="'ProjectionProblem' object has no attribute 'nothing'"):
        _ = problem.nothing


def test_a_problem_is_imported_without_its_equations():
    code = "import sys, sgdlimits as sl; sl.presets.committee().risk; print('sgdlimits.analysis.equations' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert sl.presets.committee()._repr_latex_().startswith("$$\n\\begin{aligned}")


def test_equations_of_a_new_kind_of_problem_are_registered():
    with pytest.raises(sl.BadInput, match="no LaTeX is known for the equations of Still"):
        sl.latex(Still())
    assert Still()._repr_latex_() is None

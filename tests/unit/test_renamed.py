"""Names and arguments of before: they give what they are now, with one warning that says what to write."""

from __future__ import annotations

import warnings
from importlib import import_module
from operator import attrgetter

import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits import renamed
from sgdlimits.domain import checked


def caught(what):
    """What is returned, and the one warning, which points at this file."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        value = what()
    assert [each.category for each in found] == [DeprecationWarning]
    assert found[0].filename == __file__
    return value, str(found[0].message)


def test_a_function_of_0_1_is_what_it_is_called_now():
    value, text = caught(lambda: sl.theory.mediocrity.compare)
    assert value is sl.exit_table
    assert text == (
        "sgdlimits.theory.mediocrity.compare is now sgdlimits.exit_table. Write sgdlimits.exit_table; "
        "the old name goes with version 0.3."
    )


def test_an_argument_of_0_1_is_what_it_is_called_now():
    problem = sl.presets.single_index("he2", lr=1 / 12)
    value, text = caught(lambda: sl.theory.single_index.exit_time(problem, d=1000, threshold=0.5))
    assert value == sl.theory.single_index.exit_time(problem, d=1000, overlap=0.5)
    assert "The argument threshold of sgdlimits.theory.single_index.exit_time is now overlap. Write overlap;" in text


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda **how: sl.presets.committee(2, 1, "tanh", **how), "presets.committee"),
        (lambda **how: sl.presets.single_index("he2", **how), "presets.single_index"),
        (lambda **how: sl.presets.gaussian_mixture([[1.0], [-1.0]], [1, 0], **how), "presets.gaussian_mixture"),
        (
            lambda **how: sl.ProjectionProblem(
                sl.Target(sl.CommitteeReadout("erf"), 1), sl.TwoLayer(1, "erf"), sl.SquaredLoss(), sl.OnePassSGD(0.1), **how
            ),
            "ProjectionProblem",
        ),
    ],
    ids=["committee", "single index", "mixture", "parts"],
)
def test_the_rule_of_a_problem_is_its_expectation(make, name):
    problem, text = caught(lambda: make(rule=sl.Sobol(5)))
    assert problem == make(expectation=sl.Sobol(5))
    assert (
        text
        == f"The argument rule of sgdlimits.{name} is now expectation. Write expectation; the old name goes with version 0.4."
    )
    assert caught(lambda: problem.rule)[0] == problem.expectation
    assert caught(lambda: make().with_rule(sl.Sobol(5)))[0] == problem
    assert caught(lambda: make().replace(rule=sl.Sobol(5)))[0] == problem


def test_a_problem_without_expectations_has_no_rule():
    with pytest.raises(AttributeError, match="rule"):
        _ = sl.presets.spiked_tensor(3, 1.0).rule


def test_one_entry_of_the_table_is_enough(monkeypatch):
    monkeypatch.setitem(renamed.RENAMED, "simulated", renamed.NewName("simulate", "9.0"))
    monkeypatch.setitem(renamed.RENAMED, f"{__name__}.Ball(beta)", renamed.NewName("lr", "9.0"))
    value, text = caught(lambda: sl.simulated)
    assert value is sl.simulate
    assert "goes with version 9.0" in text

    class Ball:
        def __init__(self, lr):
            self.lr = lr

    Ball.__init__.__qualname__ = "Ball.__init__"
    assert caught(lambda: checked(Ball)(beta=0.5))[0].lr == 0.5


def test_names_that_never_were_are_errors_as_before():
    for module in (sl, sl.theory.mediocrity):
        with pytest.raises(AttributeError, match="no_such_name"):
            _ = module.no_such_name


def test_the_table_leads_to_what_is_there_and_old_names_do_not_outlive_their_version():
    for old, (new, until) in renamed.RENAMED.items():
        assert tuple(map(int, until.split("."))) > tuple(map(int, sl.__version__.split(".")[:2])), f"{old} was to go in {until}"
        if not old.endswith(")"):
            module, _, name = f"sgdlimits.{old}".rpartition(".")
            assert name not in dir(import_module(module))
            value = caught(lambda module=module, name=name: getattr(import_module(module), name))[0]
            assert value is attrgetter(new)(sl)


def test_the_step_of_an_algorithm_of_0_2_still_has_its_names():
    """`now`, weights and gradient methods answer to what they were called, in algorithms of a user's own."""

    class Older(sl.OnePassSGD):
        def step(self, now):
            slope = now.steered(now.samples).mean(*now.samples(now.student))
            assert len(now.fields_of["student"]) == 2
            old = now.student.mixed(jnp.eye(2))
            return {"student": self.held(old + self.downhill(slope)) + 0.0 * self.push(now)}

    from_names = lambda algorithm: sl.simulate(
        sl.presets.committee(2, 1, "tanh", algorithm=algorithm), sl.Chain(9), sl.FixedInit(0.3), t_max=1, progress=False
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        data = from_names(Older(0.1))
    old = {str(each.message).split(" ")[0].split(".")[1] for each in found if each.category is DeprecationWarning}
    assert old == {"steered", "samples", "mean", "fields_of", "mixed", "held", "downhill", "push"}
    np.testing.assert_allclose(data.M, from_names(sl.OnePassSGD(0.1)).M, atol=1e-14)

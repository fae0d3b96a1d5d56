"""Readouts of time and of classes, heads and dropout: what they are given, what files hold, and what is refused."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.inputs.masks import decode_masks, enumerate_masks, mask_probabilities
from sgdlimits.model.target import FunctionReadout, TimedReadout
from sgdlimits.run.record import from_json, to_json

ERF = sl.CommitteeReadout("erf")


def turning(fixed, t):
    return jnp.cos(t) * fixed[0]


def scaled(fixed, factor=2.0):
    return factor * fixed[0]


def problem(readout=ERF, **network):
    return sl.ProjectionProblem(sl.Target(readout, 1), sl.TwoLayer(2, "erf", **network), sl.SquaredLoss(), sl.OnePassSGD(0.1))


def test_a_second_argument_without_default_is_the_time():
    assert isinstance(sl.Target(turning).readout, TimedReadout)
    assert isinstance(sl.Target(scaled).readout, FunctionReadout)
    assert isinstance(sl.Target(lambda fixed, t=0.0: fixed[0] + t).readout, TimedReadout)
    batch = sl.Target(turning).at(np.pi).label(jnp.ones((1, 3)), jnp.zeros(3), 0)
    np.testing.assert_allclose(batch, -1.0)


def test_files_hold_tasks_and_leave_out_what_is_not_there():
    for each in (
        problem(dropout=0.2),
        problem(dropout=sl.Steps([1.0], [0.2, 0.0])),
        problem(turning),
        sl.presets.two_tasks(similarity=0.3, weights=sl.Steps([1.0], [[1.0, 0.0], [0.0, 1.0]])),
        sl.presets.drifting(0.3),
    ):
        assert from_json(to_json(each)) == each
    assert "dropout" not in to_json(problem(dropout=0))
    assert "heads" not in to_json(problem())


def test_presets_are_found_with_their_arguments():
    two, turning_one = sl.presets.two_tasks(similarity=0.3), sl.presets.drifting(0.3)
    assert "similarity=0.3" in repr(two)
    assert two.replace(similarity=-1.0) == sl.presets.two_tasks(similarity=-1.0)
    assert "speed=0.3" in repr(turning_one)
    assert turning_one.replace(speed=0.1, lr=0.2) == sl.presets.drifting(0.1, lr=0.2)


def test_masks_by_their_numbers():
    masks = enumerate_masks(3)
    np.testing.assert_array_equal(decode_masks(jnp.arange(8), 3).T, masks)
    weights = np.asarray(mask_probabilities(0.3, 3))
    np.testing.assert_allclose(weights @ masks, 0.7)
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sl.Target(lambda fixed, t: fixed * t, 2), "must return one number"),
        (lambda: sl.Target(lambda fixed, t: fixed[1] * t), "fails on 1 field and a time"),
        (lambda: sl.information_exponent(problem(turning)), "changes with time"),
        (lambda: sl.TwoLayer(30, dropout=0.1), "at most 24 units; got 30"),
        (lambda: sl.TwoLayer(2, dropout=1.0), "below 1; got 1"),
        (lambda: sl.TwoLayer(2, heads=2, outputs=3), "several heads or several outputs"),
        (lambda: problem(heads=2), "heads must be 1, or 1, the number of classes of the data; got 2"),
        (lambda: problem(sl.ClassReadouts([ERF, ERF])), "readouts must contain 1, one for each class of the data; got 2"),
        (lambda: problem(sl.ClassReadouts([ERF], [np.eye(2)])), "turns must be matrices of 1 rows"),
        (lambda: sl.ClassReadouts([]), "got none"),
        (lambda: sl.ClassReadouts([jnp.tanh]), "must be readouts"),
        (lambda: sl.ClassReadouts([ERF], [[[1.0, 1.0], [1.0, 1.0]]]), "invertible"),
        (lambda: sl.ClassReadouts([ERF], np.eye(2)), r"shape \(1, k, k\)"),
        (lambda: problem(dropout=0.1).with_expectation(sl.Squares()), "Squares needs squared activations"),
        (lambda: sl.presets.two_tasks(similarity=1.2), "from -1 to 1; got 1.2"),
        (lambda: sl.simulate(problem(dropout=0.1), sl.MeanField(), sl.FixedInit(0.1), t_max=1), "no bias and no dropout"),
        (lambda: sl.tracking_risk(0.1, 2.5), "below 2"),
        (lambda: sl.tracking_lr(0.0), "above 0"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(sl.BadInput, match=words):
        make()


def test_more_masks_than_can_be_averaged_are_refused_where_they_are():
    many = sl.ProjectionProblem(sl.Target(ERF), sl.TwoLayer(11, "erf", dropout=0.1), sl.SquaredLoss(), sl.OnePassSGD(0.1))
    start = sl.Overlaps(np.ones(11), np.zeros((11, 1)), np.eye(11))
    with pytest.raises(sl.BadInput, match="at most 10 units; got 11"):
        many.drift(start)
    data = sl.simulate(many, sl.Chain(30), start, t_max=0.1, save=2, progress=False)
    assert float(data.risk[0, 0]) == pytest.approx(float(many.risk(start)))


def test_forgetting_needs_tasks_a_switch_and_times():
    data = sl.simulate(sl.presets.two_tasks(), sl.ODE(), sl.RandomInit(50), t_max=1.0, save=3, progress=False)
    with pytest.raises(sl.BadInput, match="do not change with time"):
        sl.forgetting(data)
    assert sl.forgetting(data, switch=0.5).sizes["t"] == 2
    for wrong, words in ((lambda: sl.forgetting(data, task=2), "below 2"), (lambda: sl.transfer(data, switch=9.0), "between")):
        with pytest.raises(sl.BadInput, match=words):
            wrong()
    plain = sl.simulate(problem(), sl.ODE(), sl.RandomInit(50), t_max=1.0, save=3, progress=False)
    with pytest.raises(sl.BadInput, match="no task_risk"):
        sl.forgetting(plain)

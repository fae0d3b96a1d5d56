"""Theory asks what a problem is made of, not how it is called."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.papers.mediocrity import theory as mediocrity
from sgdlimits.papers.quadratic import theory as quadratic
from sgdlimits.problem.recognise import recognise_phase_retrieval, recognise_quadratic_network


def squares(teachers=1, weight=0.5, name="mine", readout=None, sgd=None, **more):
    """Squares that learn squares, from parts."""
    return sl.ProjectionProblem(
        target=more.pop("target", sl.Target(readout or sl.CommitteeReadout("square"), teachers, noise=0.2)),
        network=more.pop("network", sl.TwoLayer(2, "square")),
        loss=more.pop("loss", sl.SquaredLoss(weight=weight)),
        algorithm=sgd or sl.OnePassSGD(0.1, sphere=weight == 0.5),
        name=name,
        **more,
    )


def network(**more):
    return squares(teachers=2, weight=1.0, sgd=sl.OnePassSGD(0.1), **more)


def test_squares_from_parts_have_the_exit_time_of_the_preset():
    times = [mediocrity.exit_time(each, 300, 0.2) for each in (squares(), sl.presets.phase_retrieval(2, lr=0.1, noise=0.2))]
    assert times[0] == times[1]
    form = squares(readout=sl.QuadraticReadout([[1.0]]))
    assert mediocrity.exit_time(form, 300, 0.2) == times[0]


def test_a_batch_acts_as_a_smaller_rate():
    batch = squares(sgd=sl.OnePassSGD(0.3, sphere=True, batch=3))
    np.testing.assert_allclose(recognise_phase_retrieval(batch), recognise_phase_retrieval(squares()), rtol=1e-15)
    rates = [quadratic.plateau_rates(network()), quadratic.plateau_rates(squares(2, 1.0, sgd=sl.OnePassSGD(0.2, batch=2)))]
    np.testing.assert_allclose(*rates, rtol=1e-15)


def test_a_name_does_not_make_a_problem():
    unit = sl.presets.committee(1, 1, "erf", sphere=True)
    called = sl.ProjectionProblem(
        unit.target, unit.network, unit.loss, unit.algorithm, initial=unit.initial, name="phase_retrieval"
    )
    with pytest.raises(sl.BadInput, match="phase retrieval on the sphere"):
        mediocrity.exit_time(called, 300, 0.2)
    with pytest.raises(sl.BadInput, match="a quadratic network; got 'quadratic_network'"):
        quadratic.critical_points(squares(2, 0.5, name="quadratic_network"))
    with pytest.raises(sl.BadInput, match="must be a quadratic network"):
        quadratic.plateau_norm(squares(2, 0.5, name="quadratic_network"))


@pytest.mark.parametrize(
    "other",
    [
        {"network": sl.TwoLayer(2, "erf")},
        {"network": sl.TwoLayer(2, "square", mean=False)},
        {"loss": sl.SquaredLoss(weight=0.7)},
        {"loss": lambda f, y: (f - y) ** 4},
        {"sgd": sl.OnePassSGD(0.1, ridge=0.01)},
        {"readout": sl.CommitteeReadout("erf")},
        {"readout": sl.CommitteeReadout("square", [1.0, 0.5])},
        {"target": sl.Target(sl.CommitteeReadout("square"), gram=[[1.0, 0.3], [0.3, 1.0]])},
        {"data": sl.mixture([[1.0, 0.0], [-1.0, 0.0]])},
        {"initial": sl.InitialWeights(second=2.0)},
    ],
)
def test_another_part_makes_another_problem(other):
    kept = {"teachers": 2, "weight": 1.0, "sgd": sl.OnePassSGD(0.1)}
    assert recognise_quadratic_network(squares(**kept)) == (2, 2, 0.1, 0.2)
    assert recognise_quadratic_network(squares(**kept | other)) is None
    assert recognise_phase_retrieval(squares(**kept | other)) is None


def test_quadratic_networks_from_parts_have_the_critical_points_of_the_preset():
    preset = sl.presets.quadratic_network(2, 2, noise=0.2)
    assert quadratic.critical_points(network()).families == quadratic.critical_points(preset).families


def test_phases_find_theory_by_the_parts_of_the_problem():
    def theory(problem):
        return sl.phases(sl.simulate(problem, sl.ODE(), sl.OrthogonalInit(1e-3), t_max=20, save=21, progress=False)).theory

    presets = sl.presets.quadratic_network(2, 2, lr=0.1, noise=0.2), sl.presets.phase_retrieval(2, lr=0.1, noise=0.2)
    for mine, preset in zip((network(), squares()), presets, strict=True):
        found = theory(mine)
        assert found
        assert found == pytest.approx(theory(preset), rel=1e-12)
    assert theory(squares(2, 0.5, sgd=sl.OnePassSGD(0.1), name="quadratic_network")) == {}

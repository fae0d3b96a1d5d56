"""Problems print, compare, change and travel as values do."""

import copy
import inspect
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.shell_completion import BashComplete

import sgdlimits as sl
from sgdlimits.cli import main
from sgdlimits.problem.presets import PRESET_FUNCTIONS

P = sl.presets
MADE = {
    "phase_retrieval": {"width": 2, "lr": 0.3, "noise": 0.1, "train_second": True, "rho": 2.0},
    "quadratic_network": {"width": 3, "teachers": 2, "lr": 0.2},
    "committee": {
        "width": 3,
        "teachers": 2,
        "activation": "relu",
        "teacher_activation": "tanh",
        "train_second": 0.5,
        "batch": 4,
    },
    "single_index": {"activation": "he3", "target": "he2", "sphere": False, "expectation": sl.Sobol(10)},
    "binary_mixture": {"snr": 30.0, "ridge": 0.2, "lr": 0.7},
    "xor_mixture": {"snr": float("inf")},
    "gaussian_mixture": {"means": [[-1.0], [1.0], [0.0]], "labels": [0, 1, 0], "weights": [0.3, 0.3, 0.4], "snr": 20.0},
    "spiked_tensor": {"order": 3, "snr": 4.0, "ridge": 0.1},
}


def user_problem(readout=lambda fixed: fixed[0] * fixed[1]):
    return sl.ProjectionProblem(
        sl.Target(readout, 2, noise=0.1), sl.TwoLayer(2, jnp.abs), sl.SquaredLoss(), sl.OnePassSGD(0.1, lr_second=0.5)
    )


@pytest.mark.parametrize("name", MADE)
def test_replacing_gives_what_the_preset_gives(name):
    make, given = PRESET_FUNCTIONS[name], MADE[name]
    problem = make(**given)
    other = problem.replace(lr=0.123, **({"width": 5} if name != "spiked_tensor" else {"order": 4}))
    assert other == make(**{**given, "lr": 0.123, **({"width": 5} if name != "spiked_tensor" else {"order": 4})})
    assert other != problem


def test_replacing_keeps_another_algorithm_and_changes_its_numbers():
    problem = P.committee(3, 2, algorithm=sl.Averaged(sl.HeavyBall(0.1, 0.9), rate=2.0))
    changed = problem.replace(lr=0.2, noise=0.3)
    assert changed == P.committee(3, 2, noise=0.3, algorithm=sl.Averaged(sl.HeavyBall(0.2, 0.9), rate=2.0))


def test_replacing_works_on_problems_from_parts():
    problem = user_problem()
    changed = problem.replace(lr=0.3, noise=0.2, ridge=0.1, width=3, sphere=True)
    assert (float(changed.algorithm.lr), float(changed.target.noise), changed.network.width) == (0.3, 0.2, 3)
    assert changed.sphere
    assert changed.initial.unit
    assert changed.replace(lr=0.1, noise=0.1, ridge=0.0, width=2, sphere=False) == problem
    assert P.phase_retrieval().replace(ridge=0.5).algorithm.ridge == 0.5


def test_a_name_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(sl.BadInput, match=r"no 'rate' to replace. Give one of width, lr, noise"):
        P.phase_retrieval().replace(rate=1.0)
    with pytest.raises(sl.BadInput, match="lr must be a finite number above 0"):
        P.phase_retrieval().replace(lr=-1.0)


def test_traced_numbers_can_be_replaced():
    stats, problem = sl.Overlaps([1.0], [[0.1]], [[1.0]]), P.phase_retrieval(noise=0.1)
    drift = jax.vmap(lambda lr: problem.replace(lr=lr).drift(stats).M[0, 0])(jnp.array([0.1, 0.2]))
    np.testing.assert_allclose(drift, [P.phase_retrieval(lr=lr, noise=0.1).drift(stats).M[0, 0] for lr in (0.1, 0.2)])


@pytest.mark.parametrize("name", MADE)
def test_equal_problems_are_equal_and_hash_equal(name):
    one, other = PRESET_FUNCTIONS[name](**MADE[name]), PRESET_FUNCTIONS[name](**MADE[name])
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1
    moved = jax.tree.map(jnp.asarray, one)  # the same numbers on the device
    assert moved == one
    assert hash(moved) == hash(one)
    assert copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one


def test_other_numbers_functions_and_kinds_are_not_equal():
    readout = lambda fixed: fixed[0]
    assert user_problem(readout) == user_problem(readout)
    assert user_problem(readout) != user_problem(lambda fixed: fixed[0])
    assert P.phase_retrieval(lr=0.1) != P.phase_retrieval(lr=0.2)
    assert P.phase_retrieval() != P.spiked_tensor()
    assert sl.ODE() != sl.Chain(d=3)
    assert sl.OnePassSGD(0.1) != 3


def test_traced_numbers_are_not_compared():
    @jax.jit
    def inside(problem, lr):
        changed = eqx.tree_at(lambda p: p.algorithm.lr, problem, lr)
        assert changed == changed
        assert changed != problem
        with pytest.raises(TypeError, match="traced numbers"):
            hash(changed)
        return changed.algorithm.lr

    assert float(inside(P.phase_retrieval(), 0.2)) == pytest.approx(0.2)


def test_a_problem_of_lambdas_says_how_to_pickle_it():
    with pytest.raises(sl.BadInput, match="Define it with def at the top of a module") as caught:
        pickle.dumps(user_problem())
    assert isinstance(caught.value, pickle.PicklingError)
    problem = user_problem()
    assert copy.deepcopy(problem) == problem


@pytest.mark.parametrize("name", MADE)
def test_problems_print_what_makes_them(name):
    problem = PRESET_FUNCTIONS[name](**MADE[name])
    first = repr(problem).split("\n")[0]
    head, _, given = first.partition(": ")
    assert head == name
    assert len(first) < 200
    assert str(problem) == repr(problem)
    assert (
        PRESET_FUNCTIONS[name](**eval(f"dict({given})", {"inf": float("inf"), "NodeSums": sl.NodeSums, "Sobol": sl.Sobol}))
        == problem
    )


def test_parts_print_as_they_are_typed():
    shown = {
        "Averaged(base=HeavyBall(lr=0.1, beta=0.9))": sl.Averaged(sl.HeavyBall(0.1, 0.9)),
        "RandomInit(d=30)": sl.RandomInit(d=30),
        "FixedInit(overlap=[[0.1, 0.2]])": sl.FixedInit([[0.1, 0.2]]),
        "Overlaps(a=[1], M=[[0.1]], Q=[[1]])": sl.Overlaps([1.0], [[0.1]], [[1.0]]),
        "TwoLayer(width=2, activation='erf')": sl.TwoLayer(2, "erf"),
        "ODE(corrector=False)": sl.ODE(corrector=False),
        "Exits(threshold=0.2)": sl.exits(0.2),
        "OnePassSGD(lr=traced)": None,
    }
    for text, thing in shown.items():
        assert thing is None or repr(thing) == text
    jax.vmap(lambda lr: [lr, print(end="")] and lr * (repr(sl.OnePassSGD(lr)) == "OnePassSGD(lr=traced)"))(jnp.ones(2))
    assert "shape (20, 20)" in repr(sl.Overlaps(np.ones(20), np.ones((20, 1)), np.eye(20)))


def test_a_dataset_knows_its_problem():
    problem = P.binary_mixture(snr=float("inf"), lr=0.5)
    data = sl.simulate(problem, sl.ODE(), sl.FixedInit(0.1, second=1.0), t_max=0.1, save=2)
    assert sl.problem_of(data) == problem
    with pytest.raises(sl.BadInput, match="does not record how it was made"):
        sl.problem_of(data.drop_attrs())


def test_names_complete_with_tab():
    assert set(dir(sl.presets)) == set(PRESET_FUNCTIONS)
    assert all(inspect.isfunction(getattr(sl.presets, name)) for name in dir(sl.presets))
    complete = BashComplete(main, {}, "sgdlimits", "_SGDLIMITS_COMPLETE")
    found = lambda *line: {item.value for item in complete.get_completions(list(line[:-1]), line[-1])}
    assert found("run", "quad") == found("latex", "quad") == {"quadratic_network"}
    assert found("run", "committee", "--optimiser", "heavy") == {"heavy_ball"}
    assert found("run", "committee", "--activation", "ta") == {"tanh"}


def test_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert sl.__version__ == version("sgdlimits")

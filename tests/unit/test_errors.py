"""Bad input gets one sentence: what, the value, the remedy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl

PROBLEM = sl.presets.phase_retrieval


def run(problem=None, level=None, start=None, **changes):
    arguments = dict(t_max=1.0, runs=2, progress=False)
    start = sl.RandomInit(30) if start is None else start
    return sl.simulate(problem or PROBLEM(), level or sl.Chain(30), start, **{**arguments, **changes})


def target(**changes):
    return sl.Target(**{"readout": lambda fixed: fixed[0], "teachers": 1, **changes})


def projection(loss):
    return sl.ProjectionProblem(target(), sl.TwoLayer(1), loss, sl.OnePassSGD(0.1))


BAD = {
    "noise must be a finite number of at least 0; got -1": lambda: PROBLEM(noise=-1),
    "noise must be a finite number of at least 0; got nan": lambda: PROBLEM(noise=float("nan")),
    "there is no preset 'phase_retreival'. The presets are phase_retrieval": lambda: sl.presets.phase_retreival,
    "lr must be a finite number above 0; got 0": lambda: PROBLEM(lr=0),
    "width must be an integer of at least 1; got 0": lambda: PROBLEM(width=0),
    "width must be an integer of at least 1; got 1.5": lambda: PROBLEM(width=1.5),
    "teachers must be an integer of at least 1; got -2": lambda: sl.presets.quadratic_network(teachers=-2),
    "ridge must be a finite number of at least 0": lambda: sl.OnePassSGD(0.1, ridge=-1),
    "d must be an integer of at least 1; got 0": lambda: sl.Chain(0),
    "d must be at least the number of fixed directions, 3; got 2": lambda: run(
        sl.presets.quadratic_network(width=1, teachers=3), sl.Chain(2), sl.FixedInit(0.1)
    ),
    "the level has d = 30 and the start d = 200": lambda: run(start=sl.RandomInit(200)),
    "Q must have shape (2, 2)": lambda: run(PROBLEM(width=2), start=sl.Overlaps(np.ones(2), np.zeros((2, 1)), np.ones((2, 3)))),
    "M must have shape (1, 1)": lambda: run(start=sl.Overlaps([1.0], [[0.1, 0.2]], [[1.0]])),
    "M must be finite": lambda: run(start=sl.Overlaps([1.0], [[np.nan]], [[1.0]])),
    "not positive semi-definite": lambda: run(PROBLEM(sphere=False), start=sl.Overlaps([1.0], [[1.5]], [[1.0]])),
    "positive semi-definite: Q - M P^-1 M^T": lambda: run(
        PROBLEM(sphere=False), sl.SDE(30), start=sl.Overlaps([1.0], [[1.5]], [[1.0]])
    ),
    "positive semi-definite: Q - M P^-1": lambda: run(
        PROBLEM(sphere=False), sl.ODE(), start=sl.Overlaps([1.0], [[1.5]], [[1.0]])
    ),
    "Q must be symmetric": lambda: run(
        PROBLEM(width=2, sphere=False), start=sl.Overlaps(np.ones(2), np.zeros((2, 1)), [[1.0, 0.5], [0.0, 1.0]])
    ),
    "sphere=True keeps every norm at 1": lambda: run(start=sl.Overlaps([1.0], [[0.1]], [[2.0]])),
    "the start needs 3 directions": lambda: run(
        PROBLEM(width=3), sl.Chain(2), sl.Overlaps(np.ones(3), np.zeros((3, 1)), np.eye(3))
    ),
    "snr must be a number above 0; got -1": lambda: sl.presets.xor_mixture(snr=-1),
    "means must have shape (classes, k); got (2,)": lambda: sl.presets.gaussian_mixture([1.0, -1.0], [1, 0]),
    "weights must be probabilities, at least 0, that sum to 1; got [0.5, 0.6]": lambda: sl.mixture([[1.0], [0.0]], [0.5, 0.6]),
    "labels must be 2 numbers between 0 and 1": lambda: sl.presets.gaussian_mixture([[1.0], [-1.0]], [1, -1]),
    "ClassIntegrals needs ClassLabels": lambda: sl.presets.committee(expectation=sl.ClassIntegrals()),
    "AtMeans needs inputs without variance": lambda: sl.presets.gaussian_mixture([[1.0]], [1], expectation=sl.AtMeans()),
    "MeanField needs a network that is the mean of its units": lambda: run(sl.presets.binary_mixture(), sl.MeanField()),
    "order must be an integer of at least 2; got 1": lambda: sl.presets.spiked_tensor(order=1),
    "the scale of the fluctuations is not known": lambda: run(
        level=sl.Local(sl.Overlaps([1.0], [[0.0]], [[1.0]])), start=sl.Overlaps([1.0], [[0.1]], [[1.0]])
    ),
    "the point is not fixed": lambda: sl.local_limit(PROBLEM(), sl.Overlaps([1.0], [[0.5]], [[1.0]])),
    "t_max must be at least one step": lambda: run(t_max=0.001),
    "t_max must be a finite number above 0": lambda: run(t_max=-3),
    "runs must be an integer of at least 1; got 0": lambda: run(runs=0),
    "the start has only 3 runs, but run": lambda: run(
        start=sl.Overlaps(np.ones((3, 1)), np.zeros((3, 1, 1)), np.ones((3, 1, 1))), runs=5
    ),
    "seed must be": lambda: run(seed=-1),
    "save must hold times from 0 to t_max": lambda: run(save=[0.5, 2.0]),
    "save must be an integer": lambda: run(save=1),
    "level must be a level such as Chain(d=3000)": lambda: run(level="chain"),
    "start must be RandomInit": lambda: run(start=0.3),
    "problem must be a Problem": lambda: run(problem="phase_retrieval"),
    "unknown activation 'relux'": lambda: sl.TwoLayer(1, "relux"),
    "acts entry by entry": lambda: sl.TwoLayer(1, jnp.sum),
    "the loss must return one number; got shape (2,)": lambda: projection(lambda f, y: jnp.stack([f, y])),
    "the loss fails on two numbers": lambda: projection(lambda f: f),
    "the readout must return one number": lambda: target(readout=lambda fixed: fixed),
    "gram must have shape (1, 1)": lambda: target(gram=np.eye(2)),
    "gram must be symmetric and positive definite": lambda: target(teachers=2, gram=np.ones((2, 2))),
    "OrthogonalInit(spread=3) gives overlaps that no weights": lambda: run(start=sl.OrthogonalInit(3.0)),
    "FixedInit gives overlaps that no weights": lambda: run(start=sl.FixedInit(1.5)),
    "overlap must broadcast to shape (1, 1)": lambda: run(start=sl.FixedInit([0.1, 0.2])),
    "GaussHermite(order=100) in 5 dimensions needs": lambda: sl.GaussHermite(100).nodes(5),
    "there is no file": lambda: sl.load("nowhere.nc"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_gets_a_sentence_with_the_remedy(sentence):
    with pytest.raises(sl.BadInput) as caught:
        BAD[sentence]()
    message = str(caught.value)
    assert sentence in message
    assert message.endswith(".")
    assert "\n" not in message


def test_unreadable_file_gets_a_sentence(tmp_path):
    path = tmp_path / "text.nc"
    path.write_text("not a dataset")
    with pytest.raises(sl.BadInput, match="is not a netCDF file"):
        sl.load(path)


def test_rerun_of_a_lambda_says_what_to_pass(tmp_path):
    problem = sl.ProjectionProblem(
        target(), sl.TwoLayer(1), sl.SquaredLoss(), sl.OnePassSGD(0.1), expectation=sl.GaussHermite(4)
    )
    data = sl.load(sl.save(run(problem), tmp_path / "data.nc"))
    with pytest.raises(sl.BadInput, match="pass problem= to rerun"):
        sl.rerun(data)
    np.testing.assert_array_equal(sl.rerun(data, problem=problem).M, data.M)

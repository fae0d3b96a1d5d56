"""What used to be taken for something else: refused in one sentence, or taken for what it is."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl

PROBLEM = sl.presets.phase_retrieval()
STATE = sl.Overlaps([1.0], [[0.1]], [[1.0]])
OUT = sl.Overlaps([1.0], [[1.5]], [[1.0]])
"""No weights have these overlaps."""


class Own(sl.OnePassSGD):
    """A rule whose step fails."""

    def step(self, now):
        return {"student": now.student + now.gradient() * (jnp.ones(2) @ jnp.ones(3))}


class Text(sl.OnePassSGD):
    memory = {"v": "one"}  # noqa: RUF012


class Taken(sl.OnePassSGD):
    memory = {"risk": "zero"}  # noqa: RUF012


def run(problem=PROBLEM, level=None, start=STATE, **changes):
    return sl.simulate(problem, level or sl.Chain(20), start, **{"t_max": 0.5, "save": 2, "progress": False, **changes})


def own(algorithm=None, **parts):
    parts = {"target": sl.Target(sl.CommitteeReadout("square")), "network": sl.TwoLayer(1), "loss": sl.SquaredLoss(), **parts}
    return sl.ProjectionProblem(algorithm=algorithm or sl.OnePassSGD(0.1), **parts)


def other_pieces():
    return [run(), run(sl.presets.phase_retrieval(lr=0.01))]


class Listed(sl.OnePassSGD):
    memory = ["v"]  # noqa: RUF012


def family(d):
    return PROBLEM


BAD = {
    "weights fails on a time": lambda: sl.mixture([[1.0]], weights=lambda: 1),
    "data must be Inputs": lambda: own(data=np.ones(3)),
    "network must be a network": lambda: own(network=3),
    "second must be one number": lambda: sl.RandomInit(20, second="x"),
    "kernel must be a string": lambda: run(kernel=3),
    "kernel must be one of": lambda: run(level=sl.ODE(), kernel="nosuch"),
    "observe cannot use the name 'state'": lambda: run(observe={"state": lambda stats: stats.M[0, 0]}),
    "observe cannot use the name 'student'": lambda: run(observe={"student": lambda stats: stats.M[0, 0]}),
    "observe cannot use the name 'number'": lambda: run(observe={"number": lambda stats: stats.M[0, 0]}),
    "positive semi-definite": lambda: sl.flow(PROBLEM.replace(sphere=False), OUT, 1.0),
    "is not positive semi-definite": lambda: sl.linearise(PROBLEM.replace(sphere=False), OUT),
    "t must be finite numbers of at least 0; got -1": lambda: sl.flow(PROBLEM, STATE, -1.0),
    "t must be finite numbers of at least 0; got nan": lambda: sl.flow(PROBLEM, STATE, np.nan),
    "t must be a number or an increasing array": lambda: sl.flow(PROBLEM, STATE, [2.0, 1.0]),
    "band must be two numbers between 0 and 1": lambda: sl.plot.risk(run(), band=(0.9, 0.1)),
    "paper_time must be": lambda: own(paper_time=np.nan),
    "the means of the data have 2 coefficients": lambda: own(data=sl.mixture([[1.0, 0.0]])),
    "have different numbers of runs": lambda: run(
        start=sl.Overlaps(np.ones((2, 1)), np.zeros((3, 1, 1)), np.ones((3, 1, 1))), runs=2
    ),
    "start must be a finite number above -1 and below 1": lambda: sl.theory.mediocrity.exit_law(PROBLEM, 100, 0.1, start=2),
    "population must be": lambda: sl.theory.regimes.classify(np.nan, 1, 1),
    "t must be finite numbers of at least 0; got -1.": lambda: sl.theory.quadratic.risk_on_plateau(
        sl.presets.quadratic_network(), t=-1, spread=0.1
    ),
    "Text.memory['v'] must be 'zero', or 'copy' of the students; got 'one'": lambda: own(Text(0.1)),
    "Taken cannot store 'risk'": lambda: own(Taken(0.1)),
    "the method step of Own fails in line": lambda: run(own(Own(0.1))),
    "lr = 0.3 would be ignored: HeavyBall": lambda: sl.presets.committee(algorithm=sl.HeavyBall(0.1, 0.9), lr=0.3),
    "pieces must be of one simulation": lambda: sl.join(other_pieces()),
    "resume has runs at t = 0.5": lambda: run(resume=run(), t_max=0.2),
    "needs labels that are classes": lambda: own(loss=sl.SoftmaxCrossEntropy(), network=sl.TwoLayer(2, outputs=2)),
    "snr must be": lambda: sl.presets.spiked_tensor(snr=np.inf),
    "bias must be True or False": lambda: sl.TwoLayer(1, bias="yes"),
    "the statistics must be Overlaps": lambda: PROBLEM.drift(None),
    "M must have shape (1, 1) and Q (1, 1)": lambda: PROBLEM.risk(sl.Overlaps(np.ones(2), np.zeros((2, 1)), np.eye(2))),
    "M must be finite; got nan": lambda: PROBLEM.covariance(sl.Overlaps([1.0], [[np.nan]], [[1.0]])),
    "M must be an array of numbers": lambda: sl.Overlaps([1.0], [[1.0], [1.0, 2.0]], [[1.0]]),
    "Q must be real numbers; got 'one'": lambda: sl.Overlaps([1.0], [[1.0]], "one"),
    "ax must be axes of matplotlib": lambda: sl.plot.risk(run(), ax=3),
    "path must be a path": lambda: sl.load(None),
    "sphere = True would be ignored: Muon": lambda: sl.presets.committee(algorithm=sl.Muon(0.1), sphere=True),
    "batch = 4 would be ignored: Clipped": lambda: sl.presets.committee(algorithm=sl.Clipped(sl.OnePassSGD(0.1), 1.0), batch=4),
    "train_second = True would be ignored: HeavyBall": lambda: sl.presets.committee(
        algorithm=sl.HeavyBall(0.1, 0.9), train_second=True
    ),
    "CrossEntropy needs labels between 0 and 1; got -1": lambda: own(
        target=sl.Target(sl.ClassLabels([1, -1])), loss=sl.CrossEntropy(), data=sl.mixture([[0.0], [1.0]])
    ),
    "CrossEntropy needs labels between 0 and 1": lambda: own(loss=sl.CrossEntropy()),
    "scalars must be a dictionary": lambda: sl.Network(lambda f, s: f.sum(), 2, [1.0]),
    "scalars['a'] must be finite": lambda: sl.Network(lambda f, s: f.sum(), 2, {"a": np.nan}),
    "scalars['a'] must be an array of numbers": lambda: sl.Network(lambda f, s: f.sum(), 2, {"a": [[1.0], [1.0, 2.0]]}),
    "a must be numbers, or a dictionary of numbers": lambda: sl.Overlaps({"a": None}, [[0.1]], [[1.0]]),
    "second must be one number, one for each unit, a law, or numbers by name": lambda: sl.RandomInit(20, second={"a": "x"}),
    "names is empty": lambda: sl.Overlaps([1.0], [[0.1]], [[1.0]], names=()),
    "there are no directions of 'velocity'": lambda: STATE.of("velocity"),
    "a must have shape (2,)": lambda: sl.weights(np.ones((2, 3)), np.eye(3), a=[1.0]),
    "R must have as many rows as columns": lambda: sl.QuadraticReadout([[1.0, 2.0]]),
    "rule must be a rule of nodes": lambda: sl.NodeSums(sl.ClosedForm()),
    "orders must be a sequence": lambda: sl.ClassIntegrals(orders=3),
    "dim must be an integer": lambda: sl.GaussHermite(2).nodes("3"),
    "covariance must be symmetric and positive": lambda: sl.GaussHermite(8).expect(lambda x: x[0], np.zeros(2), -np.eye(2)),
    "Listed.memory must be a dictionary": lambda: own(Listed(0.1)),
    "t must be finite numbers of at least 0": lambda: PROBLEM.at(-1.0),
    "has the eigenvalue -1. Make Q larger": lambda: sl.presets.committee().risk(
        sl.Overlaps(np.ones(2), np.zeros((2, 2)), -np.eye(2))
    ),
    "the statistics must be Overlaps; got Spike": lambda: run(start=sl.Spike(0.1, 1.0)),
    "observe must be a dictionary": lambda: run(observe=[lambda stats: stats.M[0, 0]]),
    "must return one array; got several": lambda: run(observe={"x": lambda stats: {"y": stats.M[0, 0]}}),
    "rtol must be a finite number of at least 1e-14 and below 1": lambda: sl.ODE(rtol=2.0),
    "start= has d = 30, but d= is 100": lambda: sl.trust(PROBLEM, sl.RandomInit(30), 100, 1.0),
    "save must be an integer of at least 2": lambda: sl.expansion(PROBLEM, STATE, 1.0, save=[0.1, 0.2]),
    "phases needs three": lambda: sl.phases(run()),
    "the landscape needs a projection problem": lambda: sl.hessian_spectrum(sl.presets.spiked_tensor(), sl.Spike(0.1, 1.0), 20),
    "d must be an integer": lambda: sl.effective_dynamics(family).at("x"),
    "problem must be a Problem, or a function of d": lambda: sl.EffectiveDynamics(3),
    "pieces have run 0 at t = 0 twice": lambda: sl.join([run(), run()]),
    "lr is not an argument of simulate": lambda: sl.rerun(run(), lr=0.3),
    "which files cannot store": lambda: sl.save(run().assign_attrs(mine={"a": 1}), "x.nc"),
    "records None as its problem": lambda: sl.problem_of(run().assign_attrs(problem="null")),
    "axes= must be two axes": lambda: sl.plot.overview(run(), axes=sl.plot.overview(run())[:1]),
    "colour= is not an option": lambda: sl.plot.overview(run(), colour="red"),
    "threshold must be between 0 and 1": lambda: sl.theory.mediocrity.minimal_samples(1, 0.1, 100, 1.5),
    "spread must be below 0.797": lambda: sl.theory.quadratic.escape_time(sl.presets.quadratic_network(), 100.0),
    "m must be cosines": lambda: sl.theory.single_index.drift_parts(PROBLEM, [5.0]),
    "W and E must have the same d columns": lambda: sl.weights(np.ones((1, 3)), np.ones((1, 4))),
}


@pytest.mark.parametrize("sentence", BAD)
def test_it_is_refused_in_a_sentence(sentence):
    with pytest.raises(sl.BadInput) as caught:
        BAD[sentence]()
    text = str(caught.value)
    assert sentence in text
    assert text.endswith(".")
    assert "\n" not in text


def test_a_dataset_is_a_start():
    """A second stage begins where the first one ended, run by run."""
    first = run(start=sl.RandomInit(20), runs=3, seed=1)
    second = run(start=first, runs=3, seed=2)
    np.testing.assert_allclose(second.M[:, 0], first.M[:, -1], atol=1e-12)


def test_weights_are_a_start():
    rng = np.random.default_rng(0)
    W, E = rng.normal(size=(2, 20)) / 20**0.5, np.eye(2, 20)
    problem = sl.presets.quadratic_network(width=2, teachers=2)
    data = run(problem, start=sl.weights(W, E))
    np.testing.assert_allclose(data.M[0, 0], W[:, :2])
    np.testing.assert_allclose(data.Q[0, 0], W @ W.T)


def test_a_class_of_weight_zero_does_not_count():
    """Risk and drift are those of the other classes."""
    kind = lambda means, labels, weights: sl.presets.gaussian_mixture(means, labels, weights, snr=4.0)
    two, three = kind([[1.0], [-1.0]], [1, 0], [0.3, 0.7]), kind([[1.0], [-1.0], [5.0]], [1, 0, 1], [0.3, 0.7, 0.0])
    state = sl.FixedInit(0.3).one(two)
    np.testing.assert_allclose(three.risk(state), two.risk(state), rtol=1e-6)
    np.testing.assert_allclose(three.drift(state).M, two.drift(state).M, rtol=1e-6)

"""Each algorithm once more, as books write it in R^d, and the law of the exact chain and of SGD against that."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.level.chain import FrameChain
from sgdlimits.level.stepper import ProcessEngine

NOISE = 0.09
RUNS = 4000
STEPS = (1, 10, 40)
FEW = sl.Sobol(3, 2)
START = sl.Overlaps([1.0, 0.6], [[0.3], [-0.2]], [[1.0, 0.1], [0.1, 1.0]])


def steep(fields):
    return jnp.tanh(2 * fields[0])


def problem(rule, activation="tanh", nodes=FEW):
    """Two units learn a steep one. Few nodes: most tests do not look at the risk."""
    target, network = sl.Target(steep, 1, noise=NOISE), sl.TwoLayer(2, activation)
    return sl.ProjectionProblem(target, network, sl.SquaredLoss(), rule, expectation=nodes)


# --- algorithms in R^d -------------------------------------------------------------------------------------------------------
#
# Weights are pairs of layers, u of shape (runs, p, d) and a of shape (runs, p). `grad` takes them and gives the gradients of
# all samples, with the samples second. A step changes what the dictionary `s` holds.


def mean(gradients):
    return tuple(layer.mean(1) for layer in gradients)


def length(layers, first=1):
    """The length of all layers together, over all axes from `first` on, with these axes kept for u."""
    square = sum((layer**2).sum(tuple(range(first, layer.ndim))) for layer in layers)
    return np.sqrt(square)[..., None, None], np.sqrt(square)[..., None]


def shrink(gradients, most, first):
    return tuple(g * np.minimum(1, most / size) for g, size in zip(gradients, length(gradients, first), strict=True))


def rates(rule):
    return float(rule.lr), 0.0 if rule.lr_second is None else float(rule.lr_second)


def held(rule, u, a):
    return (u / np.linalg.norm(u, axis=-1, keepdims=True) if rule.sphere else u), a


def sgd(rule, s, grad, d):
    (lr, second), (u, a) = rates(rule), s["student"]
    g, h = mean(grad(u, a))
    s["student"] = held(rule, u - lr / d * (g + rule.ridge * u), a - second / d * (h + rule.ridge * a))


def heavy_ball(rule, s, grad, d, ahead=0):
    (lr, second), (u, a), (v, w) = rates(rule), s["student"], s["velocity"]
    beta, slow = (rule.beta, 1) if rule.friction is None else (1 - rule.friction / d, rule.friction / d)
    at = u + ahead * beta * v / d, a + ahead * beta * w / d
    g, h = mean(grad(*at))
    v, w = beta * v - slow * lr * (g + rule.ridge * at[0]), beta * w - slow * second * (h + rule.ridge * at[1])
    s["student"], s["velocity"] = held(rule, u + v / d, a + w / d), (v, w)


def nesterov(rule, s, grad, d):
    heavy_ball(rule, s, grad, d, ahead=1)


def averaged(rule, s, grad, d):
    step(rule.base, s, grad, d)
    if rule.rate is not None:
        decay = 1 - rule.rate * rule.batch / d
    else:
        decay = 1 - 1 / (s["steps"] + 2) if rule.decay is None else rule.decay
    s["average"] = tuple(decay * old + (1 - decay) * new for old, new in zip(s["average"], s["student"], strict=True))


def clipped(rule, s, grad, d):
    most = rule.norm * np.sqrt(d)

    def small(u, a):
        g = grad(u, a)
        return shrink(g, most, 2) if rule.each else shrink([layer.mean(1, keepdims=True) for layer in g], most, 2)

    step(rule.base, s, small, d)


def private(rule, s, grad, d):
    noise = s["rng"].normal(size=s["student"][0].shape) * rule.noise * rule.norm

    def noisy(u, a):
        g, h = shrink(grad(u, a), rule.norm * np.sqrt(d), 2)
        return (g.sum(1, keepdims=True) + noise[:, None]) / g.shape[1], h

    step(rule.base, s, noisy, d)


def normalised(rule, s, grad, d):
    (lr, second), (u, a) = rates(rule), s["student"]
    g, h = mean(grad(u, a))
    norm, same = length((g, h))
    u = u - lr / np.sqrt(d) * g / norm - lr * rule.ridge / d * u
    s["student"] = held(rule, u, a - second / np.sqrt(d) * h / same - second * rule.ridge / d * a)


def adagrad_norm(rule, s, grad, d):
    (lr, second), (u, a) = rates(rule), s["student"]
    g, h = mean(grad(u, a))
    s["sum"] = s["sum"] + length((g, h))[1][:, 0] ** 2 / d**2
    root = np.sqrt(rule.offset + s["sum"])
    u = u - lr / root[:, None, None] / d * (g + rule.ridge * u)
    s["student"] = held(rule, u, a - second / root[:, None] / d * (h + rule.ridge * a))


def sam(rule, s, grad, d):
    def uphill(u, a):
        g, h = mean(grad(u, a))
        norm, same = length((g, h))
        return grad(u + rule.radius / np.sqrt(d) * g / norm, a + rule.radius / np.sqrt(d) * h / same)

    step(rule.base, s, uphill, d)


def extragradient(rule, s, grad, d):
    (lr, second), (u, a) = rates(rule), s["student"]
    g, h = mean(grad(u, a))
    there = u - lr / d * (g + rule.ridge * u), a - second / d * (h + rule.ridge * a)
    g, h = mean(grad(*there))
    s["student"] = held(rule, u - lr / d * (g + rule.ridge * there[0]), a - second / d * (h + rule.ridge * there[1]))


def repeated(rule, s, grad, d):
    for _ in range(rule.times):
        step(rule.base, s, grad, d)


def muon(rule, s, grad, d):
    (lr, second), (u, a) = rates(rule), s["student"]
    g, h = mean(grad(u, a))
    V, w = (rule.beta * old + new / d for old, new in zip(s["velocity"], (g, h), strict=True))
    left, sizes, right = np.linalg.svd(V, full_matrices=False)
    orthogonal = (left * (sizes > 1e-9 * sizes[:, :1])[:, None]) @ right
    u = u - lr / np.sqrt(d) * orthogonal - lr * rule.ridge / d * u
    s["student"], s["velocity"] = held(rule, u, a - second * w - second * rule.ridge / d * a), (V, w)


def scheduled(rule, s, grad, d):
    t = s["steps"] * rule.batch / d
    factor = min(1.0, t / rule.warmup) / (1 + t / rule.span) ** rule.power
    slow = eqx.tree_at(lambda rule: (rule.lr, rule.lr_second), rule.base, tuple(factor * rate for rate in rates(rule.base)))
    step(slow, s, grad, d)


def decayed(rule, s, grad, d):
    u, a = s["student"]
    step(rule.base, s, grad, d)
    s["student"] = s["student"][0] - rule.decay / d * u, s["student"][1] - rule.decay / d * a * rule.trains_second


TURN = np.array([[0.9, 0.2], [-0.1, 1.0]])


class Turning(sl.OnePassSGD):
    """SGD, with the students mixed by a matrix before each step."""

    def step(self, now):
        return {"student": now.student.left_multiply(jnp.asarray(TURN)) + self.gradient_step(now)}


class Elastic(sl.OnePassSGD):
    """SGD tied to an anchor, which is tied to it: each is made of both."""

    memory: ClassVar[dict[str, str]] = {"anchor": "copy"}

    def step(self, now):
        gap = now.student - now["anchor"]
        return {"student": now.student + self.gradient_step(now) - 0.3 * gap, "anchor": now["anchor"] + 0.2 * gap}


class Langevin(sl.OnePassSGD):
    """SGD with noise of its own, which asks for no products of inputs."""

    def step(self, now):
        return {"student": now.student + self.gradient_step(now) + 0.8 * now.noise()}


def langevin(rule, s, grad, d):
    sgd(rule, s, grad, d)
    u, a = s["student"]
    s["student"] = u + 0.8 / d * s["rng"].normal(size=u.shape), a


def turning(rule, s, grad, d):
    u = s["student"][0]
    sgd(rule, s, grad, d)
    s["student"] = s["student"][0] + TURN @ u - u, s["student"][1]


def elastic(rule, s, grad, d):
    old, anchor = s["student"], s["anchor"]
    sgd(rule, s, grad, d)
    s["student"] = tuple(new - 0.3 * (u - v) for new, u, v in zip(s["student"], old, anchor, strict=True))
    s["anchor"] = tuple(v + 0.2 * (u - v) for u, v in zip(old, anchor, strict=True))


IN_SPACE = {
    "OnePassSGD": sgd,
    "HeavyBall": heavy_ball,
    "Nesterov": nesterov,
    "Averaged": averaged,
    "Clipped": clipped,
    "Private": private,
    "Normalised": normalised,
    "AdaGradNorm": adagrad_norm,
    "SAM": sam,
    "Extragradient": extragradient,
    "Repeated": repeated,
    "Muon": muon,
    "Decayed": decayed,
    "Scheduled": scheduled,
    "Turning": turning,
    "Langevin": langevin,
    "Elastic": elastic,
}


def step(rule, s, grad, d):
    IN_SPACE[type(rule).__name__](rule, s, grad, d)


def in_space(rule, d, steps=STEPS, runs=RUNS, seed=0):
    """What a rule makes of weights in R^d, after some numbers of steps."""
    rng = np.random.default_rng(seed)
    M, Q = np.asarray(START.M), np.asarray(START.Q)
    u = np.zeros((runs, 2, d))
    u[:, :, :1], u[:, :, 1:3] = M, np.linalg.cholesky(Q - M @ M.T)
    student = u, np.broadcast_to(np.asarray(START.a), (runs, 2))
    zero = tuple(np.zeros_like(layer) for layer in student)
    s = {"rng": rng, "student": student, "average": student, "anchor": student, "velocity": zero, "sum": np.zeros(runs)}
    found = []
    for s["steps"] in range(max(steps)):
        x = rng.normal(size=(runs, rule.batch, d))
        y = np.tanh(2 * x[:, :, 0]) + np.sqrt(NOISE) * rng.normal(size=(runs, rule.batch))

        def grad(u, a, x=x, y=y):
            hidden = np.tanh(x @ np.swapaxes(u, 1, 2))
            error = (a[:, None] * hidden).mean(-1) - y
            G = error[..., None] * a[:, None] * (1 - hidden**2) / 2
            return G[..., None] * x[:, :, None], error[..., None] * hidden / 2 * rule.trains_second

        step(rule.at(s["steps"] * rule.batch / d + 1e-12), s, grad, d)  # the time may be rounded to before a jump
        if s["steps"] + 1 in steps:
            found.append(dict(s))
    return found


def statistic(name, s):
    """What a dataset has under a name: `M`, `velocity_Q`, `average_student`, `sum`."""
    whose, _, what = name.rpartition("_")
    u, a = s[whose or "student"]
    if what == "a":
        return a
    return u[..., :1] if what == "M" else u @ np.swapaxes(u if what == "Q" else s[what][0], 1, 2)


def samples(data, space):
    """Statistics of a dataset and of weights in R^d, and random combinations of all of them."""
    left = {name: data[name].values for name in data.data_vars if not name.startswith("risk")}
    right = {name: np.stack([s[name] if name in s else statistic(name, s) for s in space], 1) for name in left}
    flat = [np.concatenate([side[name].reshape(len(side[name]), -1) for name in left], 1) for side in (left, right)]
    centre, spread = flat[1].mean(0), flat[1].std(0)
    moving = spread > 1e-9
    by = np.random.default_rng(5).normal(size=(moving.sum(), 10))
    left["mixed"], right["mixed"] = (((side - centre)[:, moving] / spread[moving]) @ by for side in flat)
    return left, right


def run(rule, level, steps=STEPS, nodes=FEW, **arguments):
    t = np.array(steps) * rule.batch / level.d
    this = dict(t_max=t[-1], save=t, runs=RUNS, seed=1, progress=False) | arguments
    return sl.simulate(problem(rule, nodes=nodes), level, START, **this)


# --- the law -----------------------------------------------------------------------------------------------------------------

BOTH = {"lr_second": 1.5, "ridge": 0.4}
"""What is trained and punished: both layers."""
FULL = 4
"""A dimension in which the teacher, two students and what is remembered leave one direction or none: fewer than samples."""

RULES = {
    "averaged clipped momentum": (sl.Averaged(sl.Clipped(sl.HeavyBall(2.0, 0.7, **BOTH), 0.3)), 12),
    "SGD, batches": (sl.OnePassSGD(6.0, batch=3, **BOTH), FULL),
    "SGD, sphere": (sl.OnePassSGD(3.0, sphere=True), 12),
    "heavy ball": (sl.HeavyBall(2.0, 0.7, batch=3, **BOTH), 6),
    "heavy ball, friction, sphere": (sl.HeavyBall(3.0, friction=3.0, sphere=True), 12),
    "heavy ball, no room": (sl.HeavyBall(3.0, friction=3.0, sphere=True), FULL),
    "Nesterov": (sl.Nesterov(2.0, 0.7, **BOTH), 12),
    "Nesterov, friction, batches": (sl.Nesterov(3.0, friction=3.0, sphere=True, batch=3, ridge=0.4), FULL),
    "mean of all, batches": (sl.Averaged(sl.OnePassSGD(3.0, batch=3, sphere=True)), 6),
    "mean by decay": (sl.Averaged(sl.OnePassSGD(3.0, **BOTH), 0.8), FULL),
    "clipped, batches": (sl.Clipped(sl.OnePassSGD(3.0, batch=3, **BOTH), 0.2), FULL),
    "clipped, each": (sl.Clipped(sl.HeavyBall(2.0, 0.5, batch=3, **BOTH), 0.2, each=True), 6),
    "private": (sl.Private(sl.OnePassSGD(3.0, batch=3, ridge=0.4), 0.3, 0.7), FULL),
    "normalised": (sl.Normalised(1.0, **BOTH), FULL),
    "AdaGrad": (sl.AdaGradNorm(2.0, 0.2, batch=3, **BOTH), FULL),
    "SAM": (sl.SAM(sl.OnePassSGD(3.0, batch=3, **BOTH), 0.7), FULL),
    "extragradient, batches": (sl.Extragradient(3.0, batch=3, **BOTH), FULL),
    "averaged, repeated momentum": (sl.Averaged(sl.Repeated(sl.HeavyBall(2.0, 0.5, batch=3, **BOTH), 3)), 8),
    "Muon, batches": (sl.Muon(0.7, batch=3, **BOTH), FULL),
    "Muon, fewer samples than units": (sl.Muon(0.7, sphere=True), 12),
    "Muon with momentum": (sl.Muon(0.7, 0.6, **BOTH), 6),
    "scheduled momentum": (sl.Scheduled(sl.HeavyBall(3.0, 0.5, **BOTH), 0.7, span=2.0, warmup=1.0), 12),
    "decayed momentum": (sl.Decayed(sl.HeavyBall(2.0, 0.5, **BOTH), 0.8), 12),
    "averaged, decayed Muon": (sl.Averaged(sl.Decayed(sl.Muon(0.7, batch=3, lr_second=1.5), 0.8)), FULL),
    "turning": (Turning(3.0, **BOTH), 6),
    "Langevin": (Langevin(3.0, batch=3, **BOTH), 6),
    "elastic": (Elastic(3.0, **BOTH), 6),
}


@pytest.fixture(scope="module")
def space():
    """A function for what an algorithm makes of weights in R^d, computed once."""
    return cache(lambda rule: in_space(*RULES[rule], seed=2))


@pytest.mark.parametrize("rule", RULES)
def test_chain_has_the_law_of_the_algorithm_in_space(rule, space, same_law):
    this, d = RULES[rule]
    same_law(*samples(run(this, sl.Chain(d)), space(rule)))


@pytest.mark.parametrize("rule", ["Muon with momentum", "averaged clipped momentum", "private", "scheduled momentum"])
def test_sgd_has_the_law_of_the_algorithm_in_space(rule, same_law):
    this, d = RULES[rule]
    same_law(*samples(run(this, sl.SGD(d), seed=3), in_space(this, d, seed=4)))


def jump(before, after, batch=1, d=12):
    """A number that jumps after eight steps."""
    return sl.Steps([8 * batch / d], [before, after])


SCHEDULED = {
    "Averaged, decay": sl.Averaged(sl.OnePassSGD(3.0, **BOTH), jump(0.95, 0.2)),
    "Private, noise": sl.Private(sl.OnePassSGD(3.0, ridge=0.4), 0.3, jump(0.1, 3.0)),
    "SGD, rate": sl.OnePassSGD(jump(3.0, 0.5), lr_second=1.5),
    "SGD, second rate": sl.OnePassSGD(3.0, lr_second=jump(3.0, 0.2)),
    "SGD, ridge": sl.OnePassSGD(3.0, ridge=jump(0.0, 3.0)),
    "heavy ball, rate": sl.HeavyBall(jump(2.0, 0.3), 0.7, **BOTH),
    "heavy ball, beta": sl.HeavyBall(2.0, jump(0.9, 0.1), **BOTH),
    "heavy ball, friction": sl.HeavyBall(3.0, friction=jump(1.0, 9.0), sphere=True),
    "Nesterov, beta": sl.Nesterov(2.0, jump(0.9, 0.1), **BOTH),
    "Nesterov, friction": sl.Nesterov(3.0, friction=jump(1.0, 9.0), sphere=True),
    "Averaged, rate": sl.Averaged(sl.OnePassSGD(3.0, **BOTH), rate=jump(0.5, 8.0)),
    "Clipped, norm": sl.Clipped(sl.OnePassSGD(3.0, **BOTH), jump(0.5, 0.05)),
    "Clipped each, norm": sl.Clipped(sl.HeavyBall(2.0, 0.5, batch=3, **BOTH), jump(0.5, 0.05, 3), each=True),
    "Private, norm": sl.Private(sl.OnePassSGD(3.0, batch=3, ridge=0.4), jump(0.5, 0.1, 3), 0.7),
    "Normalised, rate": sl.Normalised(jump(1.0, 0.2), **BOTH),
    "AdaGrad, rate": sl.AdaGradNorm(jump(2.0, 0.3), 0.2, **BOTH),
    "AdaGrad, offset": sl.AdaGradNorm(2.0, jump(0.1, 2.0), **BOTH),
    "SAM, radius": sl.SAM(sl.OnePassSGD(3.0, **BOTH), jump(0.1, 2.0)),
    "extragradient, rate": sl.Extragradient(jump(3.0, 0.3), **BOTH),
    "Repeated, rate": sl.Repeated(sl.OnePassSGD(jump(2.0, 0.3), **BOTH), 3),
    "Muon, rate": sl.Muon(jump(0.7, 0.1), 0.6, **BOTH),
    "Muon, beta from 0": sl.Muon(0.4, jump(0.0, 0.8), **BOTH),
    "Decayed, decay": sl.Decayed(sl.HeavyBall(2.0, 0.5, **BOTH), jump(0.1, 5.0)),
    "Scheduled, rate": sl.Scheduled(sl.HeavyBall(jump(3.0, 0.5), 0.5, **BOTH), 0.7, span=2.0, warmup=1.0),
}


@pytest.mark.parametrize("number", SCHEDULED)
def test_numbers_that_jump_have_the_law_of_the_algorithm_in_space(number, same_law):
    """Eight steps before the jump and eight after it; for the first two numbers SGD in R^d as well."""
    rule, how = SCHEDULED[number], {"runs": 2000, "steps": (8, 16)}
    space = in_space(rule, 12, seed=2, **how)
    same_law(*samples(run(rule, sl.Chain(12), **how), space))
    if number in list(SCHEDULED)[:2]:
        same_law(*samples(run(rule, sl.SGD(12), seed=3, **how), space))


@pytest.mark.full
def test_a_number_that_does_not_jump_is_found_out(same_law):
    rule = SCHEDULED["Averaged, decay"]
    space = in_space(rule.at(0.0), 12, (8, 16), runs=2000, seed=2)
    data = run(rule, sl.Chain(12), runs=2000, steps=(8, 16))
    with pytest.raises(AssertionError, match="p-values below"):
        same_law(*samples(data, space), false_alarm=1e-9)


class LooseChain(FrameChain):
    """A chain whose inputs have one direction too many outside the frame."""

    def draw(self, stream):
        return FrameChain.draw(eqx.tree_at(lambda chain: chain.d, self, self.d + 1), stream)


class Loose(sl.Chain):
    name: ClassVar[str] = "loose"

    def make_engine(self, problem, start, first):
        return ProcessEngine(self, problem, RUNS, self.d, LooseChain(problem, self.d))


@pytest.mark.parametrize("rule", ["SGD, sphere", "SGD, batches", "Muon with momentum", "Muon, batches"])
def test_a_chain_with_one_direction_too_many_is_found_out(rule, space, same_law):
    this, d = RULES[rule]
    with pytest.raises(AssertionError, match="p-values below"):
        same_law(*samples(run(this, Loose(d)), space(rule)), false_alarm=1e-9)


@pytest.mark.parametrize("rule", ["averaged clipped momentum", "mean of all, batches"])
def test_risk_of_the_average_is_that_of_averaged_weights(rule):
    """On fresh samples in R^d, within 4 standard errors of the mean over runs."""
    (this, d), runs = RULES[rule], 400
    x = np.random.default_rng(7).normal(size=(runs, 1000, d))
    y, data = np.tanh(2 * x[:, :, 0]), run(this, sl.Chain(d), nodes=sl.Sobol(9), runs=runs)
    for i, s in enumerate(in_space(this, d, runs=runs, seed=6)):
        for name, whose in (("risk_average", "average"), ("risk", "student")):
            u, a = s[whose]
            f = (a[:, None] * np.tanh(x @ np.swapaxes(u, 1, 2))).mean(-1)
            direct, chain = ((y - f) ** 2).mean(1) / 2 + NOISE / 2, data[name].values[:, i]
            error = np.sqrt((direct.var() + chain.var()) / runs)
            assert abs(direct.mean() - chain.mean()) < 4 * error, (name, direct.mean(), chain.mean(), error)


# --- rules that misbehave ----------------------------------------------------------------------------------------------------


class Forgetful(sl.OnePassSGD):
    memory: ClassVar[dict[str, str]] = {"velocity": "zero"}


class Talkative(sl.OnePassSGD):
    def step(self, now):
        return {"student": now.student, "velocity": now.gradient()}


class Bare(sl.OnePassSGD):
    def step(self, now):
        return now.student


class Flat(sl.OnePassSGD):
    def step(self, now):
        return {"student": now.fields_by_name["student"]}


class Misshapen(sl.OnePassSGD):
    def step(self, now):
        return {"student": jnp.ones(3) * now.student}


class Scattered(sl.OnePassSGD):
    def step(self, now):
        return {"student": now.student + now.combine_inputs(jnp.ones((3, 1)))}


class Undeclared(sl.OnePassSGD):
    def step(self, now):
        return {"student": now.student + now["velocity"]}


class Manifold(sl.OnePassSGD):
    numbers: ClassVar[dict[str, float]] = {"sum": 0.0}

    def step(self, now):
        return {"student": now.student, "sum": jnp.ones(2)}


@pytest.mark.parametrize("level", [sl.Chain(12), sl.SGD(12)], ids=["chain", "sgd"])
@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (Forgetful, r"Forgetful.step must return \['student', 'velocity'\]; got \['student'\]"),
        (Talkative, r"Talkative.step must return \['student'\]; got \['student', 'velocity'\]"),
        (Bare, "Bare.step must return"),
        (Flat, "Flat.step must return weights as 'student'"),
        (Misshapen, r"weights of 2 units cannot be multiplied by an array of shape \(3,\)"),
        (Scattered, r"combine_inputs needs a coefficient for each unit and sample, shape \(2, 1\); got \(3, 1\)"),
        (Undeclared, "Declare 'velocity' in its `memory`"),
        (Manifold, r"Manifold.step must return 'sum' with the shape \(\); got \(2,\)"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_rule_that_misbehaves_gets_one_sentence(rule, sentence, level):
    with pytest.raises(sl.BadInput, match=sentence):
        run(rule(0.1), level, steps=(1,), runs=2)


@pytest.mark.parametrize(
    "rule",
    [sl.Averaged(sl.HeavyBall(1e4, 0.9)), sl.Repeated(sl.OnePassSGD(1e4), 3), sl.SAM(sl.OnePassSGD(1e4), 1.0)],
    ids=lambda rule: type(rule).__name__,
)
def test_a_learning_rate_that_explodes_gives_runs_that_diverged(rule):
    with pytest.warns(sl.DivergedWarning, match="5 of 5 runs diverged"):
        data = sl.simulate(problem(rule, "square"), sl.Chain(12), START, t_max=20.0, runs=5, seed=1, progress=False)
    assert set(data["status"].values) == {"diverged"}
    assert np.isfinite(data["Q"].values[:, 0]).all()


@pytest.mark.parametrize(
    "combine",
    [
        lambda: sl.Decayed(sl.OnePassSGD(0.1, sphere=True), 1.0),
        lambda: sl.Repeated(sl.Averaged(sl.OnePassSGD(0.1)), 2),
        lambda: sl.Averaged(sl.Averaged(sl.OnePassSGD(0.1))),
        lambda: sl.Clipped(0.1, 1.0),
        lambda: sl.HeavyBall(0.1),
        lambda: sl.Adam(0.1, sphere=True),
    ],
)
def test_what_cannot_be_combined_is_refused(combine):
    with pytest.raises(sl.BadInput):
        combine()


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (sl.Repeated(sl.Private(sl.OnePassSGD(0.1), 1.0, 1.0), 2), "Repeated would use the same noise several times"),
        (sl.Private(sl.Extragradient(0.1), 1.0, 1.0), "Private draws one noise vector for each batch"),
    ],
    ids=["Repeated", "Private"],
)
def test_noise_that_a_wrapper_cannot_give_is_refused_at_the_first_step(rule, sentence):
    with pytest.raises(sl.BadInput, match=sentence):
        run(rule, sl.Chain(12), steps=(1,), runs=2)

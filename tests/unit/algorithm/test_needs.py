"""What a step uses and whether it is linear, read off its code."""

import jax.numpy as jnp
import pytest

import sgdlimits as sl
from sgdlimits.algorithm.base import StepRequirements
from sgdlimits.algorithm.needs import input_count, is_linear, probe_linearity, step_needs

SGD, ON_SPHERE = sl.OnePassSGD(0.1), sl.OnePassSGD(0.1, sphere=True)
NONE, GRAM, BOTH = StepRequirements(False, False), StepRequirements(True, False), StepRequirements(True, True)
NEEDS = {
    "sgd": (SGD, NONE),
    "second layer": (sl.OnePassSGD(0.1, lr_second={"a": 0.1}), NONE),
    "sphere": (ON_SPHERE, NONE),
    "scheduled": (sl.OnePassSGD(sl.Steps([1.0], [0.1, 0.2])), NONE),
    "momentum": (sl.HeavyBall(0.1, 0.9), NONE),
    "average": (sl.Averaged(SGD), NONE),
    "average on the sphere": (sl.Averaged(ON_SPHERE), GRAM),
    "clipped": (sl.Clipped(sl.HeavyBall(0.1, 0.9), 1.0), GRAM),
    "sharpness": (sl.SAM(SGD, 0.1), GRAM),
    "muon": (sl.Muon(0.1, 0.9), GRAM),
    "adagrad": (sl.AdaGradNorm(0.1), GRAM),
    "extragradient": (sl.Extragradient(0.1), GRAM),
    "repeated": (sl.Repeated(SGD, 2), GRAM),
    "private": (sl.Private(SGD, 1.0, 0.1), BOTH),
    "sign": (sl.SignSGD(0.1), NONE),
    "sign of diffuse weights": (sl.SignSGD(0.1).limit, BOTH),
}


@pytest.mark.parametrize("name", NEEDS)
def test_needs_are_those_of_the_step(name):
    algorithm, needs = NEEDS[name]
    assert step_needs(algorithm, 3) == needs
    assert input_count(algorithm, 3) == algorithm.batch + 3 * needs.noise


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", NEEDS)
def test_declared_linearity_is_that_of_the_step(name, width):
    algorithm = NEEDS[name][0]
    assert is_linear(algorithm, width) == probe_linearity(algorithm, width)


class Falling(sl.OnePassSGD):
    """A rate that depends on time and on 1/d, and decoupled decay: linear."""

    def step(self, now):
        return {"student": (1 - 0.1 * now.inv_d) * now.student - self.lr / (1 + now.t + now.inv_d) * now.gradient()}


class Turning(sl.OnePassSGD):
    def step(self, now):
        return {"student": now.student + self.gradient_step(now).left_multiply(jnp.array([[0.0, 1.0], [-1.0, 0.0]]))}


class Saturating(sl.OnePassSGD):
    """Clips the derivative of the loss at 100, which small gradients do not reach."""

    def step(self, now):
        G, slopes = now.sample_gradients(now.student)
        return {"student": now.student - self.lr * now.mean_gradient(jnp.clip(G, -100, 100), slopes)}


class Elsewhere(sl.OnePassSGD):
    def step(self, now):
        return {"student": now.student - self.lr * now.gradient(0.5 * now.student)}


class Shrinking(sl.OnePassSGD):
    """Decay that grows with the norm of the students."""

    def step(self, now):
        return {"student": now.student * (1 - now.inv_d * now.student.gram()[0, 0]) + self.gradient_step(now)}


@pytest.mark.parametrize(
    ("kind", "linear"), [(Falling, True), (Turning, False), (Saturating, False), (Elsewhere, False), (Shrinking, False)]
)
def test_an_overridden_step_inherits_no_linearity(kind, linear):
    assert is_linear(kind(0.1), 2) == linear


@pytest.mark.parametrize("kind", [Falling, Turning, Saturating, Elsewhere, Shrinking])
def test_the_ode_of_an_overridden_step_is_the_mean_of_the_chain(kind):
    """Five standard errors, and the 1/d of the chain."""
    problem = sl.presets.committee(width=2, teachers=1, algorithm=kind(0.3))
    how = dict(t_max=2, save=2, progress=False)
    ode = sl.simulate(problem, sl.ODE(), sl.FixedInit(0.2), **how)
    chain = sl.simulate(problem, sl.Chain(1000), sl.FixedInit(0.2), runs=64, **how)
    for name in ("M", "Q"):
        gap = abs(chain[name].mean("run") - ode[name][0])
        assert (gap <= 5 * chain[name].std("run") / 8 + 3e-3).all()


class Restless(sl.OnePassSGD):
    """Undeclared noise, and a gradient of length one."""

    def step(self, now):
        g = now.gradient()
        return {"student": now.student - (self.lr / g.size) * g + now.noise()}


@pytest.mark.parametrize("level", [sl.Chain(30), sl.SGD(30), sl.SDE(30), sl.ODE()], ids=lambda level: level.name)
def test_a_step_declares_neither_noise_nor_lengths(level):
    problem = sl.presets.committee(width=2, teachers=1, algorithm=Restless(0.1))
    data = sl.simulate(problem, level, sl.FixedInit(0.2), t_max=1, runs=3, save=2, progress=False)
    assert set(data["status"].values) == {"finished"}
    # the noise alone lengthens each student by 1 in a unit of t
    assert float(data.Q[:, -1, 0, 0].mean()) == pytest.approx(2.0, abs=0.6)


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (sl.Repeated(Restless(0.1), 2), "the same noise several times"),
        (sl.Repeated(sl.Private(SGD, 1.0, 0.1), 2), "the same noise several times"),
        (sl.Private(sl.Repeated(SGD, 2), 1.0, 0.1), "several gradients"),
        (sl.Private(sl.Extragradient(0.1), 1.0, 0.1), "several gradients"),
    ],
    ids=str,
)
@pytest.mark.parametrize("level", [sl.Chain(30), sl.SGD(30), sl.ODE()], ids=lambda level: level.name)
def test_noise_is_added_once_a_step(algorithm, sentence, level):
    problem = sl.presets.committee(width=2, teachers=1, algorithm=algorithm)
    with pytest.raises(sl.BadInput, match=sentence):
        sl.simulate(problem, level, sl.FixedInit(0.2), t_max=1, runs=2, progress=False)

"""Every algorithm that optax has, against optax: the samples that `SGD(d)` draws, the same start, the same weights."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from optax import contrib

import sgdlimits as sl
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import Stream
from sgdlimits.level.sgd import sgd_process
from sgdlimits.statistics.overlaps import rows_of

D, STEPS, NOISE = 10, 20, 0.09
LR, SECOND, RIDGE, BETA = 2.0, 1.5, 0.4, 0.7
BOTH = {"lr_second": SECOND, "ridge": RIDGE}
START = sl.Overlaps([1.0, 0.6], [[0.3], [-0.2]], [[1.0, 0.1], [0.1, 1.0]])


def each(make):
    """A transformation for each layer, at its own learning rate."""
    return optax.partition({"u": make(LR / D), "a": make(SECOND / D)}, {"u": "u", "a": "a"})


RIDGED = optax.add_decayed_weights(RIDGE)
PLAIN = optax.chain(RIDGED, each(optax.sgd))
BALL = each(lambda lr: optax.sgd(lr, momentum=BETA))


def scheduled(n):
    t = 3 * n.astype(float) / D  # optax counts in single precision
    return -LR / D * jnp.minimum(1.0, t / 1.0) * (1 + t / 2.0) ** -0.7


def adam(b1, b2, begin):
    """optax's Adam from second moments that begin at a number, without the correction of the bias."""
    base = optax.scale_by_adam(b1, b2, eps=0.0)
    init = lambda params: base.init(params)._replace(nu=jax.tree.map(lambda leaf: jnp.full_like(leaf, begin), params))
    corrected = lambda n: (1 - b1 ** (n + 1)) / jnp.sqrt(1 - b2 ** (n + 1))
    return optax.chain(optax.GradientTransformation(init, base.update), optax.scale_by_schedule(corrected))


# Newton and Schulz's cubic iteration converges to the polar factor; optax's own coefficients stop near it.
MATRICES = lambda params: jax.tree.map(lambda leaf: contrib.MuonDimensionNumbers(), params)
POLAR = contrib.scale_by_muon(
    ns_coeffs=(1.5, -0.5, 0.0), ns_steps=80, beta=BETA, nesterov=False, weight_dimension_numbers=MATRICES
)
MUON = optax.partition({"u": POLAR, "a": optax.set_to_zero()}, {"u": "u", "a": "a"})
UPHILL = optax.chain(contrib.normalize(), optax.sgd(0.7 / np.sqrt(D)))
RMS = 1 - 1.3 * 3 / D

RULES = {
    "SGD": (sl.OnePassSGD(LR, batch=3, **BOTH), PLAIN),
    "heavy ball": (sl.HeavyBall(LR, BETA, batch=3, **BOTH), optax.chain(RIDGED, BALL)),
    "Nesterov": (
        sl.Nesterov(LR, BETA, batch=3, **BOTH),
        optax.chain(RIDGED, each(lambda lr: optax.sgd(lr, momentum=BETA, nesterov=True))),
    ),
    "clipped": (
        sl.Clipped(sl.HeavyBall(LR, BETA, batch=3, **BOTH), 0.2),
        optax.chain(optax.clip_by_global_norm(0.2 * np.sqrt(D)), RIDGED, BALL),
    ),
    "clipped, each": (
        sl.Clipped(sl.OnePassSGD(LR, batch=3, **BOTH), 0.2, each=True),
        optax.chain(contrib.differentially_private_aggregate(0.2 * np.sqrt(D), 0.0, jax.random.key(0)), PLAIN),
    ),
    "private": (
        sl.Private(sl.OnePassSGD(LR, batch=3, ridge=RIDGE), 0.3, 0.7),
        contrib.differentially_private_aggregate(0.3 * np.sqrt(D), 0.7 / np.sqrt(D), jax.random.key(1)),
    ),
    "normalised": (sl.Normalised(LR, batch=3), optax.chain(contrib.normalize(), optax.sgd(LR / np.sqrt(D)))),
    "SAM": (
        sl.SAM(sl.OnePassSGD(LR, lr_second=SECOND, batch=3), 0.7),
        contrib.sam(each(optax.sgd), UPHILL, opaque_mode=True),
    ),
    "averaged": (sl.Averaged(sl.OnePassSGD(LR, batch=3, **BOTH), 0.8), PLAIN),
    "repeated": (sl.Repeated(sl.HeavyBall(LR, BETA, batch=3, **BOTH), 2), optax.chain(RIDGED, BALL)),
    "Muon": (
        sl.Muon(LR, BETA, batch=3, ridge=RIDGE),
        optax.chain(MUON, optax.sgd(LR / np.sqrt(D)), optax.add_decayed_weights(-LR * RIDGE / D)),
    ),
    "decayed": (
        sl.Decayed(sl.HeavyBall(LR, BETA, batch=3), 0.8),
        optax.chain(optax.sgd(LR / D, momentum=BETA), optax.add_decayed_weights(-0.8 / D)),
    ),
    "scheduled": (
        sl.Scheduled(sl.OnePassSGD(LR, batch=3, ridge=RIDGE), 0.7, span=2.0, warmup=1.0),
        optax.chain(RIDGED, optax.scale_by_schedule(scheduled)),
    ),
    "sign": (sl.SignSGD(LR, batch=3, ridge=RIDGE), optax.chain(optax.scale_by_sign(), PLAIN)),
    "Adam": (
        sl.Adam(LR, BETA, rate=1.3, begin=0.2, batch=3, ridge=RIDGE),
        optax.chain(adam(BETA, RMS, 0.2), PLAIN),
    ),
}
"""Ours and optax's. Learning rates of optax are ours over d, or over its root where steps have one length."""


def loss(params, x, teacher, z):
    """Of one sample: two tanh units, and labels with noise."""
    output = (params["a"] * jnp.tanh(params["u"] @ x)).mean()
    return (output - jnp.tanh(2 * teacher) - np.sqrt(NOISE) * z) ** 2 / 2


def by_optax(rule, transform, params, x, teacher, z):
    """Weights after all batches, their averages, and the noise that optax drew for each batch."""
    private, alone = isinstance(rule, sl.Private), isinstance(rule, sl.Private) or getattr(rule, "each", False)
    noiseless = contrib.differentially_private_aggregate(0.3 * np.sqrt(D), 0.0, jax.random.key(1))
    trained = lambda grads: grads if rule.trains_second else {**grads, "a": 0 * grads["a"]}

    def gradients(params, *batch):
        grads = trained(jax.vmap(jax.grad(loss), (None, 0, 0, 0))(params, *batch))
        return grads if alone else jax.tree.map(lambda leaf: leaf.mean(0), grads)

    def fixed(params):  # what is not trained does not decay either
        return params if rule.trains_second else {**params, "a": 0 * params["a"]}

    def one(carry, batch):
        params, state, average = carry
        noise = jnp.zeros(())
        for _ in range(getattr(rule, "times", 1)):
            grads = gradients(params, *batch)
            more = {"grad_fn": lambda at, _: gradients(at, *batch)} if isinstance(rule, sl.SAM) else {}
            updates, state = transform.update(grads, state, fixed(params), **more)
            if private:
                noise = updates["u"] - noiseless.update(grads, state, params)[0]["u"]
                updates = jax.tree.map(lambda g, u: -LR / D * (g + RIDGE * u), updates, fixed(params))
                updates = trained(updates)  # optax adds noise to all layers
            params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 0.2)
        return (params, state, average), noise

    (params, _, average), noise = lax.scan(one, (params, transform.init(fixed(params)), params), (x, teacher, z))
    return params, average, noise


@pytest.mark.parametrize("name", RULES)
def test_weights_are_those_of_optax(name):
    """After 20 batches of three, at d = 10. Nesterov's iterates in optax are where ours takes its gradient, u + beta v."""
    rule, transform = RULES[name]
    problem = sl.ProjectionProblem(
        sl.Target(lambda fields: jnp.tanh(2 * fields[0]), 1, noise=NOISE), sl.TwoLayer(2, "tanh"), sl.SquaredLoss(), rule
    )
    process, b = sgd_process(problem, D), rule.batch
    state = process.start(problem.coordinates.from_overlaps(jax.tree.map(lambda leaf: leaf[None], START)))
    inputs = process.draw(Stream.from_seed(5, [0], steps=STEPS))
    rows = rows_of(state.names, "student", 2)
    teacher = process.frame_coordinates(inputs.x[:, :b, 0])[..., 0]
    params = {"u": jnp.asarray(state.W[0, rows]), "a": jnp.asarray(state.a[0])}
    expected, average, noise = jax.jit(lambda *args: by_optax(rule, transform, *args))(
        params, inputs.x[:, :b, 0], teacher, inputs.z[:, :, 0]
    )
    if isinstance(rule, sl.Private):  # optax has noise of its own, which our step is given
        own = noise * b / (0.3 * 0.7)
        assert abs(own.std() - 1) < 5 / np.sqrt(2 * own.size)  # five standard errors
        inputs = inputs._replace(x=inputs.x.at[:, b:, 0].set(own))

    @eqx.filter_jit
    def walk(process, state, inputs):
        times = jnp.arange(STEPS) * b / D
        move = lambda state, now: (process.step(state, now[0], StepTime(now[1], now[1])), None)
        return lax.scan(move, state, (inputs, times))[0]

    end = walk(process, jax.tree.map(jnp.asarray, state), inputs)
    u, a = end.W[0, rows], end.a[0]
    if isinstance(rule, sl.Nesterov):
        u, a = u + BETA / D * end.W[0, rows_of(end.names, "velocity", 2)], a + BETA / D * end.kept["velocity"][0]
    np.testing.assert_allclose(u, expected["u"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(a, expected["a"], rtol=0, atol=1e-10)
    if isinstance(rule, sl.Averaged):
        np.testing.assert_allclose(end.W[0, rows_of(end.names, "average", 2)], average["u"], rtol=0, atol=1e-10)
        np.testing.assert_allclose(end.kept["average"][0], average["a"], rtol=0, atol=1e-10)
    assert np.abs(expected["u"] - params["u"]).max() > 0.1  # it moved

"""Functions of users are tried on one sample: what they cannot do is one sentence that names them and the remedy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.trial import example_fields

PROBLEM = sl.presets.phase_retrieval(width=2)
STATE = sl.FixedInit(0.3).one(PROBLEM)
BAD = {
    "NaN": (lambda *x: first(x) * jnp.nan, "finite"),
    "complex": (lambda *x: first(x) * 1j, "complex numbers. Take the real part"),
    "integer": (lambda *x: jnp.sign(first(x)).astype(int), "integers. Divide by 1.0"),
    "wrong shape": (lambda *x: jnp.stack([first(x)] * 2), "shape"),
    "NumPy": (lambda *x: np.tanh(first(x)), "it calls NumPy on a number that is not known yet. Write it with jax.numpy."),
    "if": (lambda *x: first(x) if jnp.sum(first(x)) > 0 else 0.0, "Use jnp.where in place of if."),
    "float": (lambda *x: float(jnp.sum(first(x))), "Leave out float and int."),
    "nothing": (lambda *x: None, "got nothing"),
    "no function": (3.0, "function"),
    "index": (lambda *x: jax.tree.leaves(x)[0][..., 7], "index 7 is out of bounds"),
    "raises": (lambda *x: {}["missing"], "fails on"),
}
"""Each as a function of any arguments."""


def first(arguments):
    """A number of the arguments; of an activation's array, all."""
    leaf = jax.tree.leaves(arguments)[0]
    return leaf if leaf.ndim == 2 and leaf.shape[1] == 2 and len(leaf) == 3 else leaf.ravel()[0]


def data():
    return sl.simulate(sl.presets.phase_retrieval(width=2), sl.ODE(), STATE, t_max=0.1, save=2)


def simulated(**what):
    sl.simulate(PROBLEM, sl.Chain(20), STATE, t_max=0.1, **what)


def problem(loss):
    return sl.ProjectionProblem(sl.Target(sl.CommitteeReadout("square")), sl.TwoLayer(1), loss, sl.OnePassSGD(0.1))


USES = {
    "activation": lambda fn: sl.TwoLayer(1, fn),
    "the loss": problem,
    "the readout": lambda fn: sl.Target(fn, 2),
    "the network": lambda fn: sl.Network(fn, 2, {"scale": 1.0}),
    "until": lambda fn: simulated(until=fn),
    "observe 'mine'": lambda fn: simulated(observe={"mine": fn}),
    "symmetries[0]": lambda fn: sl.fixed_points(PROBLEM, count=4, symmetries=[fn], progress=False),
    "function": lambda fn: sl.conserved.along(PROBLEM, fn, STATE),
}
FINE = {
    ("activation", "index"), ("activation", "wrong shape"), ("the loss", "index"),  # of what has no such entries
    ("observe 'mine'", "wrong shape"), ("function", "wrong shape"), ("the network", "wrong shape"),  # vectors are welcome
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_a_bad_function_is_one_sentence_that_names_it(use):
    for kind, (fn, words) in BAD.items():
        if (use, kind) in FINE:
            continue
        with pytest.raises(sl.BadInput) as caught:
            USES[use](fn)
        text = str(caught.value)
        assert text.startswith(use), text
        assert words in text or (use == "symmetries[0]" and kind in ("wrong shape", "NaN", "complex", "integer")), text
        assert "\n" not in text
        assert text.endswith(".")
        assert len(text) < 400


def test_a_slope_that_is_not_finite_is_told():
    """The value alone would do: the slope of the square root is computed, and NaN, on the side that is not taken."""
    with pytest.raises(sl.BadInput, match=r"or its slope is not finite at -6\.3"):
        sl.TwoLayer(1, lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))


def test_functions_with_numbers_that_are_traced_pass():
    """Under `jax.grad` there is no value to look at."""

    def risk(scale):
        return sl.Target(lambda fixed: scale * fixed[0]).label(example_fields(1), 0.0, 0)

    assert float(jax.grad(risk)(2.0)) == example_fields(1)[0]


def test_a_family_must_give_problems():
    family = sl.effective_dynamics(lambda d: d)
    with pytest.raises(sl.BadInput, match=r"problem\(d\) must be a Problem; got 100\."):
        family.at(100)

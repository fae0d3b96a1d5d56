"""Names of programs: the same in every process, others for whatever changes a program, and none for what users bring."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.known import make_persistent_name

presets = sl.presets
PROGRAM = """
import sgdlimits as sl
from sgdlimits.kernel import lanes
from sgdlimits.kernel.known import make_persistent_name
traced = []
replica = lanes.ProgramSpec.trace_replica
lanes.ProgramSpec.trace_replica = lambda self, can_call_host: traced.append(1) or replica(self, can_call_host)
erf, noise = sl.presets.committee(2, 2, "erf", lr=0.5), sl.presets.phase_retrieval(lr=0.1, noise={noise})
until = sl.exits(0.5)
data = sl.simulate(noise, sl.Chain(50), sl.RandomInit(50), t_max=1, runs=2, until=until, progress=False)
print(make_persistent_name(erf, until), len(traced), float(data.risk[0, -1]))
"""


def said(folder, noise=0.5):
    code = PROGRAM.format(noise=noise)
    environment = {"SGDLIMITS_CACHE": str(folder), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split()


def test_the_next_process_traces_nothing_and_has_the_same_numbers(tmp_path):
    (name, traced, risk), again, other = said(tmp_path), said(tmp_path), said(tmp_path, noise=0.25)
    assert traced == "1"
    assert again == [name, "0", risk]
    assert other[:2] == [name, "0"]  # another value, and the same program
    assert said(tmp_path, noise=0.0)[1] == "1"


def test_what_changes_a_program_changes_its_name():
    first = presets.phase_retrieval(2, lr=0.1, noise=0.5)
    assert make_persistent_name(first) == make_persistent_name(presets.phase_retrieval(2, lr=0.3, noise=0.2))
    others = [
        presets.phase_retrieval(2, lr=0.1), presets.phase_retrieval(3, lr=0.1, noise=0.5), presets.committee(2, 1, "erf"),
        presets.committee(2, 1, "tanh"), presets.phase_retrieval(2, lr=0.1, noise=0.5, train_second=True),
        presets.phase_retrieval(2, algorithm=sl.HeavyBall(0.1, beta=0.5)), sl.exits(0.5), np.arange(3), np.arange(4),
    ]  # fmt: skip
    names = [make_persistent_name(each) for each in (first, *others)]
    assert None not in names
    assert len(set(names)) == len(names)


class Mine(sl.OnePassSGD):
    """An algorithm of a user, whose code nobody knows tomorrow."""


@pytest.mark.parametrize(
    "thing",
    [
        lambda x: x,
        jax.jit(lambda x: x),
        Mine(0.1),
        presets.committee(2, 1, lambda x: x**3),
        jnp.vectorize(lambda x: x),
        object(),
    ],
    ids=["lambda", "compiled", "class", "activation", "vectorised", "object"],
)
def test_what_users_bring_has_no_name(thing):
    assert make_persistent_name(thing) is None


def test_functions_of_jax_and_numpy_have_a_name():
    names = [make_persistent_name(each) for each in (jnp.tanh, jnp.sin, jax.nn.relu, jax.nn.leaky_relu)]
    assert None not in names
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    "made",
    [jax.grad(jnp.tanh), jax.jit(jax.grad(jnp.tanh)), jax.jit(jax.vmap(jnp.tanh)), partial(jax.nn.elu, alpha=2.0),
     jax.jit(partial(jax.nn.elu, alpha=2.0)), jax.tree_util.Partial(jax.nn.elu, alpha=2.0)],
    ids=["slope", "compiled slope", "over runs", "partial", "compiled partial", "tree"],
)  # fmt: skip
def test_what_is_made_from_a_function_does_not_have_its_name(made):
    """Though it says that it is that function, as wrapped ones do."""
    assert make_persistent_name(made) is None

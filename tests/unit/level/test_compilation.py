"""What compiles, and what does not: another number of runs, dimension or learning rate is no reason to compile."""

from __future__ import annotations

import os
import subprocess
import sys

import jax.monitoring
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.level.base import compiled_batch_sizes, split_runs

COMPILED: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **more: COMPILED.append(name) if "backend_compile" in name else None
)


def compilations(call) -> int:
    before = len(COMPILED)
    call()
    return len(COMPILED) - before


def go(level, lr=0.05, runs=64, d=300):
    problem = sl.presets.phase_retrieval(lr=lr, noise=lr)
    return sl.simulate(problem, level, sl.RandomInit(d), t_max=0.5, runs=runs, save=3, progress=False)


@pytest.mark.parametrize("level", [sl.Chain, sl.SDE, lambda d: sl.ODE()], ids=["chain", "sde", "ode"])
def test_other_numbers_compile_nothing(level):
    go(level(300))
    assert compilations(lambda: jax.jit(lambda x: x + 1.5)(1.0)) > 0
    for change in ({"runs": 48}, {"runs": 50}, {"lr": 0.02}, {"d": 500}, {"d": 100}, {"d": 5000}):
        assert compilations(lambda change=change: go(level(change.get("d", 300)), **change)) == 0, change


def test_constructors_make_no_device_arrays():
    def build():
        for preset in (sl.presets.phase_retrieval, sl.presets.committee, sl.presets.xor_mixture, sl.presets.spiked_tensor):
            leaves = jax.tree.leaves(preset(lr=0.031))
            assert not any(isinstance(leaf, jax.Array) for leaf in leaves)

    assert compilations(build) == 0


def test_what_users_call_is_compiled_once():
    problem, stats = sl.presets.quadratic_network(width=3, teachers=2, lr=0.07), sl.OrthogonalInit(0.1)
    stats = stats.one(problem)
    everything = lambda: (problem.drift(stats), problem.risk(stats), problem.covariance(stats))
    assert compilations(everything) <= 3
    assert compilations(everything) == 0


@pytest.mark.parametrize("flat", [1, 64])
def test_batches_hold_all_runs_in_compiled_sizes(flat):
    for runs in (*range(1, 300), 4096, 10_000):
        plan = split_runs(runs, flat, 682)
        assert sum(count for count, _ in plan) == runs
        assert {size for _, size in plan} <= set(compiled_batch_sizes(flat, 682))
        assert all(count >= 0.75 * size or size <= flat for count, size in plan)
        assert np.all([count <= size for count, size in plan])


ARCTANGENT = """
import numpy as np
import sgdlimits._x64, jax.numpy as jnp
from sgdlimits.jaxtools import jit_bound

def arctangent(x):
    return jnp.arctan(x)

x = np.linspace(-9, 9, 4001)
for quick in (False, True):
    assert np.abs(jit_bound(arctangent, fast_compile=quick)(x) - np.arctan(x)).max() < 1e-14, quick
"""


def test_compiled_code_is_right_with_the_options_it_is_compiled_with():
    """In a process with XLA as users have it: its wide vectors once made an arctangent of another function."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", ARCTANGENT], check=True, env=environment)

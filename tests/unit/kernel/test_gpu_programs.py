"""What is written for a GPU: as PTX, which LLVM accepts and `ptxas`, where it is there; and the same program on a processor."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import jax
import jax.numpy as jnp
import llvmlite.ir as ir
import numpy as np
import pytest
from jax import lax
from unit.kernel.test_flat_programs import OPERATIONS, RUNS, one_by_one, through

import sgdlimits as sl
from sgdlimits.kernel import lanes
from sgdlimits.kernel.base import MAX_COORDINATE, StepRange
from sgdlimits.kernel.choose import is_gpu_available
from sgdlimits.kernel.compiler import ptx
from sgdlimits.kernel.compiler.llvm import FunctionWriter
from sgdlimits.kernel.compiler.vectors import FLOAT64_TYPE, INT64_TYPE
from sgdlimits.kernel.lanes import CompiledCode, Lanes
from sgdlimits.kernel.random import Stream
from sgdlimits.level.stepper import initial_carry

BITS = 20
"""Of the device's estimates."""


class Estimated(ptx.GpuInstructions):
    """The instructions of a GPU, with the device's estimates as quotients and roots of which some bits are left."""

    def _estimate(self, name, x):
        if x.type != FLOAT64_TYPE:
            return self.intrinsic(name, x)
        y = x if name == "rcp" else self.intrinsic("sqrt", x)
        bits = self.b.bitcast(self.b.fdiv(ir.Constant(FLOAT64_TYPE, 1.0), y), INT64_TYPE)
        return self.b.bitcast(self.b.and_(bits, INT64_TYPE(-(2 ** (52 - BITS)))), FLOAT64_TYPE)


class Alone(FunctionWriter):
    """One replica after the other."""

    def new_instructions(self):
        return Estimated(self.module, self.b)


class OneByOne(Lanes):
    """The kernel of a processor with the instructions of a GPU."""

    @staticmethod
    def compile(spec):
        machine, replica = lanes._host_machine(), spec.trace_replica(can_call_host=False)
        owner, address = machine.load(machine.compile_object(str(Alone(replica, machine, MAX_COORDINATE).module)))
        return CompiledCode(
            ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 8)(address),
            owner,
            1,
            replica.parameter_indices,
            len(replica.program.nodes),
        )


@pytest.mark.full
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_single_numbers_are_those_of_jax(name):
    function, x = OPERATIONS[name], np.random.default_rng(0).uniform(-1, 1, (6, RUNS))
    np.testing.assert_allclose(through(OneByOne, function, x), one_by_one(function, x), rtol=1e-14, atol=1e-15)


@pytest.mark.skipif(not is_gpu_available(), reason="no GPU, or no CuPy")
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_the_device_are_those_of_jax(name):
    from sgdlimits.kernel.cuda import Cuda

    function, x = OPERATIONS[name], np.random.default_rng(0).uniform(-1, 1, (6, RUNS))
    np.testing.assert_allclose(through(Cuda, function, x), one_by_one(function, x), rtol=1e-14, atol=1e-15)


QUOTIENTS = {"inverse": lambda x: 1 / x, "quotient": lambda x: 3 / x, "root": jnp.sqrt, "inverse root": lax.rsqrt}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients_and_roots_are_right_to_rounding_and_at_zero_and_infinity(name):
    function = lambda x: (lambda y: jnp.where(y > 1e300, -1.0, y))(QUOTIENTS[name](x))  # states above a limit have diverged
    x = np.concatenate([np.exp(np.random.default_rng(2).uniform(-12, 12, 2000)), [1.0, 0.25, 0.0, np.inf]])
    x = x[:-1] if name == "root" else x
    np.testing.assert_allclose(through(OneByOne, function, x[None])[0], np.asarray(jax.jit(function)(x)), rtol=5e-16)


def bound(problem, d=100, until=None, runs=5):
    """A process, its carry, and its random numbers."""
    engine = sl.Chain(d).make_engine(problem, sl.RandomInit(d), None)
    stream = Stream.from_seed(3, np.arange(runs))
    return (
        engine.process,
        initial_carry(engine.process, until, engine.process.start(engine.draw_starts(sl.RandomInit(d), stream))),
        stream,
    )


PROCESSES = {
    "one unit": lambda: (sl.presets.phase_retrieval(1, lr=0.1), None),
    "erf": lambda: (sl.presets.committee(3, 2, "erf", lr=0.5, noise=0.1), None),
    "two classes": lambda: (sl.presets.binary_mixture(snr=10.0, ridge=0.1), None),
    "spike": lambda: (sl.presets.spiked_tensor(), None),
    "batches": lambda: (sl.presets.committee(2, 2, "tanh", algorithm=sl.OnePassSGD(0.3, batch=3)), None),
    "a condition": lambda: (sl.presets.phase_retrieval(2, lr=0.2), sl.exits(0.3)),
    "a dear condition": lambda: (sl.presets.committee(2, 2, "erf", lr=1.0), sl.exits(0.3)),
}


FEW = ("two classes", "a dear condition")
SOME = [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in PROCESSES]


@pytest.mark.parametrize("single", [False, pytest.param(True, marks=pytest.mark.full)], ids=["double", "single"])
@pytest.mark.parametrize("name", SOME)
def test_the_program_of_a_thread_has_the_paths_of_lanes(name, single):
    problem, until = PROCESSES[name]()
    process, carry, stream = bound(problem, until=until)
    span = StepRange(0, 2000, 0.0, 0.01)
    one, other = (
        kernel(process, until, carry, single).advance(carry, stream.seed, stream.runs, span) for kernel in (OneByOne, Lanes)
    )
    np.testing.assert_array_equal(one.end, other.end)
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SOME)
def test_ptx_is_one_kernel_of_eight_pointers_that_calls_nothing_else(name, tmp_path):
    problem, until = PROCESSES[name]()
    process, carry, _ = bound(problem, until=until)
    gpu = ptx.GpuTarget("90")
    text = gpu.compile_ptx(
        ptx.write_llvm(Lanes(process, until, carry).spec.trace_replica(can_call_host=False), gpu, MAX_COORDINATE)
    )
    (entry,) = re.findall(r"\.visible \.entry (\w+)\((.*?)\)", text, re.S)
    assert entry[0] == "advance"
    assert len(re.findall(r"\.param \.u64", entry[1])) == 8
    assert ".target sm_90" in text
    assert ".extern" not in text
    assert text.count("mul.wide.u32") > 20  # Philox
    if shutil.which("ptxas"):
        path = tmp_path / "kernel.ptx"
        path.write_text(text)
        subprocess.run(["ptxas", "-arch=sm_90", path, "-o", tmp_path / "kernel.cubin"], check=True)

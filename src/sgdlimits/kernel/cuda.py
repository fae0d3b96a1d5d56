"""Kernel `cuda`: the flat program of `lanes` on an NVIDIA GPU, one thread for each replica, launched through CuPy."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from sgdlimits.kernel import cache
from sgdlimits.kernel.base import MAX_COORDINATE, Carry, ProcessLike, StepRange, StopCondition
from sgdlimits.kernel.lanes import CompiledCode, FlatKernel, KernelArrays, ProgramSpec

THREADS_PER_BLOCK = 64
"""Number of threads in a block of the GPU: two warps."""


class Cuda(FlatKernel):
    """Kernel that makes the steps on an NVIDIA GPU, with one run per thread.

    States stay on the device between calls if JAX uses the same device.
    """

    name = "cuda"

    def __init__(self, process: ProcessLike, until: StopCondition | None, carry: Carry, single: bool = False) -> None:
        import cupy

        self.xp = cupy
        super().__init__(process, until, carry, single)
        self.row = cupy.asarray(self.row)

    @staticmethod
    def compile(spec: ProgramSpec) -> CompiledCode:
        import cupy

        return _load_compiled_code(spec, cupy.cuda.Device().compute_capability)

    def to_kernel(self, leaf: Any) -> Any:
        on_device = isinstance(leaf, jax.Array) and all(device.platform == "gpu" for device in leaf.devices())
        if on_device and leaf.dtype == np.float64:
            # DLPack shares the memory of JAX's array, which is immutable: the copy is what the kernel writes to.
            return self.xp.from_dlpack(jax.block_until_ready(leaf)).copy()
        return self.xp.asarray(np.asarray(leaf))

    def to_carry(self, array: Any) -> Any:
        return jax.dlpack.from_dlpack(array) if jax.default_backend() == "gpu" else self.to_host(array)

    def to_host(self, array: Any) -> np.ndarray:
        return self.xp.asnumpy(array)

    def run(self, arrays: KernelArrays, span: StepRange) -> None:
        vectors = len(arrays.state)
        integers = [span.first_step, span.steps, self.block, self.every, vectors]
        scalars = self.xp.asarray(np.array(integers, np.int64)), self.xp.asarray(np.array([span.t, span.size], float))
        blocks = -(-vectors * self.code.width // THREADS_PER_BLOCK)
        self.code.function((blocks,), (THREADS_PER_BLOCK,), (*arrays, *scalars))
        self.xp.cuda.Device().synchronize()  # launches return at once, and Ctrl-C and timings need the end


@lru_cache(maxsize=64)
def _load_compiled_code(spec: ProgramSpec, capability: str) -> CompiledCode:
    """Return the compiled code of a flat program for a GPU with a given compute capability."""
    from sgdlimits.kernel.compiler import llvm, ptx

    gpu = ptx.GpuTarget(capability)
    replica = spec.trace_replica(can_call_host=False)  # code on a GPU cannot call the host
    text = ptx.write_llvm(replica, gpu, MAX_COORDINATE)
    module = cache.load_or_compile((text, gpu.key), lambda: gpu.compile_ptx(text).encode(), _load_ptx)
    return CompiledCode(
        module.get_function(llvm.FUNCTION_NAME), module, ptx.WARP_SIZE, replica.parameter_indices, replica.operation_count
    )


def _load_ptx(code: bytes) -> Any:
    """Load PTX into the GPU: the driver compiles it for the device, and caches the result by itself."""
    import cupy

    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(code)
        file.flush()
        module = cupy.RawModule(path=file.name)
        module.compile()
        return module

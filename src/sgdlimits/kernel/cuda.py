"""The kernel `cuda`: the flat program of `lanes` on a GPU of NVIDIA's, one thread a replica, launched through CuPy."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from sgdlimits.kernel import cache
from sgdlimits.kernel.base import MAX_COORDINATE, Carry, ProcessLike, StepRange, StopCondition
from sgdlimits.kernel.lanes import Arrays, Code, Form, Unrolled

BLOCK = 64
"""Threads that are started together."""


class Cuda(Unrolled):
    """Threads of a GPU. States stay there from one call to the next where JAX computes there as well."""

    name = "cuda"

    def __init__(self, process: ProcessLike, until: StopCondition | None, carry: Carry, single: bool = False) -> None:
        import cupy

        self.xp = cupy
        super().__init__(process, until, carry, single)
        self.row = cupy.asarray(self.row)

    @staticmethod
    def compiled(form: Form) -> Code:
        import cupy

        return _code(form, cupy.cuda.Device().compute_capability)

    def here(self, leaf: Any) -> Any:
        there = isinstance(leaf, jax.Array) and all(device.platform == "gpu" for device in leaf.devices())
        if there and leaf.dtype == np.float64:
            return self.xp.from_dlpack(jax.block_until_ready(leaf)).copy()
        return self.xp.asarray(np.asarray(leaf))

    def back(self, array: Any) -> Any:
        return jax.dlpack.from_dlpack(array) if jax.default_backend() == "gpu" else self.host(array)

    def host(self, array: Any) -> np.ndarray:
        return self.xp.asnumpy(array)

    def run(self, arrays: Arrays, span: StepRange) -> None:
        vectors = len(arrays.state)
        whole = [span.first, span.steps, self.block, self.every, vectors]
        given = self.xp.asarray(np.array(whole, np.int64)), self.xp.asarray(np.array([span.t, span.size], float))
        blocks = -(-vectors * self.code.width // BLOCK)
        self.code.call((blocks,), (BLOCK,), (*arrays, *given))
        self.xp.cuda.Device().synchronize()


@lru_cache(maxsize=64)
def _code(form: Form, capability: str) -> Code:
    from sgdlimits.kernel.compiler import llvm, ptx

    gpu, replica = ptx.GPU(capability), form.replica(asks=False)
    text = ptx.text_of(replica, gpu, MAX_COORDINATE)
    module = cache.load_or_compile((text, gpu.key), lambda: gpu.assembly(text).encode(), _load)
    return Code(module.get_function(llvm.FUNCTION_NAME), module, ptx.WARP, replica.numbers, replica.length)


def _load(code: bytes) -> Any:
    """The driver compiles PTX for the device, and keeps that as well."""
    import cupy

    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(code)
        file.flush()
        module = cupy.RawModule(path=file.name)
        module.compile()
        return module

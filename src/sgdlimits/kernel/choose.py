"""Choice of the kernel that makes the steps of a process."""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import lru_cache

import jax

from sgdlimits.errors import BadInput
from sgdlimits.kernel.base import Carry, Kernel, ProcessLike, StopCondition
from sgdlimits.kernel.compiler.program import TranslationError
from sgdlimits.kernel.xla import XLA

KERNELS = ("xla", "lanes", "cuda")
SINGLE_PRECISION = ":f32"
"""Suffix of a kernel's name that requests normal variates computed in single precision."""

LOGGER = logging.getLogger("sgdlimits.kernel")


def choose_kernel(process: ProcessLike, until: StopCondition | None, carry: Carry, requested: str | None = None) -> Kernel:
    """Return the requested kernel for a process, or the fastest one that supports it.

    The environment variable SGDLIMITS_KERNEL sets a preferred kernel. If `xla` replaces a kernel that lacks an operation of the
    process, the name of the kernel and a line of the log give the reason.

    Parameters
    ----------
    process : process whose steps are made
    until : stop condition, or None
    carry : initial state of runs, whose shapes the kernel is compiled for
    requested : name of a kernel that must be used; raise `BadInput` if it does not support the process
    """
    wanted = requested or os.environ.get("SGDLIMITS_KERNEL") or _choose_default_kernel()
    name, single = check_kernel(wanted), wanted.endswith(SINGLE_PRECISION)
    if requested is None and process.runs_axis != -1:  # weights in R^d are too large to be unrolled into single floats
        name = "xla"
    try:
        kernel = _make_kernel(name, process, until, carry, single)
        kernel.name = name + SINGLE_PRECISION * single
    except TranslationError as reason:
        if requested is not None:
            raise BadInput(f"kernel={requested!r} does not support {reason}. Leave kernel out, or give 'xla'.") from reason
        kernel = XLA(process, until, single)
        # The name goes into the attributes of datasets, so that users see why a run was slower.
        kernel.name = f"xla{SINGLE_PRECISION * single}, since {name} does not support {reason}"
        LOGGER.info("the steps of %s are made by %s", type(process).__name__, kernel.name)
    except Exception as reason:
        if name != "xla" and not isinstance(reason, BadInput):
            reason.add_note(f"This error was raised while kernel={name!r} was compiled. Give kernel='xla' to avoid that.")
        raise
    return kernel


def check_kernel(wanted: str) -> str:
    """Return a kernel's name without the suffix for single precision; raise `BadInput` if there is no such kernel."""
    name = wanted.removesuffix(SINGLE_PRECISION)
    if name not in KERNELS:
        raise BadInput(
            f"kernel must be one of {', '.join(KERNELS)}, with or without the suffix {SINGLE_PRECISION}; got {wanted!r}. "
            "Leave kernel out to choose the fastest one."
        )
    return name


def _choose_default_kernel() -> str:
    """Return the name of the kernel to try first: `cuda` with a GPU, `lanes` on a CPU, `xla` on any other device of JAX."""
    return "cuda" if is_gpu_available() else "lanes" if jax.default_backend() == "cpu" else "xla"


@lru_cache(maxsize=1)
def is_gpu_available() -> bool:
    """Return whether this machine has an NVIDIA GPU and the package CuPy, which drives it."""
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy

    try:
        return cupy.cuda.runtime.getDeviceCount() > 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


def _make_kernel(name: str, process: ProcessLike, until: StopCondition | None, carry: Carry, single: bool) -> Kernel:
    """Construct the kernel with a given name; raise `TranslationError` if it does not support the process."""
    if name == "xla":
        return XLA(process, until, single)
    if name == "lanes":
        from sgdlimits.kernel.lanes import Lanes

        return Lanes(process, until, carry, single)
    if not is_gpu_available():
        raise BadInput(
            "kernel='cuda' needs an NVIDIA GPU and CuPy, and one of them was not found. "
            "Install sgdlimits[gpu] on a machine with a GPU, or leave kernel out."
        )
    from sgdlimits.kernel.cuda import Cuda

    return Cuda(process, until, carry, single)

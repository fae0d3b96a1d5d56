"""Which kernel makes the steps of a process."""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import lru_cache

import jax

from sgdlimits.errors import BadInput
from sgdlimits.kernel.base import Carry, Kernel, ProcessLike, StopCondition
from sgdlimits.kernel.compiler.program import Untranslated
from sgdlimits.kernel.xla import XLA

KERNELS = ("xla", "lanes", "cuda")
SINGLE = ":f32"
"""Behind the name of a kernel: normal numbers in single precision."""


LOG = logging.getLogger("sgdlimits.kernel")


def kernel_for(process: ProcessLike, until: StopCondition | None, carry: Carry, asked: str | None = None) -> Kernel:
    """The kernel that was asked for, or the fastest that takes a process.

    The environment variable SGDLIMITS_KERNEL asks as well, for whatever it can. Where the kernel is `xla` because another one
    does not know something, its name and a line of the log say what.
    """
    wished = asked or os.environ.get("SGDLIMITS_KERNEL") or _fastest()
    name, single = check_kernel(wished), wished.endswith(SINGLE)
    if asked is None and process.runs_axis != -1:  # weights in R^d are arrays, not a few numbers
        name = "xla"
    try:
        kernel = _made(name, process, until, carry, single)
        kernel.name = name + SINGLE * single
    except Untranslated as reason:
        if asked is not None:
            raise BadInput(f"kernel={asked!r} does not take {reason}. Leave it out, or give 'xla'.") from reason
        kernel = XLA(process, until, single)
        kernel.name = f"xla{SINGLE * single}, since {name} does not take {reason}"
        LOG.info("the steps of %s are made by %s", type(process).__name__, kernel.name)
    except Exception as reason:
        if name != "xla" and not isinstance(reason, BadInput):
            reason.add_note(f"It was raised while the kernel {name} was made for these steps. kernel='xla' does without it.")
        raise
    return kernel


def check_kernel(wished: str) -> str:
    """The name of a kernel without its precision; `BadInput` where there is none of the name."""
    name = wished.removesuffix(SINGLE)
    if name not in KERNELS:
        raise BadInput(
            f"kernel must be one of {', '.join(KERNELS)}, each with {SINGLE} or without; got {wished!r}. "
            "Leave it out to have it chosen."
        )
    return name


def _fastest() -> str:
    """A GPU before a processor; where JAX has another device, that."""
    return "cuda" if gpu_present() else "lanes" if jax.default_backend() == "cpu" else "xla"


@lru_cache(maxsize=1)
def gpu_present() -> bool:
    """Whether an NVIDIA GPU is there, and CuPy, through which it is used."""
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy

    try:
        return cupy.cuda.runtime.getDeviceCount() > 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


def _made(name: str, process: ProcessLike, until: StopCondition | None, carry: Carry, single: bool) -> Kernel:
    if name == "xla":
        return XLA(process, until, single)
    if name == "lanes":
        from sgdlimits.kernel.lanes import Lanes

        return Lanes(process, until, carry, single)
    if not gpu_present():
        raise BadInput(
            "kernel='cuda' needs an NVIDIA GPU and CuPy, and one of them was not found. "
            "Install sgdlimits[gpu] on a machine with a GPU, or leave the kernel out."
        )
    from sgdlimits.kernel.cuda import Cuda

    return Cuda(process, until, carry, single)

"""Memory limits: errors for computations that do not fit into memory, before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache

from sgdlimits.errors import BadInput
from sgdlimits.text import format_bytes

MAX_MEMORY_FRACTION = 0.8
"""Fraction of the machine's memory that one computation may take."""


@cache
def available_memory() -> float:
    """Return the memory in bytes that this process may use: that of the machine, or the limit of its container."""
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) if hasattr(os, "sysconf") else 2.0**34
    # Limits of a container, in versions 2 and 1 of Linux' control groups; "max" for no limit is not a number.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                total = min(total, float(file.read()))
        except (OSError, ValueError):
            continue
    return total


def check_memory(what: Sequence[tuple[str, float]], remedy: str) -> None:
    """Raise `BadInput` if an array whose size is the product of the given counts does not fit into memory.

    `what` has pairs of a noun and its count, such as ("runs", 100); `remedy` is the last sentence of the message.

    >>> check_memory([("runs", 1e12), ("saved times", 200), ("numbers each", 4)], "Take fewer runs.")
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: 1e+12 runs x 200 saved times x 4 numbers each take 5800 TiB, ... Take fewer runs.
    """
    if words := describe_excess(math.prod(float(count) for _, count in what)):
        product = " x ".join(f"{count:.12g} {noun}" for noun, count in what)
        raise BadInput(f"{product} take {words}. {remedy}")


def describe_excess(numbers: float) -> str:
    """Return a phrase that says by how much an array of `numbers` floats exceeds the memory, or "" if it fits.

    >>> describe_excess(10)
    ''
    """
    total = available_memory()
    if 8 * numbers <= MAX_MEMORY_FRACTION * total:
        return ""
    return f"{format_bytes(8 * numbers)}, more than this machine's {format_bytes(total)} allow"

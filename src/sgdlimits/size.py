"""How much memory a job takes, said before any of it is made."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache

from sgdlimits.errors import BadInput
from sgdlimits.text import format_bytes

SHARE = 0.8
"""The share of the machine's memory that one job may take."""


@cache
def memory() -> float:
    """The bytes of memory that this process may use: the machine's, or its container's limit."""
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) if hasattr(os, "sysconf") else 2.0**34
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                total = min(total, float(file.read()))
        except (OSError, ValueError):
            continue
    return total


def check_memory(what: Sequence[tuple[str, float]], remedy: str) -> None:
    """Raise `BadInput` where a product of counts, each with its noun, is more numbers than this machine has memory for.

    >>> check_memory([("runs", 1e12), ("saved times", 200), ("numbers each", 4)], "Take fewer runs.")
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: 1e+12 runs x 200 saved times x 4 numbers each take 5800 TiB, ... Take fewer runs.
    """
    if words := describe_excess(math.prod(float(count) for _, count in what)):
        product = " x ".join(f"{count:.12g} {noun}" for noun, count in what)
        raise BadInput(f"{product} take {words}. {remedy}")


def describe_excess(numbers: float) -> str:
    """What is wrong with so many numbers, in words, or nothing where there is room for them.

    >>> describe_excess(10)
    ''
    """
    room = memory()
    return f"{format_bytes(8 * numbers)}, more than this machine's {format_bytes(room)} allow" if 8 * numbers > SHARE * room else ""

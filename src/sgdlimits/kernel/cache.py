"""Compiled code on disk, beside what JAX keeps there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from sgdlimits._x64 import write_entry

CHECK = 32
"""An entry begins with the hash of the rest: what was cut off or changed is compiled again."""


def folder() -> Path | None:
    """Where JAX keeps what it compiles, if it does."""
    chosen = getattr(jax.config, "jax_compilation_cache_dir", None)
    return Path(chosen) if chosen else None


def loaded(parts: Iterable[object], compile_: Callable[[], bytes], load: Callable[[bytes], Any]) -> Any:
    """Compiled code in memory: from the entry of all that it depends on, or compiled, and then kept."""
    return load(kept("lanes-" + hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest(), compile_))


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """The content of an entry: as it is there, or made, and then kept."""
    place = folder()
    path = place / name if place else None
    content = _read(path) if path else None
    if content is None:
        content = make()
        if path:
            _write(path, content)
    return content


def _read(path: Path) -> bytes | None:
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    check, code = entry[:CHECK], entry[CHECK:]
    return code if hashlib.sha256(code).digest() == check else None


def _write(path: Path, code: bytes) -> None:
    with suppress(OSError):  # a folder that cannot be written to
        path.parent.mkdir(parents=True, exist_ok=True)
        write_entry(path, hashlib.sha256(code).digest() + code)

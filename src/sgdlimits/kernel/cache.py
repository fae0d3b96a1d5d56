"""Compiled code on disk, beside what JAX keeps there.

Code is run as it is read. An entry therefore begins with a keyed hash of its name and its code, whose key only this user can
read: what another user has written, in a folder that several share, is never loaded, nor what was damaged. Whoever can write as
this user can run code anyway.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from sgdlimits.kernel.folder import cache_home, is_private, own_folder, write_entry

CHECK = 32
"""Bytes of the hash and of its key. An entry whose hash is not right is compiled again."""
KEY = ".key"
"""The name of the key's file."""


def folder() -> Path | None:
    """Return the folder where JAX keeps what it compiles, if one was chosen, or else the package's own."""
    chosen = getattr(jax.config, "jax_compilation_cache_dir", None)
    return Path(chosen) if chosen else own_folder()


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
    code, check = entry[CHECK:], _check(path, entry[CHECK:])
    return code if check is not None and hmac.compare_digest(check, entry[:CHECK]) else None


def _write(path: Path, code: bytes) -> None:
    with suppress(OSError):  # a folder that cannot be written to
        path.parent.mkdir(parents=True, exist_ok=True)
        if (check := _check(path, code)) is not None:
            write_entry(path, check + code)


def _check(path: Path, code: bytes) -> bytes | None:
    """The keyed hash of an entry, or None where no key can be kept."""
    key = _key(path.parent)
    return key and hmac.digest(key, path.name.encode() + b"\0" + code, "sha256")


@lru_cache(maxsize=8)
def _key(place: Path) -> bytes | None:
    """This user's key, made where it is missing: in the folder itself, or in the user's own where others can write to it."""
    try:
        home = place if is_private(place) else cache_home()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = home / KEY
        if not _is_key(path):
            write_entry(path, secrets.token_bytes(CHECK))
        return path.read_bytes() if is_private(home) and _is_key(path) else None
    except (OSError, RuntimeError):
        return None


def _is_key(path: Path) -> bool:
    """Whether a file is a key that no other user has made or can read."""
    if not path.is_file() or path.is_symlink() or not is_private(path):
        return False
    return path.stat().st_size == CHECK and (os.name != "posix" or not path.stat().st_mode & 0o077)

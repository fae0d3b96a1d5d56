"""Cache of compiled code on disk, in the folder of JAX's own cache or in the package's.

Code from the cache is executed without further checks. An entry therefore begins with a keyed hash of its name and code, whose
key only this user can read: entries that were damaged, or that another user wrote into a shared folder, are never loaded. An
attacker who can write as this user can run code anyway.
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

from sgdlimits.kernel.folder import is_private, package_cache_folder, user_cache_folder, write_entry

HASH_BYTES = 32
"""Length in bytes of the hash that authenticates a cache entry, and of the secret key. Entries with a wrong hash are
compiled again."""
KEY_FILE = ".key"
"""Name of the file that holds the secret key of the hashes."""


def cache_folder() -> Path | None:
    """Return the folder that caches compiled code: JAX's compilation cache if set, else the package's own; None if neither."""
    chosen = getattr(jax.config, "jax_compilation_cache_dir", None)
    return Path(chosen) if chosen else package_cache_folder()


def load_or_compile(parts: Iterable[object], compile_: Callable[[], bytes], load: Callable[[bytes], Any]) -> Any:
    """Load compiled code from the cache into memory; compile and store it first if the cache has no entry for it.

    Parameters
    ----------
    parts : everything on which the code depends; the name of the cache entry is a hash of their string forms
    compile_ : compiles the code
    load : loads code into memory
    """
    return load(read_or_make("lanes-" + hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest(), compile_))


def read_or_make(name: str, make: Callable[[], bytes]) -> bytes:
    """Return the content of a cache entry; if it is missing, compute it by `make` and store it."""
    place = cache_folder()
    path = place / name if place else None
    content = _read_entry(path) if path else None
    if content is None:
        content = make()
        if path:
            _write_entry(path, content)
    return content


def _read_entry(path: Path) -> bytes | None:
    """Return the content of a cache entry without its hash, or None if the entry is missing or its hash is wrong."""
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    code, check = entry[HASH_BYTES:], _keyed_hash(path, entry[HASH_BYTES:])
    return code if check is not None and hmac.compare_digest(check, entry[:HASH_BYTES]) else None


def _write_entry(path: Path, code: bytes) -> None:
    """Write a cache entry with its hash; do nothing if the folder or the secret key cannot be written."""
    with suppress(OSError):  # the cache is optional: a read-only folder is no error
        path.parent.mkdir(parents=True, exist_ok=True)
        if (check := _keyed_hash(path, code)) is not None:
            write_entry(path, check + code)


def _keyed_hash(path: Path, code: bytes) -> bytes | None:
    """Return the keyed hash (HMAC) of the name and code of a cache entry, or None if no secret key can be stored."""
    key = _secret_key(path.parent)
    return key and hmac.digest(key, path.name.encode() + b"\0" + code, "sha256")


@lru_cache(maxsize=8)
def _secret_key(place: Path) -> bytes | None:
    """Return this user's secret key for the cache, created if missing; None if it cannot be stored privately.

    The key's file is in the folder of cache entries, or in the user's own cache if others can write to that folder.
    """
    try:
        # In a shared folder another user could replace the key; the user's own cache is private.
        home = place if is_private(place) else user_cache_folder()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = home / KEY_FILE
        if not _is_key(path):
            write_entry(path, secrets.token_bytes(HASH_BYTES))
        return path.read_bytes() if is_private(home) and _is_key(path) else None
    except (OSError, RuntimeError):
        return None


def _is_key(path: Path) -> bool:
    """Return whether a file is a valid secret key: it belongs to this user, and no other user can read it."""
    if not path.is_file() or path.is_symlink() or not is_private(path):
        return False
    return path.stat().st_size == HASH_BYTES and (os.name != "posix" or not path.stat().st_mode & 0o077)

"""The folder of compiled code: its place, its rights and its size, and entries that are written whole.

Compiled code is run as it is read, so that whoever can write to the folder can run code as its user: it is used only where it
belongs to this user and nobody else can write to it.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

HOUR_SECONDS = 3600.0
MAX_BYTES = 2**29
"""Beyond this total size the least recently read files are removed."""
PART = ".part-"
"""Prefix of entries that are being written, or were when a process was killed."""


def own_folder() -> Path | None:
    """Return the package's folder for compiled code, made where it is missing, or None where there is none to use.

    The environment variable SGDLIMITS_CACHE names another folder, or turns this one off ("off").
    """
    asked = os.environ.get("SGDLIMITS_CACHE", "")
    if asked.lower() in ("off", "0", "no", "none"):
        return None
    try:
        return _prepared(Path(asked) if asked else cache_home() / "compiled", own=not asked)
    except (OSError, RuntimeError):  # a home that cannot be written to, or none at all
        return None


@lru_cache(maxsize=8)
def _prepared(folder: Path, own: bool) -> Path | None:
    """Make, close and prune a folder; None, with a warning, where others can write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if own:
        _close(folder)
    if not is_private(folder):
        warnings.warn(
            f"compiled code is not kept in {folder}, where others can write. Run chmod 700 on it once it is empty, "
            "or name another folder in SGDLIMITS_CACHE.",
            stacklevel=3,
        )
        return None
    _prune(folder)
    return folder


def cache_home() -> Path:
    """Return the user's folder of all that the package keeps."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sgdlimits"


def is_private(path: Path) -> bool:
    """Return whether a file or folder belongs to this user and only this user can write to it."""
    if not hasattr(os, "getuid"):
        return True  # a system with other rights, on which profiles are private
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _close(folder: Path) -> None:
    """Close the package's own folder to other users, and remove the files that they could have written."""
    if not hasattr(os, "getuid") or folder.stat().st_uid != os.getuid():
        return
    if not is_private(folder):
        for entry in os.scandir(folder):
            if not entry.is_dir(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)
    folder.chmod(0o700)


def write_entry(path: Path, content: bytes) -> None:
    """Write a file under another name, then rename it: other processes read the old file or the whole new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _prune(folder: Path) -> None:
    """Remove what exceeds the size, at most once an hour: a look at thousands of entries takes longer than reading a few."""
    stamp = folder / ".pruned"
    if stamp.exists() and time.time() - stamp.stat().st_mtime < HOUR_SECONDS:
        return
    stamp.touch()
    for part in folder.glob(f"{PART}*"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > HOUR_SECONDS:
                part.unlink()
    files = sorted(
        ((entry.stat(), entry.path) for entry in os.scandir(folder) if not entry.name.startswith(".")),
        key=lambda file: -file[0].st_atime,
    )
    total = 0
    for status, path in files:
        total += status.st_size
        if total > MAX_BYTES:
            Path(path).unlink(missing_ok=True)

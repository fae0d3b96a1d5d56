"""Folder of compiled code: its path, access rights and size, and atomic writes of entries.

Compiled code is executed without further checks, so that anyone who can write to the folder could run code as its user. The
folder is therefore used only if it belongs to this user and no other user can write to it.
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
"""Maximum total size of the files in the folder; beyond it the least recently read ones are removed."""
PARTIAL_PREFIX = ".part-"
"""Prefix of the temporary files to which entries are written before they are renamed; a killed process leaves them behind."""


def package_cache_folder() -> Path | None:
    """Return the package's folder for compiled code, created if missing; None if the cache is off or cannot be used.

    The environment variable SGDLIMITS_CACHE gives the path of another folder, or turns the cache off ("off").
    """
    asked = os.environ.get("SGDLIMITS_CACHE", "")
    if asked.lower() in ("off", "0", "no", "none"):
        return None
    try:
        return _prepare_folder(Path(asked) if asked else user_cache_folder() / "compiled", own=not asked)
    except (OSError, RuntimeError):  # a home that cannot be written to, or none at all
        return None


@lru_cache(maxsize=8)
def _prepare_folder(folder: Path, own: bool) -> Path | None:
    """Create and prune a cache folder; return None, with a warning, if other users can write to it.

    The package's `own` folder is first restricted to this user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if own:
        _restrict_access(folder)
    if not is_private(folder):
        warnings.warn(
            f"compiled code is not kept in {folder}, where others can write. Run chmod 700 on it once it is empty, "
            "or name another folder in SGDLIMITS_CACHE.",
            stacklevel=3,
        )
        return None
    _delete_oldest_entries(folder)
    return folder


def user_cache_folder() -> Path:
    """Return the folder of the package in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sgdlimits"


def is_private(path: Path) -> bool:
    """Return whether a file or folder belongs to this user and only this user can write to it."""
    if not hasattr(os, "getuid"):
        return True  # Windows, where the folders of a user's profile are private
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _restrict_access(folder: Path) -> None:
    """Restrict the package's own cache folder to this user, and remove files that other users could have written."""
    if not hasattr(os, "getuid") or folder.stat().st_uid != os.getuid():
        return
    if not is_private(folder):
        for entry in os.scandir(folder):
            if not entry.is_dir(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)
    folder.chmod(0o700)


def write_entry(path: Path, content: bytes) -> None:
    """Write a file atomically: other processes read either its old content or the complete new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=PARTIAL_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _delete_oldest_entries(folder: Path) -> None:
    """Remove the least recently read files of a cache folder beyond `MAX_BYTES`, at most once an hour."""
    stamp = folder / ".pruned"
    if stamp.exists() and time.time() - stamp.stat().st_mtime < HOUR_SECONDS:
        return
    stamp.touch()
    for part in folder.glob(f"{PARTIAL_PREFIX}*"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > HOUR_SECONDS:
                part.unlink()
    files = sorted(
        ((entry.stat(), entry.path) for entry in os.scandir(folder) if not entry.name.startswith(".")),
        key=lambda file: -file[0].st_atime,  # the most recently read first, which stay
    )
    total = 0
    for status, path in files:
        total += status.st_size
        if total > MAX_BYTES:
            Path(path).unlink(missing_ok=True)

"""What is compiled is kept whole, or compiled again."""

from __future__ import annotations

import hashlib
import os

import jax
import pytest
from jax._src.lru_cache import LRUCache

import sgdlimits as sl
from sgdlimits.kernel import cache, folder


def test_entries_of_jax_are_written_whole_and_again_where_only_a_part_is_there(tmp_path, monkeypatch):
    sl.setup_jax()
    entries = LRUCache(str(tmp_path), max_size=-1)
    entries.put("key", b"whole")
    (tmp_path / "key-cache").write_bytes(b"who")  # what a killed process, or an older version, has left
    entries.put("key", b"whole")  # after the part could not be read
    assert entries.get("key") == b"whole"
    monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        entries.put("other", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["key-cache"]


def test_parts_of_long_ago_are_removed(tmp_path):
    old, new = tmp_path / f"{folder.PARTIAL_PREFIX}old", tmp_path / f"{folder.PARTIAL_PREFIX}new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    folder._delete_oldest_entries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, ".pruned"]


def test_code_that_was_cut_off_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    compiled, load = [], lambda code: code
    compile_ = lambda: compiled.append(1) or b"code"
    for _ in range(2):
        assert cache.load_or_compile(["it"], compile_, load) == b"code"
    assert len(compiled) == 1
    (entry,) = tmp_path.glob("lanes-*")
    entry.write_bytes(entry.read_bytes()[:-1])
    for _ in range(2):
        assert cache.load_or_compile(["it"], compile_, load) == b"code"
    assert len(compiled) == 2


def test_a_part_that_jax_cannot_read_warns_once(tmp_path):
    from jax.experimental.compilation_cache import compilation_cache as jax_cache

    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        jax_cache.reset_cache()
        run = lambda: jax.jit(lambda x: x + 1)(1.0)
        run()
        for entry in tmp_path.glob("*-cache"):
            entry.write_bytes(entry.read_bytes()[:20])
        with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
            run()
        run()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax_cache.reset_cache()


def test_code_with_the_plain_hash_of_its_bytes_is_not_run(tmp_path, monkeypatch):
    """Anybody can compute that one; and an entry under another name is none either."""
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    entry = lambda: next(iter(tmp_path.glob("lanes-*")))
    assert cache.load_or_compile(["it"], lambda: b"code", bytes) == b"code"
    mine = entry().read_bytes()
    entry().write_bytes(hashlib.sha256(b"garbage").digest() + b"garbage")
    assert cache.load_or_compile(["it"], lambda: b"code", bytes) == b"code"
    assert entry().read_bytes() == mine
    entry().rename(tmp_path / f"lanes-{hashlib.sha256(b'other').hexdigest()}")
    assert cache.load_or_compile(["other"], lambda: b"other code", bytes) == b"other code"


def test_in_a_folder_that_others_write_to_the_key_is_elsewhere(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache, "cache_folder", lambda: shared)
    assert cache.load_or_compile(["it"], lambda: b"code", bytes) == b"code"
    assert not (shared / cache.KEY_FILE).exists()
    assert (tmp_path / "home" / "sgdlimits" / cache.KEY_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("asked", [False, True])
def test_the_folder_of_compiled_code_is_closed_to_others_or_not_used(asked, tmp_path, monkeypatch):
    """The package's own is emptied and closed; one that the user names is left as it is."""
    place = tmp_path / "sgdlimits" / "compiled"
    place.mkdir(parents=True)
    (place / "planted-cache").write_bytes(b"code of another user")
    place.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SGDLIMITS_CACHE", str(place) if asked else "")
    if asked:
        with pytest.warns(UserWarning, match="where others can write"):
            assert folder.package_cache_folder() is None
    else:
        assert folder.package_cache_folder() == place
        assert place.stat().st_mode & 0o777 == 0o700
        assert not (place / "planted-cache").exists()


def test_compiled_code_is_kept_where_jax_keeps_its_own_or_else_in_our_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SGDLIMITS_CACHE", str(tmp_path / "ours"))
    before = jax.config.jax_compilation_cache_dir
    try:
        for chosen, place in ((str(tmp_path), tmp_path), (None, tmp_path / "ours")):
            jax.config.update("jax_compilation_cache_dir", chosen)
            assert cache.cache_folder() == place
        monkeypatch.setenv("SGDLIMITS_CACHE", "off")
        assert cache.cache_folder() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)

"""`make dist`: looks into the sdist and the wheel, and tries the wheel in a fresh environment of each Python that is found.

With a version as its argument it is the trial itself, run by the fresh environment's Python in an empty folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib import metadata, resources
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
MOST_BYTES = 5e6
CACHES = re.compile(r"__pycache__|\.py[co]$|_cache/|/\.(?!gitignore)|/docs/(_build|generated|auto_examples)/|\.egg-info|~$")
PAGE = ("index.html", "page.css", "page.js", "plots.js", "rate.js", "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE")


def look_into(folder: Path) -> tuple[Path, str]:
    """The wheel and its version, once sdist and wheel are small and hold no caches."""
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(sdist) as archive, zipfile.ZipFile(wheel) as other:
        lists = {sdist: archive.getnames(), wheel: other.namelist()}
    for file, names in lists.items():
        size = file.stat().st_size
        print(f"{file.name}: {len(names)} files, {size / 1e6:.2f} MB")
        if unwanted := [name for name in names if CACHES.search(name)]:
            sys.exit(f"{file.name} holds what it should not: {', '.join(unwanted[:5])}.")
        if size > MOST_BYTES:
            sys.exit(f"{file.name} is larger than {MOST_BYTES / 1e6:g} MB. See what has come into it.")
    return wheel, wheel.name.split("-")[1]


def find(version: str, uv: str) -> str | None:
    """A Python of this version that starts: one that uv knows, or of pyenv."""
    known = subprocess.run([uv, "python", "find", "--no-project", version], capture_output=True, text=True).stdout.split()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in [*known, *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True))]:
        asked = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], capture_output=True, text=True
        )
        if asked.stdout.strip() == version:
            return path
    return None


def try_wheel(wheel: Path, version: str, python: str, uv: str) -> None:
    """Install the wheel, with what it asks for at the pinned versions, into an environment that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        inside, empty = Path(folder) / "venv" / "bin" / "python", Path(folder) / "empty"
        empty.mkdir()
        subprocess.run([uv, "venv", "-q", "--no-project", "--python", python, inside.parent.parent], check=True)
        pins = ROOT / "requirements" / "test.txt"
        subprocess.run([uv, "pip", "install", "-q", "--python", inside, wheel, "-c", pins], check=True)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        subprocess.run([inside, "-P", Path(__file__).resolve(), version], cwd=empty, env=plain, check=True)


def trial(version: str) -> None:
    """The package from its wheel: its files, its command, a small run and a figure."""
    import sgdlimits as sl

    assert Path(sl.__file__).is_relative_to(sys.prefix), f"{sl.__file__} is not of the wheel."
    assert metadata.version("sgdlimits") == version
    files = resources.files("sgdlimits")
    missing = [name for name in PAGE if not (files / "explorer" / "page" / name).is_file()]
    missing += [name for name in ("py.typed", "__init__.pyi") if not (files / name).is_file()]
    assert not missing, f"The wheel lacks {missing}."
    assert command("--version").strip() == f"sgdlimits {version}"
    command("run", "phase_retrieval", "--d", "100", "--level", "chain", "--runs", "8", "--t-max", "5", "--out", "run.nc")
    assert sl.load("run.nc").sizes["run"] == 8
    command("figure", "quadratic-5", "--quick", "--out", "figures")
    assert Path("figures/quadratic-5.png").read_bytes().startswith(b"\x89PNG")


def command(*words: str) -> str:
    """What the installed command prints."""
    done = subprocess.run([Path(sys.prefix) / "bin" / "sgdlimits", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> None:
    uv = str((ROOT / ".boot" / "bin" / "uv").resolve())
    wheel, version = look_into(ROOT / "dist")
    tried = []
    for python in PYTHONS:
        path = find(python, uv)
        if path:
            try_wheel(wheel, version, path, uv)
            tried.append(python)
        print(f"Python {python}: {'the wheel works' if path else 'skipped, not found on this machine'}", flush=True)
    if not tried:
        sys.exit(f"None of Python {', '.join(PYTHONS)} was found, so that the wheel was not tried.")


if __name__ == "__main__":
    trial(sys.argv[1]) if len(sys.argv) > 1 else main()

"""What all figures share: what `make` returns, and the files that a figure becomes."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdlimits.errors import BadInput, check_count
from sgdlimits.figures import FIGURES

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

Keep = Callable[[str, "xr.Dataset"], Any]
"""Takes each dataset with its name as soon as it is finished, so that an interruption does not lose it."""


@dataclass
class Drawn:
    """A figure, the sentences that say what it shows, the datasets behind it, and lines to print beside them."""

    figure: Figure
    caption: list[str]
    datasets: dict[str, xr.Dataset]
    lines: list[str] = field(default_factory=list)


def ignore(name: str, dataset: xr.Dataset) -> None:
    """Keep nothing."""


def module_of(name: str) -> Any:
    """The module of a figure, or `BadInput` with the names there are."""
    if name not in FIGURES:
        raise BadInput(f"there is no figure {name!r}. The figures are {', '.join(FIGURES)}.")
    return importlib.import_module(FIGURES[name])


def summary(name: str) -> str:
    """The first sentence of a figure's docstring, without importing it."""
    spec = importlib.util.find_spec(FIGURES[name])
    assert spec is not None, FIGURES[name]
    assert spec.origin is not None, FIGURES[name]
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return re.sub(r" \[\d+\]_", "", " ".join(text.split("\n\n")[0].split())).rstrip(".")


def produce(name: str, out: str | Path, *, quick: bool = False, seed: int = 0) -> Iterator[str]:
    """Make a figure and write NAME.png, NAME.svg, NAME.txt and NAME-*.nc into a folder; yields what to print."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from sgdlimits.plot import PAPER

    check_count("seed", seed, at_least=0)
    module, folder = module_of(name), _folder(out)
    files: list[str] = []

    def keep(key: str, dataset: xr.Dataset) -> None:
        files.append(write(dataset, folder / f"{name}-{key}.nc").name)

    with plt.rc_context(PAPER):
        drawn = module.make(module.QUICK if quick else module.FULL, seed, keep)
        drawn.figure.savefig(folder / f"{name}.png")
        drawn.figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(drawn.figure)
    caption = textwrap.fill(" ".join(drawn.caption), width=110, break_on_hyphens=False, break_long_words=False)
    (folder / f"{name}.txt").write_text(caption + "\n", encoding="utf-8")
    yield from [*drawn.lines, caption, ""]
    yield f"In {folder}: {', '.join([f'{name}.png', f'{name}.svg', f'{name}.txt', *files])}."


def write(dataset: xr.Dataset, path: Path) -> Path:
    """Write a dataset, of `simulate` or any other, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        dataset.to_netcdf(partial, engine="h5netcdf")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _folder(out: str | Path) -> Path:
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise BadInput(f"the folder {out} cannot be made: {reason.strerror}. Give another --out.") from reason
    return Path(out)

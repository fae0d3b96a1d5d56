"""Write the files of one figure, or of all figures with an index page."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgdlimits.errors import BadInput, check_count
from sgdlimits.papers.figures import FIGURES

if TYPE_CHECKING:
    import xarray as xr


def make_folder(out: str | Path) -> Path:
    """Create the output folder if it is missing, and return its path."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise BadInput(f"the folder {out} cannot be created: {reason.strerror}. Choose another --out.") from reason
    return folder


def produce(name: str, out: str | Path, *, quick: bool = False, seed: int = 0) -> Iterator[str]:
    """Compute and draw one figure, write its picture, caption and datasets to a folder, and yield lines to print.

    The files are NAME.png, NAME.svg, NAME.txt and NAME-*.nc.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from sgdlimits.analysis.plot import PAPER
    from sgdlimits.files import atomic_replacement, write
    from sgdlimits.papers.figure import describe_reduction
    from sgdlimits.run.io import write_netcdf

    check_count("seed", seed, at_least=0)
    module, folder = importlib.import_module(FIGURES[name]), make_folder(out)
    files: list[str] = []

    def save_dataset(key: str, dataset: xr.Dataset) -> xr.Dataset:
        """Write a dataset of the figure to the folder as soon as it is complete, and return it."""
        files.append(write_netcdf(dataset, folder / f"{name}-{key}.nc").name)
        return dataset

    with plt.rc_context(PAPER):
        size = module.QUICK_SIZE if quick else module.FULL_SIZE
        drawn = module.make_figure(size, seed, save_dataset)
        # no date: equal figures have equal files
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            with atomic_replacement(folder / f"{name}.{kind}") as path:
                drawn.figure.savefig(path, metadata=metadata)
        # pyplot keeps figures alive until they are closed
        plt.close(drawn.figure)
    # formulas must not be broken at hyphens
    caption = textwrap.fill(
        " ".join([*drawn.caption, describe_reduction(size, module.FULL_SIZE, module.PARAMETER_WORDS)]),
        width=110,
        break_on_hyphens=False,
        break_long_words=False,
    )
    write(folder / f"{name}.txt", f"{caption}\n".encode())
    yield from [*drawn.lines, caption, ""]
    yield f"In {folder}: {', '.join([f'{name}.png', f'{name}.svg', f'{name}.txt', *files])}."


def produce_all(names: Sequence[str], out: str | Path, *, quick: bool = False, seed: int = 0) -> Iterator[str]:
    """Produce several figures with an index page in one folder, and yield lines to print.

    A figure that fails is listed on the page and at the end, and the others are still made. The page is rewritten after each
    figure, so it exists after an interruption. An error in writing files stops the production.
    """
    from sgdlimits.files import WriteError, write
    from sgdlimits.papers.index import build_page
    from sgdlimits.progress import bar

    check_count("seed", seed, at_least=0)
    folder, failed = make_folder(out), {}
    with bar(names, desc="figures", bar_format="{desc}: {n_fmt} of {total_fmt} [{elapsed}]{long}") as left:
        for number, name in enumerate(left, start=1):
            yield f"{name}, {number} of {len(names)}"
            try:
                yield from produce(name, folder, quick=quick, seed=seed)
            # a full disk would fail for all other figures too
            except WriteError:
                raise
            except Exception as reason:
                failed[name] = f"{type(reason).__name__}: {reason}"
                yield f"{name} failed. {failed[name]}"
            write(folder / "index.html", build_page(folder, failed).encode())
            yield ""
    yield f"{len(names) - len(failed)} of {len(names)} figures are on {folder / 'index.html'}."
    if failed:
        raise BadInput(
            f"the figures {', '.join(failed)} failed, and all other figures are complete. "
            "Make each failed figure alone to see its error."
        )

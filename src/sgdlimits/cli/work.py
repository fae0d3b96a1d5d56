"""Helpers of commands: checks of output files, simulations that save their results on Ctrl-C, and summaries."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgdlimits.cli.options import echo
from sgdlimits.errors import BadInput, CensoredWarning, Interrupted
from sgdlimits.files import atomic_replacement, check_plain_file
from sgdlimits.text import format_count, format_table as columns

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

# the shell's code for Ctrl-C: 128 + SIGINT
INTERRUPTED_CODE = 130


def json_text(thing: Any) -> str:
    """Serialise results as JSON, with arrays as lists, and null for floats that are not finite.

    >>> json_text({"t": float("inf"), "runs": 4})
    '{\\n "t": null,\\n "runs": 4\\n}'
    """
    return json.dumps(_to_builtin(thing), indent=1, allow_nan=False)


def _to_builtin(thing: Any) -> Any:
    """Convert results to dicts, lists, numbers and strings, as JSON needs them."""
    if isinstance(thing, dict):
        return {str(name): _to_builtin(each) for name, each in thing.items()}
    # NumPy and JAX arrays and scalars
    if hasattr(thing, "tolist"):
        return _to_builtin(thing.tolist())
    if isinstance(thing, (list, tuple)):
        return [_to_builtin(each) for each in thing]
    if isinstance(thing, complex):
        return [_to_builtin(thing.real), _to_builtin(thing.imag)]
    return None if isinstance(thing, float) and not math.isfinite(thing) else thing


def check_output(path: str | os.PathLike, force: bool, option: str = "--out") -> Path:
    """Return the path of an output file; raise `BadInput` if it cannot be written or would replace a file."""
    path = check_plain_file(path)
    if path.exists() and not force:
        raise BadInput(f"{path} exists already. Give another {option}, or --force to replace it.")
    if not os.access(path.parent, os.W_OK):
        why = "is not writable" if path.parent.exists() else "does not exist"
        raise BadInput(f"{option} {path} cannot be written: the folder {path.parent} {why}. Create it, or give another path.")
    return path


def check_apart(out: Path | None, plot: Path | None) -> None:
    """Raise `BadInput` if the paths of the dataset, `out`, and of the picture, `plot`, are the same."""
    if out and plot and out.resolve() == plot.resolve():
        raise BadInput(f"--out and --plot have the same path, {out}. Give --plot another path.")


def check_picture(path: str | os.PathLike, force: bool, option: str) -> Path:
    """Return the path of a picture; raise `BadInput` if it cannot be written or matplotlib has no such format."""
    from matplotlib.backend_bases import FigureCanvasBase

    path = check_output(path, force, option)
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise BadInput(f"{option} {path} must end in the name of an image format. Use .png, .svg or .pdf.")
    return path


def simulate_and_save(call: Callable[[], xr.Dataset], out: Path) -> tuple[xr.Dataset, float]:
    """Run a simulation and save its dataset; return the dataset and the wall time in seconds.

    Ctrl-C saves the finished part of the simulation and exits the program.
    """
    from sgdlimits.run import save

    begin = time.perf_counter()
    with warnings_in_a_sentence():
        try:
            dataset = call()
        except Interrupted as stopped:
            save(stopped.dataset, out)
            runs, t = stopped.dataset.sizes["run"], float(stopped.dataset.t.values[-1])
            echo(f"Interrupted. Saved {format_count(runs, 'run')} up to t = {t:.3g} in {out}.", err=True)
            sys.exit(INTERRUPTED_CODE)
    seconds = time.perf_counter() - begin
    save(dataset, out)
    return dataset, seconds


@contextmanager
def warnings_in_a_sentence() -> Iterator[None]:
    """Print warnings of diverged and censored runs as one sentence on standard error, without their source lines."""
    from sgdlimits.run import DivergedWarning

    with warnings.catch_warnings():
        # "always": a second simulation in the same process warns too
        warnings.simplefilter("always", DivergedWarning)
        warnings.simplefilter("always", CensoredWarning)
        default = warnings.showwarning

        def show_warning(message, category, *place, **more):
            if issubclass(category, (DivergedWarning, CensoredWarning)):
                echo(f"Warning: {message}", err=True)
            else:
                default(message, category, *place, **more)

        warnings.showwarning = show_warning
        yield


@contextmanager
def save_drawn_figure(path: Path) -> Iterator[None]:
    """Save the matplotlib figure that is drawn in the context, in the style of a paper and without a window."""
    import matplotlib

    # a backend without a window, which also works without a display
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from sgdlimits.analysis.plot import PAPER

    with plt.rc_context(PAPER):
        yield
        # an interruption leaves no half-written picture
        with atomic_replacement(path) as partial:
            plt.savefig(partial)
        plt.close()


def format_summary(dataset: xr.Dataset, seconds: float) -> str:
    """Format a summary of a dataset: how its runs ended, final risk and overlap, and wall time."""
    from sgdlimits.analysis.origin import name_of_overlap

    good, attributes = dataset.status.values != "diverged", dataset.attrs  # a mask in isel would import dask
    rows = {"runs": count_statuses(dataset)}
    if good.any():
        rows["final risk"] = format_mean_and_error(dataset.risk.values[good, -1])
        if name := name_of_overlap(dataset):
            overlap = abs(dataset[name].values[good, -1])
            rows["final |overlap|"] = format_mean_and_error(overlap.reshape(overlap.shape[0], -1).mean(1))
    rows["wall time"] = f"{seconds:.1f} s"
    where = f"d = {attributes['d']}, " if attributes["d"] else ""
    what = f"{attributes['problem_name']}, level {attributes['level']}"
    head = f"{what}, {where}to t = {float(dataset.t.values[-1]):g}, seed {attributes['seed']}"
    return f"{head}\n{columns(rows.items(), indent='  ')}"


def count_statuses(dataset: xr.Dataset) -> str:
    """Count the runs of a dataset by how they ended, as text such as "62 finished, 2 diverged"."""
    ends = dataset.status.values.tolist()
    return ", ".join(f"{ends.count(status)} {status}" for status in sorted(set(ends), key=lambda s: -ends.count(s)))


def format_mean_and_error(values: np.ndarray) -> str:
    """Format the mean over runs and, if there are several, its standard error."""
    mean = values.mean()
    if values.size == 1:
        return f"{mean:.5g}"
    return f"{mean:.5g} ± {values.std(ddof=1) / values.size**0.5:.1g}, mean over {values.size} runs and standard error"

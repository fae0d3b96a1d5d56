"""`sgdlimits figure NAME`, which reproduces the papers' figures, and `sgdlimits demo`, all levels on one figure."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from sgdlimits.cli.options import Command, CommandError, FileType, NumberType, echo
from sgdlimits.cli.work import INTERRUPTED_CODE, warnings_in_a_sentence
from sgdlimits.papers.figures import FIGURES
from sgdlimits.settings import setup_process
from sgdlimits.text import format_table, join_words, suggest_name


class LazyCommand(Command):
    """Command that sets up JAX itself, since some of its uses only list names."""

    computes = False


@click.command(cls=LazyCommand, short_help="Make a figure of the papers again.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "listed", is_flag=True, help="list all figures, with a line each")
@click.option("--quick", is_flag=True, help="a small version, in about a minute or less: its caption ends with what is smaller")
@click.option("--out", type=FileType(), default="sgdlimits-figures", show_default=True, help="the folder for all files")
@click.option("--seed", type=NumberType(whole=True), default=0, show_default=True, help="of the starts and of all runs")
def figure(names: tuple[str, ...], listed: bool, quick: bool, out: str, seed: int) -> None:
    """Reproduce figures of the papers: for each a picture, a caption with numbers, and the datasets behind it.

    Each figure becomes NAME.png, NAME.svg, NAME.txt and NAME-*.nc in the folder; files of an earlier time are replaced.
    Several names, or all of them as the word all: the others are made where one fails, and index.html shows every figure of
    the folder with its caption.

    \b
    Example:
      sgdlimits figure --list
      sgdlimits figure mediocrity-1-right --quick --out figures
      sgdlimits figure all --quick
    """
    from sgdlimits.papers.index import read_summary

    if listed:
        echo(format_table((name, read_summary(name)) for name in FIGURES))
        return
    known = f"The figures are {join_words(list(FIGURES))}; all makes each of them."
    if not names:
        raise CommandError(f"the NAME of a figure is missing. {known}")
    for name in names:
        if name not in (*FIGURES, "all"):
            raise CommandError(f"there is no figure {name!r}. {suggest_name(name, [*FIGURES, 'all'])}{known}")
    setup_process()
    make_figures(list(FIGURES) if "all" in names else list(names), out, quick, seed)


def make_figures(names: list[str], out: str, quick: bool, seed: int) -> None:
    """Make figures and print their captions; if Ctrl-C interrupts, print which files are finished."""
    from sgdlimits.papers.produce import produce, produce_all

    how: dict[str, Any] = dict(quick=quick, seed=seed)
    # files of an earlier run are not reported as new
    before = _file_stamps(out)
    try:
        with warnings_in_a_sentence():
            for line in produce(names[0], out, **how) if len(names) == 1 else produce_all(names, out, **how):
                echo(line)
    except KeyboardInterrupt:
        new = [name for name, mark in _file_stamps(out).items() if before.get(name) != mark]
        echo(f"Interrupted. {f'Saved in {out}: ' + ', '.join(new) if new else 'Nothing was saved'}.", err=True)
        sys.exit(INTERRUPTED_CODE)


def _file_stamps(folder: str) -> dict[str, tuple[int, int]]:
    """Return the inode and modification time of each file in a folder, by name; both change when a file is rewritten."""
    if not os.path.isdir(folder):
        return {}
    return {item.name: (item.inode(), item.stat().st_mtime_ns) for item in os.scandir(folder) if item.is_file()}


@click.command(cls=Command, short_help="All four levels on one figure, in about a minute.")
@click.option("--out", type=FileType(), default="sgdlimits-demo", show_default=True, help="the folder for all files")
@click.option("--quick", is_flag=True, help="a small version, in a few seconds: d = 300 and fewer runs")
@click.option("--seed", type=NumberType(whole=True), default=0, show_default=True, help="of the start and of all runs")
def demo(out: str, quick: bool, seed: int) -> None:
    """Show the escape from mediocrity at four levels of description, in about a minute.

    Phase retrieval in dimension 3000 from one random start: SGD on the weights, the exact chain of the overlap, its
    diffusion and its limit on one figure, with a table of what each says and costs. A second table has the mean exit
    times from random starts, simulated and by the formulas of the paper. Files of an earlier demo in the folder are
    replaced.

    \b
    Example:
      sgdlimits demo --out figures --seed 1
    """
    make_figures(["demo"], out, quick, seed)

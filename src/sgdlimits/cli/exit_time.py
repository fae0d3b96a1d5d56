"""`sgdlimits exit-time`: times at which runs leave a plateau; for phase retrieval at every level and by every formula."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sgdlimits.cli.options import Command, CommandError, FileType, Option, echo, number_option
from sgdlimits.cli.run import preset_options
from sgdlimits.cli.work import (
    INTERRUPTED_CODE,
    check_apart,
    check_output,
    check_picture,
    json_text,
    save_drawn_figure,
    warnings_in_a_sentence,
)
from sgdlimits.text import join_words, suggest_name

if TYPE_CHECKING:
    from sgdlimits.analysis.plateau_exits import PlateauExits
    from sgdlimits.papers.mediocrity.exit_table import ExitTable
    from sgdlimits.problem import ProjectionProblem

DEFAULT_PRESET = "phase_retrieval"
"""Preset of `sgdlimits exit-time` by default, for which the table has every level and every formula."""
PROBLEM_HEADING, RUNS_HEADING, RESULTS_HEADING = "The problem", "The runs", "Results"
EXIT_TIME_OPTIONS = [
    Option(
        "--preset", default=DEFAULT_PRESET, show_default=True, heading=PROBLEM_HEADING,
        help="the problem; each has its own options: see sgdlimits exit-time --preset NAME --help",
    ),
    number_option("--width", PROBLEM_HEADING, "p, the number of units", default=1),
    number_option("--d", PROBLEM_HEADING, "dimension", default=3000),
    number_option(
        "--lr", PROBLEM_HEADING, "learning rate; 1/12 needs the fewest samples for one unit without noise",
        default="1/12", whole=False
    ),
    number_option("--noise", PROBLEM_HEADING, "variance of the label noise", default=0, whole=False),
    number_option("--threshold", PROBLEM_HEADING, "T, the share of the excess risk lost at the exit", default=0.5, whole=False),
    number_option("--runs", RUNS_HEADING, "runs of chain, SDE and ODE", default=400),
    number_option("--sgd-runs", RUNS_HEADING, "runs of SGD on the weights, whose cost is proportional to d", default=0),
    number_option("--seed", RUNS_HEADING, "an integer; the same seed gives the same numbers", default=0),
    Option("--out", type=FileType(), heading=RESULTS_HEADING, help="netCDF file to which the table is saved"),
    Option("--plot", type=FileType(), heading=RESULTS_HEADING,
           help="figure of the share of runs that have not exited (.png, .svg, .pdf)"),
    Option("--force", is_flag=True, heading=RESULTS_HEADING, help="replace files that exist"),
    Option("--json", "as_json", is_flag=True, heading=RESULTS_HEADING, help="print the table as JSON"),
    Option("--quiet", is_flag=True, heading=RESULTS_HEADING, help="no progress bars"),
]  # fmt: skip
PHASE_RETRIEVAL_OPTIONS = ("width", "lr", "noise", "sgd_runs")
"""Options of `sgdlimits exit-time` that apply to phase retrieval only."""


class ExitTimeCommand(Command):
    """Command with the options of the preset named by `--preset`, and options common to all presets."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["preset"] = read_preset(args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params, name = super().get_params(ctx), ctx.meta.get("preset", DEFAULT_PRESET)
        if name == DEFAULT_PRESET:
            return params
        from sgdlimits.problem.presets import PRESETS

        common = [each for each in params if each.name not in PHASE_RETRIEVAL_OPTIONS]
        return [common[0], *preset_options(PRESETS[name]), *common[1:]]


def read_preset(args: list[str]) -> str:
    """Return the name of the preset in the arguments of a command line, or raise `CommandError` if there is no such preset."""
    from sgdlimits.problem.presets import PRESETS

    after = [args[i + 1] for i, each in enumerate(args[:-1]) if each == "--preset"]
    joined = [each.removeprefix("--preset=") for each in args if each.startswith("--preset=")]
    name = (after + joined or [DEFAULT_PRESET])[-1].replace("-", "_")
    if name not in PRESETS:
        raise CommandError(
            f"there is no preset {name!r}. {suggest_name(name, PRESETS)}The presets are {join_words(list(PRESETS))}."
        )
    return name


@click.command(
    "exit-time",
    cls=ExitTimeCommand,
    params=EXIT_TIME_OPTIONS,
    short_help="Compute exit times of a plateau, by simulation and theory.",
)
def exit_time(preset, d, threshold, runs, seed, out, plot, force, as_json, quiet, **given) -> None:
    """Compute how long one-pass SGD stays on a plateau: for phase retrieval, every level and formula in one table.

    SGD, chain, SDE and ODE are simulated from random starts until each run has lost the share T of its excess risk.
    The table also has the formulas of "Escaping mediocrity" with their equation numbers, and formulas with effects
    that they leave out: noisy has SGD's own noise near the plateau, ode the full drift, noisy_ode both, backward the law of
    the full SDE at width 1. Times are t, in samples per dimension; the number of samples is t d, the paper's time lr t / width.

    For other presets the table has chain, SDE, ODE and the linear noisy law as columns; the exit is at the share T of
    the plateau's excess risk.

    \b
    Example:
      sgdlimits exit-time --d 3000 --lr 1/12 --threshold 0.1 --plot exits.png
      sgdlimits exit-time --width 5 --lr 5/12 --d 1000 --runs 200
      sgdlimits exit-time --preset committee --lr 1.5 --d 1000 --runs 200
    """
    out = out and check_output(out, force)
    plot = plot and check_picture(plot, force, "--plot")
    check_apart(out, plot)

    how = dict(runs=runs, seed=seed, progress=not quiet)
    files: dict[str, Any] = dict(out=out, plot=plot, as_json=as_json)
    name = preset.replace("-", "_")
    if name == DEFAULT_PRESET:
        print_phase_retrieval(d=d, threshold=threshold, how=how, **given, **files)
    else:
        own = {key.removeprefix("problem_"): value for key, value in given.items()}
        print_plateau(name, own, d=d, threshold=threshold, how=how, **files)


def print_plateau(name: str, own: dict[str, Any], d, threshold, how, out, plot, as_json) -> None:
    """Print the table of exit times of any preset, and save it and its figure where paths are given."""
    from sgdlimits.analysis.plateau_exits import plateau_exits
    from sgdlimits.problem.presets import PRESETS
    from sgdlimits.run.io import write_netcdf

    problem = PRESETS[name](**own)
    with warnings_in_a_sentence():
        found = plateau_exits(problem, d, threshold, **how)
    if as_json:
        echo(json_text({**found.data.attrs, "rows": found.data.to_dataframe().reset_index().to_dict("records")}))
    else:
        numbers = ", ".join(f"{key} = {value:.4g}" for key, value in own.items() if type(value) in (int, float))
        echo(f"{name}, {numbers}, d = {d}, threshold {threshold:g}, random starts\n\n{found}")
    if out:
        write_netcdf(found.data, out)
    if plot:
        draw_plateau_exits(found, name, plot)
    print_saved(out, plot, as_json)


def print_saved(out: Path | None, plot: Path | None, as_json: bool) -> None:
    """Print where the table and the figure were saved."""
    if out or plot:
        echo(f"\nSaved {' and '.join(str(path) for path in (out, plot) if path)}.", err=as_json)


def print_phase_retrieval(width, d, lr, noise, threshold, sgd_runs, how, out, plot, as_json) -> None:
    """Print the table of phase retrieval with all formulas, and save it and its figure where paths are given."""
    from sgdlimits.papers.mediocrity.exit_table import ExitsInterrupted, exit_table
    from sgdlimits.problem.presets import phase_retrieval
    from sgdlimits.run.io import write_netcdf

    problem = phase_retrieval(width=width, lr=lr, noise=noise)
    interrupted = False
    with warnings_in_a_sentence():
        try:
            table = exit_table(problem, d, threshold, sgd_runs=sgd_runs, **how)
        except ExitsInterrupted as stopped:
            table, interrupted = stopped.found, True
    if as_json:
        echo(json_text({**table.data.attrs, "rows": table.data.to_dataframe().reset_index().to_dict("records")}))
    else:
        echo(
            f"Phase retrieval, width {width}, d = {d}, lr = {lr:.4g}, noise = {noise:g}, "
            f"threshold {threshold:g}, random starts\n"
        )
        if table.learns:
            echo(f"{table}\n")
        echo(textwrap.fill(table.reading(), width=110, break_on_hyphens=False))
    if out:
        write_netcdf(table.data, out)
    if plot:
        draw_survival(problem, table, plot)
    print_saved(out, plot, as_json)
    if interrupted:
        echo(f"Interrupted. The table has what was simulated: {', '.join(table.exits)}.", err=True)
        sys.exit(INTERRUPTED_CODE)


def draw_plateau_exits(found: PlateauExits, name: str, path: Path) -> None:
    """Save a figure of the fraction of runs that have not exited against time, at each level and by the law for large d."""
    import numpy as np

    with save_drawn_figure(path):
        from sgdlimits.analysis.plot import survival

        a = found.data.attrs
        ax = survival({f"{level}, {each.sizes['run']} runs": each for level, each in found.exits.items()})
        t = np.sort(found.law)
        ax.plot(t, 1 - np.arange(1, t.size + 1) / t.size, color="0.55", linewidth=3.5, alpha=0.6, zorder=2, label="noisy law")
        ax.set(xlim=(0, a["t_max"]), title=rf"{name}: exit at $T = {a['threshold']:g}$, $d = {a['d']}$")
        ax.legend()


def draw_survival(problem: ProjectionProblem, table: ExitTable, path: Path) -> None:
    """Save a figure of the fraction of runs that have not exited against time, at each level and as theory predicts it."""
    import numpy as np

    from sgdlimits.papers.mediocrity.theory import exit_law

    a = table.data.attrs
    with save_drawn_figure(path):
        from sgdlimits.analysis.plot import survival

        ax = survival({f"{name}, {each.sizes['run']} runs": each for name, each in table.exits.items()})
        end = max(float(each.t.max()) for each in table.exits.values())
        if table.learns and np.isfinite(table.data.t.loc["noisy_ode"]):
            law, t = exit_law(problem, a["d"], a["threshold"]), np.linspace(0, end, 500)
            label = "backward equation" if a["width"] == 1 else "noisy start, then ODE"
            ax.plot(t, 1 - law.cdf(t), color="0.55", linewidth=3.5, alpha=0.6, zorder=2, label=label)
        ax.set(xlim=(0, end), title=rf"exit at $T = {a['threshold']:g}$, $p = {a['width']}$, $d = {a['d']}$")
        ax.legend()

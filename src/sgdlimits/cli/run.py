"""`sgdlimits run PRESET`, with one command per preset generated from its signature and docstring; `sgdlimits presets`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from sgdlimits.cli.levels import START_OPTIONS, level_options, make_level, make_start
from sgdlimits.cli.optimisers import optimiser_options, with_optimiser
from sgdlimits.cli.options import Command, CommandGroup, FileType, Option, echo, make_option, number_option, option_type
from sgdlimits.cli.work import check_apart, check_output, check_picture, format_summary, simulate_and_save
from sgdlimits.docstring import describe, typed_parameters
from sgdlimits.text import format_table as columns

# headings of the help page
PROBLEM_HEADING, RUNS_HEADING, RESULTS_HEADING = "The problem", "The runs", "Results"
PATH_TYPE = FileType()
RUN_OPTIONS = [
    number_option("--runs", RUNS_HEADING, "number of independent runs", default=64),
    number_option("--t-max", RUNS_HEADING, "the end, in samples per dimension", default=60, whole=False),
    number_option("--seed", RUNS_HEADING, "an integer; the same seed gives the same numbers", default=0),
    number_option("--save", RUNS_HEADING, "number of times to save, equally spaced from 0 to the end", default=200),
    Option(
        "--out",
        type=PATH_TYPE,
        heading=RESULTS_HEADING,
        help="the netCDF file; by default named by preset, level, d, lr and seed",
    ),
    Option("--plot", type=PATH_TYPE, heading=RESULTS_HEADING, help="a figure of risk and overlaps (.png, .svg, .pdf)"),
    Option("--force", is_flag=True, heading=RESULTS_HEADING, help="replace files that exist"),
    Option("--quiet", is_flag=True, heading=RESULTS_HEADING, help="no progress bar and no table"),
]


class PresetGroup(CommandGroup):
    """Group with a command for each preset, whose options follow from the preset's signature and docstring.

    Parameters
    ----------
    work : function that is called with the preset's name, the problem, and a dict of all options
    options : function that returns further options, given the names of the preset's options
    example : options for the example in the help page
    command : class of the commands
    """

    noun = "preset"

    def __init__(
        self,
        *,
        work: Callable,
        options: Callable[[set[str]], Iterable[Option]],
        example: str,
        command: type[Command] = Command,
        **more: Any,
    ) -> None:
        super().__init__(subcommand_metavar="PRESET [OPTIONS]", **more)
        self.work, self.options, self.example, self.command_type = work, options, example, command

    def list_commands(self, ctx: click.Context) -> list[str]:
        from sgdlimits.problem.presets import PRESETS

        return list(PRESETS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        from sgdlimits.problem.presets import PRESETS

        # accept phase-retrieval too
        name = name.replace("-", "_")
        if name in PRESETS and name not in self.commands:
            self.add_command(self._build_command(PRESETS[name]))
        return self.commands.get(name)

    def _build_command(self, preset: Callable) -> click.Command:
        """Build the command of a preset."""
        words, parameters, own = describe(preset), typed_parameters(preset), preset_options(preset)
        needed = [f"{each.opts[0]} {each.type.name.upper()}" for each in own if each.required]
        line = " ".join(["sgdlimits", str(self.name), preset.__name__, *needed, self.example])

        def callback(**given: Any) -> None:
            """Build the problem from the options, and call `work` with it."""
            mine = {name.removeprefix("problem_"): value for name, value in given.items() if name.startswith("problem_")}
            self.work(preset.__name__, preset(**mine), given)

        params: list[click.Parameter] = [*own, *self.options(set(parameters))]
        schedule = "A SCHEDULE is a number, or a number over time such as 'cosine(0.1, 0, 50)' or '0.1/(1 + t/20)'."
        text = f"{words.summary}\n\n{schedule}\n\n\b\nExample:\n  {line}"
        return self.command_type(preset.__name__, params=params, callback=callback, help=text, short_help=words.summary)


def preset_options(preset: Callable) -> list[Option]:
    """Return the options of a preset, made from its signature and its docstring."""
    words, parameters = describe(preset), typed_parameters(preset)
    return [
        make_option(
            # a prefix keeps a preset's arguments apart from those of level, start and run
            f"problem_{name}",
            parameter.annotation,
            heading=PROBLEM_HEADING,
            help=words.parameters.get(name, ""),
            default=None if parameter.default is parameter.empty else parameter.default,
            required=parameter.default is parameter.empty,
            flag=name,
        )
        for name, parameter in parameters.items()
        if option_type(parameter.annotation) or parameter.default is parameter.empty
    ]


def default_name(name: str, level: Any, start: Any, given: dict[str, Any]) -> str:
    """Return the default name of a simulation's file, made of preset, level, dimension d, learning rate and seed."""
    d, lr = getattr(level, "d", None) or getattr(start, "d", None), given.get("problem_lr")
    parts = [name, level.name, d and f"d{d}", isinstance(lr, (int, float)) and f"lr{lr:.4g}", f"seed{given['seed']}"]
    return "-".join(part for part in parts if part) + ".nc"


def run_problem(name: str, problem: Any, given: dict[str, Any]) -> None:
    """Simulate a problem at the level and from the start that the options give; save the dataset and print a summary."""
    level, start, problem = make_level(given), make_start(given), with_optimiser(problem, given)
    out = check_output(given["out"] or default_name(name, level, start, given), given["force"])
    picture = given["plot"] and check_picture(given["plot"], given["force"], "--plot")
    check_apart(out, picture)

    # imported after the checks, which then answer at once
    from sgdlimits.run import simulate

    how = {name: given[name] for name in ("t_max", "runs", "seed", "save")}
    dataset, seconds = simulate_and_save(lambda: simulate(problem, level, start, progress=not given["quiet"], **how), out)
    if picture:
        from sgdlimits.cli.files import draw_datasets

        draw_datasets({given["level"]: dataset}, picture)
    if not given["quiet"]:
        echo(format_summary(dataset, seconds))
        echo(f"Saved {out}{f' and {picture}' if picture else ''}. See also: sgdlimits info {out}")


@click.group(
    cls=PresetGroup, short_help="Simulate a preset and save the dataset.", work=run_problem,
    options=lambda taken: [*optimiser_options(taken), *level_options(taken), *START_OPTIONS, *RUN_OPTIONS],
    example="--d 3000 --level chain --runs 64 --t-max 60 --plot figure.png",
)  # fmt: skip
def run() -> None:
    """Simulate the learning problem of a preset, and save the dataset.

    \b
    Examples:
      sgdlimits run phase_retrieval --d 3000
      sgdlimits run phase_retrieval --width 4 --lr 0.2 --level ode --start fixed --overlap 0.1
      sgdlimits run committee --d 1000 --optimiser heavy_ball --beta 0.9

    Each preset has its own options: see sgdlimits run PRESET --help.
    """


@click.command(cls=Command, short_help="List the presets.")
def presets() -> None:
    """List the presets, with one line each.

    \b
    Example:
      sgdlimits presets
    """
    from sgdlimits.problem.presets import PRESETS

    echo(columns((name, describe(preset).summary) for name, preset in PRESETS.items()))
    echo("\nThe options of one: sgdlimits run PRESET --help")

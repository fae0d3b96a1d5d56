"""Command line of the package. JAX, xarray and matplotlib are imported only by commands that use them: `--help` is fast."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import click

from sgdlimits.cli.check import check
from sgdlimits.cli.exit_time import exit_time
from sgdlimits.cli.explore import explore
from sgdlimits.cli.figure import demo, figure
from sgdlimits.cli.files import info, phases, plot, rerun
from sgdlimits.cli.optimise import optimise
from sgdlimits.cli.optimisers import optimisers, rules
from sgdlimits.cli.options import CommandError, CommandGroup, echo
from sgdlimits.cli.run import presets, run
from sgdlimits.cli.sweep import sweep
from sgdlimits.cli.theory import critical_points, exponent, fixed_points, latex
from sgdlimits.cli.work import INTERRUPTED_CODE
from sgdlimits.errors import BadInput

__all__ = ["main"]

# 100 columns rather than click's 80: the tables of options need them
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EPILOG = """\b
Examples:
  sgdlimits demo
  sgdlimits run phase_retrieval --d 3000 --lr 1/12 --plot escape.png
  sgdlimits run committee --d 1000 --optimiser heavy_ball --beta 0.9
  sgdlimits exit-time --d 3000 --threshold 0.1
  sgdlimits exponent he3 --d 1000
  sgdlimits fixed-points binary_mixture --snr inf
  sgdlimits critical-points --width 3 --teachers 2
  sgdlimits latex committee --activation erf
  sgdlimits figure mediocrity-1-left --quick
  sgdlimits sweep diagram.toml --workers 4
  sgdlimits optimise rate.toml
  sgdlimits check --effort quick
  sgdlimits explore
  sgdlimits run phase_retrieval --help

\b
To complete names with the TAB key (zsh and fish: zsh_source, fish_source):
  eval "$(_SGDLIMITS_COMPLETE=bash_source sgdlimits)"
"""


class RootGroup(CommandGroup):
    """Root command group: it prints `BadInput` as one sentence, and exits with code 130 after Ctrl-C and 143 after SIGTERM."""

    def invoke(self, ctx: click.Context) -> Any:
        asked: list[int] = []

        def interrupt(number: int, frame: Any) -> None:
            """Treat SIGTERM like Ctrl-C, so that results are saved."""
            asked.append(number)
            raise KeyboardInterrupt

        if threading.current_thread() is threading.main_thread():
            # signals can be set from the main thread only
            signal.signal(signal.SIGTERM, interrupt)
        try:
            return super().invoke(ctx)
        except BadInput as reason:
            raise CommandError(str(reason)) from reason
        except KeyboardInterrupt:
            echo("Interrupted. Nothing was saved.", err=True)
            # the shell's convention: 128 plus the number of the signal
            sys.exit(128 + asked[0] if asked else INTERRUPTED_CODE)
        # a command has handled the interruption itself, with the code of Ctrl-C
        except SystemExit as ended:
            if asked and ended.code == INTERRUPTED_CODE:
                sys.exit(128 + asked[0])
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=RootGroup, context_settings=CONTEXT_SETTINGS, epilog=EPILOG)
@click.version_option(package_name="sgdlimits", message="%(prog)s %(version)s")
def main() -> None:
    """Simulate and analyse one-pass SGD in high dimension: write a problem down once, and look at it at every level.

    The levels: sgd, the weights in R^d; chain, the exact law of their overlaps, at a cost without d; sde, its
    diffusion for large d; ode, the limit; mean-field, that of infinite width.
    """


ALL_COMMANDS = (
    run,
    sweep,
    optimise,
    rerun,
    info,
    presets,
    optimisers,
    rules,
    plot,
    exit_time,
    exponent,
    phases,
    fixed_points,
    critical_points,
    latex,
    figure,
    demo,
    check,
    explore,
)
"""All commands, in the order in which the help page lists them."""
for command in ALL_COMMANDS:
    main.add_command(command)

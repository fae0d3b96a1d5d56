"""Every command and every option, found in the parser, fed with what cannot be right: one sentence, exit code 2, nothing left.

A new command or option is covered without a new line here.
"""

from __future__ import annotations

import importlib

import click
import pytest
from click.testing import CliRunner

import sgdlimits as sl
from sgdlimits.algorithm import ALGORITHMS
from sgdlimits.cli import main
from sgdlimits.cli.levels import available_levels
from sgdlimits.cli.options import NumberType

INVALID_VALUES = {
    NumberType: ["", "x", "nan", "1j", "1/0", "1 2"],
    click.Choice: ["", "x", "é"],
    click.Path: ["nowhere/x.png", ".", "", "a" * 300],
    click.types.StringParamType: ["", "no such thing"],
}
"""Values that are invalid for every option of a type."""
SOMETIMES_VALID = ["-1", "0", "1e400", "-inf", "5e-324", "1e300", "9" * 30, "0.5"]
"""Numbers that are valid for some options only."""


INVALID_FOLDERS = ["x.nc", "x.nc/y", "a" * 300]
"""Values that are invalid for every option that names a folder."""
FIRST_WORK = [
    ("analysis.fixed_points.find", "draw_starts"), ("papers.mediocrity.figures.mediocrity_2", "make_figure"),
    ("papers.mediocrity.figures.demo", "make_figure"),
    ("analysis.plot.overview", "label_datasets"), ("analysis.single_index", "exit_time"),
    ("cli.explorer.serve", "build_application"),
]  # fmt: skip
"""Functions with which work begins after all checks of arguments."""


class Checked(Exception):
    """Raised where work would begin, as all arguments have passed their checks."""


def stop_before_work(*arguments, **more):
    raise Checked


def commands(group=main, path=()):
    """Yield the words of each command that is not a group, and the command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name)) if isinstance(found, click.Group) else [((*path, name), found)]


COMMANDS = dict(commands())


def options(first_only: bool):
    """Return pairs (command, option) of all commands, or of each option once; arguments count as options."""
    seen = set()
    for path, command in COMMANDS.items():
        for option in command.params:
            name = (path[0], option.name, type(option.type))
            if not (first_only and name in seen):
                seen.add(name)
                yield path, option


def command_line(path, option):
    """Return the command line that an option needs: a file, and the level or optimiser to which the option belongs."""
    line = list(path)
    needed = [each for each in COMMANDS[path].params if isinstance(each, click.Argument) and each.name != option.name]
    names = {"names": "mediocrity-2", "target": "he2"}
    line += ["x.nc" if isinstance(each.type, click.Path) else names[each.name] for each in needed]
    if path[0] == "run" and option.name != "level_d":
        line += ["--d", "30"]
    for what, known in (("level", available_levels()), ("optimiser", ALGORITHMS)):
        field = option.name.removeprefix(f"{what}_")
        owner = [name for name, cls in known.items() if field in getattr(cls, "__dataclass_fields__", {})]
        if option.name.startswith(f"{what}_") and owner and field != "d":
            line += [f"--{what}", owner[0]]
    start = {"spread": "orthogonal", "overlap": "fixed"}.get(option.name)
    line += ["--start", start] if path[0] == "run" and start else []
    return line


def typed(option, poison):
    """Return an option with a value, as typed."""
    return ["--", poison] if isinstance(option, click.Argument) else [f"{option.opts[0]}={poison}"]


def invalid_values(option):
    """Return the values that are invalid for an option."""
    if "folder" in (getattr(option, "help", None) or ""):
        return INVALID_FOLDERS
    return next(poisons for kind, poisons in INVALID_VALUES.items() if isinstance(option.type, kind))


def run_checked(line, folder):
    """Run a command line, check its output and the files it left, and return its exit code."""
    result = CliRunner().invoke(main, line, prog_name="sgdlimits")
    left = [path for path in folder.iterdir() if path.name != "x.nc"]
    if isinstance(result.exception, Checked):
        for path in left:
            path.rmdir()  # a figure's, which is empty
        return 0
    assert not left, line
    assert result.exception is None or isinstance(result.exception, SystemExit), (line, repr(result.exception))
    if result.exit_code:
        errors = [text for text in result.stderr.splitlines() if text.startswith("Error: ")]
        assert len(errors) == 1, (line, result.output)
        assert (result.exit_code, result.stdout) == (2, ""), (line, result.output)
        assert errors[0].endswith((".", "?", ")")), errors
    assert "Traceback" not in result.output
    return result.exit_code


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a dataset, in which commands stop before they compute."""
    problem = sl.presets.phase_retrieval(lr=0.04)
    sl.save(sl.simulate(problem, sl.ODE(), sl.FixedInit(0.1), t_max=2, save=3), tmp_path / "x.nc")
    monkeypatch.chdir(tmp_path)
    for module, name in FIRST_WORK:
        monkeypatch.setattr(importlib.import_module(f"sgdlimits.{module}"), name, stop_before_work)
    monkeypatch.setattr("sgdlimits.run.runner.Simulation.datasets", stop_before_work)
    monkeypatch.setattr(
        "sgdlimits.problem.accuracy._relative_errors", lambda problem, stats: (0.0, 0.0, 0.0)
    )  # as if no nodes were missing
    return tmp_path


def try_all(folder, every: bool):
    """Ask with all poisons, and with every third one where another preset before had the same option, not of its own."""
    asked, first = 0, {(path, option.name) for path, option in options(first_only=True)}
    for path, option in options(first_only=not every):
        if getattr(option, "is_flag", False) or not isinstance(option.type, tuple(INVALID_VALUES)):
            assert run_checked([*path, f"{option.opts[0]}=3"], folder) == 2
            continue
        again = (path, option.name) not in first and not option.name.startswith("problem_")
        some = slice(asked % 3, None, 3) if again else slice(None)
        for poison in invalid_values(option)[some]:
            assert run_checked([*command_line(path, option), *typed(option, poison)], folder) == 2, (path, option.name, poison)
        for poison in SOMETIMES_VALID[some] if isinstance(option.type, NumberType) and every else ():
            run_checked([*command_line(path, option), *typed(option, poison)], folder)
        asked += 1
    return asked


def test_what_an_option_can_never_be_is_one_sentence(folder, pytestconfig):
    """Each option once; with --all in every command, and with numbers that suit some options."""
    every = pytestconfig.option.all_cases
    assert try_all(folder, every) > (300 if every else 50)

"""Base classes of commands and options, and options made from annotations."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import click

from sgdlimits.errors import BadInput
from sgdlimits.renamed import PARAMETERS
from sgdlimits.settings import setup_process
from sgdlimits.text import SCHEDULE_TEXT, escape_controls, join_words, suggest_name


class NumberType(click.ParamType):
    """Type of options that take a number, written as 0.05, 1e9 or 1/12; with `whole`, 1e3 becomes an integer.

    With `over_time` the string of a schedule is accepted too, which the check of the argument parses later.
    """

    name = "number"

    def __init__(self, whole: bool = False, over_time: bool = False) -> None:
        self.whole, self.over_time = whole, over_time
        self.name = "schedule" if over_time else "number"

    def __repr__(self) -> str:
        return self.name.upper()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the string given for an option to a number; integers of any size stay exact."""
        if not isinstance(value, str):
            return value
        # integers first: floats would round large seeds
        with suppress(ValueError):
            return int(value)
        top, slash, bottom = value.partition("/")
        try:
            result = float(top) / float(bottom) if slash else float(value)
        except (ValueError, ZeroDivisionError):
            if self.over_time and SCHEDULE_TEXT.search(value):
                return value
            self.fail(f"{value!r} is not a number. Write it like 0.05, 1e9 or 1/12.", param, ctx)
        # 1e9 for an integer option
        return int(result) if self.whole and result.is_integer() else result


class FileType(click.Path):
    """Type of options that take the name of a file or folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("the name is empty. Give a name.", param, ctx)
        return super().convert(value, param, ctx)


class CommandError(click.ClickException):
    """Error that click prints as one sentence, before it exits with code 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(escape_controls(message))


def echo(text: str, err: bool = False) -> None:
    """Print a string, with escapes for terminal control characters, which strings from files may contain."""
    click.echo(escape_controls(text), err=err)


class CommandGroup(click.Group):
    """Group of commands, whose error for an unknown name lists the known ones."""

    noun: ClassVar[str] = "command"

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        wrong, names = args[0], self.list_commands(ctx)
        # resilient parsing is completion by TAB, which must not fail
        if self.get_command(ctx, wrong) is None and not wrong.startswith("-") and not ctx.resilient_parsing:
            raise CommandError(
                f"there is no {self.noun} {wrong!r}. {suggest_name(wrong, names)}The {self.noun}s are {join_words(names)}."
            )
        return super().resolve_command(ctx, args)


class Command(click.Command):
    """Command with options under headings in its help page, and with errors that name options as they are typed."""

    computes: ClassVar[bool] = True
    """Whether the command uses JAX in its own process, and therefore sets it up first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [self._rename_old_option(arg) for arg in args])

    def _rename_old_option(self, arg: str) -> str:
        """Replace the former name of an option in a command-line argument by its present name, with a warning."""
        old, new = next(((f"--{old}", new) for old, new in PARAMETERS.items() if re.match(f"--{old}(-|=|$)", arg)), ("", None))
        if new is None or new.name not in {param.name for param in self.params}:
            return arg
        click.echo(f"{old} is now --{new.name}. The old name goes with version {new.until}.", err=True)
        return f"--{new.name}{arg.removeprefix(old)}"

    def invoke(self, ctx: click.Context) -> Any:
        if self.computes:
            # before JAX is imported
            setup_process()
        try:
            return super().invoke(ctx)
        except BadInput as reason:
            # errors begin with the name of an argument, such as "t_max must": print the option instead
            flags = {flag.lstrip("-").replace("-", "_"): flag for param in self.params for flag in param.opts}
            typed = re.sub(r"^\w+(?= must )", lambda found: flags.get(found[0], found[0]), str(reason))
            raise CommandError(typed) from reason

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "heading", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class Option(click.Option):
    """Option of a command that is listed under a heading of the help page."""

    def __init__(self, *declarations: str, heading: str = "Options", **more: Any) -> None:
        super().__init__(list(declarations), **more)
        self.heading = heading


def number_option(flag: str, heading: str, help: str, *, default: float | str | None = None, whole: bool = True) -> Option:
    """Return an option that takes a number, listed under a heading of the help page."""
    more: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return Option(flag, type=NumberType(whole=whole), heading=heading, help=help, **more)


def option_type(annotation: Any) -> click.ParamType | None:
    """Return click's type for an annotation, or None if its values cannot be typed on a command line.

    >>> option_type(float | None), option_type(bool), option_type(typing.Literal["erf", "relu"]), option_type(list)
    (NUMBER, BOOL, Choice(['erf', 'relu']), None)
    >>> option_type(float | typing.Any)
    SCHEDULE
    """
    if typing.get_origin(annotation) is typing.Literal:
        return click.Choice([str(value) for value in typing.get_args(annotation)])
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if union else (annotation,)
    # bool first, as it is a subclass of int; floats before ints, as they accept both
    real = NumberType(over_time=typing.Any in members)
    known = ((bool, click.BOOL), (float, real), (int, NumberType(whole=True)), (str, click.STRING))
    return next((option for member, option in known if member in members), None)


def make_option(
    destination: str, annotation: Any, *, flag: str, heading: str, help: str, default: Any = None, required: bool = False
) -> Option:
    """Return an option for a parameter with an annotation; a bool becomes the pair `--flag/--no-flag`.

    `destination` is the name of the callback's argument, `flag` that of the option without its dashes.
    """
    flag = flag.replace("_", "-")
    more: dict[str, Any] = {"heading": heading, "help": help, "required": required}
    if not required:
        more |= {"default": default, "show_default": default is not None}
    if option_type(annotation) is click.BOOL:
        return Option(f"--{flag}/--no-{flag}", destination, **more)
    if option_type(annotation) is click.STRING and Callable in (
        getattr(part, "__origin__", part) for part in typing.get_args(annotation)
    ):
        more["shell_complete"] = _complete_activation
    return Option(f"--{flag}", destination, type=option_type(annotation) or click.STRING, **more)


def _complete_activation(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of activations that begin with the string typed so far, for completion by TAB."""
    from sgdlimits.model.activation import ACTIVATIONS

    return [name for name in ACTIVATIONS if name.startswith(incomplete)]

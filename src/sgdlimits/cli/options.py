"""Commands and options: numbers, headings, errors in one sentence, and options made from annotations."""

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
from sgdlimits.text import among, suggest_name, printable


class Number(click.ParamType):
    """A number as a theorist writes it: 0.05, 1e9 or 1/12."""

    name = "number"

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole

    def __repr__(self) -> str:
        return "NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        with suppress(ValueError):
            return int(value)
        top, slash, bottom = value.partition("/")
        try:
            result = float(top) / float(bottom) if slash else float(value)
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value!r} is not a number. Write it like 0.05, 1e9 or 1/12.", param, ctx)
        return int(result) if self.whole and result.is_integer() else result


class File(click.Path):
    """The name of a file or folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("it has no letters. Give a name.", param, ctx)
        return super().convert(value, param, ctx)


class Refusal(click.ClickException):
    """One sentence on what cannot be done, and exit code 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def echo(text: str, err: bool = False) -> None:
    """Print a text, which may come from a file, without what a terminal would obey."""
    click.echo(printable(text), err=err)


class Group(click.Group):
    """A group that answers an unknown name with the names there are."""

    noun: ClassVar[str] = "command"

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        wrong, names = args[0], self.list_commands(ctx)
        if self.get_command(ctx, wrong) is None and not wrong.startswith("-") and not ctx.resilient_parsing:
            raise Refusal(f"there is no {self.noun} {wrong!r}. {suggest_name(wrong, names)}The {self.noun}s are {among(names)}.")
        return super().resolve_command(ctx, args)


class Command(click.Command):
    """A command that has its options under headings in its help, and that names them in errors as they are typed."""

    computes: ClassVar[bool] = True
    """Whether it uses JAX in its own process, which is then set up for that."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [self._present(arg) for arg in args])

    def _present(self, arg: str) -> str:
        """The word as it is typed now, where it is an option by its name of before."""
        old, new = next(((f"--{old}", new) for old, new in PARAMETERS.items() if re.match(f"--{old}(-|=|$)", arg)), ("", None))
        if new is None or new.name not in {param.name for param in self.params}:
            return arg
        click.echo(f"{old} is now --{new.name}. The old name goes with version {new.until}.", err=True)
        return f"--{new.name}{arg.removeprefix(old)}"

    def invoke(self, ctx: click.Context) -> Any:
        if self.computes:
            setup_process()
        try:
            return super().invoke(ctx)
        except BadInput as reason:
            flags = {flag.lstrip("-").replace("-", "_"): flag for param in self.params for flag in param.opts}
            typed = re.sub(r"^\w+(?= must )", lambda found: flags.get(found[0], found[0]), str(reason))
            raise Refusal(typed) from reason

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
    """An option that stands under a heading of the help page."""

    def __init__(self, *declarations: str, heading: str = "Options", **more: Any) -> None:
        super().__init__(list(declarations), **more)
        self.heading = heading


def number(flag: str, heading: str, help: str, *, default: float | str | None = None, whole: bool = True) -> Option:
    """An option that is a number."""
    more: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return Option(flag, type=Number(whole=whole), heading=heading, help=help, **more)


def kind(annotation: Any) -> click.ParamType | None:
    """The type of option that an annotation asks for, or None where no text on a command line can stand for it.

    >>> kind(float | None), kind(bool), kind(str | list), kind(typing.Literal["erf", "relu"]), kind(list)
    (NUMBER, BOOL, STRING, Choice(['erf', 'relu']), None)
    """
    if typing.get_origin(annotation) is typing.Literal:
        return click.Choice([str(value) for value in typing.get_args(annotation)])
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if union else (annotation,)
    known = ((bool, click.BOOL), (float, Number()), (int, Number(whole=True)), (str, click.STRING))
    return next((option for member, option in known if member in members), None)


def option(
    destination: str, annotation: Any, *, flag: str, heading: str, help: str, default: Any = None, required: bool = False
) -> Option:
    """An option `--flag` of the type of an annotation; a bool becomes a pair `--flag/--no-flag`."""
    flag = flag.replace("_", "-")
    more: dict[str, Any] = {"heading": heading, "help": help, "required": required}
    if not required:
        more |= {"default": default, "show_default": default is not None}
    if kind(annotation) is click.BOOL:
        return Option(f"--{flag}/--no-{flag}", destination, **more)
    if kind(annotation) is click.STRING and Callable in (
        getattr(part, "__origin__", part) for part in typing.get_args(annotation)
    ):
        more["shell_complete"] = _activations
    return Option(f"--{flag}", destination, type=kind(annotation) or click.STRING, **more)


def _activations(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from sgdlimits.model.activation import ACTIVATIONS

    return [name for name in ACTIVATIONS if name.startswith(incomplete)]

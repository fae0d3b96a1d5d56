"""`sgdlimits explore`: the interactive page."""

from __future__ import annotations

import click

from sgdlimits.cli.options import Command, Option, echo, number
from sgdlimits.errors import BadInput

OPTIONS = [
    number("--port", "Options", "port to listen on; 0 takes a free one", default=8321),
    Option("--host", default="127.0.0.1", show_default=True, help="address to listen on; others let other machines in"),
    Option("--browser/--no-browser", default=True, show_default=True, help="whether to open the page in a browser"),
]


class ServerCommand(Command):
    """A command that does not use JAX itself, as other processes simulate."""

    computes = False


@click.command(cls=ServerCommand, params=OPTIONS, short_help="Open a page on which runs are watched.")
def explore(port: int, host: str, browser: bool) -> None:
    """Open a local page: move sliders, and watch SGD escape beside its limits. Ctrl-C ends it.

    It listens on this machine only, unless another --host is given, and lets in whoever has the printed address with its
    token.

    \b
    Example:
      sgdlimits explore
      sgdlimits explore --port 8400 --no-browser
    """
    try:
        # starlette and uvicorn are optional dependencies
        from sgdlimits.cli.explorer.serve import serve
    except ImportError as missing:
        raise BadInput(
            f"the page needs {missing.name}, which is not installed. Run: pip install 'sgdlimits[explore]'"
        ) from None
    try:
        serve(host, port, browser, said=lambda address: echo(f"The explorer is at {address}\nCtrl-C ends it."))
    except KeyboardInterrupt:
        echo("The explorer has ended.", err=True)

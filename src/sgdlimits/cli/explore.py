"""`sgdlimits explore`: an interactive page in the browser, on which simulations are shown while they run."""

from __future__ import annotations

import click

from sgdlimits.cli.options import Command, Option, echo, number_option
from sgdlimits.errors import BadInput

EXPLORER_OPTIONS = [
    number_option("--port", "Options", "port to listen on; 0 takes a free one", default=8321),
    Option("--host", default="127.0.0.1", show_default=True, help="address to listen on; others let other machines in"),
    Option("--browser/--no-browser", default=True, show_default=True, help="whether to open the page in a browser"),
]


class ServerCommand(Command):
    """Command that does not set up JAX in its own process, since the simulations run in other processes."""

    computes = False


@click.command(cls=ServerCommand, params=EXPLORER_OPTIONS, short_help="Open a page on which runs are watched.")
def explore(port: int, host: str, browser: bool) -> None:
    """Open a local page with sliders, on which runs of SGD are shown together with their limits. Ctrl-C ends it.

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
        serve(host, port, browser, announce=lambda address: echo(f"The explorer is at {address}\nCtrl-C ends it."))
    except KeyboardInterrupt:
        echo("The explorer has ended.", err=True)

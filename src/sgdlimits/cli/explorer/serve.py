"""Start of the explorer's server, which serves its page until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable

from sgdlimits.cli.explorer.server import ALL_INTERFACES, MAX_MESSAGE_BYTES, build_application
from sgdlimits.cli.explorer.session import spawn_process
from sgdlimits.errors import BadInput, check_count


def serve(host: str = "127.0.0.1", port: int = 8321, browser: bool = True, announce: Callable[[str], None] = print) -> None:
    """Serve the explorer's page at a host and port until Ctrl-C.

    Parameters
    ----------
    host : address to listen on; other machines reach it unless it is loopback
    port : port to listen on; 0 takes a free one
    browser : whether to open the page in a browser
    announce : function that is called with the address, which contains the token
    """
    import uvicorn

    port = check_count("port", port, at_least=0, below=2**16, remedy="Give a port, or 0 for a free one.")
    with _listen(host, port) as listening:
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(16)
        name = socket.gethostname() if host in ALL_INTERFACES else f"[{host}]" if ":" in host else host
        address = f"http://{name}:{port}/?token={token}"
        spare = spawn_process(warm=True)  # compiles while the browser opens
        config = uvicorn.Config(
            build_application(host, port, token, spare=spare), log_level="warning",
            ws="websockets-sansio", ws_max_size=MAX_MESSAGE_BYTES, lifespan="off",
            timeout_graceful_shutdown=1, server_header=False, ws_ping_timeout=180,  # a browser on a busy machine answers late
        )  # fmt: skip
        announce(address)
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            spare.process.kill()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host and port; raise `BadInput` if they cannot be used."""
    if not host:
        raise BadInput("host must be a name or an address; got ''. Leave host out to listen on this machine only.")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # restart at once on the same port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, UnicodeError) as reason:
        listening.close()
        raise BadInput(f"port {port} of {host!r} cannot be used: {reason}. Give another --port, or 0 for a free one.") from None
    return listening

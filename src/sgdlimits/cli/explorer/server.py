"""Server of the page: static files, and a WebSocket that connects each page with its own process.

By default the server listens on loopback. The Host of every request must be the server's own, and the Origin of a WebSocket
must be the server's page, so that no other page in the same browser can connect. As other users of the machine reach loopback
too, requests need the token of the printed address, or the cookie that the page was given for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from sgdlimits.cli.explorer.session import Session, SpawnedProcess

PAGE_FOLDER = Path(__file__).parent / "page"
MAX_MESSAGE_BYTES = 2**16
"""Maximum length of a message from a page, in bytes."""
MAX_SESSIONS = 8
"""Maximum number of pages that are open at the same time, each with a process of its own."""
IDLE_SECONDS = 900.0
"""Time without messages after which the process of a page is ended; the next message starts another one."""
# names under which a browser may address this machine
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ALL_INTERFACES = ("0.0.0.0", "::", "[::]")
# scripts and styles of the page only, no framing, and nothing kept in a cache
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
POLICY_VIOLATION_CODE, TRY_AGAIN_CODE, IDLE_CODE = 1008, 1013, 4000
"""WebSocket close codes; 4000 and above are free for applications."""


class AccessControl:
    """Access control of the server: checks host name, origin and token of each request."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        # DNS rebinding: a foreign page may resolve its own name to this machine
        names = LOOPBACK if host in ("127.0.0.1", "localhost", "::1") else (*LOOPBACK, f"[{host}]" if ":" in host else host)
        self.hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())
        self.any_host, self.token = host in ALL_INTERFACES, token
        self.cookie = f"sgdlimits-{port}"  # cookies of one host are shared by its ports

    def refusal_reason(self, connection: HTTPConnection, page: bool = False) -> str:
        """Return the reason for refusing a request, or an empty string if it is admitted.

        Static files (`page`) need no token.
        """
        host = connection.headers.get("host", "")
        if host not in self.hosts and not (self.any_host and self.token):
            return f"This server does not answer for the host {host[:80]!r}. Open the address that it printed."
        origin = connection.headers.get("origin")
        if connection.scope["type"] == "websocket" and origin not in (f"http://{host}", f"https://{host}"):
            return f"This server does not answer to the page of {str(origin)[:80]!r}. Open the address that it printed."
        given = (connection.query_params.get("token", ""), connection.cookies.get(self.cookie, ""))
        # constant-time comparison, so that timing does not reveal the token
        right = [hmac.compare_digest(each.encode(), (self.token or "").encode()) for each in given]
        if self.token and not page and not any(right):
            return "The token is missing or wrong. Open the address that the server printed, with its token."
        return ""


class ExplorerServer:
    """Request handlers of the web application, with its access control and the number of open sessions."""

    def __init__(self, guard: AccessControl, idle: float, spare: SpawnedProcess | None = None) -> None:
        self.guard, self.idle, self.sessions, self.spare = guard, idle, 0, spare
        self.static = StaticFiles(directory=PAGE_FOLDER)
        self.contents: dict[str, Any] = {}

    async def send_page(self, request: Request) -> Response:
        """Respond with the HTML page, and set the cookie that holds the token."""
        if why := self.guard.refusal_reason(request):
            return PlainTextResponse(why, 403)
        response = FileResponse(PAGE_FOLDER / "index.html", headers=SECURITY_HEADERS)
        if self.guard.token:
            response.set_cookie(self.guard.cookie, self.guard.token, httponly=True, samesite="strict")
        return response

    async def send_file(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond with a static file of the page, to requests for the server's own host names only."""
        why = self.guard.refusal_reason(HTTPConnection(scope), page=True)
        await (PlainTextResponse(why, 403) if why else self.static)(scope, receive, send)

    async def send_controls(self, request: Request) -> Response:
        """Respond with the descriptions of the page's controls, as JSON."""
        if why := self.guard.refusal_reason(request):
            return PlainTextResponse(why, 403)
        if not self.contents:
            from sgdlimits.cli.explorer.controls import page_contents

            # importing JAX takes seconds, during which the event loop must not block
            self.contents = await asyncio.to_thread(page_contents)
        return JSONResponse(self.contents, headers=SECURITY_HEADERS)

    async def connect_socket(self, socket: WebSocket) -> None:
        """Connect the WebSocket of a page with a session, until either of them ends."""
        if why := self.guard.refusal_reason(socket):
            # a close reason has at most 123 bytes
            await socket.close(POLICY_VIOLATION_CODE, why[:120])
            return
        await socket.accept()
        if self.sessions >= MAX_SESSIONS:
            await socket.close(TRY_AGAIN_CODE, f"{MAX_SESSIONS} pages are open already. Close one of them.")
            return
        self.sessions += 1
        # the spare process is for the first page only
        session, self.spare = Session(self.spare), None
        answers = asyncio.create_task(self._forward_answers(socket, session))
        try:
            await asyncio.to_thread(session.start)
            await self._forward_messages(socket, session)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self.sessions -= 1
            answers.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await answers
            await asyncio.to_thread(session.close)

    async def _forward_messages(self, socket: WebSocket, session: Session) -> None:
        """Forward the messages of a page to its session."""
        while True:
            try:
                text = await asyncio.wait_for(socket.receive_text(), self.idle)
            except TimeoutError:
                await socket.close(IDLE_CODE, "Nothing was asked for a while, so the simulation's process was ended.")
                return
            except KeyError:
                await socket.send_json({"kind": "error", "text": "A message must be a string. Reload the page."})
                continue
            try:
                message = json.loads(text)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                await asyncio.to_thread(session.send, message)
            else:
                await socket.send_json({"kind": "error", "text": "A message must be an object in JSON. Reload the page."})

    async def _forward_answers(self, socket: WebSocket, session: Session) -> None:
        """Forward the answers of a session to its page."""
        while True:
            message = await session.inbox.get()
            data = message.pop("data", None)
            await socket.send_text(json.dumps(message))
            if data is not None:
                await socket.send_bytes(data)


def build_application(
    host: str, port: int, token: str | None = None, idle: float = IDLE_SECONDS, spare: SpawnedProcess | None = None
) -> Starlette:
    """Build the web application for a host and port; the first page that opens uses the process `spare`."""
    explorer = ExplorerServer(AccessControl(host, port, token), idle, spare)
    return Starlette(
        routes=[
            Route("/", explorer.send_page),
            Route("/controls.json", explorer.send_controls),
            WebSocketRoute("/socket", explorer.connect_socket),
            Mount("/page", explorer.send_file),
        ]
    )

"""The server of the page: files, and a WebSocket for each page to a process of its own.

It listens on loopback. Every request must name a Host that is the server's own, and a WebSocket must come from its own page
(Origin), so that no other page in the same browser can reach it. Other users of the machine reach loopback too: whoever comes
in has the token of the printed address, or the cookie that the page was given for it.
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

from sgdlimits.cli.explorer.session import Session, Spawned

PAGE = Path(__file__).parent / "page"
MOST_BYTES = 2**16
"""The longest message that a page sends."""
MOST_SESSIONS = 8
IDLE_SECONDS = 900.0
"""A page that asks for nothing for so long loses its process, and gets another one when it asks again."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
WILD = ("0.0.0.0", "::", "[::]")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
POLICY, TOO_MANY, IDLE = 1008, 1013, 4000


class Guard:
    """Who may come in: requests to the server's own names, from its own page, with the token where there is one."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        names = LOOPBACK if host in ("127.0.0.1", "localhost", "::1") else (*LOOPBACK, f"[{host}]" if ":" in host else host)
        self.hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())
        self.any_host, self.token = host in WILD, token
        self.cookie = f"sgdlimits-{port}"  # cookies of one host are shared by its ports

    def refusal(self, connection: HTTPConnection, page: bool = False) -> str:
        """Why a request is refused, or nothing."""
        host = connection.headers.get("host", "")
        if host not in self.hosts and not (self.any_host and self.token):
            return f"This server does not answer for the host {host[:80]!r}. Open the address that it printed."
        origin = connection.headers.get("origin")
        if connection.scope["type"] == "websocket" and origin not in (f"http://{host}", f"https://{host}"):
            return f"This server does not answer to the page of {str(origin)[:80]!r}. Open the address that it printed."
        given = (connection.query_params.get("token", ""), connection.cookies.get(self.cookie, ""))
        right = [hmac.compare_digest(each.encode(), (self.token or "").encode()) for each in given]
        if self.token and not page and not any(right):
            return "The token is missing or wrong. Open the address that the server printed, with its token."
        return ""


class Explorer:
    """The application's state: who may come in, and the sessions that are open."""

    def __init__(self, guard: Guard, idle: float, spare: Spawned | None = None) -> None:
        self.guard, self.idle, self.sessions, self.spare = guard, idle, 0, spare
        self.static = StaticFiles(directory=PAGE)
        self.contents: dict[str, Any] = {}

    async def page(self, request: Request) -> Response:
        if why := self.guard.refusal(request):
            return PlainTextResponse(why, 403)
        response = FileResponse(PAGE / "index.html", headers=HEADERS)
        if self.guard.token:
            response.set_cookie(self.guard.cookie, self.guard.token, httponly=True, samesite="strict")
        return response

    async def files(self, scope: Any, receive: Any, send: Any) -> None:
        """Static files, for the server's own hosts only."""
        why = self.guard.refusal(HTTPConnection(scope), page=True)
        await (PlainTextResponse(why, 403) if why else self.static)(scope, receive, send)

    async def controls(self, request: Request) -> Response:
        if why := self.guard.refusal(request):
            return PlainTextResponse(why, 403)
        if not self.contents:
            from sgdlimits.cli.explorer.controls import contents

            self.contents = await asyncio.to_thread(contents)
        return JSONResponse(self.contents, headers=HEADERS)

    async def socket(self, socket: WebSocket) -> None:
        if why := self.guard.refusal(socket):
            await socket.close(POLICY, why[:120])
            return
        await socket.accept()
        if self.sessions >= MOST_SESSIONS:
            await socket.close(TOO_MANY, f"{MOST_SESSIONS} pages are open already. Close one of them.")
            return
        self.sessions += 1
        session, self.spare = Session(self.spare), None
        answers = asyncio.create_task(self._answer(socket, session))
        try:
            await asyncio.to_thread(session.start)
            await self._listen(socket, session)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self.sessions -= 1
            answers.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await answers
            await asyncio.to_thread(session.close)

    async def _listen(self, socket: WebSocket, session: Session) -> None:
        while True:
            try:
                text = await asyncio.wait_for(socket.receive_text(), self.idle)
            except TimeoutError:
                await socket.close(IDLE, "Nothing was asked for a while, so the simulation's process was ended.")
                return
            except KeyError:
                await socket.send_json({"kind": "error", "text": "A message must be text. Reload the page."})
                continue
            try:
                message = json.loads(text)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                await asyncio.to_thread(session.ask, message)
            else:
                await socket.send_json({"kind": "error", "text": "A message must be an object in JSON. Reload the page."})

    async def _answer(self, socket: WebSocket, session: Session) -> None:
        while True:
            message = await session.inbox.get()
            data = message.pop("data", None)
            await socket.send_text(json.dumps(message))
            if data is not None:
                await socket.send_bytes(data)


def application(
    host: str, port: int, token: str | None = None, idle: float = IDLE_SECONDS, spare: Spawned | None = None
) -> Starlette:
    """The page's application for the address at which it is served; the first page takes the `spare` process."""
    explorer = Explorer(Guard(host, port, token), idle, spare)
    return Starlette(
        routes=[
            Route("/", explorer.page),
            Route("/controls.json", explorer.controls),
            WebSocketRoute("/socket", explorer.socket),
            Mount("/page", explorer.files),
        ]
    )

"""Who the server lets in, what it says to messages that it cannot use, and that pages do not disturb each other."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from sgdlimits.cli.explorer.server import MAX_MESSAGE_BYTES, AccessControl, build_application

websockets = pytest.importorskip(
    "websockets", reason="the explorer's server is not installed: pip install 'sgdlimits[explore]'"
)
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402
from websockets.sync.client import connect  # noqa: E402

SMALL = {"preset": "phase_retrieval", "d": 50, "t_max": 5, "runs": 4}


def opened(address: str, **more):
    base, _, query = address.partition("?")
    return connect(
        f"{base.replace('http', 'ws')}socket?{query}",
        **{"origin": base.rstrip("/"), "max_size": None, "close_timeout": 0.2, "ping_interval": None, **more},
    )


def ask(page, job: int, *settings, **more) -> None:
    page.send(json.dumps({"kind": "run", "job": job, "settings": list(settings), **more}))


def until(page, *kinds: str, seconds: float = 600) -> dict:
    """The next message of one of these kinds."""
    end = time.monotonic() + seconds
    while True:
        message = json.loads(page.recv(timeout=end - time.monotonic()))
        if message["kind"] in kinds:
            return message


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    assert true()


def test_foreign_hosts_and_origins_are_refused(address):
    request = urllib.request.Request(address, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request)
    for origin in ("http://evil.example", None):
        with pytest.raises(InvalidStatus, match="403"):
            opened(address, origin=origin)


@contextlib.contextmanager
def serving(host: str, **more):
    """A server in this process, and its port."""
    import uvicorn

    from sgdlimits.cli.explorer.serve import _listen

    with _listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        application = build_application(host, port, **more)
        config = uvicorn.Config(application, log_level="error", ws="websockets-sansio", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.should_exit = True
            thread.join()


def test_without_the_token_of_another_host_nothing_is_served():
    with serving("0.0.0.0", token="secret") as address:
        for path in ("", "controls.json", "?token=wrong"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(address + path)
        with pytest.raises(InvalidStatus, match="403"):
            opened(address)
        assert urllib.request.urlopen(f"{address}?token=secret").status == 200


def test_on_loopback_too_only_the_token_or_its_cookie_opens_the_page(address):
    base, _, query = address.partition("?")
    assert query.startswith("token=")
    for path in ("", "controls.json", "?token=wrong"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(base + path)
    with pytest.raises(InvalidStatus, match="403"):
        opened(base)
    cookie = urllib.request.urlopen(address).headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    with_cookie = {"Cookie": cookie.partition(";")[0]}
    assert urllib.request.urlopen(urllib.request.Request(base + "controls.json", headers=with_cookie)).status == 200
    with opened(base, additional_headers=with_cookie) as page:
        assert until(page, "ready")


def test_a_page_that_asks_for_nothing_is_closed_and_its_process_ends():
    with serving("127.0.0.1", idle=0.5) as address, opened(address) as page:
        with pytest.raises(ConnectionClosed, match="4000"):
            until(page, "never")
        wait_until(lambda: not multiprocessing.active_children(), 5.0)


def test_another_host_needs_the_token():
    class Asked:
        def __init__(self, token):
            self.headers, self.query_params, self.scope = {"host": "lab:80"}, {"token": token}, {"type": "http"}
            self.cookies = {}

    guard = AccessControl("0.0.0.0", 80, "secret")
    assert "token" in guard.refusal_reason(Asked(""))
    assert "token" in guard.refusal_reason(Asked("wrong"))
    assert guard.refusal_reason(Asked("secret")) == ""


def test_bad_messages_are_answered_and_the_page_goes_on(address):
    with opened(address) as page:
        for bad in ("{", "[]", "1", '{"kind": "x"}', '{"kind": "run"}', '{"kind": "run", "settings": [{"d": NaN}]}'):
            page.send(bad)
            assert len(until(page, "error")["text"]) > 10
        ask(page, 1, {**SMALL, "parameters": {"lr": -1}})
        assert "lr must be" in until(page, "error", "accepted")["text"]
        page.send(b"\x00")
        assert until(page, "error")
        ask(page, 2, SMALL)
        assert until(page, "accepted")["job"] == 2


def test_a_message_of_ten_megabytes_ends_the_connection_and_not_the_server(address):
    def answer(page):
        page.send("x" * 10_000_000)
        return until(page, "piece")

    with opened(address) as page, pytest.raises(ConnectionClosed):
        answer(page)
    assert MAX_MESSAGE_BYTES < 10_000_000
    assert urllib.request.urlopen(address).status == 200


@pytest.mark.full
def test_a_killed_process_is_told_and_replaced_and_a_closed_page_ends_its_own(address):
    with opened(address) as page, opened(address) as other, opened(address) as quiet:
        ask(page, 1, SMALL)
        ask(other, 1, {**SMALL, "d": 10**6, "t_max": 1000})
        fourth = until(quiet, "ready")["process"]
        first, second = (until(each, "accepted")["process"] for each in (page, other))
        assert len({first, second, fourth}) == 3
        os.kill(first, 9)
        assert "ended unexpectedly" in until(page, "died")["text"]
        ask(page, 2, SMALL)
        third = until(page, "accepted")["process"]
        assert until(page, "piece")["job"] == 2
        assert until(other, "piece")["job"] == 1
    for process in (second, third, fourth):
        wait_until(lambda process=process: not alive(process), 2.0)


@pytest.mark.full
def test_the_newest_setting_cancels_the_one_before_and_its_pieces_are_those_of_simulate(address):
    """To the seven digits that are sent, also where runs come in two batches."""
    import numpy as np

    from sgdlimits import simulate
    from sgdlimits.cli.explorer.setting import Setting

    newest = {**SMALL, "runs": 80, "parameters": {"lr": 0.07}}
    with opened(address) as page:
        ask(page, 1, {**SMALL, "d": 10**6, "t_max": 1000})
        until(page, "piece")
        for job in range(2, 8):
            ask(page, job, {**SMALL, "parameters": {"lr": 0.01 * job}} if job < 7 else newest)
        mean: dict[float, float] = {}
        while (message := until(page, "piece", "done"))["kind"] != "done":
            if (message["job"], message["level"]) == (7, "chain"):
                mean.update(zip(message["t"], message["curves"]["risk"]["mean"], strict=True))
        assert message["job"] == 7
    setting = Setting.from_message(newest)
    how = setting.stream_arguments("chain")
    here = simulate(setting.problem, setting.levels["chain"], setting.start, **how, progress=False)
    np.testing.assert_allclose(list(mean.values()), here.risk.values.mean(0), rtol=1e-6)


def test_a_message_to_a_process_that_is_ending_reaches_the_next_one():
    """A pipe closes before its process is gone: what is asked in between must not be lost."""
    import asyncio

    from sgdlimits.cli.explorer.session import Session

    async def answers():
        session = Session()
        session.start()
        gone = session.process
        gone.kill()
        gone.join()
        gone.is_alive = lambda: True
        await asyncio.to_thread(session.send, {"kind": "nothing"})
        try:
            while True:
                message = await asyncio.wait_for(session.inbox.get(), 120)
                if message["kind"] == "error":
                    return message["text"]
        finally:
            session.close()

    assert "no message of the kind 'nothing'" in asyncio.run(answers())

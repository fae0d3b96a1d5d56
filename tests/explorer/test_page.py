"""The page in a real browser, with everything outside the server blocked."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sgdlimits.problem.presets import PRESETS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LONG = 240_000
"""Milliseconds in which a cold compilation ends on a busy machine."""
SMALL = {"d": "200", "t_max": "4", "runs": "8"}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, address):
    """A page of which every request stays at the server, and whose console stays empty."""
    context = browser.new_context(viewport={"width": 1366, "height": 768}, accept_downloads=True)
    page, outside, said = context.new_page(), [], []

    def only_here(route):
        if route.request.url.startswith((address, "data:", "blob:")):
            route.continue_()
        else:
            outside.append(route.request.url)
            route.abort()

    context.route("**/*", only_here)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.set_default_timeout(LONG)
    page.goto(address)
    page.wait_for_selector("#A-lr, #A-snr")
    yield page
    context.close()
    assert not outside
    assert not said


def choose(page, preset: str) -> None:
    """A preset at a small size."""
    page.select_option("#preset", preset)
    for name, value in SMALL.items():
        page.fill(f"#{name}", value)
        page.press(f"#{name}", "Tab")
    finish(page)


def finish(page) -> None:
    """Wait until the newest setting's runs have ended."""
    page.wait_for_timeout(200)
    page.wait_for_selector("body[data-done=yes]")


def chain_numbers(page) -> str:
    return page.inner_text("#numbers tbody tr:first-child")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_loads_and_a_slider_changes_its_curves(page, preset):
    choose(page, preset)
    before = chain_numbers(page)
    assert before.startswith("exact chain")
    page.focus("#A-lr-slider")
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    finish(page)
    assert chain_numbers(page) != before
    assert page.is_hidden("#error")


def test_the_link_shows_the_same_numbers(page):
    choose(page, "phase_retrieval")
    before, link = chain_numbers(page), page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector("body[data-done=yes]")
    assert chain_numbers(page) == before
    assert page.input_value("#d") == SMALL["d"]


def test_python_from_the_page_gives_the_numbers_on_it(page):
    choose(page, "phase_retrieval")
    shown = chain_numbers(page).split("\t")[2].split(" ± ")[0]
    names: dict = {}
    exec(page.inner_text("#code").split("\nprint")[0], names)
    assert f"{float(names['chain'].risk[:, -1].mean()):.5g}" == shown


def test_exports_are_files_of_their_format(page):
    choose(page, "phase_retrieval")
    for form, begins in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "nc": b"\x89HDF", "csv": b"level,"}.items():
        with page.expect_download() as waiting:
            page.click(f"[data-export={form}]")
        assert Path(waiting.value.path()).read_bytes().startswith(begins)
        assert waiting.value.suggested_filename.endswith(form)


def test_a_number_out_of_its_domain_is_refused_in_a_sentence_and_the_page_goes_on(page):
    choose(page, "phase_retrieval")
    page.fill("#A-lr", "-1")
    page.press("#A-lr", "Tab")
    page.wait_for_selector("#error:not([hidden])")
    assert re.match(r"lr must be .* got -1", page.inner_text("#error"))
    page.fill("#A-lr", "1/20")
    page.press("#A-lr", "Tab")
    finish(page)
    assert page.is_hidden("#error")

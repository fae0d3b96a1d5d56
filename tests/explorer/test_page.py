"""The page in a real browser, with everything outside the server blocked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sgdlimits.problem.presets import PRESETS
from sgdlimits.schedule_text import read_schedule

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
LONG = 600_000
"""Milliseconds in which a cold compilation ends on a busy machine."""
SMALL = {"d": "200", "t_max": "4", "runs": "8"}
SMALLER = {name: {"A-width": "1"} for name in ("committee", "binary_mixture", "xor_mixture")}
"""What makes a preset's integrals quick: those over the fields of many units take most of the time of the page."""
SEEN: dict[str, tuple[str, list[str]]] = {}
"""The program of each preset that was looked at, and the numbers that stood on the page."""
FRESH = """
import json, sys
for text in json.load(sys.stdin):
    names = {}
    exec(text, names)
    print(json.dumps([f"{float(names[level].risk[:, -1].mean()):.5g}" for level in ("chain", "ode")]))
"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page(browser, address):
    """One page for all tests, of which every request stays at the server, and whose console stays empty."""
    context = browser.new_context(viewport={"width": 1366, "height": 768}, accept_downloads=True)
    page, outside, said = context.new_page(), [], []

    def only_here(route):
        if route.request.url.startswith((address.partition("?")[0], "data:", "blob:")):
            route.continue_()
        else:
            outside.append(route.request.url)
            route.abort()

    context.route("**/*", only_here)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(error.stack or str(error)))
    page.set_default_timeout(LONG)
    page.goto(address)
    page.wait_for_selector("#A-lr, #A-snr")
    yield page
    context.close()
    assert not outside
    assert not said


TYPE = """
(values) => Object.entries(values).forEach(([id, value]) => {
  const box = document.getElementById(id);
  box.value = value;
  box.dispatchEvent(new Event("change"));
})
"""


def choose(page, preset: str) -> None:
    """A preset at a small size, all at once, so that one simulation is asked for."""
    page.evaluate(TYPE, {"preset": preset, **SMALLER.get(preset, {}), **SMALL})
    numbers(page)


def numbers(page) -> None:
    """Wait until there are numbers of the chain and the ODE, and not of a setting before; fixed points may follow."""
    page.wait_for_selector("#numbers:not(.stale) tr:has(th:text-is('exact chain')) + tr:has(th:text-is('ODE'))")


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
    rows = page.locator("#numbers tbody tr").all_inner_texts()
    shown = [row.split("\t")[2].split(" ± ")[0] for row in rows[:2]]
    SEEN[preset] = re.sub(r"(sde|mean_field) = .*\n", "", page.inner_text("#code").split("\nprint")[0]), shown
    page.focus("#A-lr-slider")
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    playwright.expect(page.locator("#numbers tbody tr").first).not_to_have_text(before.replace("\t", ""), timeout=LONG)
    assert page.is_hidden("#error")


def test_the_link_shows_the_same_numbers(page):
    choose(page, "phase_retrieval")
    before, link = chain_numbers(page), page.url
    page.goto("about:blank")
    page.goto(link)
    numbers(page)
    assert chain_numbers(page) == before
    assert page.input_value("#d") == SMALL["d"]


def test_python_from_the_page_gives_the_numbers_on_it():
    """For every preset that was opened above, all in one fresh interpreter; of the levels, the chain and the ODE."""
    assert SEEN
    programs = json.dumps([text for text, _ in SEEN.values()])
    answer = subprocess.run([sys.executable, "-c", FRESH], input=programs, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in answer.stdout.splitlines()] == [shown for _, shown in SEEN.values()]


def test_a_scene_of_two_settings_is_read_on_a_phone_and_with_keys_alone(page):
    """Nothing is wider than the screen, every control is reached with Tab, and numbers stand in a sentence."""
    page.set_viewport_size({"width": 390, "height": 844})
    choose(page, "phase_retrieval")
    page.focus("#compare")
    page.keyboard.press("Enter")
    page.wait_for_selector("#B-lr")
    page.focus("#B-lr-slider")
    page.keyboard.press("ArrowRight")
    finish(page)
    assert page.locator("#exits-text table").count() == 2
    assert "B: At t = 4 the exact chain has" in page.inner_text("#summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.focus("#preset")
    reached = set()
    for _ in range(80):
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.export"))
        page.keyboard.press("Tab")
    assert {"preset", "scene", "log", "left", "A-lr-slider", "A-lr", "B-optimiser", "again", "d", "copy-link", "csv"} <= reached
    page.set_viewport_size({"width": 1366, "height": 768})


def test_exports_are_files_of_their_format(page):
    choose(page, "phase_retrieval")
    for form, begins in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "nc": b"\x89HDF", "csv": b"level,"}.items():
        with page.expect_download() as waiting:
            page.click(f"[data-export={form}]")
        assert Path(waiting.value.path()).read_bytes().startswith(begins)
        assert waiting.value.suggested_filename.endswith(form)


def test_a_number_out_of_its_domain_is_refused_in_a_sentence_and_the_page_goes_on(page):
    choose(page, "phase_retrieval")
    for name, typed in {"A-lr": "-1", "A-noise": "NaN", "d": "1099511627776", "runs": "many"}.items():
        right = page.input_value(f"#{name}")
        page.fill(f"#{name}", typed)
        page.press(f"#{name}", "Tab")
        page.wait_for_selector(f"#{name}.wrong")
        assert re.match(rf"{name.removeprefix('A-')} must be .* got ", page.inner_text("#error"))
        page.fill(f"#{name}", right)
        page.press(f"#{name}", "Tab")
        page.wait_for_selector("#error", state="hidden")
    finish(page)
    assert not page.locator(".wrong").count()


def test_a_rate_is_drawn_as_a_line_and_typed_as_a_schedule(page):
    """A stroke of the pointer, an arrow key and a text: each is the schedule of the simulation."""
    choose(page, "phase_retrieval")
    page.click("#A-lr-draw")
    box = page.locator("#A-lr-line").bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 0.7 * box["height"], steps=5)
    page.mouse.up()
    drawn = page.input_value("#A-lr")
    schedule = read_schedule(drawn)
    low, high = 1e-3, 20.0
    for t, share in ((0.0, 0.7), (2.0, 0.3), (4.0, 0.3)):
        assert float(schedule(t)) == pytest.approx(low * (high / low) ** share, rel=0.25), drawn
    finish(page)
    assert page.is_hidden("#error")
    assert f"lr={drawn!r}" in page.inner_text("#code")
    page.focus("#A-lr-line")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#A-lr") != drawn
    page.fill("#A-lr", "cosine(1/12, 0, 50)")
    page.press("#A-lr", "Tab")
    finish(page)
    assert page.is_hidden("#error")
    page.fill("#A-lr", "cosine(1/12, 0)")
    page.press("#A-lr", "Tab")
    page.wait_for_selector("#A-lr.wrong")
    assert "cosine takes (first, last, span)" in page.inner_text("#error")
    page.fill("#A-lr", "0.05")
    page.press("#A-lr", "Tab")
    page.wait_for_selector("#error", state="hidden")
    page.click("#A-lr-draw")
    finish(page)

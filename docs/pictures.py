"""Make the pictures of the explorer's page and of the README again, in `docs/_static`.

    python docs/pictures.py                      # the film and the screenshots
    python docs/pictures.py escape               # only the film
    python docs/pictures.py explorer-dark        # only one of the screenshots

The screenshots need Playwright and Chromium.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

import sgdlimits as sl

FOLDER = Path(__file__).parent / "_static"
VIEWS = {
    "explorer": {"viewport": {"width": 1280, "height": 800}},
    "explorer-dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "explorer-phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 1.5},
}
SCENES = {"explorer": 0, "explorer-dark": 2, "explorer-phone": 0}
"""Which starting point of phase retrieval is seen."""


def escape() -> Path:
    """A film of runs of phase retrieval that leave the plateau, each at its own time, around the ODE."""
    problem, start, how = sl.presets.phase_retrieval(lr=0.05), sl.RandomInit(d=3000), {"t_max": 70, "seed": 0, "save": 141}
    runs = {
        "exact chain": sl.simulate(problem, sl.Chain(d=3000), start, runs=24, **how),
        "ODE": sl.simulate(problem, sl.ODE(), start, runs=24, **how),
    }
    with plt.rc_context(sl.plot.PAPER):
        film = sl.plot.animate(runs, frames=48, seconds=6, band=None)
        path = FOLDER / "escape.webp"
        film.save(path, writer="pillow", dpi=80)
    return path


def screenshots(names: list[str]) -> list[Path]:
    """The page on a laptop, in dark with two settings, and on a phone."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "sgdlimits", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as started:
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        try:
            return [_screenshot(browser, address, name) for name in names]
        finally:
            browser.close()
            server.terminate()


def _screenshot(browser, address: str, name: str) -> Path:
    with browser.new_context(**VIEWS[name]) as context:
        page = context.new_page()
        page.set_default_timeout(600_000)
        page.goto(address)
        page.wait_for_selector("#A-lr")
        page.select_option("#scene", str(SCENES[name]))
        page.fill("#runs", "32")
        page.press("#runs", "Tab")
        page.wait_for_timeout(500)
        page.wait_for_selector("body[data-done=yes]")
        page.evaluate("document.activeElement.blur()")
        taken = page.screenshot(full_page=name == "explorer")
    with Image.open(io.BytesIO(taken)) as picture:
        picture.convert("RGB").save(FOLDER / f"{name}.webp", quality=80, method=6)
    return FOLDER / f"{name}.webp"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    wanted = sys.argv[1:] or ["escape", *VIEWS]
    made = [escape()] if "escape" in wanted else []
    made += screenshots([name for name in VIEWS if name in wanted])
    for each in made:
        print(f"{each.name}: {each.stat().st_size / 1024:.0f} KiB")

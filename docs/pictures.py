"""Regenerate the pictures of README and documentation, in `docs/_static`.

    make demo                                         # the files of the first two
    python docs/pictures.py                           # all of them
    python docs/pictures.py four-levels escape        # the demo's figure, and its runs as a film
    python docs/pictures.py explorer-dark             # one of the screenshots
    python docs/pictures.py schedule-escape           # a figure of a page, from `sgdlimits figure schedule-escape`

The screenshots need Playwright and Chromium.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
from PIL import Image

import sgdlimits as sl
from sgdlimits.papers.produce import produce

FOLDER = Path(__file__).parent / "_static"
LABELS = {"sgd": "SGD on the weights", "chain": "exact chain", "ode": r"ODE, $d\to\infty$"}
VIEWS = {
    "explorer": {"viewport": {"width": 1280, "height": 800}},
    "explorer-dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "explorer-phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 1.5},
}
SCENES = {"explorer": 0, "explorer-dark": 2, "explorer-phone": 0}
"""Index of the starting point of phase retrieval in each screenshot."""
FIGURES = (
    "double-descent", "full-batch", "optimal-curriculum", "optimal-dropout", "optimal-replay", "plateau-spectrum",
    "scaling-exponents", "scaling-features", "scaling-frontier", "scaling-momentum", "scaling-schedule", "schedule-escape",
    "schedule-muon",
    "second-pass",
)  # fmt: skip
COLOURS = {"scaling-exponents": 256}
"""Number of colours of figures that need more than 64, such as maps."""
FIGURE_WIDTH = 1800
"""Width of these figures in pixels, for columns of half as many on screens of two pixels a point."""


def still(folder: Path) -> Path:
    """Save the demo's figure with fewer colours, to reduce the file size."""
    path = FOLDER / "four-levels.png"
    Image.open(folder / "demo.png").convert("RGB").quantize(64, dither=Image.Dither.NONE).save(
        path, optimize=True
    )
    return path


def figure(name: str) -> Path:
    """Save a figure of `sgdlimits figure` with fewer colours and pixels, to reduce the file size."""
    made = Path("sgdlimits-figures")
    for line in produce(name, made):
        print(line)
    path = FOLDER / f"{name}.png"
    picture = Image.open(made / f"{name}.png").convert("RGB")
    smaller = picture.resize(
        (FIGURE_WIDTH, FIGURE_WIDTH * picture.height // picture.width), Image.Resampling.LANCZOS
    )
    smaller.quantize(COLOURS.get(name, 64), dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def film(folder: Path) -> Path:
    """Animate risk and overlap of the demo's runs."""
    path = FOLDER / "escape.gif"
    datasets = {label: sl.load(folder / f"demo-{name}.nc") for name, label in LABELS.items()}
    mpl.use("Agg")
    with mpl.rc_context({**sl.plot.PAPER, "figure.dpi": 75, "savefig.dpi": 75}):
        growing = sl.plot.animate(datasets, frames=32, seconds=4, singles={LABELS["sgd"]: 12})
        growing.save(path, writer="pillow")
    frames, picture = [], Image.open(path)
    picture.seek(picture.n_frames - 1)
    palette = picture.convert("RGB").quantize(
        40, method=Image.Quantize.MAXCOVERAGE
    )  # colours of few pixels count too
    for place in range(picture.n_frames):
        picture.seek(place)
        frames.append(
            picture.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
        )
    lengths = [125] * (len(frames) - 1) + [2500]
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=lengths, loop=0, optimize=True
    )
    return path


def screenshots(names: list[str]) -> list[Path]:
    """Take screenshots of the page on a laptop, in the dark theme with two settings, and on a phone."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "sgdlimits", "explore", "--port", "0", "--no-browser"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as started,
    ):
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
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
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        taken = page.screenshot(full_page=name == "explorer")
    with Image.open(io.BytesIO(taken)) as picture:
        picture.convert("RGB").save(FOLDER / f"{name}.webp", quality=80, method=6)
    return FOLDER / f"{name}.webp"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    wanted = sys.argv[1:] or [*DEMO, *FIGURES, *VIEWS]
    made = [make(Path("sgdlimits-demo")) for name, make in DEMO.items() if name in wanted]
    made += [figure(name) for name in FIGURES if name in wanted]
    for each in made + screenshots([name for name in VIEWS if name in wanted]):
        print(f"{each.name}: {each.stat().st_size / 1024:.0f} KiB")


DEMO = {"four-levels": still, "escape": film}

if __name__ == "__main__":
    main()

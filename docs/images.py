"""The pictures of README and of the landing page, from the files of the demo: `make demo`, then `python docs/images.py`.

It takes the folder of a demo as an argument, sgdlimits-demo unless given.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from PIL import Image

import sgdlimits as sl

HERE = Path(__file__).parent / "_static"
LABELS = {"sgd": "SGD on the weights", "chain": "exact chain", "ode": r"ODE, $d\to\infty$"}


def still(folder: Path) -> Path:
    """The demo's figure with fewer colours, which makes it small."""
    path = HERE / "four-levels.png"
    Image.open(folder / "demo.png").convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def film(folder: Path) -> Path:
    """Risk and overlap of the demo's runs, growing with time."""
    path = HERE / "escape.gif"
    datasets = {label: sl.load(folder / f"demo-{name}.nc") for name, label in LABELS.items()}
    mpl.use("Agg")
    with mpl.rc_context({**sl.plot.PAPER, "figure.dpi": 75, "savefig.dpi": 75}):
        growing = sl.plot.animate(datasets, frames=32, seconds=4, singles={LABELS["sgd"]: 12})
        growing.save(path, writer="pillow")
    frames, picture = [], Image.open(path)
    for place in range(picture.n_frames):
        picture.seek(place)
        frames.append(picture.convert("RGB").quantize(24, dither=Image.Dither.NONE))
    lengths = [125] * (len(frames) - 1) + [2500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=lengths, loop=0, optimize=True)
    return path


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "sgdlimits-demo")
    HERE.mkdir(exist_ok=True)
    for made in (still(folder), film(folder)):
        print(f"{made}  {made.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()

"""The simulation's process: settings come in, pieces of streams go out. The newest setting cancels what is under way.

One thread follows each level, one looks for fixed points and one for eigenvalues, so that a slow one does not hold the others;
the main thread reads messages, checks them and draws exports.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from sgdlimits.cli.explorer.export import export_page
from sgdlimits.cli.explorer.scenes import SCENES
from sgdlimits.cli.explorer.setting import Setting
from sgdlimits.cli.explorer.views import curves, exits, found_points, numbers, portrait, spectrum
from sgdlimits.errors import BadInput
from sgdlimits.run import join, stream

NAMES = {"chain": "chain", "ode": "ODE", "sde": "SDE", "mean_field": "mean field"}
SECONDS = 60.0
"""The runs of a level end so long after their first pieces, and the page says how far they came."""


class PageJob:
    """The settings of one message, and the pieces that each of their levels has yielded."""

    def __init__(self, number: Any, settings: list[Setting], plane: Any) -> None:
        self.number, self.settings, self.plane = number, settings, plane
        self.pieces: dict[tuple[int, str], list] = {}
        self.ended: set[tuple[int, str]] = set()
        self.points: dict[int, Any] = {}
        self.views: dict[tuple[str, int], dict[str, Any]] = {}
        self.ends = {name: threading.Event() for name in (*NAMES, "spectrum")}

    def datasets(self, side: int, ended: bool = False) -> dict[str, Any]:
        """What there is of a setting's levels by name, or only those that have come to their end."""
        there = {level: list(self.pieces.get((side, level), ())) for level in self.settings[side].levels}
        return {level: join(pieces) for level, pieces in there.items() if pieces and (not ended or (side, level) in self.ended)}


class Worker:
    """The process behind a page, which answers the messages of a connection until it closes."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.sending, self.reporting = connection, threading.Lock(), threading.Lock()
        self.job: PageJob | None = None
        self.changed = threading.Condition()
        levels = [partial(self.level_line, level=level) for level in NAMES]
        for line in (*levels, self.portrait_line, self.spectrum_line):
            threading.Thread(target=self.follow, args=(line,), daemon=True).start()

    def send(self, job: PageJob | None, kind: str, **more: Any) -> None:
        """Send a message, unless a newer job has taken the place of its own."""
        with self.sending:
            if job is None or job is self.job:
                if job is not None and "side" in more and kind != "piece":
                    job.views[kind, more["side"]] = more
                self.connection.send({"kind": kind, "job": job.number if job else None, **more})

    def warm(self) -> None:
        """Compile what the page begins with, the first scene's levels, up to the first message that comes."""
        preset = next(iter(SCENES))
        setting = Setting.read({"preset": preset, **SCENES[preset][0]["setting"]})
        for level in setting.levels:
            if self.connection.poll():
                return
            pieces: Any = stream(setting.problem, setting.levels[level], setting.start, **setting.how(level))
            next(islice(pieces, 1, None), None)  # the first piece is the start, and the second has steps
            pieces.close()

    def read(self) -> None:
        """Answer messages. A message that cannot be used is answered with a sentence; the runs under way go on."""
        while True:
            try:
                message = self.connection.recv()
            except (EOFError, OSError):
                return
            try:
                if message.get("kind") == "run":
                    self.run(message)
                elif message.get("kind") == "export":
                    self.export(message)
                else:
                    raise BadInput(f"there is no message of the kind {str(message.get('kind'))[:40]!r}. Reload the page.")
            except BadInput as reason:
                self.send(None, "error", text=str(reason))
            except Exception as reason:
                self.send(None, "error", text=f"The simulation failed: {reason}"[:400])

    def run(self, message: dict[str, Any]) -> None:
        given = message.get("settings")
        if not isinstance(given, list) or not 1 <= len(given) <= 2:
            raise BadInput("a message must hold one setting or two. Reload the page.")
        settings = [Setting.read(each) for each in given]
        for setting in settings:
            setting.start.one(setting.problem, seed=setting.seed)
        job = PageJob(message.get("job"), settings, message.get("plane"))
        with self.changed:
            self.job = job
            self.changed.notify_all()
        command = lambda setting: [setting.command(level) for level in setting.levels]
        texts = [{"python": each.python(tuple(each.levels)), "command": command(each)} for each in settings]
        first = settings[0]
        self.send(job, "accepted", sides=texts, d=first.d, t_max=first.t_max, save=first.save, process=os.getpid())

    def export(self, message: dict[str, Any]) -> None:
        if self.job is None or not self.job.pieces:
            raise BadInput("there is nothing to export yet. Wait for the first curve.")
        name, data = exported(self.job, message)
        self.send(None, "file", name=name, data=data)

    def follow(self, line: Callable[[PageJob], None]) -> None:
        """Do a line of work for each job, always for the newest one."""
        warnings.simplefilter("ignore")
        last: PageJob | None = None
        while True:
            with self.changed:
                while self.job is last:
                    self.changed.wait()
                last = self.job
            assert last is not None
            try:
                line(last)
            except BadInput as reason:
                self.send(last, "note", text=str(reason))
            except OSError:
                return
            except Exception as reason:
                traceback.print_exc()
                self.send(last, "note", text=f"{type(reason).__name__}: {reason}"[:400])

    def stream(self, job: PageJob, side: int, level: str) -> Iterator[None]:
        """Send the pieces of one level, one at each call; where runs come in batches, with those of the ones before."""
        setting, kept = job.settings[side], job.pieces.setdefault((side, level), [])
        before: list[Any] = []
        for piece in stream(setting.problem, setting.levels[level], setting.start, **setting.how(level)):
            if job is not self.job:
                return
            if kept and kept[-1].run.values[0] != piece.run.values[0]:
                before = [join(kept)]
            kept.append(piece)
            together = join([*(each.sel(t=piece.t) for each in before), piece])
            self.send(job, "piece", side=side, level=level, **curves(together, level))
            yield
        job.ended.add((side, level))

    def level_line(self, job: PageJob, level: str) -> None:
        """The runs of a level, where the settings have it, and their numbers: of the chain wherever they stand."""
        which = [(side, level) for side, setting in enumerate(job.settings) if level in setting.levels]
        try:
            if which:
                self.in_turn(job, which)
                job.ended.update(which if level == "chain" else ())
                self.report(job)
        finally:
            job.ends[level].set()

    def in_turn(self, job: PageJob, which: list[tuple[int, str]]) -> None:
        """Pieces of streams of one level in turn, until all have ended, the time is over or the job is no longer the newest."""
        streams, begin = {each: self.stream(job, *each) for each in which}, 0.0
        while streams and job is self.job:
            for each, pieces in list(streams.items()):
                try:
                    next(pieces)
                except StopIteration:
                    del streams[each]
                except BadInput as reason:
                    del streams[each]
                    self.send(job, "note", text=f"{NAMES[each[1]]}: {reason}")
            begin = begin or time.monotonic()
            if time.monotonic() - begin > SECONDS and streams:
                name, less = NAMES[which[0][1]], "d" if which[0][1] == "chain" else "width"
                words = f"The {name} had not ended after {SECONDS:g} s, and stopped. Take a smaller {less}, t_max or runs."
                self.send(job, "note", text=words)
                return

    def report(self, job: PageJob) -> None:
        """Numbers and exit times of what there is."""
        with self.reporting:
            for side in range(len(job.settings)) if job is self.job else ():
                datasets = job.datasets(side, ended=True)
                self.send(job, "numbers", side=side, levels={name: numbers(each) for name, each in datasets.items()})
                if "chain" in datasets:
                    self.send(job, "exits", side=side, **exits(job.settings[side], datasets))

    def portrait_line(self, job: PageJob) -> None:
        """The phase portraits as soon as there is a flow, again with fixed points, and again with all of the chain's runs."""
        if not self.wait(job, job.ends["ode"]):
            return
        looks = (self.portraits, self.fixed_points, self.portraits)
        if all(self.look(job, "portrait", each) for each in looks) and self.wait(job, job.ends["chain"]):
            self.look(job, "portrait", self.portraits)
        if all(self.wait(job, event) for event in job.ends.values()):
            self.send(job, "done")

    def spectrum_line(self, job: PageJob) -> None:
        self.look(job, "spectrum", self.spectra)
        job.ends["spectrum"].set()

    def look(self, job: PageJob, view: str, at: Callable[[PageJob], None]) -> bool:
        """Whether a view could be made. The page says why where it could not."""
        try:
            at(job)
        except BadInput as reason:
            self.send(job, "empty", view=view, text=str(reason))
            return False
        return True

    def fixed_points(self, job: PageJob) -> None:
        for side, setting in enumerate(job.settings):
            if job is self.job and job.pieces.get((side, "ode")):
                job.points[side] = found_points(setting, lambda: job is self.job)

    def wait(self, job: PageJob, event: threading.Event) -> bool:
        """Whether an event came before a newer job did."""
        while not event.wait(0.1):
            if job is not self.job:
                return False
        return True

    def portraits(self, job: PageJob) -> None:
        """The phase portraits, with the chain's runs on them as far as they are."""
        if job is self.job and not any(job.pieces.get((side, "ode")) for side in range(len(job.settings))):
            raise BadInput("There is no flow to draw, since the ODE did not run. The note above says why.")
        for side, setting in enumerate(job.settings):
            there = job.datasets(side)
            if job is self.job and "ode" in there:
                seen = portrait(setting, job.points.get(side), there["ode"], there.get("chain"), job.plane)
                self.send(job, "portrait", side=side, **seen)

    def spectra(self, job: PageJob) -> None:
        """The Hessian's spectrum where the first run stands, again while the chain goes on."""
        ended = False
        while job is self.job and not ended:
            ended = job.ends["chain"].wait(0.5)
            for side, setting in enumerate(job.settings):
                if pieces := job.pieces.get((side, "chain")):
                    self.send(job, "spectrum", side=side, **spectrum(setting, pieces[-1]))

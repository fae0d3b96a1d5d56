"""Process that simulates for a page: it receives settings and sends pieces of streams; a new setting cancels earlier work.

One thread simulates each level, one searches fixed points and one computes eigenvalues, so that a slow thread does not delay
the others; the main thread reads messages, checks them and draws exports.
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
from sgdlimits.cli.explorer.views import (
    build_curves,
    build_exits,
    build_portrait,
    build_spectrum,
    find_points,
    headline_numbers,
)
from sgdlimits.errors import BadInput
from sgdlimits.run import join, stream

# levels by their names on the page
LEVEL_NAMES = {"chain": "chain", "ode": "ODE", "sde": "SDE", "mean_field": "mean field"}
MAX_RUN_SECONDS = 60.0
"""Time after the first pieces at which the runs of a level are stopped, with a note on the page, in seconds."""


class PageRequest:
    """One request of a page: one or two settings, with the pieces of datasets that their levels have yielded so far."""

    def __init__(self, number: Any, settings: list[Setting], plane: Any) -> None:
        self.number, self.settings, self.plane = number, settings, plane
        self.pieces: dict[tuple[int, str], list] = {}
        self.ended: set[tuple[int, str]] = set()
        self.points: dict[int, Any] = {}
        self.views: dict[tuple[str, int], dict[str, Any]] = {}
        self.ends = {name: threading.Event() for name in (*LEVEL_NAMES, "spectrum")}

    def datasets(self, side: int, ended: bool = False) -> dict[str, Any]:
        """Return the datasets that a setting's levels have so far, by level; with `ended`, of finished levels only."""
        so_far = {level: list(self.pieces.get((side, level), ())) for level in self.settings[side].levels}
        return {
            level: join(pieces) for level, pieces in so_far.items() if pieces and (not ended or (side, level) in self.ended)
        }


class Worker:
    """Worker that simulates for a page, and answers the messages of a connection until the connection closes."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.sending, self.reporting = connection, threading.Lock(), threading.Lock()
        self.job: PageRequest | None = None
        self.changed = threading.Condition()
        levels = [partial(self.run_level, level=level) for level in LEVEL_NAMES]
        for line in (*levels, self.draw_portraits, self.draw_spectra):
            # daemons: they end with the main thread, which reads the connection
            threading.Thread(target=self.repeat_for_each_job, args=(line,), daemon=True).start()

    def send(self, job: PageRequest | None, kind: str, **more: Any) -> None:
        """Send a message to the page, unless its job has been replaced by a newer one."""
        with self.sending:
            # under the lock, so that no message of an old job follows those of a new one
            if job is None or job is self.job:
                if job is not None and "side" in more and kind != "piece":
                    # kept for exports; pieces are kept by `stream`
                    job.views[kind, more["side"]] = more
                self.connection.send({"kind": kind, "job": job.number if job else None, **more})

    def compile_first_scene(self) -> None:
        """Compile the levels of the first scene, until a message arrives."""
        preset = next(iter(SCENES))
        setting = Setting.from_message({"preset": preset, **SCENES[preset][0]["setting"]})
        for level in setting.levels:
            if self.connection.poll():
                return
            pieces: Any = stream(setting.problem, setting.levels[level], setting.start, **setting.stream_arguments(level))
            next(islice(pieces, 1, None), None)  # the first piece is the start, and the second has steps
            pieces.close()

    def read_messages(self) -> None:
        """Read and answer messages until the connection closes; an invalid message is answered by an error."""
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
        """Start the job that a message describes, with one or two settings."""
        given = message.get("settings")
        if not isinstance(given, list) or not 1 <= len(given) <= 2:
            raise BadInput("a message must contain one setting or two. Reload the page.")
        settings = [Setting.from_message(each) for each in given]
        for setting in settings:
            # an impossible start is refused before any thread begins
            setting.start.one(setting.problem, seed=setting.seed)
        job = PageRequest(message.get("job"), settings, message.get("plane"))
        with self.changed:
            self.job = job
            self.changed.notify_all()
        command = lambda setting: [setting.as_command(level) for level in setting.levels]
        texts = [{"python": each.as_python(tuple(each.levels)), "command": command(each)} for each in settings]
        first = settings[0]
        self.send(job, "accepted", sides=texts, d=first.d, t_max=first.t_max, save=first.save, process=os.getpid())

    def export(self, message: dict[str, Any]) -> None:
        """Send an export of the current job to the page."""
        if self.job is None or not self.job.pieces:
            raise BadInput("there is nothing to export yet. Wait for the first curve.")
        name, data = export_page(self.job, message)
        self.send(None, "file", name=name, data=data)

    def repeat_for_each_job(self, line: Callable[[PageRequest], None]) -> None:
        """Call the function `line` with each new job in turn, forever, skipping jobs that were replaced in the meantime."""
        warnings.simplefilter("ignore")
        last: PageRequest | None = None
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
                # a bug: the page gets a sentence, the terminal the traceback
                traceback.print_exc()
                self.send(last, "note", text=f"{type(reason).__name__}: {reason}"[:400])

    def stream(self, job: PageRequest, side: int, level: str) -> Iterator[None]:
        """Simulate a setting at one level, and send a piece of its curves in each iteration.

        Curves average over the runs of this batch and all earlier ones.
        """
        setting, kept = job.settings[side], job.pieces.setdefault((side, level), [])
        before: list[Any] = []
        for piece in stream(setting.problem, setting.levels[level], setting.start, **setting.stream_arguments(level)):
            if job is not self.job:
                return
            if kept and kept[-1].run.values[0] != piece.run.values[0]:
                # a new batch of runs begins: curves average over it and all earlier ones
                before = [join(kept)]
            kept.append(piece)
            together = join([*(each.sel(t=piece.t) for each in before), piece])
            self.send(job, "piece", side=side, level=level, **build_curves(together, level))
            yield
        job.ended.add((side, level))

    def run_level(self, job: PageRequest, level: str) -> None:
        """Simulate one level for all settings that have it, and send a report of the results."""
        which = [(side, level) for side, setting in enumerate(job.settings) if level in setting.levels]
        try:
            if which:
                self.alternate_streams(job, which)
                job.ended.update(which if level == "chain" else ())
                self.send_report(job)
        finally:
            job.ends[level].set()

    def alternate_streams(self, job: PageRequest, which: list[tuple[int, str]]) -> None:
        """Advance the simulations of one level in turn, until all end, the time limit is reached or a newer job arrives.

        Each entry of `which` has the index of a setting and the name of the level.
        """
        streams, begin = {each: self.stream(job, *each) for each in which}, 0.0
        while streams and job is self.job:
            for each, pieces in list(streams.items()):
                try:
                    next(pieces)
                except StopIteration:
                    del streams[each]
                except BadInput as reason:
                    del streams[each]
                    self.send(job, "note", text=f"{LEVEL_NAMES[each[1]]}: {reason}")
            # the clock starts after the first pieces: compilation does not count
            begin = begin or time.monotonic()
            if time.monotonic() - begin > MAX_RUN_SECONDS and streams:
                name, less = LEVEL_NAMES[which[0][1]], "d" if which[0][1] == "chain" else "width"
                words = (
                    f"The {name} had not ended after {MAX_RUN_SECONDS:g} s, and stopped. Take a smaller {less}, t_max or runs."
                )
                self.send(job, "note", text=words)
                return

    def send_report(self, job: PageRequest) -> None:
        """Send the headline numbers and the exit times of the levels that have finished."""
        with self.reporting:
            for side in range(len(job.settings)) if job is self.job else ():
                datasets = job.datasets(side, ended=True)
                self.send(job, "numbers", side=side, levels={name: headline_numbers(each) for name, each in datasets.items()})
                if "chain" in datasets:
                    self.send(job, "exits", side=side, **build_exits(job.settings[side], datasets))

    def draw_portraits(self, job: PageRequest) -> None:
        """Send the phase portraits when the ODE has run, when fixed points are known, and again when the chain has run."""
        if not self.wait_for(job, job.ends["ode"]):
            return
        steps = (self.send_portraits, self.search_fixed_points, self.send_portraits)
        if all(self.try_view(job, "portrait", each) for each in steps) and self.wait_for(job, job.ends["chain"]):
            self.try_view(job, "portrait", self.send_portraits)
        if all(self.wait_for(job, event) for event in job.ends.values()):
            self.send(job, "done")

    def draw_spectra(self, job: PageRequest) -> None:
        """Send the spectra of the Hessian, or the reason why there are none."""
        self.try_view(job, "spectrum", self.send_spectra)
        job.ends["spectrum"].set()

    def try_view(self, job: PageRequest, view: str, at: Callable[[PageRequest], None]) -> bool:
        """Call the function `at`, which sends a view, and return whether it succeeded; if not, send the reason to the page."""
        try:
            at(job)
        except BadInput as reason:
            self.send(job, "empty", view=view, text=str(reason))
            return False
        return True

    def search_fixed_points(self, job: PageRequest) -> None:
        """Search for the fixed points of the ODE of each setting of a job."""
        for side, setting in enumerate(job.settings):
            if job is self.job and job.pieces.get((side, "ode")):
                job.points[side] = find_points(setting, lambda: job is self.job)

    def wait_for(self, job: PageRequest, event: threading.Event) -> bool:
        """Wait for an event, and return whether it was set before a newer job arrived."""
        # wake up often enough to notice a newer job
        while not event.wait(0.1):
            if job is not self.job:
                return False
        return True

    def send_portraits(self, job: PageRequest) -> None:
        """Send the phase portrait of each setting, with the runs of the chain so far."""
        if job is self.job and not any(job.pieces.get((side, "ode")) for side in range(len(job.settings))):
            raise BadInput("There is no flow to draw, since the ODE did not run. The note above gives the reason.")
        for side, setting in enumerate(job.settings):
            datasets = job.datasets(side)
            if job is self.job and "ode" in datasets:
                view = build_portrait(setting, job.points.get(side), datasets["ode"], datasets.get("chain"), job.plane)
                self.send(job, "portrait", side=side, **view)

    def send_spectra(self, job: PageRequest) -> None:
        """Send the spectrum of the Hessian at the first run's present state, repeatedly until the chain has finished."""
        ended = False
        while job is self.job and not ended:
            ended = job.ends["chain"].wait(0.5)
            for side, setting in enumerate(job.settings):
                if pieces := job.pieces.get((side, "chain")):
                    self.send(job, "spectrum", side=side, **build_spectrum(setting, pieces[-1]))

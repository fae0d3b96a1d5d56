"""Fixture that runs command lines in an empty folder."""

from __future__ import annotations

import matplotlib
import pytest
from click.testing import CliRunner, Result

matplotlib.use("Agg")


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a function that runs a command line in an empty folder: `command("run phase_retrieval --d 30")`, or its words."""
    from sgdlimits.cli import main

    monkeypatch.chdir(tmp_path)

    def call(line: str | list[str]) -> Result:
        return CliRunner().invoke(main, line.split() if isinstance(line, str) else line, prog_name="sgdlimits")

    return call

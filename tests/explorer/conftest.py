"""A server of the page, as users start it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server of the page, on a port that was free."""
    command = [sys.executable, "-m", "sgdlimits", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        yield found[0]
        server.terminate()

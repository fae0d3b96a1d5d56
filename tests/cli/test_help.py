"""Help pages: their content, and that they appear at once."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

COMMANDS = ["run", "rerun", "info", "presets", "plot", "exit-time", "exponent", "phases", "fixed-points", "critical-points"]
COMMANDS += ["figure", "demo", "check", "sweep", "optimise"]


def test_help_does_not_import_the_machinery():
    code = (
        "import sys\n"
        "from sgdlimits.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'jax', 'xarray', 'matplotlib', 'scipy', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


def test_help_lists_all_commands_and_examples(command):
    text = command("--help").output
    for word in (*COMMANDS, "Examples:", "_SGDLIMITS_COMPLETE"):
        assert word in text
    assert "..." not in text.split("Commands:")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_an_example(name, command):
    for flag in ("--help", "-h"):
        result = command(f"{name} {flag}")
        assert result.exit_code == 0
        assert "Example" in result.output
        assert f"sgdlimits {name}" in result.output.split("Example")[1]


def test_version_is_that_of_the_package(command):
    assert command("--version").output == f"sgdlimits {version('sgdlimits')}\n"


def test_names_of_presets_complete():
    from click.shell_completion import BashComplete

    from sgdlimits.cli import main

    complete = BashComplete(main, {}, "sgdlimits", "_SGDLIMITS_COMPLETE")
    assert [item.value for item in complete.get_completions(["run"], "phase")] == ["phase_retrieval"]
    assert "--noise" in [item.value for item in complete.get_completions(["run", "phase_retrieval"], "--n")]

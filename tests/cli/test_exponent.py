"""Information exponents on the command line."""

from __future__ import annotations

import pytest

from sgdlimits.model.activation import Polynomial


def test_exponent_on_the_command_line(command):
    shown = command("exponent square --d 1000")
    assert shown.exit_code == 0, shown.output
    assert "square: information exponent 2, of the order of d log d samples" in shown.output
    assert "c_0 = 1, c_1 = 0, c_2 = 2," in shown.output
    assert "0.08333 for d = 1000" in shown.output
    assert "t = 17.42" in shown.output
    assert "sgdlimits run single_index --activation square --lr 0.0833 --d 1000" in shown.output


@pytest.mark.parametrize(
    "line", ["exponent he99", "run single_index --d 30 --activation he99", "run committee --d 30 --activation x"]
)
def test_an_unknown_activation_is_one_sentence_on_the_command_line(line, command):
    told = command(line)
    assert told.exit_code == 2
    assert told.output.startswith("Error: unknown activation")
    assert len(told.output.splitlines()) == 1


def test_a_polynomial_is_written_in_words():
    from sgdlimits.cli.files import _format_stored
    from sgdlimits.run.record import _encode

    assert _format_stored(_encode(Polynomial([0, -3, 0, 1]))) == "Polynomial(coefficients=[0, -3, 0, 1])"


def test_latex_writes_the_noise_too(command):
    plain, noisy = (command(f"latex phase_retrieval --lr 0.1 {flag}") for flag in ("", "--with-noise"))
    assert plain.exit_code == noisy.exit_code == 0
    assert r"\Sigma^{mm}" in noisy.stdout
    assert r"\Sigma" not in plain.stdout

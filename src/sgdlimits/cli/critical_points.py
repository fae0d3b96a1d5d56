"""`sgdlimits critical-points`: the landscape of a quadratic network in a table."""

from __future__ import annotations

import click

from sgdlimits.cli.options import Command, Number


@click.command("critical-points", cls=Command, short_help="Critical points of a quadratic network, and their Hessians.")
@click.option("--width", type=Number(whole=True), default=2, show_default=True, help="p, units of the student")
@click.option("--teachers", type=Number(whole=True), default=1, show_default=True, help="p*, orthonormal teacher directions")
@click.option("--noise", type=Number(), default=0, show_default=True, help="variance of the label noise")
@click.option("--d", type=Number(whole=True), help="dimension; without it counts are functions of d")
@click.option("--spectra", is_flag=True, help="print the eigenvalues of each Hessian too, in dimension --d")
def critical_points(width: int, teachers: int, noise: float, d: int | None, spectra: bool) -> None:
    """All critical points of the population risk of a quadratic network, by risk.

    Each row is a family with s directions in the span of the teachers and r outside. index: negative directions of the
    Hessian; dimension: of the family; symmetry and flat: null directions along the family, and the others.

    \b
    Example:
      sgdlimits critical-points --width 3 --teachers 2
      sgdlimits critical-points --width 3 --teachers 2 --d 1000 --spectra
    """
    from sgdlimits.errors import BadInput
    from sgdlimits.problem.presets import quadratic_network
    from sgdlimits.theory.quadratic import critical_points

    if spectra and d is None:
        raise BadInput("spectra must have a dimension. Give --d.")
    found = critical_points(quadratic_network(width, teachers, noise=noise))
    click.echo(found.table(d))
    if d is not None and spectra:
        for family in found:
            if family.exists(d):
                click.echo(f"\n{family.kind}, s = {family.s}, r = {family.r}\n{family.spectrum(d)!r}")

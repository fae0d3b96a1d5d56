"""Theory without a simulation: `sgdlimits exponent TARGET`, `critical-points`, `fixed-points PRESET` and `latex PRESET`."""

from __future__ import annotations

import re
import sys
from typing import Any

import click

from sgdlimits.cli.optimisers import optimiser_options, with_optimiser
from sgdlimits.cli.options import Command, NumberType, Option, echo, number_option
from sgdlimits.cli.run import PresetGroup
from sgdlimits.cli.work import INTERRUPTED_CODE, json_text
from sgdlimits.errors import BadInput

# heading of the help page
SEARCH_HEADING = "The search"
FIXED_POINT_OPTIONS = [
    number_option(
        "--count", SEARCH_HEADING, "starts of searches, random weights with parts set to zero  [256, fewer for costly drifts]"
    ),
    number_option("--seed", SEARCH_HEADING, "an integer; the same seed gives the same answer", default=0),
    Option("--each", is_flag=True, heading=SEARCH_HEADING, help="list images under symmetries one by one"),
    Option("--gradient-flow", is_flag=True, heading=SEARCH_HEADING, help="leave out the effect of the step size"),
    number_option(
        "--basins", SEARCH_HEADING, "dimension d of random starts, which are followed to find the basins of attraction"
    ),
    number_option("--runs", SEARCH_HEADING, "number of random starts for the basins", default=400),
    Option(
        "--json",
        "as_json",
        is_flag=True,
        heading=SEARCH_HEADING,
        help="print the table as JSON; eigenvalues are [real, imaginary]",
    ),
    number_option("--seconds", SEARCH_HEADING, "time limit, after which the results so far are printed", whole=False),
]


@click.command(cls=Command, short_help="Information exponent of a target, the learning rate it asks for, and samples.")
@click.argument("target")
@click.option("--activation", help="the student's, where it is not the target's: erf, relu, tanh, square, he1, he2, ...")
@click.option("--noise", type=NumberType(), default=0, show_default=True, help="variance of the label noise")
@click.option("--d", type=NumberType(whole=True), default=1000, show_default=True, help="dimension")
@click.option("--overlap", type=NumberType(), default=0.5, show_default=True, help="where learning ends")
def exponent(target: str, activation: str | None, noise: float, d: int, overlap: float) -> None:
    """Compute how hard TARGET(w*·x) is to learn for one unit: information exponent, learning rate and number of samples.

    TARGET is erf, erf_plain, relu, abs, tanh, sigmoid, linear, square, he1, he2, ... (Hermite polynomials). The exponent
    is the order m of its first Hermite coefficient c_m = E[g(z) He_m(z)] that is not zero, from 1 on. The way goes from
    1/sqrt(d), the typical overlap of a random start, to --overlap.

    \b
    Example:
      sgdlimits exponent he3 --d 1000
      sgdlimits exponent abs --activation relu --noise 0.1
    """
    from sgdlimits.analysis.single_index import exit_time, recommended_lr
    from sgdlimits.model.expansion import hermite_coefficients, information_exponent
    from sgdlimits.problem.presets import single_index

    n = information_exponent(target)
    # of one-pass SGD at the best rate
    growth = {1: "d", 2: "d log d"}.get(n, f"d^{n - 1}")
    coefficients = (f"c_{m} = {0 if abs(c) < 1e-9 else c:.4g}" for m, c in enumerate(hermite_coefficients(target, 6)))
    student = target if activation is None else activation
    lr = recommended_lr(single_index(student, target, noise=noise), d, overlap)
    problem = single_index(student, target, lr=lr, noise=noise)
    times = {"ODE": exit_time(problem, d, overlap, noise=False), "mean with noise": exit_time(problem, d, overlap, noise=True)}
    options = {"activation": student, "target": activation and target, "lr": f"{lr:.3g}", "noise": noise or None, "d": d}
    line = " ".join(f"--{name} {value}" for name, value in options.items() if value is not None)
    path = f"samples from overlap {d**-0.5:.3g} to {overlap:g}"
    echo(f"{target}: information exponent {n}, of the order of {growth} samples")
    echo(f"  Hermite coefficients  {', '.join(coefficients)}")
    echo(f"  learning rate         {lr:.4g} for d = {d}, student {student}")
    for words, t in times.items():
        echo(f"  {words:<20}  t = {t:.4g}, {t * d:.3g} {path}")
    echo(f"To see it: sgdlimits run single_index {line} --t-max {3 * max(times.values()):.3g}")


@click.command("critical-points", cls=Command, short_help="Critical points of a quadratic network, and their Hessians.")
@click.option("--width", type=NumberType(whole=True), default=2, show_default=True, help="p, units of the student")
@click.option(
    "--teachers", type=NumberType(whole=True), default=1, show_default=True, help="p*, orthonormal teacher directions"
)
@click.option("--noise", type=NumberType(), default=0, show_default=True, help="variance of the label noise")
@click.option("--d", type=NumberType(whole=True), help="dimension; without it counts are functions of d")
@click.option("--spectra", is_flag=True, help="print the eigenvalues of each Hessian too, in dimension --d")
def critical_points(width: int, teachers: int, noise: float, d: int | None, spectra: bool) -> None:
    """List all critical points of the population risk of a quadratic network, by risk.

    Each row is a family with s directions in the span of the teachers and r outside. index: negative directions of the
    Hessian; dimension: of the family; symmetry and flat: null directions along the family, and the others.

    \b
    Example:
      sgdlimits critical-points --width 3 --teachers 2
      sgdlimits critical-points --width 3 --teachers 2 --d 1000 --spectra
    """
    from sgdlimits.papers.quadratic.theory import critical_points
    from sgdlimits.problem.presets import quadratic_network

    # counts are linear in d, but a spectrum needs its value
    if spectra and d is None:
        raise BadInput("--spectra needs a dimension, which is missing. Give --d, such as --d 1000.")
    found = critical_points(quadratic_network(width, teachers, noise=noise))
    echo(found.table(d))
    if d is not None and spectra:
        for family in found:
            if family.exists(d):
                echo(f"\n{family.kind}, s = {family.s}, r = {family.r}\n{family.spectrum(d)!r}")


def print_fixed_points(name: str, problem: Any, given: dict[str, Any]) -> None:
    """Search the fixed points of the ODE of a preset, and print their table."""
    from sgdlimits.analysis.fixed_points import SearchInterrupted, fixed_points
    from sgdlimits.start import RandomInit

    try:
        table = fixed_points(
            problem,
            count=given["count"],
            symmetries=() if given["each"] else "auto",
            basins=None if given["basins"] is None else RandomInit(given["basins"]),
            runs=given["runs"],
            seed=given["seed"],
            corrector=not given["gradient_flow"],
            seconds=given["seconds"],
        )
    # Ctrl-C prints what was found
    except SearchInterrupted as stopped:
        echo(_format_fixed_points(stopped.found, given["as_json"]))
        sys.exit(INTERRUPTED_CODE)
    echo(_format_fixed_points(table, given["as_json"]))


def _format_fixed_points(table: Any, as_json: bool) -> str:
    """Format the table of fixed points as text or as JSON."""
    if not as_json:
        return repr(table)
    names = ("copies", "dimension", "stability", "eigenvalues", "risk", "basin", "found", "residual")
    row = lambda orbit: {**{name: getattr(orbit, name) for name in names}, "point": _statistics_as_dict(orbit.point)}
    head = {name: getattr(table, name) for name in ("name", "symmetries", "searches", "components", "complete", "stopped")}
    return json_text({**head, "points": [row(orbit) for orbit in table]})


def _statistics_as_dict(point: Any) -> dict[str, Any]:
    """Return the statistics of a point as a dict, by name."""
    return {name: getattr(point, name) for name in type(point).dims}


@click.group(
    "fixed-points", cls=PresetGroup, short_help="Fixed points of a preset's ODE: stability, eigenvalues, copies, basins.",
    work=print_fixed_points, options=lambda taken: FIXED_POINT_OPTIONS, example="--count 256",
)  # fmt: skip
def fixed_points() -> None:
    """Find the fixed points of the ODE of a preset: isolated points and manifolds, one row for each up to symmetry.

    \b
    Examples:
      sgdlimits fixed-points phase_retrieval --lr 0.1
      sgdlimits fixed-points binary_mixture --snr inf --ridge 0.1 --basins 250

    Each preset has its own options: see sgdlimits fixed-points PRESET --help.
    """


def print_equations(name: str, problem: Any, given: dict[str, Any]) -> None:
    """Print the ODE of a problem as LaTeX."""
    from sgdlimits.analysis.equations import latex

    echo(latex(with_optimiser(problem, given), noise=given["with_noise"]))


def latex_options(taken: set[str]) -> list[Option]:
    """Return the options of the optimiser, and the flag for the covariance of SGD noise.

    The option `--noise NUMBER` is a preset's label noise. `taken` has the names of the preset's options.
    """
    words = "print the noise of SGD too: the covariance of the increments of one sample; --noise without a number is the same"
    return [*optimiser_options(taken), Option("--with-noise", is_flag=True, heading="The equations", help=words)]


class LatexCommand(Command):
    """Command of a preset that reads `--noise` without a number as `--with-noise`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        following = [*args[1:], "--"]
        bare = lambda arg, after: arg == "--noise" and re.match(r"-(?![\d.])", after)
        return super().parse_args(
            ctx, ["--with-noise" if bare(arg, after) else arg for arg, after in zip(args, following, strict=True)]
        )


@click.group(
    cls=PresetGroup,
    short_help="The ODE of a preset as LaTeX.",
    work=print_equations,
    options=latex_options,
    example="--width 2",
    command=LatexCommand,
)
def latex() -> None:
    """Print the ODE of a preset as LaTeX: its equations, the definitions of their letters, and the parameters.

    \b
    Examples:
      sgdlimits latex phase_retrieval --lr 0.1 --noise 0.2
      sgdlimits latex committee --width 2 --teachers 2 --activation erf
      sgdlimits latex phase_retrieval --width 2 --noise

    Each preset has its own options: see sgdlimits latex PRESET --help.
    """

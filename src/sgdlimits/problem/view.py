"""Groups of a problem's methods (coordinates, numerics) with defaults that a problem's class may replace."""

from __future__ import annotations

from typing import Any, ClassVar


class ProblemView:
    """Base class of groups of a problem's methods, such as `problem.numerics`; the problem's class can override each of them.

    A method of the same name on the problem's class takes precedence.

    Parameters
    ----------
    problem : the problem whose methods are grouped
    """

    overridable: ClassVar[tuple[str, ...]] = ()
    """Names of the methods of this group that a problem's class may define itself."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        for name in self.overridable:
            if hasattr(type(problem), name):
                self.__dict__[name] = getattr(problem, name)

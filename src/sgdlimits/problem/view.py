"""Views of a problem: groups of its methods with defaults, which a problem of another form may define itself."""

from __future__ import annotations

from typing import Any, ClassVar


class ProblemView:
    """A group of methods of a problem, with defaults. A method of the same name on the problem's class takes precedence.

    Parameters
    ----------
    problem : the problem
    """

    overridable: ClassVar[tuple[str, ...]] = ()
    """Names of the methods that a problem may define itself."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        for name in self.overridable:
            if hasattr(type(problem), name):
                self.__dict__[name] = getattr(problem, name)

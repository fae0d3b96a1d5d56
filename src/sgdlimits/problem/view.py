"""Views of a problem: groups of its methods, which a problem of another form may also define itself."""

from __future__ import annotations

from typing import Any, ClassVar


class View:
    """A group of methods of a problem. A problem whose own class has a method of that name is asked instead.

    Parameters
    ----------
    problem : the problem
    """

    own: ClassVar[tuple[str, ...]] = ()
    """The names that a problem may define itself."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        for name in self.own:
            if hasattr(type(problem), name):
                self.__dict__[name] = getattr(problem, name)

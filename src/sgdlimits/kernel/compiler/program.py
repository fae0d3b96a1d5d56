"""Flat programs: what one replica computes, as a list of operations on single numbers.

A program is a directed graph of nodes, each an operation on earlier ones. Equal nodes are one node, operations on constants are
carried out while the program is written, and what no result needs is never asked for. There are no arrays, calls or branches;
the one construct beside plain operations is a loop. A back end walks over `order` and writes one instruction for each node.

| nodes | kind | |
|---|---|---|
| `input`, `carry` | any | a number from outside, by name; what a loop hands from one round to the next |
| `const` | any | its value |
| `add sub mul div rem max min neg abs sqrt rsqrt floor ceil round sign` | of the arguments | |
| `and or xor not shl shr` | of the arguments | `shr` keeps the sign of signed kinds |
| `eq ne lt le gt ge` | b1 | false where a number is not a number, but for `ne` |
| `select` | of the last two | the second argument where the first is true, else the third |
| `convert`, `bitcast` | any | |
| `loop`, `item` | none, any | a loop (see `Loop`) and one of its results |
| names in `elementary` | f64 | until `flatten.lowered` replaces them |
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

KINDS: dict[str, type] = {
    "f64": np.float64, "f32": np.float32, "i64": np.int64, "u64": np.uint64, "i32": np.int32, "u32": np.uint32, "b1": np.bool_,
}  # fmt: skip
"""What a number is: the type that NumPy has for it."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

_NUMPY_OPERATIONS: dict[str, Callable] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "neg": np.negative,
    "abs": np.abs, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "floor": np.floor,
    "ceil": np.ceil, "round": np.round, "sign": np.sign,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert, "shl": np.left_shift,
    "shr": np.right_shift, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "select": np.where,
    "div": lambda a, b: a / b if a.dtype.kind == "f" else (np.sign(a) * np.sign(b)) * (np.abs(a) // np.abs(b)),
    "rem": np.fmod,
}  # fmt: skip


ESTIMATE_EXCESS = 1.5
"""Merging equal operations and dropping zeros shrinks a program to at least 1/1.5 of a rough estimate, as a rule."""
ABSENT_PLACE = 10**12
"""The place of every number of an array that is too large for a program."""


class Untranslated(Exception):
    """Something has no place in a flat program: its name."""


class Loop(NamedTuple):
    """A loop of which each replica leaves when it is done: arguments are whether to begin, then what `carry` is at first.

    In each round `after` is what `carry` becomes, and `again` whether there is another round.
    """

    carry: tuple[int, ...]
    after: tuple[int, ...]
    again: int


class Node(NamedTuple):
    """One operation: its name, the kind of number that it makes, its arguments, and what else it needs."""

    op: str
    kind: str
    args: tuple[int, ...] = ()
    what: Any = None


class Program:
    """A flat program under construction. Numbers are the places of their nodes."""

    def __init__(self, max_nodes: float = np.inf) -> None:
        self.nodes: list[Node] = []
        self.max_nodes = max_nodes
        self._place: dict[Any, int] = {}
        self._loops = itertools.count()

    def check_size(self, estimate: float) -> None:
        """Raise `Untranslated` if a rough estimate of a number of operations is too far above the limit to be worth a trial."""
        if estimate > ESTIMATE_EXCESS * self.max_nodes:
            raise Untranslated(f"more than {self.max_nodes:.0f} operations")

    def node(self, op: str, kind: str, args: tuple[int, ...] = (), what: Any = None) -> int:
        """The place of a node, the same for equal ones."""
        node = Node(op, kind, args, what)
        key = (op, kind, args, what.hex()) if isinstance(what, float) else node  # nan is nan
        place = self._place.get(key)
        if place is None:
            place = self._place[key] = len(self.nodes)
            self.nodes.append(node)
            if place > self.max_nodes:
                raise Untranslated(f"more than {self.max_nodes:.0f} operations")
        return place

    def const(self, value: Any, kind: str) -> int:
        """A constant. There is one zero."""
        return self.node("const", kind, (), (KINDS[kind](value) if value else KINDS[kind](0)).item())

    def input(self, name: Any, kind: str = "f64") -> int:
        return self.node("input", kind, (), name)

    def at(self, place: int) -> Node:
        """Return the node of a place; `Untranslated` if it is one of a large array."""
        try:
            return self.nodes[place]
        except IndexError:
            if place == ABSENT_PLACE:
                raise Untranslated("a large array") from None
            raise

    def kind(self, place: int) -> str:
        return self.at(place).kind

    def value(self, place: int) -> Any:
        """The value of a constant, else None."""
        node = self.at(place)
        return KINDS[node.kind](node.what) if node.op == "const" else None

    def op(self, name: str, *args: int) -> int:
        """The result of an operation: an earlier number where it can be simplified, else a new node."""
        values = [self.value(arg) for arg in args]
        kind = "b1" if name in COMPARISONS else self.kind(args[-1])
        if name in _NUMPY_OPERATIONS and all(value is not None for value in values):
            with np.errstate(all="ignore"):
                return self.const(_NUMPY_OPERATIONS[name](*values), kind)
        simpler = _SIMPLIFICATIONS[name](args, values) if name in _SIMPLIFICATIONS else None
        if simpler is not None:
            return simpler
        if name == "sub" and _equals(values[0], 0) and kind[0] == "f":
            return self.op("neg", args[1])
        if name == "div" and _equals(values[0], 1):
            return self._inverse(args[1])
        if name in ("add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"):
            args = tuple(sorted(args))
        return self.node(name, kind, args)

    def _inverse(self, place: int) -> int:
        """1/x: an operation of its own for a root, also for one that is chosen."""
        node, one = self.nodes[place], self.const(1, self.kind(place))
        if node.op == "sqrt":
            return self.node("rsqrt", node.kind, node.args)
        if node.op == "select" and any(self.value(arg) is not None for arg in node.args[1:]):
            return self.op("select", node.args[0], *(self.op("div", one, arg) for arg in node.args[1:]))
        return self.node("div", node.kind, (one, place))

    def convert(self, place: int, kind: str) -> int:
        """A number as another kind."""
        value = self.value(place)
        if self.kind(place) == kind or value is None:
            return place if self.kind(place) == kind else self.node("convert", kind, (place,))
        with np.errstate(all="ignore"):
            return self.const(value.astype(KINDS[kind]), kind)

    def bitcast(self, place: int, kind: str) -> int:
        """The bits of a number as another kind."""
        value = self.value(place)
        if self.kind(place) == kind or value is None:
            return place if self.kind(place) == kind else self.node("bitcast", kind, (place,))
        return self.const(value.view(KINDS[kind]), kind)

    def new_loop(self) -> int:
        """A number of its own for a loop, by which its `carry` nodes are told from those of others."""
        return next(self._loops)

    def loop(self, begin: int, first: Iterable[int], loop: Loop) -> list[int]:
        """The results of a loop."""
        place = self.node("loop", "", (begin, *first), loop)
        return [self.node("item", self.kind(carry), (place,), i) for i, carry in enumerate(loop.carry)]

    def order(self, results: Iterable[int], known: Mapping[int, Any] | Iterable[int] = ()) -> list[int]:
        """The nodes that results need beyond those known, each after its arguments; those inside loops are left out."""
        need: set[int] = set()
        stack = [place for place in results if place not in known]
        while stack:
            place = stack.pop()
            if place not in need:
                need.add(place)
                stack.extend(arg for arg in self.at(place).args if arg not in known and arg not in need)
        return sorted(need)

    def split_loop(self, loop: Loop, known: Mapping[int, Any]) -> tuple[list[int], list[int]]:
        """What the rounds of a loop need beyond what is known: what stays the same in all rounds, and what does not."""
        changing: set[int] = set(loop.carry)
        for place in self.order_with_loops((*loop.after, loop.again)):
            node = self.nodes[place]
            more = self.order_with_loops((*node.what.after, node.what.again)) if node.op == "loop" else ()
            if any(other in changing for other in (*node.args, *more)):
                changing.add(place)
        rounds = [place for place in self.order((*loop.after, loop.again), known) if place not in loop.carry]
        return [place for place in rounds if place not in changing], [place for place in rounds if place in changing]

    def order_with_loops(self, results: Iterable[int]) -> list[int]:
        """The nodes that results need, those inside loops as well."""
        need: set[int] = set()
        stack = list(results)
        while stack:
            place = stack.pop()
            if place not in need:
                need.add(place)
                node = self.at(place)
                stack.extend(node.args)
                if node.op == "loop":
                    stack.extend((*node.what.carry, *node.what.after, node.what.again))
        return sorted(need)


def _equals(value: Any, number: float) -> bool:
    return value is not None and bool(value == number)


def _first_match(rules: Callable) -> Callable:
    """The number of the first rule that holds."""
    return lambda args, values: next((place for holds, place in rules(args, values) if holds), None)


_SIMPLIFICATIONS: dict[str, Callable] = {
    "add": _first_match(lambda a, v: ((_equals(v[0], 0), a[1]), (_equals(v[1], 0), a[0]))),
    "sub": _first_match(lambda a, v: ((_equals(v[1], 0), a[0]),)),
    "mul": _first_match(lambda a, v: ((_equals(v[0], 0), a[0]), (_equals(v[1], 0), a[1]), (_equals(v[0], 1), a[1]), (_equals(v[1], 1), a[0]))),
    "div": _first_match(lambda a, v: ((_equals(v[0], 0), a[0]), (_equals(v[1], 1), a[0]))),
    "and": _first_match(lambda a, v: ((_equals(v[0], 0), a[0]), (_equals(v[1], 0), a[1]), (_is_true(v[0]), a[1]), (_is_true(v[1]), a[0]))),
    "or": _first_match(lambda a, v: ((_equals(v[0], 0), a[1]), (_equals(v[1], 0), a[0]), (_is_true(v[0]), a[0]), (_is_true(v[1]), a[1]))),
    "select": _first_match(lambda a, v: ((v[0] is not None, a[1] if v[0] else a[2]), (a[1] == a[2], a[1]))),
}


def _is_true(value: Any) -> bool:
    return isinstance(value, np.bool_) and bool(value)

"""Flat programs: the computation of one replica as a list of operations on scalars.

A program is a directed graph of nodes (SSA values), each an operation on earlier ones. Equal nodes are merged, operations on
constants are carried out while the program is written, and nodes that no result needs are left out. There are no arrays, calls
or branches; the only construct beside plain operations is a loop. A back end writes one instruction for each node of `order`.

| nodes | kind | |
|---|---|---|
| `input`, `carry` | any | a named argument; a variable of a loop, carried from one round to the next |
| `const` | any | its value |
| `add sub mul div rem max min neg abs sqrt rsqrt floor ceil round sign` | of the arguments | |
| `and or xor not shl shr` | of the arguments | `shr` keeps the sign of signed kinds |
| `eq ne lt le gt ge` | b1 | false for NaN, except `ne` |
| `select` | of the last two | the second argument where the first is true, else the third |
| `convert`, `bitcast` | any | |
| `loop`, `item` | none, any | a loop (see `LoopBody`) and one of its results |
| names in `elementary` | f64 | until `flatten.lower_elementary` replaces them |
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

SCALAR_KINDS: dict[str, type] = {
    "f64": np.float64, "f32": np.float32, "i64": np.int64, "u64": np.uint64, "i32": np.int32, "u32": np.uint32, "b1": np.bool_,
}  # fmt: skip
"""Scalar types of a flat program by name, with their NumPy types."""
COMPARISON_OPERATIONS = ("eq", "ne", "lt", "le", "gt", "ge")
"""Operations of a flat program whose result is a bool (kind b1)."""

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
"""NumPy functions by which operations of a flat program on constants are carried out.

Integer division truncates, as in C and in XLA.
"""

ESTIMATE_EXCESS = 1.5
"""Largest plausible ratio of the estimated to the actual number of operations in a flat program."""
ABSENT_PLACE = 10**12
"""Node index of all entries of an array that is too large for a program; reading one of them raises `TranslationError`."""


class TranslationError(Exception):
    """Error for an operation or object that flat programs do not support, which the message names."""


class LoopBody(NamedTuple):
    """Body of a `while` loop in a flat program: node indices of its variables before and after an iteration, and its condition.

    The arguments of the loop's node are the condition to enter it, and the initial values of `carry`. In each round
    `next_values` has the new values of `carry`, and `continue_index` says whether there is another round.
    """

    carry: tuple[int, ...]
    next_values: tuple[int, ...]
    continue_index: int


class ProgramNode(NamedTuple):
    """Operation in a flat program: its name, the scalar type of its result, the nodes of its arguments, and further data.

    `data` is the value of a constant, the name of an input, the `LoopBody` of a loop, or the index of an item.
    """

    op: str
    kind: str
    args: tuple[int, ...] = ()
    data: Any = None


class Program:
    """Flat program under construction: a list of nodes, which are operations on scalars and have an index each.

    `max_nodes` is the size beyond which the program is given up with `TranslationError`.
    """

    def __init__(self, max_nodes: float = np.inf) -> None:
        self.nodes: list[ProgramNode] = []
        self.max_nodes = max_nodes
        self._place: dict[Any, int] = {}
        self._loops = itertools.count()

    def check_size(self, estimate: float) -> None:
        """Raise `TranslationError` if the estimated number of operations is far above the maximum of the program."""
        if estimate > ESTIMATE_EXCESS * self.max_nodes:
            raise TranslationError(f"more than {self.max_nodes:.0f} operations")

    def node(self, op: str, kind: str, args: tuple[int, ...] = (), data: Any = None) -> int:
        """Add a node to the program, or find an equal one in it, and return the node's index."""
        node = ProgramNode(op, kind, args, data)
        key = (op, kind, args, data.hex()) if isinstance(data, float) else node  # NaN does not equal itself; its text does
        place = self._place.get(key)
        if place is None:
            place = self._place[key] = len(self.nodes)
            self.nodes.append(node)
            if place > self.max_nodes:
                raise TranslationError(f"more than {self.max_nodes:.0f} operations")
        return place

    def const(self, value: Any, kind: str) -> int:
        """Add a constant to the program and return its node index; -0.0 is stored as 0.0, so that there is only one zero."""
        return self.node("const", kind, (), (SCALAR_KINDS[kind](value) if value else SCALAR_KINDS[kind](0)).item())

    def input(self, name: Any, kind: str = "f64") -> int:
        """Add an input with a name to the program, and return its node index."""
        return self.node("input", kind, (), name)

    def node_at(self, place: int) -> ProgramNode:
        """Return the node with index `place`; raise `TranslationError` for `ABSENT_PLACE`."""
        try:
            return self.nodes[place]
        except IndexError:
            if place == ABSENT_PLACE:
                raise TranslationError("a large array") from None
            raise

    def kind(self, place: int) -> str:
        """Return the scalar type, such as "f64", of the node with index `place`."""
        return self.node_at(place).kind

    def constant_value(self, place: int) -> Any:
        """Return the value of the node with index `place` if it is a constant, else None."""
        node = self.node_at(place)
        return SCALAR_KINDS[node.kind](node.data) if node.op == "const" else None

    def op(self, name: str, *args: int) -> int:
        """Add an operation on given nodes, simplified where possible, and return the node index of its result."""
        values = [self.constant_value(arg) for arg in args]
        kind = "b1" if name in COMPARISON_OPERATIONS else self.kind(args[-1])
        if name in _NUMPY_OPERATIONS and all(value is not None for value in values):
            with np.errstate(all="ignore"):
                return self.const(_NUMPY_OPERATIONS[name](*values), kind)
        simpler = _SIMPLIFICATIONS[name](args, values) if name in _SIMPLIFICATIONS else None
        if simpler is not None:
            return simpler
        # 0 - x is the negation: one operation without a constant.
        if name == "sub" and _equals(values[0], 0) and kind[0] == "f":
            return self.op("neg", args[1])
        if name == "div" and _equals(values[0], 1):
            return self._add_inverse(args[1])
        if name in ("add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"):
            args = tuple(sorted(args))  # operations that commute have one order, so that equal ones are merged
        return self.node(name, kind, args)

    def _add_inverse(self, place: int) -> int:
        """Add the operation 1/x and return its node index; it becomes `rsqrt` if x is a square root.

        If x selects between values of which one is constant, the inverse selects between their inverses.
        """
        node, one = self.nodes[place], self.const(1, self.kind(place))
        if node.op == "sqrt":
            return self.node("rsqrt", node.kind, node.args)
        if node.op == "select" and any(self.constant_value(arg) is not None for arg in node.args[1:]):
            return self.op("select", node.args[0], *(self.op("div", one, arg) for arg in node.args[1:]))
        return self.node("div", node.kind, (one, place))

    def convert(self, place: int, kind: str) -> int:
        """Add the conversion of a value to another scalar type, and return its node index."""
        value = self.constant_value(place)
        if self.kind(place) == kind or value is None:
            return place if self.kind(place) == kind else self.node("convert", kind, (place,))
        with np.errstate(all="ignore"):
            return self.const(value.astype(SCALAR_KINDS[kind]), kind)

    def bitcast(self, place: int, kind: str) -> int:
        """Add the reinterpretation of a value's bits as another scalar type, and return its node index."""
        value = self.constant_value(place)
        if self.kind(place) == kind or value is None:
            return place if self.kind(place) == kind else self.node("bitcast", kind, (place,))
        return self.const(value.view(SCALAR_KINDS[kind]), kind)

    def new_loop(self) -> int:
        """Return an identifier for a new loop, which distinguishes its variables from those of other loops."""
        return next(self._loops)

    def loop(self, begin: int, first: Iterable[int], loop: LoopBody) -> list[int]:
        """Add a loop whose variables have the initial values `first`, and return the node indices of their final values."""
        place = self.node("loop", "", (begin, *first), loop)
        return [self.node("item", self.kind(carry), (place,), i) for i, carry in enumerate(loop.carry)]

    def order(self, results: Iterable[int], known: Mapping[int, Any] | Iterable[int] = ()) -> list[int]:
        """Return the indices of the nodes needed for `results`, arguments first, except nodes already known or inside loops."""
        need: set[int] = set()
        stack = [place for place in results if place not in known]
        while stack:
            place = stack.pop()
            if place not in need:
                need.add(place)
                stack.extend(arg for arg in self.node_at(place).args if arg not in known and arg not in need)
        return sorted(need)  # a node's arguments have smaller places

    def split_loop(self, loop: LoopBody, known: Mapping[int, Any]) -> tuple[list[int], list[int]]:
        """Return the nodes that a loop's iterations need and that are not known: first loop-invariant nodes, then the rest."""
        changing: set[int] = set(loop.carry)
        # Arguments come first, so one pass finds all places that depend on a variable of the loop.
        for place in self.order_with_loops((*loop.next_values, loop.continue_index)):
            node = self.nodes[place]
            more = self.order_with_loops((*node.data.next_values, node.data.continue_index)) if node.op == "loop" else ()
            if any(other in changing for other in (*node.args, *more)):
                changing.add(place)
        rounds = [place for place in self.order((*loop.next_values, loop.continue_index), known) if place not in loop.carry]
        return [place for place in rounds if place not in changing], [place for place in rounds if place in changing]

    def order_with_loops(self, results: Iterable[int]) -> list[int]:
        """Return the indices of the nodes needed for `results`, arguments first, including nodes inside loops."""
        need: set[int] = set()
        stack = list(results)
        while stack:
            place = stack.pop()
            if place not in need:
                need.add(place)
                node = self.node_at(place)
                stack.extend(node.args)
                if node.op == "loop":
                    stack.extend((*node.data.carry, *node.data.next_values, node.data.continue_index))
        return sorted(need)


def _equals(value: Any, number: float) -> bool:
    """Return whether the value of a node, None unless it is constant, equals a given number."""
    return value is not None and bool(value == number)


def _first_matching_rule(rules: Callable) -> Callable:
    """Convert rules, pairs (condition, node index), to a function that returns the index of the first that holds, or None."""
    return lambda args, values: next((place for holds, place in rules(args, values) if holds), None)


def _is_true(value: Any) -> bool:
    """Return whether a node's value, None unless it is constant, is the bool true."""
    return isinstance(value, np.bool_) and bool(value)


def _simplify_product(a: tuple, v: list) -> tuple:
    """Return rules for products with a constant, as pairs (condition, node index of the simplified result)."""
    return (_equals(v[0], 0), a[0]), (_equals(v[1], 0), a[1]), (_equals(v[0], 1), a[1]), (_equals(v[1], 1), a[0])


def _simplify_and(a: tuple, v: list) -> tuple:
    """Return rules for conjunctions with a constant, as pairs (condition, node index of the simplified result)."""
    return (_equals(v[0], 0), a[0]), (_equals(v[1], 0), a[1]), (_is_true(v[0]), a[1]), (_is_true(v[1]), a[0])


def _simplify_or(a: tuple, v: list) -> tuple:
    """Return rules for disjunctions with a constant, as pairs (condition, node index of the simplified result)."""
    return (_equals(v[0], 0), a[1]), (_equals(v[1], 0), a[0]), (_is_true(v[0]), a[0]), (_is_true(v[1]), a[1])


_SIMPLIFICATIONS: dict[str, Callable] = {
    "add": _first_matching_rule(lambda a, v: ((_equals(v[0], 0), a[1]), (_equals(v[1], 0), a[0]))),
    "sub": _first_matching_rule(lambda a, v: ((_equals(v[1], 0), a[0]),)),
    "mul": _first_matching_rule(_simplify_product),
    "div": _first_matching_rule(lambda a, v: ((_equals(v[0], 0), a[0]), (_equals(v[1], 1), a[0]))),
    "and": _first_matching_rule(_simplify_and),
    "or": _first_matching_rule(_simplify_or),
    "select": _first_matching_rule(lambda a, v: ((v[0] is not None, a[1] if v[0] else a[2]), (a[1] == a[2], a[1]))),
}
"""Simplification rules of operations: functions from the node indices a and values v of arguments to a simpler result.

A product with a constant zero is zero, also where the other factor is not finite: structural zeros must vanish.
"""

"""Back end for processors: a flat program as a loop over steps on vectors of replicas, compiled by LLVM.

All replicas of a vector do the same, each in its own lane. Loops go on until no lane has another round to make. Whole numbers
of 32 bits lie in lanes of 64, with anything in the upper halves until something depends on them: a product of two such numbers
is then one instruction, and nothing is packed or unpacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import llvmlite.ir as ir

from sgdlimits.kernel.base import LIMIT
from sgdlimits.kernel.program import COMPARISONS, Program
from sgdlimits.kernel.replica import Replica

I1, I32, I64, F32, F64 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
SCALAR = {"f64": F64, "f32": F32, "b1": I1, **dict.fromkeys(("i64", "u64", "i32", "u32"), I64)}
LOW = 2**32 - 1
FLAGS = ("contract", "nsz")
"""Products and sums may become one instruction, with one rounding."""
SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
RARE = (1, 2000)
NAME = "advance"
FIRST_RADIUS = 0.01
SHORT = 2500
"""Programs of fewer nodes are made for two vectors at once."""


class Machine:
    """The processor at hand: how LLVM calls it, and how many doubles a vector has."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.name, self.features, self.triple = llvm.get_host_cpu_name(), features.flatten(), llvm.get_default_triple()
        self.wide = bool(features.get("avx512dq"))
        self.width = 8 if self.wide else 4 if features.get("avx") else 2
        self.key = (llvmlite.__version__, llvm.llvm_version_info, self.triple, self.name, self.features)

    def target(self) -> llvm.TargetMachine:
        """A new one each time: what loads code owns its own."""
        target = llvm.Target.from_triple(self.triple)
        return target.create_target_machine(self.name, self.features, opt=3, reloc="pic", codemodel="small")

    def object_code(self, text: str) -> bytes:
        """Compiled code of a module."""
        module, target = llvm.parse_assembly(text), self.target()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.slp_vectorization = options.loop_vectorization = options.loop_unrolling = options.loop_interleaving = False
        passes = llvm.create_pass_builder(target, options)
        passes.getModulePassManager().run(module, passes)
        return target.emit_object(module)

    def load(self, code: bytes) -> tuple[Any, int]:
        """Compiled code in memory: what owns it, and the address of its function."""
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self.target(), use_lmm=True)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return engine, engine.get_function_address(NAME)


class Vectors:
    """Instructions on vectors of lanes, one for each node of a program."""

    def __init__(self, module: ir.Module, builder: ir.IRBuilder, width: int, wide: bool) -> None:
        self.module, self.b, self.width, self.wide = module, builder, width, wide

    def type(self, kind: str) -> ir.Type:
        return ir.VectorType(SCALAR[kind], self.width)

    def const(self, value: Any, kind: str) -> ir.Constant:
        if kind[0] != "f":
            value = int(value) if kind == "b1" else (int(value) + 2**63) % 2**64 - 2**63
        return ir.Constant(self.type(kind), [value] * self.width)

    def splat(self, number: ir.Value) -> ir.Value:
        """One number in all lanes."""
        kind = ir.VectorType(number.type, self.width)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), number, I32(0))
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, self.width), None))

    def any(self, lanes: ir.Value) -> ir.Value:
        bits = ir.IntType(self.width)
        return self.b.icmp_unsigned("!=", self.b.bitcast(lanes, bits), bits(0))

    def slot(self, type_: ir.Type) -> ir.Value:
        """A variable."""
        with self.b.goto_entry_block():
            return self.b.alloca(type_)

    def intrinsic(self, name: str, *args: ir.Value) -> ir.Value:
        element = "f64" if args[0].type.element == F64 else "f32"
        kind = ir.FunctionType(args[0].type, [arg.type for arg in args])
        name = f"llvm.{name}.v{self.width}{element}"
        known = self.module.globals.get(name)
        return self.b.call(known or ir.Function(self.module, kind, name), args)

    def clean(self, x: ir.Value, kind: str) -> ir.Value:
        """A whole number with its upper half as it should be."""
        if kind == "u32":
            return self.b.and_(x, self.const(LOW, "u64"))
        half = self.const(32, "i64")
        return self.b.ashr(self.b.shl(x, half), half) if kind == "i32" else x

    def emit(self, program: Program, places: Sequence[int], known: dict[int, ir.Value]) -> None:
        """Instructions for nodes, in their order; `known` has the values so far and gets the new ones."""
        for place in places:
            node = program.nodes[place]
            if place in known:
                continue
            if node.op == "const":
                known[place] = self.const(node.what, node.kind)
            elif node.op == "loop":
                known[place] = self._loop(program, place, known)
            elif node.op == "item":
                known[place] = known[node.args[0]][node.what]
            elif node.op == "input":
                raise KeyError(f"nothing is given as {node.what}")
            else:
                kinds = [program.kind(arg) for arg in node.args]
                known[place] = self._op(node.op, node.kind, kinds, [known[arg] for arg in node.args])

    def _loop(self, program: Program, place: int, known: dict[int, ir.Value]) -> list[ir.Value]:
        """Lanes that have left keep their values; where no lane enters, which is the usual case, nothing is done."""
        b, node = self.b, program.nodes[place]
        loop, (begin, *first) = node.what, [known[arg] for arg in node.args]
        slots = [self.slot(value.type) for value in first]
        active = self.slot(begin.type)
        for slot, value in zip((*slots, active), (*first, begin), strict=True):
            b.store(value, slot)
        enter, rounds, leave = (b.append_basic_block(name) for name in ("enter", "round", "leave"))
        b.cbranch(self.any(begin), enter, leave).set_weights(RARE)
        b.position_at_end(enter)
        still, body = program.inside(loop, known)
        inner = dict(known)
        self.emit(program, still, inner)
        b.branch(rounds)
        b.position_at_end(rounds)
        on = b.load(active)
        inner |= {carry: b.load(slot) for carry, slot in zip(loop.carry, slots, strict=True)}
        self.emit(program, body, inner)
        for carry, after, slot in zip(loop.carry, loop.after, slots, strict=True):
            b.store(b.select(on, inner[after], inner[carry]), slot)
        on = b.and_(on, inner[loop.again])
        b.store(on, active)
        b.cbranch(self.any(on), rounds, leave)
        b.position_at_end(leave)
        return [b.load(slot) for slot in slots]

    def _op(self, op: str, kind: str, kinds: list[str], args: list[ir.Value]) -> ir.Value:
        b, of = self.b, kinds[-1]
        real, signed = of[0] == "f", of[0] == "i"
        if op in ("shr", "div", "rem", *(["mul"] if of == "u32" else []), "max", "min", "abs", "sign", *COMPARISONS):
            args = [self.clean(arg, of) for arg in args]
        if op in ("add", "sub", "mul"):
            return getattr(b, f"f{op}")(*args, flags=FLAGS) if real else getattr(b, op)(*args)
        if op == "div":
            return b.fdiv(*args, flags=FLAGS) if real else (b.sdiv if signed else b.udiv)(*args)
        if op == "rem":
            return b.frem(*args) if real else (b.srem if signed else b.urem)(*args)
        if op in ("and", "or", "xor"):
            return {"and": b.and_, "or": b.or_, "xor": b.xor}[op](*args)
        if op == "shl":
            return b.shl(*args)
        if op == "shr":
            return (b.ashr if signed else b.lshr)(*args)
        if op == "not":
            return b.not_(args[0])
        if op == "neg":
            return b.fneg(args[0]) if real else b.neg(args[0])
        if op == "select":
            return b.select(*args)
        if op in COMPARISONS:
            return self._compare(op, of, *args)
        if op in ("max", "min"):
            return b.select(self._compare("gt" if op == "max" else "lt", of, *args), *args)
        if op == "abs":
            return (
                self.intrinsic("fabs", *args)
                if real
                else b.select(self._compare("lt", of, args[0], self.const(0, of)), b.neg(args[0]), args[0])
            )
        if op == "sign":
            zero = self.const(0, of)
            below = b.select(self._compare("lt", of, args[0], zero), self.const(-1, of), zero)
            return b.select(self._compare("gt", of, args[0], zero), self.const(1, of), below)
        if op == "rsqrt":
            return self._rsqrt(*args)
        if op in ("sqrt", "floor", "ceil", "round"):
            return self.intrinsic({"round": "rint"}.get(op, op), *args)
        if op == "bitcast":
            return self._bitcast(of, kind, args[0])
        if op == "convert":
            return self._convert(of, kind, args[0])
        raise KeyError(op)

    def _rsqrt(self, x: ir.Value) -> ir.Value:
        """Where the processor has an estimate of it, that and two of Newton's steps: neither a division nor a root."""
        b = self.b
        if not self.wide or x.type.element != F64:
            return b.fdiv(ir.Constant(x.type, [1.0] * self.width), self.intrinsic("sqrt", x), flags=FLAGS)
        eight, name = ir.VectorType(F64, 8), "llvm.x86.avx512.rsqrt14.pd.512"
        kind = ir.FunctionType(eight, [eight, eight, ir.IntType(8)])
        function = self.module.globals.get(name) or ir.Function(self.module, kind, name)
        lanes = lambda first, count: ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))
        nothing = ir.Constant(eight, ir.Undefined)
        parts = [b.shuffle_vector(x, x, lanes(first, 8)) for first in range(0, self.width, 8)]
        parts = [b.call(function, [part, nothing, ir.IntType(8)(-1)]) for part in parts]
        first = parts[0] if len(parts) == 1 else b.shuffle_vector(*parts, lanes(0, 16))
        half, y = b.fmul(x, self.const(-0.5, "f64"), flags=FLAGS), first
        for _ in range(2):
            rest = b.fadd(b.fmul(b.fmul(half, y), y, flags=FLAGS), self.const(0.5, "f64"), flags=FLAGS)
            y = b.fadd(b.fmul(y, rest, flags=FLAGS), y, flags=FLAGS)
        return b.select(b.fcmp_ordered("==", y, y), y, first)  # at zero and at infinity the estimate is exact

    def _compare(self, op: str, of: str, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.b
        if of[0] == "f":
            return (b.fcmp_unordered if op == "ne" else b.fcmp_ordered)(SIGNS[op], x, y)
        return (b.icmp_signed if of[0] == "i" else b.icmp_unsigned)(SIGNS[op], x, y)

    def _bitcast(self, of: str, kind: str, x: ir.Value) -> ir.Value:
        b, narrow = self.b, ir.VectorType(I32, self.width)
        if "f32" not in (of, kind):
            return b.bitcast(x, self.type(kind))
        return b.zext(b.bitcast(x, narrow), self.type(kind)) if of == "f32" else b.bitcast(b.trunc(x, narrow), self.type(kind))

    def _convert(self, of: str, kind: str, x: ir.Value) -> ir.Value:
        b, to, narrow = self.b, self.type(kind), ir.VectorType(I32, self.width)
        if kind == "b1":
            return self._compare("ne", of, self.clean(x, of), self.const(0, of))
        if of == "b1":
            return b.select(x, self.const(1, kind), self.const(0, kind))
        if of[0] == kind[0] == "f":
            return b.fpext(x, to) if kind == "f64" else b.fptrunc(x, to)
        if of[0] == "f":
            if kind in ("i32", "u32"):
                return b.sext(b.fptosi(x, narrow), to) if kind == "i32" else b.fptosi(x, to)
            return b.fptosi(x, to) if kind == "i64" else b.fptoui(x, to)
        if kind[0] != "f":
            return self.clean(x, of)
        if of == "i32":
            return b.sitofp(b.trunc(x, narrow), to)
        if of == "u32" and not self.wide and kind == "f64":
            bits = b.or_(self.clean(x, of), self.const(0x433 << 52, "u64"))
            return b.fsub(b.bitcast(bits, to), self.const(2.0**52, "f64"))
        return (b.sitofp if of[0] == "i" else b.uitofp)(self.clean(x, of), to)


def text_of(replica: Replica, machine: Machine) -> str:
    """The module of a replica's program: one function, `advance`, with the arguments that `sgdlimits.kernel.lanes` gives it."""
    return str(Writer(replica, machine).module)


def width_of(replica: Replica, machine: Machine) -> int:
    """How many replicas are computed side by side: two vectors where that is little, since one waits for its own results."""
    return machine.width * (2 if len(replica.program.nodes) < SHORT else 1)


class Writer:
    """Writes the function that makes all steps of a call, vector by vector of replicas.

    The steps of a call are made in parts, at whose ends divergence is looked for. The array of states has the last states that
    are known to be good: those at the beginning of the part, and of a replica that has stopped, its last.

    Where a condition is dear, it is asked when a lane has left the ball around the state in which it was asked last, within
    which it is known not to hold. `Near` says so for the radius that is tried; that is doubled where it was small enough, and
    quartered where it was not.
    """

    def __init__(self, replica: Replica, machine: Machine) -> None:
        self.replica, self.width, self.machine = replica, width_of(replica, machine), machine
        self.inputs, self.moved = replica.inputs, replica.moved
        self.module = ir.Module("lanes")
        self.module.triple = machine.triple
        self.near = None if replica.near is None else self.write_near()
        self.begin(NAME, 8)
        self.state, self.memory, self.runs, self.end, self.how, self.numbers, whole, real = self.arguments
        whole, real = self.b.bitcast(whole, I64.as_pointer()), self.b.bitcast(real, F64.as_pointer())
        first, steps, block, every, seed, seed_high, vectors = (self.b.load(self.at(whole, i)) for i in range(7))
        self.first, self.steps, self.block, self.every = first, steps, block, every
        self.t, self.size = (self.b.load(self.at(real, i)) for i in range(2))
        known = self.given({"seed": seed, "seed_high": seed_high, "size": self.size})
        self.here = [self.v.slot(self.v.type("f64")) for _ in self.moved] if self.near else []
        self.reach, self.trial = (self.v.slot(self.v.type("f64")) for _ in range(2))
        with self.counted(vectors) as index:
            self.vector(index, known)
        self.b.ret_void()

    def begin(self, name: str, arguments: int) -> None:
        """A new function of so many pointers."""
        pointer = F64.as_pointer()
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [pointer] * arguments), name)
        self.arguments = self.function.args
        for argument in self.arguments:
            argument.add_attribute("noalias")
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.v = Vectors(self.module, self.b, self.width, self.machine.wide)

    def given(self, uniform: dict[str, ir.Value]) -> dict[int, ir.Value]:
        """What all lanes share: the numbers of the problem, and what else is given by name."""
        known = {self.inputs[name]: self.v.splat(value) for name, value in uniform.items() if name in self.inputs}
        for name, place in self.inputs.items():
            if name[0] == "number":
                known[place] = self.v.splat(self.b.load(self.at(self.numbers, name[1])))
        return known

    def write_near(self) -> ir.Function:
        """A function of its own for what is rarely done: pointers to the state, what is remembered, the radius, and answers."""
        self.begin("near", 5)
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        state, memory, self.numbers, radius, answers = self.arguments
        replica, wanted = self.replica, tuple(self.replica.near or ())
        known = self.given({})
        for pointer, places in ((state, replica.state), (memory, replica.memory)):
            rows = self.rows(pointer, "f64", I64(0), len(places))
            known |= {place: self.load(row) for place, row in zip(places, rows, strict=True) if place in self.inputs.values()}
        known[self.inputs["radius"]] = self.load(self.rows(radius, "f64", I64(0), 1)[0])
        self.v.emit(replica.program, replica.program.order(wanted, known), known)
        for place, row in zip(wanted, self.rows(answers, "f64", I64(0), 2), strict=True):
            self.store(self.b.select(known[place], self.v.const(1.0, "f64"), self.v.const(0.0, "f64")), row)
        self.b.ret_void()
        return self.function

    def at(self, pointer: ir.Value, index: Any) -> ir.Value:
        return self.b.gep(pointer, [I64(index) if isinstance(index, int) else index])

    def rows(self, pointer: ir.Value, kind: str, index: ir.Value, count: int) -> list[ir.Value]:
        """Where the `count` vectors of the vector of replicas with this index are."""
        base = self.b.bitcast(self.at(pointer, self.b.mul(index, I64(count * self.width))), self.v.type(kind).as_pointer())
        return [self.at(base, i) for i in range(count)]

    def load(self, pointer: ir.Value) -> ir.Value:
        value = self.b.load(pointer)
        value.align = 8
        return value

    def store(self, value: ir.Value, pointer: ir.Value) -> None:
        self.b.store(value, pointer).align = 8

    def put(self, lanes: ir.Value, value: ir.Value, pointer: ir.Value) -> None:
        """Store the values of some lanes."""
        self.store(self.b.select(lanes, value, self.load(pointer)), pointer)

    @contextmanager
    def counted(self, count: ir.Value) -> Iterator[ir.Value]:
        """What is written inside is done for each index below a number of at least one."""
        b, index = self.b, self.v.slot(I64)
        b.store(I64(0), index)
        again, leave = b.append_basic_block("again"), b.append_basic_block("leave")
        b.branch(again)
        b.position_at_end(again)
        here = b.load(index)
        yield here
        after = b.add(here, I64(1))
        b.store(after, index)
        b.cbranch(b.icmp_signed("<", after, count), again, leave)
        b.position_at_end(leave)

    def vector(self, index: ir.Value, known: dict[int, ir.Value]) -> None:
        """All steps of one vector of replicas."""
        b, v, replica = self.b, self.v, self.replica
        self.good = self.rows(self.state, "f64", index, len(replica.state))
        self.remembered = self.rows(self.memory, "f64", index, len(replica.memory))
        self.ended, self.ending, run = (self.rows(array, "i64", index, 1)[0] for array in (self.end, self.how, self.runs))
        self.slots = {i: v.slot(v.type("f64")) for i in self.moved}
        self.moving, made = v.slot(v.type("b1")), v.slot(I64)
        for i, place in enumerate(replica.state):
            value = self.load(self.good[i])
            if i in self.slots:
                b.store(value, self.slots[i])
            else:
                known = known | ({} if replica.program.value(place) is not None else {place: value})
        known = known | {place: self.load(row) for place, row in zip(replica.memory, self.remembered, strict=True)}
        known = known | ({self.inputs["run"]: self.load(run)} if "run" in self.inputs else {})
        b.store(b.icmp_signed("<", self.load(self.ended), v.const(0, "i64")), self.moving)
        b.store(I64(0), made)
        b.store(v.const(-1.0, "f64"), self.reach)
        b.store(v.const(FIRST_RADIUS, "f64"), self.trial)
        parts, part, leave = (b.append_basic_block(name) for name in ("parts", "part", "leave"))
        b.branch(parts)
        b.position_at_end(parts)
        begin = b.load(made)
        b.cbranch(b.and_(b.icmp_signed("<", begin, self.steps), v.any(b.load(self.moving))), part, leave)
        b.position_at_end(part)
        smaller = lambda x, y: b.select(b.icmp_signed("<", x, y), x, y)
        count = smaller(smaller(self.every, b.sub(self.block, b.srem(begin, self.block))), b.sub(self.steps, begin))
        with self.counted(count) as number:
            self.step(b.add(begin, number), known)
        self.look(b.add(self.first, begin))
        b.store(b.add(begin, count), made)
        b.branch(parts)
        b.position_at_end(leave)

    def step(self, number: ir.Value, known: dict[int, ir.Value]) -> None:
        """One step of all lanes, and the end of those that stop."""
        b, v, replica = self.b, self.v, self.replica
        at = b.add(self.first, number)
        t = b.fadd(self.t, b.fmul(b.sitofp(number, F64), self.size))
        known = known | {self.inputs[name]: v.splat(value) for name, value in (("step", at), ("t", t)) if name in self.inputs}
        known |= {replica.state[i]: b.load(slot) for i, slot in self.slots.items()}
        results = [replica.after[i] for i in self.moved]
        v.emit(replica.program, replica.program.order(results, known), known)
        values = [known[place] for place in results]
        for value, slot in zip(values, self.slots.values(), strict=True):
            b.store(value, slot)
        if replica.stops is not None:
            v.emit(replica.program, replica.program.order([replica.stops], known), known)
            self.stop(b.and_(b.load(self.moving), known[replica.stops]), values, at)
        if self.near is not None:
            self.watch(values, at)

    def stop(self, hit: ir.Value, values: list[ir.Value], at: ir.Value) -> None:
        """Keep the last state of lanes that stop; their further ones are never looked at."""
        b, v = self.b, self.v
        with b.if_then(v.any(hit), likely=False):
            hit = b.and_(hit, self.bounded(values))
            for i, value in zip(self.moved, values, strict=True):
                self.put(hit, value, self.good[i])
            self.put(hit, v.splat(b.add(at, I64(1))), self.ended)
            self.put(hit, v.const(1, "i64"), self.ending)
            b.store(b.and_(b.load(self.moving), b.not_(hit)), self.moving)

    def watch(self, values: list[ir.Value], at: ir.Value) -> None:
        """Ask the condition where a moving lane has left its ball."""
        b, v = self.b, self.v
        way = v.const(0.0, "f64")
        for value, slot in zip(values, self.here, strict=True):
            change = b.fsub(value, b.load(slot), flags=FLAGS)
            way = b.fadd(way, b.fmul(change, change, flags=FLAGS), flags=FLAGS)
        reach = b.load(self.reach)
        out = b.and_(b.load(self.moving), b.fcmp_unordered(">", way, b.fmul(v.intrinsic("fabs", reach), reach)))
        with b.if_then(v.any(out), likely=False):
            count = len(self.replica.state)
            state, answers = (self.room(rows) for rows in (count, 2))
            rows = self.rows(state, "f64", I64(0), count)
            for i in range(count):
                moved = self.moved.index(i) if i in self.slots else None
                self.store(self.load(self.good[i]) if moved is None else values[moved], rows[i])
            memory = b.bitcast(self.remembered[0], F64.as_pointer()) if self.remembered else self.memory
            trial = b.bitcast(self.trial, F64.as_pointer())
            b.call(self.near, [state, memory, self.numbers, trial, answers])
            said = [self.load(row) for row in self.rows(answers, "f64", I64(0), 2)]
            hit, may = (b.fcmp_ordered("!=", answer, v.const(0.0, "f64")) for answer in said)
            radius = b.load(self.trial)
            b.store(b.select(may, v.const(-1.0, "f64"), radius), self.reach)
            b.store(b.fmul(radius, b.select(may, v.const(0.25, "f64"), v.const(2.0, "f64"))), self.trial)
            for value, slot in zip(values, self.here, strict=True):
                b.store(value, slot)
            self.stop(b.and_(b.load(self.moving), hit), values, at)

    def room(self, rows: int) -> ir.Value:
        """Memory for a few vectors."""
        with self.b.goto_entry_block():
            return self.b.bitcast(self.b.alloca(self.v.type("f64"), rows), F64.as_pointer())

    def look(self, begin: ir.Value) -> None:
        """At the end of a part: keep the states that are good, and end the replicas whose are not."""
        b, v = self.b, self.v
        values = {i: b.load(slot) for i, slot in self.slots.items()}
        fine, on = self.bounded(values.values()), b.load(self.moving)
        with b.if_else(v.any(b.not_(b.and_(fine, on))), likely=False) as (some, all_):
            with some:
                for i, value in values.items():
                    self.put(b.and_(fine, on), value, self.good[i])
                broken = b.and_(on, b.not_(fine))
                self.put(broken, v.splat(begin), self.ended)
                self.put(broken, v.const(2, "i64"), self.ending)
                b.store(b.and_(on, fine), self.moving)
            with all_:
                for i, value in values.items():
                    self.store(value, self.good[i])

    def bounded(self, values: Iterable[ir.Value]) -> ir.Value:
        b, v = self.b, self.v
        fine = v.const(1, "b1")
        for value in values:
            fine = b.and_(fine, b.fcmp_ordered("<=", v.intrinsic("fabs", value), v.const(LIMIT, "f64")))
        return fine

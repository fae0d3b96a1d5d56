"""Back end for processors: the loops over steps and over vectors of replicas, compiled by LLVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import llvmlite
import llvmlite.binding as llvm
import llvmlite.ir as ir

from sgdlimits.kernel.compiler.checks import check_for
from sgdlimits.kernel.compiler.replica import Replica
from sgdlimits.kernel.compiler.vectors import F64, I64, Vectors

NAME = "advance"
SHORT = 2500
"""Programs of fewer nodes are made for two vectors at once."""


def optimisation_is_off() -> bool:
    """Whether JAX is told not to optimise what it compiles, which holds here as well: slower, and rounded elsewhere."""
    return bool(jax.config.values["jax_disable_most_optimizations"])


class Machine:
    """The processor at hand: how LLVM calls it, and how many doubles a vector has."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.name, self.features, self.triple = llvm.get_host_cpu_name(), features.flatten(), llvm.get_default_triple()
        self.wide = bool(features.get("avx512dq"))
        self.width = 8 if self.wide else 4 if features.get("avx") else 2

    @property
    def key(self) -> tuple:
        """All that code depends on beside its text."""
        return llvmlite.__version__, llvm.llvm_version_info, self.triple, self.name, self.features, optimisation_is_off()

    def target(self) -> llvm.TargetMachine:
        """A new one each time: what loads code owns its own."""
        target, opt = llvm.Target.from_triple(self.triple), 0 if optimisation_is_off() else 3
        return target.create_target_machine(self.name, self.features, opt=opt, reloc="pic", codemodel="small")

    def object_code(self, text: str) -> bytes:
        """Compiled code of a module, which calls nothing of the C library: what loads it has no room for such calls.

        In haste which products become one with their sums would depend on what is around them.
        """
        text = text.replace("\n{\n", ' "no-builtins"\n{\n')
        module, target = llvm.parse_assembly(text.replace(" contract", "") if optimisation_is_off() else text), self.target()
        options = llvm.create_pipeline_tuning_options(speed_level=0 if optimisation_is_off() else 1)
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


def text_of(replica: Replica, machine: Machine, limit: float) -> str:
    """Write the module of a replica's program: one function, `advance`, with the arguments that the kernel `lanes` gives it.

    A replica has diverged where a number of its state is above the limit or not finite.
    """
    return str(Writer(replica, machine, limit).module)


def width_of(replica: Replica, machine: Machine) -> int:
    """How many replicas are computed side by side: two vectors where that is little, since one waits for its own results."""
    return machine.width * (2 if replica.length < SHORT else 1)


class Writer:
    """Writer of the function that makes all steps of a call, vector by vector of replicas.

    The steps of a call are made in parts, with a check for divergence at the end of each. The array of states holds the last
    states known to be good: those at the beginning of the part, and the last state of a replica that has stopped. A `StopCheck`
    adds the code of the stop condition.
    """

    def __init__(self, replica: Replica, machine: Any, limit: float) -> None:
        self.replica, self.machine, self.limit = replica, machine, limit
        self.inputs, self.moved = replica.inputs, replica.moved
        self.module = ir.Module("lanes")
        self.module.triple = machine.triple
        self.check = check_for(self)
        self.check.write_functions()
        self.begin(NAME, 8 + self.check.pointers)
        self.state, self.memory, self.keys, self.end, self.how, self.numbers, whole, real, *pointers = self.arguments
        whole, real = self.b.bitcast(whole, I64.as_pointer()), self.b.bitcast(real, F64.as_pointer())
        first, steps, block, every, vectors = (self.b.load(self.at(whole, i)) for i in range(5))
        self.first, self.steps, self.block, self.every = first, steps, block, every
        self.t, self.size = (self.b.load(self.at(real, i)) for i in range(2))
        known = {self.inputs["size"]: self.v.splat(self.size)} if "size" in self.inputs else {}
        self.check.begin(pointers)
        with self.replicas(vectors) as index:
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
        self.v = self.instructions()

    def instructions(self) -> Vectors:
        """What writes the instructions of a program."""
        return Vectors(self.module, self.b, width_of(self.replica, self.machine), self.machine.wide)

    def replicas(self, vectors: ir.Value) -> AbstractContextManager[ir.Value]:
        """What is written inside is done for each vector of replicas."""
        return self.counted(vectors)

    def given(self, rows: list[ir.Value]) -> dict[int, ir.Value]:
        """The numbers of the problem, each replica's own."""
        return {self.inputs["number", i]: self.load(row) for i, row in zip(self.replica.numbers, rows, strict=True)}

    def write_rare(self, name: str, wanted: Sequence[int]) -> ir.Function:
        """Write a function for values that are needed rarely: pointers to state, memory, parameters, radius, and the answers.

        It is not inlined, since the loop over steps would spill registers around it.
        """
        self.begin(name, 5)
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        state, memory, self.numbers, radius, answers = self.arguments
        replica = self.replica
        known = self.given(self.strided(self.b.bitcast(self.numbers, self.v.type("f64").as_pointer()), len(replica.numbers)))
        for pointer, places in ((state, replica.state), (memory, replica.memory)):
            rows = self.vectors_at(pointer, len(places))
            known |= {place: self.load(row) for place, row in zip(places, rows, strict=True) if place in self.inputs.values()}
        if "radius" in self.inputs:
            known[self.inputs["radius"]] = self.load(self.vectors_at(radius, 1)[0])
        self.v.emit(replica.program, replica.program.order(wanted, known), known)
        for place, row in zip(wanted, self.vectors_at(answers, len(wanted)), strict=True):
            value, whole = known[place], self.v.type("f64")
            self.store(value if value.type == whole else self.b.uitofp(value, whole), row)
        self.b.ret_void()
        return self.function

    def call_rare(
        self, function: ir.Function, values: list[ir.Value], count: int, radius: ir.Value | None = None
    ) -> list[ir.Value]:
        """Call such a function in the new states of the lanes, and return its `count` answers."""
        state, memory, answers = self.copy_state(values), *(self.room(rows) for rows in (len(self.remembered), count))
        for row, copy in zip(self.remembered, self.vectors_at(memory, len(self.remembered)), strict=True):
            self.store(self.load(row), copy)
        pointer = F64.as_pointer()
        trial = ir.Constant(pointer, None) if radius is None else self.b.bitcast(radius, pointer)
        own = self.b.bitcast((self.own or [self.numbers])[0], pointer)
        self.b.call(function, [state, memory, own, trial, answers])
        return [self.load(row) for row in self.vectors_at(answers, count)]

    def at(self, pointer: ir.Value, index: Any) -> ir.Value:
        return self.b.gep(pointer, [I64(index) if isinstance(index, int) else index])

    def rows(self, pointer: ir.Value, kind: str, index: ir.Value, count: int) -> list[ir.Value]:
        """Where the `count` vectors of the vector of replicas with this index are."""
        base = self.b.bitcast(self.at(pointer, self.b.mul(index, I64(count * self.v.width))), self.v.type(kind).as_pointer())
        return self.strided(base, count)

    def strided(self, base: ir.Value, count: int) -> list[ir.Value]:
        """Where the vectors of a vector of replicas are, from the first on."""
        return [self.at(base, i) for i in range(count)]

    def vectors_at(self, pointer: ir.Value, count: int) -> list[ir.Value]:
        """Return pointers to the vectors of a `room`."""
        base = self.b.bitcast(pointer, self.v.type("f64").as_pointer())
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
        self.ended, self.ending = (self.rows(array, "i64", index, 1)[0] for array in (self.end, self.how))
        keys = zip(("run", "seed", "seed_high"), self.rows(self.keys, "i64", index, 3), strict=True)
        self.own = self.rows(self.numbers, "f64", index, len(replica.numbers))
        self.slots = {i: v.slot(v.type("f64")) for i in self.moved}
        self.moving, made = v.slot(v.type("b1")), v.slot(I64)
        for i, place in enumerate(replica.state):
            value = self.load(self.good[i])
            if i in self.slots:
                b.store(value, self.slots[i])
            else:
                known = known | ({} if replica.program.value(place) is not None else {place: value})
        known = known | {place: self.load(row) for place, row in zip(replica.memory, self.remembered, strict=True)}
        known = known | {self.inputs[name]: v.word(self.load(row)) for name, row in keys if name in self.inputs}
        known |= self.given(self.own)
        b.store(b.icmp_signed("<", self.load(self.ended), v.const(0, "i64")), self.moving)
        b.store(I64(0), made)
        self.check.begin_vector(index)
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
        self.check.after_step(values, at, known)

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

    def copy_state(self, values: list[ir.Value]) -> ir.Value:
        """Return a room with all coordinates of the state, of which `values` are those that move."""
        state = self.room(len(self.good))
        for i, row in enumerate(self.vectors_at(state, len(self.good))):
            self.store(values[self.moved.index(i)] if i in self.slots else self.load(self.good[i]), row)
        return state

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
            fine = b.and_(fine, b.fcmp_ordered("<=", v.intrinsic("fabs", value), v.const(self.limit, "f64")))
        return fine

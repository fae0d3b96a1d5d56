"""Back end for CPUs: the loops over vectors of replicas and over steps, compiled by LLVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import llvmlite
import llvmlite.binding as llvm
import llvmlite.ir as ir

from sgdlimits.kernel.compiler.checks import make_stop_check
from sgdlimits.kernel.compiler.replica import Replica
from sgdlimits.kernel.compiler.vectors import FLOAT64_TYPE, INT64_TYPE, VectorInstructions

FUNCTION_NAME = "advance"
"""Name of the compiled function in its LLVM module."""
MAX_PAIRED_NODES = 2500
"""Number of nodes of a program below which two vectors are computed at once, to hide the latency of each."""


def is_optimisation_off() -> bool:
    """Return whether JAX is configured to skip optimisations; this compiler then skips them too.

    Code is slower without them, and rounded differently.
    """
    return bool(jax.config.values["jax_disable_most_optimizations"])


class HostProcessor:
    """Processor of this machine: its LLVM name and features, and the number of doubles in a vector."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.name, self.features, self.triple = llvm.get_host_cpu_name(), features.flatten(), llvm.get_default_triple()
        self.wide = bool(features.get("avx512dq"))
        self.width = 8 if self.wide else 4 if features.get("avx") else 2

    @property
    def key(self) -> tuple:
        """Versions, processor and options on which compiled code depends, besides its LLVM text."""
        return llvmlite.__version__, llvm.llvm_version_info, self.triple, self.name, self.features, is_optimisation_off()

    def target(self) -> llvm.TargetMachine:
        """Return a new LLVM target machine for this processor; each engine that loads code takes ownership of one."""
        target = llvm.Target.from_triple(self.triple)
        opt = 0 if is_optimisation_off() else 3
        return target.create_target_machine(self.name, self.features, opt=opt, reloc="pic", codemodel="small")

    def compile_object(self, text: str) -> bytes:
        """Compile LLVM text to object code without calls of the C library, which the loader could not resolve."""
        text = text.replace("\n{\n", ' "no-builtins"\n{\n')
        # Without optimisation, which products and sums are fused depends on the code around them: results would differ
        # between programs with the same step.
        module = llvm.parse_assembly(text.replace(" contract", "") if is_optimisation_off() else text)
        target = self.target()
        # The program is vectorised and unrolled already: these passes only cost time on its long basic blocks.
        options = llvm.create_pipeline_tuning_options(speed_level=0 if is_optimisation_off() else 1)
        options.slp_vectorization = options.loop_vectorization = options.loop_unrolling = options.loop_interleaving = False
        passes = llvm.create_pass_builder(target, options)
        passes.getModulePassManager().run(module, passes)
        return target.emit_object(module)

    def load(self, code: bytes) -> tuple[Any, int]:
        """Load object code into memory; return the engine that owns the memory, and the address of the compiled function."""
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self.target(), use_lmm=True)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return engine, engine.get_function_address(FUNCTION_NAME)


def write_llvm(replica: Replica, machine: HostProcessor, limit: float) -> str:
    """Return the LLVM text of the function `advance`, which makes the steps of a replica's flat program.

    A replica has diverged if a coordinate of its state exceeds `limit` or is not finite.
    """
    return str(FunctionWriter(replica, machine, limit).module)


def choose_vector_width(replica: Replica, machine: HostProcessor) -> int:
    """Return the number of replicas computed side by side: two vectors for a short program, to hide latencies, else one."""
    return machine.width * (2 if replica.operation_count < MAX_PAIRED_NODES else 1)


class FunctionWriter:
    """Writer of the LLVM function that makes all steps of a kernel call, for one vector of replicas after another.

    The steps of a call are made in parts, with a check for divergence at the end of each. The array of states has the last
    states known to be good: those at the beginning of the part, and the last state of a replica that has stopped. A
    `StopCheckEmitter` adds the code of the stop condition. `b` is the LLVM builder, and `v` writes the instructions of a
    program.
    """

    def __init__(self, replica: Replica, machine: Any, limit: float) -> None:
        self.replica, self.machine, self.limit = replica, machine, limit
        self.inputs, self.changed_indices = replica.inputs, replica.changed_indices
        self.module = ir.Module("lanes")
        self.module.triple = machine.triple
        self.check = make_stop_check(self)
        self.check.emit_functions()
        self.begin_function(FUNCTION_NAME, 8 + self.check.pointers)
        self.state, self.memory, self.keys, self.end, self.outcome, self.numbers, whole, real, *pointers = self.arguments
        whole, real = self.b.bitcast(whole, INT64_TYPE.as_pointer()), self.b.bitcast(real, FLOAT64_TYPE.as_pointer())
        first, steps, block, every, vectors = (self.b.load(self.address(whole, i)) for i in range(5))
        self.first, self.steps, self.block, self.every = first, steps, block, every
        self.t, self.size = (self.b.load(self.address(real, i)) for i in range(2))
        known = {self.inputs["size"]: self.v.emit_splat(self.size)} if "size" in self.inputs else {}
        self.check.begin(pointers)
        with self.loop_over_replicas(vectors) as index:
            self.emit_vector(index, known)
        self.b.ret_void()

    def begin_function(self, name: str, argument_count: int) -> None:
        """Begin a new function of the LLVM module, with this number of pointer arguments."""
        pointer = FLOAT64_TYPE.as_pointer()
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [pointer] * argument_count), name)
        self.arguments = self.function.args
        for argument in self.arguments:
            argument.add_attribute("noalias")  # arrays do not overlap, so that loads can move across stores
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.v = self.new_instructions()

    def new_instructions(self) -> VectorInstructions:
        """Return a new writer of the instructions for a program's nodes."""
        return VectorInstructions(self.module, self.b, choose_vector_width(self.replica, self.machine), self.machine.wide)

    def loop_over_replicas(self, vectors: ir.Value) -> AbstractContextManager[ir.Value]:
        """Emit a loop over the vectors of replicas, around the code that is emitted in the context."""
        return self.emit_count_loop(vectors)

    def emit_parameter_loads(self, rows: list[ir.Value]) -> dict[int, ir.Value]:
        """Emit loads of the replicas' parameters, which may differ within a vector; return the values by node index."""
        return {self.inputs["number", i]: self.load(row) for i, row in zip(self.replica.parameter_indices, rows, strict=True)}

    def emit_rare_function(self, name: str, wanted: Sequence[int]) -> ir.Function:
        """Emit a separate function for the program's values `wanted`, which are rarely needed.

        Its arguments are pointers to state, memory, parameters, radius, and the results. It is not inlined, since the loop over
        steps would spill registers around it.
        """
        self.begin_function(name, 5)
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        state, memory, self.numbers, radius, answers = self.arguments
        replica = self.replica
        own = self.b.bitcast(self.numbers, self.v.llvm_type("f64").as_pointer())
        known = self.emit_parameter_loads(self.row_pointers(own, len(replica.parameter_indices)))
        for pointer, places in ((state, replica.state), (memory, replica.memory)):
            rows = self.vector_pointers(pointer, len(places))
            known |= {place: self.load(row) for place, row in zip(places, rows, strict=True) if place in self.inputs.values()}
        if "radius" in self.inputs:
            known[self.inputs["radius"]] = self.load(self.vector_pointers(radius, 1)[0])
        self.v.emit(replica.program, replica.program.order(wanted, known), known)
        for place, row in zip(wanted, self.vector_pointers(answers, len(wanted)), strict=True):
            value, whole = known[place], self.v.llvm_type("f64")
            self.store(value if value.type == whole else self.b.uitofp(value, whole), row)
        self.b.ret_void()
        return self.function

    def emit_rare_call(
        self, function: ir.Function, values: list[ir.Value], count: int, radius: ir.Value | None = None
    ) -> list[ir.Value]:
        """Emit a call of a function from `emit_rare_function` at the lanes' new states, and return its `count` results."""
        state, memory, answers = self.emit_state_copy(values), *(self.allocate(rows) for rows in (len(self.remembered), count))
        for row, copy in zip(self.remembered, self.vector_pointers(memory, len(self.remembered)), strict=True):
            self.store(self.load(row), copy)
        pointer = FLOAT64_TYPE.as_pointer()
        trial = ir.Constant(pointer, None) if radius is None else self.b.bitcast(radius, pointer)
        own = self.b.bitcast((self.own or [self.numbers])[0], pointer)
        self.b.call(function, [state, memory, own, trial, answers])
        return [self.load(row) for row in self.vector_pointers(answers, count)]

    def address(self, pointer: ir.Value, index: Any) -> ir.Value:
        """Emit the address of an entry of an array."""
        return self.b.gep(pointer, [INT64_TYPE(index) if isinstance(index, int) else index])

    def coordinate_pointers(self, pointer: ir.Value, kind: str, index: ir.Value, count: int) -> list[ir.Value]:
        """Emit pointers to the `count` coordinates that an array has for the vector of replicas with this index."""
        first = self.address(pointer, self.b.mul(index, INT64_TYPE(count * self.v.width)))
        return self.row_pointers(self.b.bitcast(first, self.v.llvm_type(kind).as_pointer()), count)

    def row_pointers(self, base: ir.Value, count: int) -> list[ir.Value]:
        """Emit pointers to `count` coordinates of a vector of replicas, from the pointer `base` to the first one."""
        return [self.address(base, i) for i in range(count)]

    def vector_pointers(self, pointer: ir.Value, count: int) -> list[ir.Value]:
        """Emit pointers to the `count` vectors in memory from `allocate`."""
        base = self.b.bitcast(pointer, self.v.llvm_type("f64").as_pointer())
        return [self.address(base, i) for i in range(count)]

    def load(self, pointer: ir.Value) -> ir.Value:
        """Emit the load of a vector from memory that is aligned to doubles only, as NumPy's is."""
        value = self.b.load(pointer)
        value.align = 8
        return value

    def store(self, value: ir.Value, pointer: ir.Value) -> None:
        """Emit the store of a vector to memory that is aligned to doubles only."""
        self.b.store(value, pointer).align = 8

    def store_lanes(self, lanes: ir.Value, value: ir.Value, pointer: ir.Value) -> None:
        """Emit a masked store: values are stored in the lanes `lanes`, and the other lanes keep their values in memory."""
        self.store(self.b.select(lanes, value, self.load(pointer)), pointer)

    @contextmanager
    def emit_count_loop(self, count: ir.Value) -> Iterator[ir.Value]:
        """Emit a loop over the indices below a count of at least one, around the code that is emitted in the context."""
        b, index = self.b, self.v.allocate_variable(INT64_TYPE)
        b.store(INT64_TYPE(0), index)
        again, leave = b.append_basic_block("again"), b.append_basic_block("leave")
        b.branch(again)
        b.position_at_end(again)
        here = b.load(index)
        yield here
        after = b.add(here, INT64_TYPE(1))
        b.store(after, index)
        b.cbranch(b.icmp_signed("<", after, count), again, leave)
        b.position_at_end(leave)

    def emit_vector(self, index: ir.Value, known: dict[int, ir.Value]) -> None:
        """Emit the loop over all steps of one vector of replicas."""
        b, v, replica = self.b, self.v, self.replica
        self.good = self.coordinate_pointers(self.state, "f64", index, len(replica.state))
        self.remembered = self.coordinate_pointers(self.memory, "f64", index, len(replica.memory))
        self.ended, self.ending = (self.coordinate_pointers(array, "i64", index, 1)[0] for array in (self.end, self.outcome))
        keys = zip(("run", "seed", "seed_high"), self.coordinate_pointers(self.keys, "i64", index, 3), strict=True)
        self.own = self.coordinate_pointers(self.numbers, "f64", index, len(replica.parameter_indices))
        self.slots = {i: v.allocate_variable(v.llvm_type("f64")) for i in self.changed_indices}
        self.moving, made = v.allocate_variable(v.llvm_type("b1")), v.allocate_variable(INT64_TYPE)
        for i, place in enumerate(replica.state):
            value = self.load(self.good[i])
            if i in self.slots:
                b.store(value, self.slots[i])
            else:
                known = known | ({} if replica.program.constant_value(place) is not None else {place: value})
        known = known | {place: self.load(row) for place, row in zip(replica.memory, self.remembered, strict=True)}
        known = known | {self.inputs[name]: v.emit_low_word(self.load(row)) for name, row in keys if name in self.inputs}
        known |= self.emit_parameter_loads(self.own)
        # Coordinates that a step changes are variables of the loop; the others were loaded once, above.
        b.store(b.icmp_signed("<", self.load(self.ended), v.const(0, "i64")), self.moving)
        b.store(INT64_TYPE(0), made)
        self.check.begin_vector(index)
        parts, part, leave = (b.append_basic_block(name) for name in ("parts", "part", "leave"))
        b.branch(parts)
        b.position_at_end(parts)
        begin = b.load(made)
        b.cbranch(b.and_(b.icmp_signed("<", begin, self.steps), v.emit_any_lane(b.load(self.moving))), part, leave)
        b.position_at_end(part)
        # A part ends after `every` steps, at the end of a block or of the call, whichever comes first: as in the kernel `xla`,
        # so that both find divergence at the same steps.
        smaller = lambda x, y: b.select(b.icmp_signed("<", x, y), x, y)
        count = smaller(smaller(self.every, b.sub(self.block, b.srem(begin, self.block))), b.sub(self.steps, begin))
        with self.emit_count_loop(count) as number:
            self.emit_step(b.add(begin, number), known)
        self.end_function(b.add(self.first, begin))
        b.store(b.add(begin, count), made)
        b.branch(parts)
        b.position_at_end(leave)

    def emit_step(self, number: ir.Value, known: dict[int, ir.Value]) -> None:
        """Emit one step of all lanes, and the check for lanes that stop."""
        b, v, replica = self.b, self.v, self.replica
        at = b.add(self.first, number)
        t = b.fadd(self.t, b.fmul(b.sitofp(number, FLOAT64_TYPE), self.size))
        known = known | {
            self.inputs[name]: v.emit_splat(value) for name, value in (("step", at), ("t", t)) if name in self.inputs
        }
        known |= {replica.state[i]: b.load(slot) for i, slot in self.slots.items()}
        results = [replica.next_state[i] for i in self.changed_indices]
        v.emit(replica.program, replica.program.order(results, known), known)
        values = [known[place] for place in results]
        for value, slot in zip(values, self.slots.values(), strict=True):
            b.store(value, slot)
        self.check.emit_check_after_step(values, at, known)

    def emit_lane_stop(self, hit: ir.Value, values: list[ir.Value], at: ir.Value) -> None:
        """Emit code that ends the replicas in the lanes `hit`, unless they have diverged, and stores states and step."""
        b, v = self.b, self.v
        with b.if_then(v.emit_any_lane(hit), likely=False):
            # A diverging lane may seem to stop; it is left to the check at the end of the part.
            hit = b.and_(hit, self.has_bound(values))
            for i, value in zip(self.changed_indices, values, strict=True):
                self.store_lanes(hit, value, self.good[i])
            self.store_lanes(hit, v.emit_splat(b.add(at, INT64_TYPE(1))), self.ended)
            self.store_lanes(hit, v.const(1, "i64"), self.ending)
            b.store(b.and_(b.load(self.moving), b.not_(hit)), self.moving)

    def emit_state_copy(self, values: list[ir.Value]) -> ir.Value:
        """Emit a copy of the whole state in new memory and return its address; `values` are the coordinates that change."""
        state = self.allocate(len(self.good))
        for i, row in enumerate(self.vector_pointers(state, len(self.good))):
            self.store(values[self.changed_indices.index(i)] if i in self.slots else self.load(self.good[i]), row)
        return state

    def allocate(self, rows: int) -> ir.Value:
        """Emit the allocation of `rows` vectors on the stack, and return their address."""
        with self.b.goto_entry_block():
            return self.b.bitcast(self.b.alloca(self.v.llvm_type("f64"), rows), FLOAT64_TYPE.as_pointer())

    def end_function(self, begin: ir.Value) -> None:
        """Emit the check for divergence after some steps: keep bounded states of active replicas, and end the others."""
        b, v = self.b, self.v
        values = {i: b.load(slot) for i, slot in self.slots.items()}
        fine, on = self.has_bound(values.values()), b.load(self.moving)
        # Usually all lanes are active and finite, and their states are stored without a mask.
        with b.if_else(v.emit_any_lane(b.not_(b.and_(fine, on))), likely=False) as (some, all_):
            with some:
                for i, value in values.items():
                    self.store_lanes(b.and_(fine, on), value, self.good[i])
                broken = b.and_(on, b.not_(fine))
                self.store_lanes(broken, v.emit_splat(begin), self.ended)
                self.store_lanes(broken, v.const(2, "i64"), self.ending)
                b.store(b.and_(on, fine), self.moving)
            with all_:
                for i, value in values.items():
                    self.store(value, self.good[i])

    def has_bound(self, values: Iterable[ir.Value]) -> ir.Value:
        """Emit the test, for each lane, whether all absolute values are at most the limit of divergence; false for NaN."""
        b, v = self.b, self.v
        fine = v.const(1, "b1")
        for value in values:
            fine = b.and_(fine, b.fcmp_ordered("<=", v.intrinsic("fabs", value), v.const(self.limit, "f64")))
        return fine

"""Code for the processor."""

from __future__ import annotations

import ctypes

import numpy as np
from llvmlite import ir

from sgdlimits.kernel.compiler import llvm


def test_code_that_stores_many_zeros_is_loaded(monkeypatch):
    """A compiler makes a call of memset from these, which the process that loads it would not survive."""
    monkeypatch.setattr(llvm, "is_optimisation_off", lambda: False)
    module, double = ir.Module(), ir.DoubleType()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [double.as_pointer()]), llvm.FUNCTION_NAME)
    builder = ir.IRBuilder(function.append_basic_block())
    for i in range(400):
        builder.store(double(0.0), builder.gep(function.args[0], [ir.IntType(64)(i)]))
    builder.ret_void()
    machine, row = llvm.HostProcessor(), np.ones(401)
    code = machine.compile_object(str(module))
    assert b"memset" not in code
    owner, address = machine.load(code)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(row.ctypes.data)
    assert not row[:400].any()
    assert row[400]
    del owner

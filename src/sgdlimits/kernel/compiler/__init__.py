"""Compiler from the jaxpr of one replica's step to LLVM code for vectors of a processor, or to PTX for threads of a GPU.

It works on jaxprs and programs, independent of problems, levels and runs, and imports nothing of this package but errors.
`flatten` and `walk` translate a jaxpr to a `Program`, a `Replica` gives the roles of its values, and `llvm` and `ptx` write
machine code.
"""

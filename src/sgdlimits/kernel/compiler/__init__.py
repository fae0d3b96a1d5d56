"""The compiler: from the jaxpr of one replica's step to LLVM for vectors of a processor, or to PTX for threads of a GPU.

It knows jaxprs, programs and machines, and nothing of problems, levels and runs: it imports nothing else of this package.
`flatten` and `walk` make a `Program` of a jaxpr, a `Replica` says which numbers of a program are what, and `llvm` and `ptx`
write the code that makes its steps.
"""

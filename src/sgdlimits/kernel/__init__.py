"""Kernels, which execute the steps of a process: `xla` supports any process; `lanes` and `cuda` are faster for small states."""

import sgdlimits._x64

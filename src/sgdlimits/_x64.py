"""Double precision, switched on before the first array is made.

Overlaps leave a saddle from 1/sqrt(d) by many steps of size 1/d, whose sum single precision would bias at large d.
The subpackages that use JAX import this module first.
"""

import jax

jax.config.update("jax_enable_x64", True)

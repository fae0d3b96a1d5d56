"""Double precision, switched on before the first array is made.

Overlaps leave a saddle from 1/sqrt(d): in single precision the sum of many steps of size 1/d biases exit times by several
per cent at d = 10^6. The subpackages that use JAX import this module first.
"""

import jax

jax.config.update("jax_enable_x64", True)

"""How steps are made: `xla`, which takes any process, and `lanes`, which takes small ones and is faster."""

import sgdlimits._x64

"""Every operation, declared once. The faces (`xpushare`, `xpushare.ipc`, `xpushare.ur`) call these and add no rules of
their own.
"""

import os

if "UR_ENABLE_LAYERS" in os.environ:  # here, since every import of an operation comes by this module first
    from xpushare.core.layers import from_environment

    from_environment()

"""Every operation, declared once. The faces (`xpushare`, `xpushare.ipc`, `xpushare.ur`) call these and add no rules of
their own.
"""

import os

if "UR_ENABLE_LAYERS" in os.environ:  # here: nothing can call an operation before, whatever was imported first
    from xpushare.core.layers import from_environment

    from_environment()

"""The operations of the package, each declared once. The public modules `xpushare`, `xpushare.ipc` and `xpushare.ur`
call these operations and add no rules of their own.
"""

import os

if "UR_ENABLE_LAYERS" in os.environ:  # here, since every import of an operation comes by this module first
    from xpushare.core.layers import from_environment

    from_environment()

"""The operations of the package, each declared once. The public modules `xpushare`, `xpushare.ipc` and `xpushare.ur`
call these operations and add no rules of their own.
"""

import os
import sys

# Here, since every import of an operation comes by this module first. Elsewhere than on Linux there are no operations.
if sys.platform == "linux" and "UR_ENABLE_LAYERS" in os.environ:
    from xpushare.core.layers import from_environment

    from_environment()

"""Stands in for the native library `_native.abi3.so` if it is missing, and raises the error that says so. If the
library exists, Python imports it instead of this file.
"""

from __future__ import annotations

import sys

from xpushare.common.errors import FeatureNotSupportedError

raise FeatureNotSupportedError(
    "this installation of xpushare has no native part (xpushare/_native.abi3.so), which is "
    + (
        "built when the package is installed: install it again, from a wheel or with a C compiler"
        if sys.platform == "linux"
        else f"for Linux only: on {sys.platform} the package can be imported, and lists no devices"
    )
)

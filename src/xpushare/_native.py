"""Raises the error for a missing native part. Python finds the native part, which is built for Linux only, before this
file.
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

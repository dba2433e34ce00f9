"""Every operation, declared once; the faces (`xpushare`, `xpushare.ipc`, `xpushare.ur`) call these and add no rules of
their own.
"""

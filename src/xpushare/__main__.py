"""Runs the command `xpushare`, for `python -m xpushare`."""

from xpushare.cli import main

if __name__ == "__main__":  # multiprocessing's spawn imports this module in children
    raise SystemExit(main())

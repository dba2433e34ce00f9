"""The command `python -m xpushare.keeper`, by which `publish(keep=True)` and `xpushare keep` start the keeper."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the keeper process. With `--detach`, start it in a new session, and return once it accepts connections."""
    arguments = sys.argv[1:]
    detach = "--detach" in arguments
    ready = -1
    if detach:
        done, ready = os.pipe()
        if os.fork():
            os.close(ready)
            with os.fdopen(done, "rb") as answer:
                text = answer.read().decode(errors="replace")
            if text != "ready":
                print(text or "it ended at once")
            os._exit(text != "ready")
        os.close(done)
        os.setsid()
    from xpushare.keeper.process import serve

    limits = dict(each.split("=", 1) for each in arguments if "=" in each)
    return serve(ready, int(limits.get("--max-bytes", 0)), float(limits.get("--ttl", 0)))


if __name__ == "__main__":
    sys.exit(main())

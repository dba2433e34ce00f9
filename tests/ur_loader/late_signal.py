"""late_signal.py FOLDER: opens the event of FOLDER, signals it, and completes the signal once FOLDER/go is there."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import xpushare as xs

folder = Path(sys.argv[1])
event = xs.ipc.event.open((folder / "event").read_bytes())
queue = xs.Queue(event.device)


def until_told() -> None:
    while not (folder / "go").exists():
        time.sleep(0.005)


queue.submit(until_told)
queue.signal(event)
print("signalled", flush=True)
queue.synchronize()

"""Closes the software driver's books of each process that starts with this folder in PYTHONPATH.

What a program holds at its end is the kernel's to clean up: the package gives none of it back. So that the books show
what the adapter alone has forgotten, everything that has an owner is given back here, after all else that the package
does at a clean exit and before the adapter stops. The driver writes down what it has then (SOFTZE_BOOKS).
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from contextlib import suppress

# Before the package: what finalizers do at the exit comes in the opposite order, and none runs after `weakref`'s own.
weakref.finalize(gc, int).atexit = False

from xpushare.common.leaving import Stage, at_leave  # noqa: E402

_PATIENCE = 10  # seconds


def _settle() -> None:
    """Wait for the teardowns that were submitted so far."""
    background = sys.modules.get("xpushare.adapters.stream.background")
    for each in gc.get_objects():
        if background and isinstance(each, background.Teardown):
            each.settle(_PATIENCE)


def _give_back(_deadline: float) -> None:
    from xpushare._native import left
    from xpushare.common.errors import XpuShareError
    from xpushare.core.resources import End
    from xpushare.objects.lifecycle import Closable
    from xpushare.sharing import node

    gc.unfreeze()  # the suite freezes what was there before it ran
    left(False)  # what dies from here on is given back as before
    # What queues wait for is lost by now; they go on once they have noticed.
    queues = sys.modules.get("xpushare.adapters.stream.queue")
    end = time.monotonic() + _PATIENCE
    while queues and any(isinstance(each, queues.DeviceQueue) and each.unfinished() for each in gc.get_objects()):
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    here = node.current()
    here.idle.end()  # memory that would be opened again or serve later arrays is released, now and from here on
    ends = [each for each in gc.get_objects() if isinstance(each, End)]
    for each in ends:
        with suppress(XpuShareError):  # events are given up by leaving; what fails else shows in the books
            each.__del__()
    _settle()  # memory that the device may still work with
    left(True)  # what was given back is not given back again
    # The pages of events go with the last reference to them.
    channels = sys.modules.get("xpushare.channels.channel")
    for each in gc.get_objects():
        if isinstance(each, Closable) or (channels and isinstance(each, channels.Channel)):
            each.close()
    here.peers._peers.clear()  # the thread that looks after what is kept may hold `peers` a moment longer
    for name in type(here).__slots__:
        delattr(here, name)
    ends.clear()
    gc.collect()
    # A queue ends in the background, once its work has.
    modules = [sys.modules.get(f"xpushare.adapters.{name}._adapter") for name in ("level_zero", "hip")]
    streams = tuple([module.Stream for module in modules if module])
    end = time.monotonic() + _PATIENCE
    while any(isinstance(each, streams) and each.handle for each in gc.get_objects()):
        if time.monotonic() > end:
            break  # the books will say so
        time.sleep(0.01)
    gc.collect()
    _settle()  # what holds the pages of events
    _settle()  # these pages


at_leave(_give_back, Stage.STOP)  # before the adapter's own, which is given when the adapter is made

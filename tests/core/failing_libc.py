"""Has each call of the kernel in each operation fail in turn, in a process that preloads failing_libc.c. Prints what
came out and is not an error of this package: one JSON object, failure -> where.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy  # noqa: F401 - no child should import it anew

import xpushare as xs

FAILURES = {
    "fcntl": errno.ENOLCK,
    "fstat": errno.EIO,
    "futex": errno.ENOSYS,
    "getrandom": errno.EIO,
    "eventfd": errno.EMFILE,
    "epoll_create": errno.EMFILE,
    "epoll_ctl": errno.ENOSPC,
    "pread": errno.EIO,
}
MOST = 60  # calls of one kind in an operation
DEVICE = "native_cpu:0"
PEER = """
import sys, xpushare as xs
array, event = xs.empty(4), xs.Event("native_cpu:0", enable_ipc=True, signals=True)
xs.publish("theirs", array)
print(bytes(xs.share(array)).hex(), bytes(xs.ipc.event.get(event)).hex(), flush=True)
sys.stdin.read()
"""


def event() -> xs.Event:
    return xs.Event(DEVICE, enable_ipc=True)


def wait(waited: xs.Event) -> None:
    with contextlib.suppress(TimeoutError):
        waited.wait(0.01, at_least=1)


def awaits() -> None:
    waited = event()

    async def main() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await waited.reached(1)

    try:
        loop = asyncio.new_event_loop()
    except OSError:
        return  # asyncio's own
    loop.run_until_complete(main())
    loop.close()


def queue() -> None:
    with xs.Queue(DEVICE) as work:
        done = event()
        work.submit(int)
        work.signal(done)
        done.wait(10, at_least=1)
        work.synchronize(10)


def virtual() -> None:
    place = xs.VirtualRange(65536, DEVICE)
    place.map(xs.PhysicalMemory(65536, DEVICE, enable_ipc=True))
    memoryview(place).release()


def watch(name: str) -> None:
    with contextlib.suppress(TimeoutError), xs.watch(name, timeout=0.01, lost=True) as versions:
        for _ in range(2):
            next(versions)


def publish() -> None:
    array = xs.empty(4)
    xs.publish("ours", array)
    xs.publish("ours", array, replace=True)
    xs.unpublish("ours")


def outcome(operation: Callable[[], Any]) -> str:
    try:
        operation()
    except (xs.XpuShareError, TimeoutError):
        pass
    except BaseException as error:
        places = [each for each in traceback.extract_tb(error.__traceback__) if "xpushare" in each.filename]
        place = f"{os.path.basename(places[-1].filename)}:{places[-1].lineno}" if places else "elsewhere"
        return f"{type(error).__name__}: {error} in {place}"
    return ""


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    for name in xs.__all__:
        getattr(xs, name)
    asyncio.run(asyncio.sleep(0))  # loads what it needs
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert peer.stdout is not None
    theirs, their_event = map(bytes.fromhex, peer.stdout.readline().split())
    operations: dict[str, Callable[[], Any]] = {
        "share": lambda: xs.share(xs.empty(4)),
        "share again": lambda: [xs.share(array) for array in (xs.empty(4), xs.empty(4), xs.empty(1 << 20))],
        "share large": lambda: xs.share(xs.empty(1 << 20)),
        "share a tree": lambda: xs.share([xs.empty(4), xs.empty(1 << 20)]),
        "attach": lambda: [xs.attach(theirs) for _ in range(3)],
        "get": lambda: xs.ipc.memory.get(xs.malloc_device(4096, DEVICE)),
        "pickle": lambda: pickle.loads(pickle.dumps(xs.empty(4))),
        "event": event,
        "wait": lambda: wait(event()),
        "wait for a peer": lambda: wait(xs.ipc.event.open(their_event)),
        "await": awaits,
        "queue": queue,
        "virtual": virtual,
        "watch": lambda: watch("nobody's"),
        "watch a peer": lambda: watch("theirs"),
        "publish": publish,
        "lookup": lambda: xs.lookup("theirs", timeout=0),
        "published": xs.published,
        "shares": xs.shares,
    }
    chosen = {name: operations[name] for name in sys.argv[2:] or operations}
    found: dict[str, list[str]] = {}
    for call, number in FAILURES.items():
        for name, operation in chosen.items():
            for nth in range(1, MOST):
                reading, writing = os.pipe()
                child = os.fork()  # a process that has shared nothing so far
                if not child:
                    signal.alarm(30)
                    library.arm(call.encode(), number, nth)
                    text = outcome(operation)
                    came = library.disarm()
                    os.write(writing, f"{came}{text}".encode())
                    os._exit(0)
                os.close(writing)
                with open(reading) as report:
                    text = report.read()
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                if text.startswith("0"):
                    break  # it makes no more such calls
                if text != "1":
                    found.setdefault(f"{call}: {text[1:] or f'ended with {status}'}", []).append(f"{name} {nth}")
    peer.kill()
    peer.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main()

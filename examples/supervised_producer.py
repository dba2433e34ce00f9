"""One producer, several readers, and a supervisor that starts the producer again when it dies.

The producer makes the frame and the event anew each time and publishes them under the same names. The readers only wait
(`signals=False`), so nobody relies on them; the producer says `signals=True`, so all of them are told within a second
when it is gone, also before its first frame. They look the names up again, in the reverse of the order in which they
are published: whoever finds an event finds its producer's frame or a later one's. With a later one's, the event
is a dead producer's, and the first wait tells.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import threading
from typing import Any

import numpy as np

import xpushare as xs

FRAME, READY = f"frame-{os.getpid()}", f"ready-{os.getpid()}"  # the supervisor's pid: two of these may run


def produce(names: tuple[str, str], first: int, pace: float) -> None:
    frame = xs.empty(1024, "int64")
    ready = xs.Event(enable_ipc=True, signals=True)
    view = np.asarray(frame)
    for name, thing in zip(names, (frame, ready), strict=True):
        xs.publish(name, thing)
    never = threading.Event()
    for number in range(first, 1 << 40):
        view[:] = number
        ready.signal()
        never.wait(pace)


def read(names: tuple[str, str], wanted: int, results: Any) -> None:
    """Read until frame `wanted` has come. Count how often the producer was lost."""
    lost, newest = 0, -1
    while newest < wanted:
        try:
            ready = xs.ipc.event.open(xs.lookup(names[1], timeout=30), signals=False)
            with ready, xs.attach(xs.lookup(names[0], timeout=30)) as frame:
                while newest < wanted:
                    ready.wait(30, at_least=ready.value + 1)
                    newest = int(np.asarray(frame)[-1])
        except xs.PeerLostError:
            lost += 1
        except xs.HandleExpiredError:
            pass  # the names are still those of the dead one
    results.put((lost, newest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--restarts", type=int, default=2)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    names = FRAME, READY
    last = 1000 * arguments.restarts  # each producer's numbers begin a thousand further

    def start(number: int) -> Any:
        producer = context.Process(target=produce, args=(names, 1000 * number, 0.01), daemon=True)
        producer.start()
        return producer

    producer = start(0)
    readers = [context.Process(target=read, args=(names, last, results), daemon=True) for _ in range(arguments.readers)]
    for reader in readers:
        reader.start()
    for restart in range(1, arguments.restarts + 1):
        with xs.ipc.event.open(xs.lookup(names[1], timeout=30), signals=False) as ready:
            ready.wait(30, at_least=20)
            os.kill(producer.pid, signal.SIGKILL)
            with contextlib.suppress(xs.PeerLostError):  # a supervisor may wait as its readers do
                ready.wait(60, at_least=1 << 40)
            producer.join()
        producer = start(restart)
    for _ in readers:
        lost, newest = results.get(timeout=60)
        assert newest >= last
        assert lost <= arguments.restarts
    for reader in readers:
        reader.join()
    os.kill(producer.pid, signal.SIGKILL)
    producer.join()
    print(f"{len(readers)} readers went on through {arguments.restarts} restarts of the producer")


if __name__ == "__main__":
    main()

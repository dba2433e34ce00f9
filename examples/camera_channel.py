"""A camera writes into shared slots; a recorder sees every frame, a detector only the newest. The camera is killed in
the middle of a frame and started again, and both readers go on.
"""

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Barrier

import numpy as np

import xpushare as xs

SHAPE = (1080, 1920, 3)


def camera(ready: Barrier | None, first: int, dies_at: int) -> None:
    with xs.Channel.create("camera", SHAPE, "uint8", label="camera") as ch:
        if ready:
            ready.wait()  # a camera waits for no reader that is not there yet
        for number in range(first, 41):
            with ch.loan() as frame:
                np.asarray(frame)[:] = number  # where a camera's driver would write
                if number == dies_at:
                    os.kill(os.getpid(), signal.SIGKILL)  # nobody sees a frame that was not sent
                frame.meta = {"number": number, "t": time.time()}
        ch.finish()


def recorder(ready: Barrier) -> None:
    with xs.Channel.open("camera", reconnect=True, label="recorder") as ch:
        ready.wait()
        for count, frame in enumerate(ch, 1):
            assert frame.missed == 0
            assert np.asarray(frame)[0, 0, 0] == frame.meta["number"] == count
    assert count == 40
    print(f"the recorder saw all {count} frames")


def detector(ready: Barrier) -> None:
    with xs.Channel.open("camera", mode="newest", reconnect=True, label="detector") as ch:
        ready.wait()
        last = missed = 0
        for frame in ch:
            time.sleep(0.01)  # detecting takes a while
            last, missed = frame.meta["number"], frame.missed
    print(f"the detector saw frame {last} last, and skipped {missed} frames")


def main() -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(3, timeout=60)  # breaks for the others if one of them does not come
    first = context.Process(target=camera, args=(ready, 1, 21), daemon=True)
    readers = [context.Process(target=each, args=(ready,), daemon=True) for each in (recorder, detector)]
    for each in (first, *readers):
        each.start()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    second = context.Process(target=camera, args=(None, 21, 0), daemon=True)
    second.start()
    for each in (second, *readers):  # a failed reader stops no camera; if a camera fails, this program ends its readers
        each.join()
        assert each.exitcode == 0


if __name__ == "__main__":
    main()

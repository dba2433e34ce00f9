"""A camera writes into shared slots. One reader sees every frame, and a slow one only the newest. The camera is killed
and started again, and both readers go on.
"""

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Barrier
from typing import Literal

import numpy as np

import xpushare as xs


def camera(ready: Barrier, first: int, dies_after: int) -> None:
    with xs.Channel.create("camera", (1080, 1920, 3), "uint8") as ch:
        ready.wait()  # a camera waits for no reader that has yet to open the channel
        for number in range(first, 41):
            with ch.loan() as frame:
                np.asarray(frame)[:] = number  # where a camera's driver would write
            if number == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)
        ch.finish()


def reader(ready: Barrier, mode: Literal["all", "newest"], seconds: float) -> None:
    with xs.Channel.open("camera", mode=mode, reconnect=True) as ch:
        ready.wait()
        for frame in ch:
            assert np.asarray(frame)[0, 0, 0] == frame.seq
            time.sleep(seconds)
    print(f"{mode}: the last frame was {frame.seq}, {frame.missed} were skipped")


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    ready, alone = spawn.Barrier(3, timeout=60), spawn.Barrier(1)  # breaks for the others if one of three does not come
    readers = [spawn.Process(target=reader, args=(ready, *how), daemon=True) for how in (("all", 0), ("newest", 0.01))]
    cameras = [spawn.Process(target=camera, args=each, daemon=True) for each in ((ready, 1, 20), (alone, 21, 0))]
    for each in (cameras[0], *readers):
        each.start()
    cameras[0].join()
    cameras[1].start()
    for each in (cameras[1], *readers):  # if a camera fails, this program ends its readers
        each.join()
        assert each.exitcode == 0


if __name__ == "__main__":
    main()

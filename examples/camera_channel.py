"""A camera writes into shared slots; a recorder sees every frame, a detector only the newest. The camera is killed and
started again meanwhile, and both readers go on.
"""

import multiprocessing
import time

import numpy as np

import xpushare as xs

SHAPE = (1080, 1920, 3)


def camera(first: int, count: int, finish: bool) -> None:
    with xs.Channel.create("camera", SHAPE, "uint8", on_full="block", label="camera") as ch:
        for number in range(first, first + count):
            with ch.loan() as frame:
                np.asarray(frame)[:] = number  # where a camera's driver would write
                frame.meta = {"number": number, "t": time.time()}
        if finish:
            ch.finish()
        else:
            multiprocessing.Event().wait()  # it hangs, and somebody kills it


def recorder(ready: xs.Atomic, seen: xs.Atomic) -> None:
    with xs.Channel.open("camera", start="oldest", reconnect=True, label="recorder") as ch:
        ready.add(1)
        for frame in ch:
            assert frame.missed == 0
            assert np.asarray(frame)[0, 0, 0] == frame.meta["number"]
            seen.store(frame.meta["number"])


def detector(ready: xs.Atomic) -> None:
    with xs.Channel.open("camera", mode="newest", start="oldest", reconnect=True, label="detector") as ch:
        ready.add(1)
        last = missed = 0
        for frame in ch:
            time.sleep(0.01)  # detecting takes a while
            last, missed = frame.meta["number"], frame.missed
    print(f"the detector saw frame {last} last, and skipped {missed} frames")


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with xs.Atomic() as ready, xs.Atomic() as seen:
        first = context.Process(target=camera, args=(1, 20, False))
        readers = [
            context.Process(target=recorder, args=(ready, seen)),
            context.Process(target=detector, args=(ready,)),
        ]
        for each in (first, *readers):
            each.start()
        while seen.load() < 20:
            seen.wait(seen.load(), 60)
        first.kill()
        second = context.Process(target=camera, args=(21, 20, True))
        second.start()
        for each in (*readers, second):
            each.join()
            assert each.exitcode == 0
        print(f"the recorder saw all {seen.load()} frames")
        assert seen.load() == 40


if __name__ == "__main__":
    main()

"""A ring of frame buffers between a decoding and an inferring process, against the same frames through
multiprocessing.Queue.

Two events order the ring: `filled` counts the frames that were written, `emptied` those that were read. Both
processes wait without polling, and should one die, the other gets PeerLostError instead of waiting for ever.
"""

import multiprocessing
import time
from multiprocessing.queues import Queue

import numpy as np

import xpushare as xs

FRAME = (2048, 1024, 4)  # 8 MiB of uint8
SLOTS = 4
FRAMES = 60


def decode_to_ring(ring: xs.SharedArray, filled: xs.Event, emptied: xs.Event) -> None:
    slots = np.asarray(ring)
    for number in range(FRAMES):
        emptied.wait(30, at_least=number + 1 - SLOTS if number >= SLOTS else 0)
        slots[number % SLOTS] = number  # the decoder writes into the buffer itself
        filled.signal()


def infer_from_ring(ring: xs.SharedArray, filled: xs.Event, emptied: xs.Event) -> None:
    slots = np.asarray(ring)
    for number in range(FRAMES):
        filled.wait(30, at_least=number + 1)
        frame = slots[number % SLOTS]
        assert frame[0, 0, 0] == frame[-1, -1, -1] == number
        emptied.signal()


def decode_to_queue(queue: "Queue[np.ndarray]") -> None:
    for number in range(FRAMES):
        queue.put(np.full(FRAME, number, "uint8"))


def infer_from_queue(queue: "Queue[np.ndarray]", started: xs.Event) -> None:
    started.signal()
    for number in range(FRAMES):
        frame = queue.get(timeout=30)
        assert frame[0, 0, 0] == frame[-1, -1, -1] == number
        started.signal()


def frames_per_second(
    decoder: multiprocessing.Process, inferrer: multiprocessing.Process, counted: xs.Event, first: int
) -> float:
    """From the first frame's arrival to the last one's: the start of the processes is not counted."""
    inferrer.start()
    decoder.start()
    counted.wait(60, at_least=first)
    begin = time.perf_counter()
    counted.wait(60, at_least=first + FRAMES - 1)
    seconds = time.perf_counter() - begin
    for process in (decoder, inferrer):
        process.join()
        assert process.exitcode == 0
    return (FRAMES - 1) / seconds


def main() -> None:
    spawn = multiprocessing.get_context("spawn")

    def event() -> xs.Event:
        return xs.Event("native_cpu:0", enable_ipc=True)

    ring = xs.empty((SLOTS, *FRAME), "uint8")
    filled, emptied = event(), event()
    shared = frames_per_second(
        spawn.Process(target=decode_to_ring, args=(ring, filled, emptied)),  # type: ignore[arg-type]
        spawn.Process(target=infer_from_ring, args=(ring, filled, emptied)),  # type: ignore[arg-type]
        emptied,
        1,
    )
    queue: Queue[np.ndarray] = spawn.Queue(SLOTS)
    started = event()
    queued = frames_per_second(
        spawn.Process(target=decode_to_queue, args=(queue,)),  # type: ignore[arg-type]
        spawn.Process(target=infer_from_queue, args=(queue, started)),  # type: ignore[arg-type]
        started,
        2,
    )
    queue.close()
    queue.join_thread()
    assert emptied.value == FRAMES
    print(f"8 MiB frames: {shared:.0f} per second through shared buffers, {queued:.0f} through multiprocessing.Queue")


if __name__ == "__main__":
    main()

"""A ring of frame buffers between a decoding and an inferring process, against the same frames through
multiprocessing.Queue.

Two events order the ring: `filled` counts the frames that were written, `emptied` those that were read. On the host
each process waits for the other one's number, without polling; on a GPU its stream does, and the host runs ahead.
Should one process die, the other gets PeerLostError instead of waiting for ever.
"""

import argparse
import multiprocessing
import time
from multiprocessing.queues import Queue
from typing import Any

import numpy as np

import xpushare as xs

FRAME = (1024, 2048)  # pixels of 4 bytes: 8 MiB
STILL = np.arange(FRAME[0] * FRAME[1], dtype="int32").reshape(FRAME)  # frame n is this picture, n brighter
SLOTS = 4
WARM_UP = 10  # frames before the clock starts
RING_FRAMES, QUEUE_FRAMES = 600, 60


class Host:
    """NumPy: what was called is done when it returns, so the caller waits and signals."""

    add = staticmethod(np.add)
    view = array = to_host = staticmethod(np.asarray)

    def wait(self, event: xs.Event, number: int) -> None:
        event.wait(30, at_least=number)

    def signal(self, event: xs.Event) -> None:
        event.signal()

    def finish(self) -> None:
        pass


class Gpu:
    """torch: calls are queued on a stream, and the stream waits and signals; the caller goes on at once."""

    def __init__(self, device: xs.Device) -> None:
        import torch

        torch.cuda.set_stream(torch.cuda.Stream(device.ordinal))
        self.queue = xs.Queue.from_native(torch.cuda.current_stream())
        self.add = torch.add
        self.view = torch.from_dlpack

    def array(self, values: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(values).to(self.queue.device.ordinal)

    def to_host(self, values: Any) -> np.ndarray:
        return values.cpu().numpy()

    def wait(self, event: xs.Event, number: int) -> None:
        self.queue.wait(event, at_least=number)

    def signal(self, event: xs.Event) -> None:
        self.queue.signal(event)

    def finish(self) -> None:
        self.queue.synchronize(30)  # what is still queued would end with this process


def work_on(device: xs.Device) -> Any:
    return Gpu(device) if device.type == "gpu" else Host()


def decode_to_ring(ring: xs.SharedArray, filled: xs.Event, emptied: xs.Event) -> None:
    work = work_on(ring.device)
    slots, still = work.view(ring), work.array(STILL)
    for number in range(RING_FRAMES):
        if number >= SLOTS:
            work.wait(emptied, number + 1 - SLOTS)
        work.add(still, number, out=slots[number % SLOTS])  # the decoder writes into the buffer itself
        work.signal(filled)
    work.finish()


def infer_from_ring(ring: xs.SharedArray, filled: xs.Event, emptied: xs.Event) -> None:
    work = work_on(ring.device)
    slots, found = work.view(ring), work.array(np.zeros(RING_FRAMES, "int64"))
    for number in range(RING_FRAMES):
        work.wait(filled, number + 1)
        found[number] = slots[number % SLOTS].sum()
        work.signal(emptied)
    work.finish()
    check(found.tolist())


def decode_to_queue(device: str, queue: "Queue[np.ndarray]") -> None:
    work = work_on(xs.Device(device))
    still = work.array(STILL)
    for number in range(QUEUE_FRAMES):
        queue.put(work.to_host(work.add(still, number)))


def infer_from_queue(device: str, queue: "Queue[np.ndarray]", emptied: xs.Event) -> None:
    work = work_on(xs.Device(device))
    found = work.array(np.zeros(QUEUE_FRAMES, "int64"))
    for number in range(QUEUE_FRAMES):
        found[number] = work.array(queue.get(timeout=60)).sum()
        work.signal(emptied)
    work.finish()
    check(found.tolist())


def check(found: list[int]) -> None:
    """Every frame came whole, and in its turn."""
    first = int(STILL.sum(dtype="int64"))
    assert found == [first + number * STILL.size for number in range(len(found))]


def frames_per_second(frames: int, emptied: xs.Event, *processes: Any) -> float:
    """From one frame's arrival to the last one's: the start of the processes is not counted."""
    for process in processes:
        process.start()
    emptied.wait(60, at_least=WARM_UP)
    begin = time.perf_counter()
    emptied.wait(60, at_least=frames)
    seconds = time.perf_counter() - begin
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return (frames - WARM_UP) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Frames per second from one process to another.")
    parser.add_argument("--device", default=str(xs.default_device()), help="native_cpu:0, or cuda:0 (needs torch)")
    device = str(xs.Device(parser.parse_args().device))
    spawn = multiprocessing.get_context("spawn")

    ring = xs.empty((SLOTS, *FRAME), "int32", device=device)
    filled, emptied = (xs.Event(device, enable_ipc=True) for _ in range(2))
    shared = frames_per_second(
        RING_FRAMES,
        emptied,
        spawn.Process(target=decode_to_ring, args=(ring, filled, emptied)),
        spawn.Process(target=infer_from_ring, args=(ring, filled, emptied)),
    )
    queue: Queue[np.ndarray] = spawn.Queue(SLOTS)
    emptied = xs.Event(device, enable_ipc=True)
    queued = frames_per_second(
        QUEUE_FRAMES,
        emptied,
        spawn.Process(target=decode_to_queue, args=(device, queue)),
        spawn.Process(target=infer_from_queue, args=(device, queue, emptied)),
    )
    queue.close()
    queue.join_thread()
    print(f"8 MiB frames on {device}: {shared:.0f} per second through shared buffers")
    print(f"through multiprocessing.Queue: {queued:.0f} per second; ratio {shared / queued:.1f}")


if __name__ == "__main__":
    main()

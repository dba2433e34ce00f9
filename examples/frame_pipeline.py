"""Frames from a decoding to an inferring process by a channel, against the same frames through multiprocessing.Queue.

The decoder writes into the slots of the channel, and the inferring process reads them there. On a GPU the streams of
both sides wait for each other on the device, and the hosts run ahead. Should the decoder die, the reader gets
PeerLostError instead of waiting for ever.
"""

import argparse
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from typing import Any

import numpy as np

import xpushare as xs

FRAME = (1024, 2048)  # pixels of 4 bytes: 8 MiB
STILL = np.arange(FRAME[0] * FRAME[1], dtype="int32").reshape(FRAME)  # frame n is this picture, n brighter
SLOTS = 4
WARM_UP = 10  # frames before the clock starts
CHANNEL_FRAMES, QUEUE_FRAMES = 600, 60


class Host:
    """NumPy: what was called is done when it returns."""

    add = staticmethod(np.add)
    view = array = to_host = staticmethod(np.asarray)

    def finish(self) -> None:
        pass


class Gpu:
    """torch: calls are queued on a stream, and the caller goes on at once."""

    def __init__(self, device: xs.Device) -> None:
        import torch

        torch.cuda.set_stream(torch.cuda.Stream(device.ordinal))
        self.device = torch.device("cuda", device.ordinal)
        self.finish = torch.cuda.current_stream().synchronize
        self.add = torch.add
        self.view = torch.from_dlpack

    def array(self, values: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(values).to(self.device)

    def to_host(self, values: Any) -> np.ndarray:
        return values.cpu().numpy()


def work_on(device: str) -> Any:
    place = xs.Device(device)
    return Gpu(place) if place.type == "gpu" else Host()


def decode_to_channel(name: str, device: str, ready: Connection) -> None:
    work = work_on(device)
    still = work.array(STILL)
    with xs.Channel.create(name, FRAME, "int32", device=device, slots=SLOTS) as ch:
        assert ready.poll(60)  # a reader misses what was sent before it opened the channel
        for number in range(CHANNEL_FRAMES):
            with ch.loan() as frame:
                work.add(still, number, out=work.view(frame))  # the decoder writes into the slot itself
        ch.finish()


def infer_from_channel(name: str, device: str, ready: Connection, results: Connection) -> None:
    work = work_on(device)
    found = work.array(np.zeros(CHANNEL_FRAMES, "int64"))
    begin = 0.0
    with xs.Channel.open(name) as ch:
        ready.send(True)
        for number, frame in enumerate(ch):
            found[number] = work.view(frame).sum()
            if number == WARM_UP:
                begin = time.perf_counter()
        work.finish()
    results.send((CHANNEL_FRAMES - WARM_UP) / (time.perf_counter() - begin))
    check(found.tolist())


def decode_to_queue(device: str, queue: "Queue[np.ndarray]") -> None:
    work = work_on(device)
    still = work.array(STILL)
    for number in range(QUEUE_FRAMES):
        queue.put(work.to_host(work.add(still, number)))


def infer_from_queue(device: str, queue: "Queue[np.ndarray]", results: Connection) -> None:
    work = work_on(device)
    found = work.array(np.zeros(QUEUE_FRAMES, "int64"))
    begin = 0.0
    for number in range(QUEUE_FRAMES):
        found[number] = work.array(queue.get(timeout=60)).sum()
        if number == WARM_UP:
            begin = time.perf_counter()
    work.finish()
    results.send((QUEUE_FRAMES - WARM_UP) / (time.perf_counter() - begin))
    check(found.tolist())


def check(found: list[int]) -> None:
    """Every frame came whole, and in its turn."""
    first = int(STILL.sum(dtype="int64"))
    assert found == [first + number * STILL.size for number in range(len(found))]


def run(*processes: Any) -> None:
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Frames per second from one process to another.")
    parser.add_argument("--device", default=str(xs.default_device()), help="native_cpu:0, or cuda:0 (needs torch)")
    device = str(xs.Device(parser.parse_args().device))
    spawn = multiprocessing.get_context("spawn")
    name = f"frames-{os.getpid()}"
    rates, results = spawn.Pipe(duplex=False)
    started, ready = spawn.Pipe(duplex=False)
    run(
        spawn.Process(target=decode_to_channel, args=(name, device, started), daemon=True),
        spawn.Process(target=infer_from_channel, args=(name, device, ready, results), daemon=True),
    )
    shared: float = rates.recv()
    queue: Queue[np.ndarray] = spawn.Queue(SLOTS)
    run(
        spawn.Process(target=decode_to_queue, args=(device, queue), daemon=True),
        spawn.Process(target=infer_from_queue, args=(device, queue, results), daemon=True),
    )
    queued: float = rates.recv()
    queue.close()
    queue.join_thread()
    print(f"8 MiB frames on {device}: {shared:.0f} per second through a channel")
    print(f"through multiprocessing.Queue: {queued:.0f} per second; ratio {shared / queued:.1f}")


if __name__ == "__main__":
    main()

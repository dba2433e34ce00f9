"""Vulkan renders frames that PyTorch and NumPy read in other processes, each with an event of its own.

On an NVIDIA GPU there is one allocation, Vulkan's: PyTorch reads it in place, through CUDA, and NumPy's process copies
each frame once, to the host. Vulkan's timeline semaphores and our events order all of it on the device. On a CPU
(Mesa's lavapipe), Vulkan renders into our own memory of the host, which both readers attach.

    python examples/vulkan/frames.py [--frames 100] [--width 3840] [--height 2160] [--control]

Needs the package `vulkan`, and PyTorch. VULKAN_DEVICE is a part of the name of the device to use. With --control the
readers do not wait for the events, and must see wrong frames.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from typing import Any

import numpy as np
from vulkan_program import Buffer, Program, Timeline

import xpushare as xs
from xpushare.integrations import vulkan

READERS = ("torch", "numpy")


def checksums(words: int, frames: int) -> list[int]:
    """Of frames that are full of their number."""
    return [words * number for number in range(1, frames + 1)]


# --- readers ----------------------------------------------------------------------------------------------------------


def read(
    library: str, handle: bytes, ready: xs.Event, done: xs.Event, device: str, frames: int, wait: bool
) -> list[int]:
    reader = read_with_torch if library == "torch" else read_with_numpy
    return reader(handle, ready, done, device, frames, wait)


def read_with_torch(handle: bytes, ready: xs.Event, done: xs.Event, device: str, frames: int, wait: bool) -> list[int]:
    import torch

    array = xs.attach(handle, device=device)
    frame = torch.from_dlpack(array).view(torch.int32)
    assert frame.data_ptr() == array.memory.ptr  # nothing was copied
    on_gpu = frame.is_cuda
    queue = xs.Queue.from_native(torch.cuda.current_stream()) if on_gpu else None
    sums = torch.zeros(frames, dtype=torch.int64, device=frame.device)
    for number in range(1, frames + 1):
        if wait:
            queue.wait(ready, at_least=number) if queue else ready.wait(60, at_least=number)
        torch.sum(frame, dtype=torch.int64, dim=0, out=sums[number - 1])
        queue.signal(done) if queue else done.signal()
    if queue:
        queue.synchronize(60)
    return list(map(int, sums.tolist()))


def read_with_numpy(handle: bytes, ready: xs.Event, done: xs.Event, device: str, frames: int, wait: bool) -> list[int]:
    array = xs.attach(handle, device=device)
    on_gpu = array.device.type == "gpu"
    host = xs.empty(array.shape, array.dtype) if on_gpu else array
    words = np.asarray(host).view("u4")
    queue = xs.Queue(device) if on_gpu else None
    sums = []
    for number in range(1, frames + 1):
        if queue:
            if wait:
                queue.wait(ready, at_least=number)
            queue.copy(host, array)  # the one copy
            queue.synchronize(60)
        elif wait:
            ready.wait(60, at_least=number)
        sums.append(int(words.sum(dtype=np.int64)))
        done.signal()
    return sums


def reader_main(connection: Any, library: str, *arguments: Any) -> None:
    connection.send(read(library, *arguments))


# --- the renderer -----------------------------------------------------------------------------------------------------


def render(frames: int, nbytes: int, wait: bool) -> dict[str, list[int]]:
    """What each reader saw: the sum of the words of every frame."""
    program = Program()
    released, rendered = Timeline(program, not program.is_cpu), Timeline(program, not program.is_cpu)
    if program.is_cpu:
        device = "native_cpu:0"
        array = xs.empty(nbytes, "u1", isolated=True)
        buffer = Buffer(program, nbytes, pointer=array.memory.ptr)
        handle = xs.share(array, stream=-1)
    else:
        where = vulkan.device(*program.uuids(), name=program.name)
        device = str(xs.Device(where.uuid))  # the same GPU, for CUDA
        buffer = Buffer(program, nbytes)
        fd = buffer.fd()
        total = buffer.allocation_nbytes
        memory = vulkan.ExternalMemory(fd, total, device=where, nbytes=nbytes)
        os.close(fd)
        handle = xs.share(memory, stream=-1)
        fds = rendered.fd(), released.fd()
        seen, freed = (vulkan.TimelineSemaphore(each, device=where) for each in fds)
        for each in fds:
            os.close(each)
        queue = xs.Queue(device)
    print(f"{program.name}: {frames} frames of {nbytes} bytes, read on {device}")

    ready = xs.Event(device, enable_ipc=True, signals=True)
    done = [xs.Event(device, enable_ipc=True) for _ in READERS]
    context = multiprocessing.get_context("spawn")
    pipes = []
    children = []
    for library, event in zip(READERS, done, strict=True):
        here, there = context.Pipe(False)
        options = there, library, bytes(handle), ready, event, device, frames, wait
        children.append(context.Process(target=reader_main, args=options))
        pipes.append(here)
        children[-1].start()
        there.close()

    commands = [program.record(buffer.fill(number)) for number in range(1, frames + 1)]
    begin = time.perf_counter()
    for number, command in enumerate(commands, 1):
        program.submit(command, (released, number - 1), (rendered, number))
        if program.is_cpu:
            rendered.wait(number)
            ready.signal()
            for event in done:
                event.wait(60, at_least=number)
            released.set(number)
        else:  # all of it in order on the device
            seen.wait(queue, number)
            queue.signal(ready)
            for event in done:
                queue.wait(event, at_least=number)
            freed.signal(queue, number)
    found = {library: pipe.recv() for library, pipe in zip(READERS, pipes, strict=True)}
    print(f"{frames / (time.perf_counter() - begin):.0f} frames a second, start of the readers included")
    for child in children:
        child.join()
    if not program.is_cpu:
        queue.synchronize(60)
    handle.close()
    buffer.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--width", type=int, default=3840)
    parser.add_argument("--height", type=int, default=2160)
    parser.add_argument("--control", action="store_true")
    given = parser.parse_args()
    words = given.width * given.height  # 8-bit RGBA
    found = render(given.frames, words * 4, not given.control)
    wanted = checksums(words, given.frames)
    wrong = {
        library: sum(one != other for one, other in zip(sums, wanted, strict=True)) for library, sums in found.items()
    }
    print("; ".join(f"{library}: {count} of {given.frames} frames wrong" for library, count in wrong.items()))
    good = all(wrong.values()) if given.control else not any(wrong.values())
    print("PASSED" if good else "FAILED")
    return not good


if __name__ == "__main__":
    sys.exit(main())

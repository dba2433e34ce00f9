"""One copy of a model's weights for all workers, against every worker loading its own.

Writes a .safetensors file and parses it with the standard library and NumPy: 8 bytes of header length
(little-endian), the header in JSON (dtype, shape and data offsets of every tensor), then the data.
"""

import json
import multiprocessing
import struct
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import xpushare as xs

WORKERS = 3
LAYERS, SIZE = 16, 1024  # 16 matrices of 4 MiB
DTYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8"}


def write_model(path: Path) -> None:
    header, at = {}, 0
    for layer in range(LAYERS):
        nbytes = SIZE * SIZE * 4
        header[f"layer.{layer}"] = {"dtype": "F32", "shape": [SIZE, SIZE], "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for layer in range(LAYERS):
            file.write(np.full((SIZE, SIZE), layer, "<f4").data)


def tensors(header: dict[str, dict[str, list[int]]], data: np.ndarray) -> dict[str, np.ndarray]:
    """Views of the data, by name."""
    found = {}
    for name, each in header.items():
        begin, end = each["data_offsets"]
        found[name] = data[begin:end].view(DTYPES[str(each["dtype"])]).reshape(each["shape"])
    return found


def load(path: Path) -> tuple[dict[str, dict[str, list[int]]], xs.SharedArray]:
    """The header, and the data in shared memory: read once from the file, straight into it."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = xs.empty(path.stat().st_size - 8 - length, "uint8")
        assert file.readinto(memoryview(data)) == data.nbytes
    return header, data


def memory_of_this_process() -> int:
    """Bytes that are this process's share: what n processes map counts one n-th in each (PSS)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError("no Pss in /proc/self/smaps_rollup")


def work(path: Path, handle: str | None, answers: Connection, go: xs.Event) -> None:
    before = memory_of_this_process()
    begin = time.perf_counter()
    if handle is None:
        header, data = load(path)
    else:
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = xs.attach(handle)
    model = tensors(header, np.asarray(data))
    first_use = model["layer.7"][-1, -1]
    seconds = time.perf_counter() - begin
    checksum = sum(float(each[:, ::16].sum()) for each in model.values())  # touches every page
    answers.send((seconds, float(first_use), checksum))
    go.wait(60, at_least=1)  # all of them hold the weights now
    answers.send(memory_of_this_process() - before)
    go.wait(60, at_least=2)


def run(path: Path, handle: str | None) -> tuple[float, int]:
    """(time to first use in seconds, bytes of all workers together)"""
    go = xs.Event("native_cpu:0", enable_ipc=True)
    spawn = multiprocessing.get_context("spawn")
    pipes = [multiprocessing.Pipe() for _ in range(WORKERS)]
    workers = [spawn.Process(target=work, args=(path, handle, there, go)) for _, there in pipes]
    for worker in workers:
        worker.start()
    answers = [here.recv() for here, _ in pipes]
    for _, first_use, checksum in answers:
        assert first_use == 7
        assert checksum == sum(layer * SIZE * SIZE / 16 for layer in range(LAYERS))
    go.signal()
    total = sum(here.recv() for here, _ in pipes)
    go.signal()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return max(seconds for seconds, _, _ in answers), total


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        write_model(path)
        _header, data = load(path)
        with xs.share(data, read_only=True) as handle:
            shared_seconds, shared_bytes = run(path, str(handle))
        own_seconds, own_bytes = run(path, None)
    assert shared_bytes < own_bytes
    print(f"{WORKERS} workers, {data.nbytes >> 20} MiB of weights")
    print(
        f"attached:  first use after {shared_seconds * 1000:.1f} ms, {shared_bytes >> 20} MiB of memory in all workers"
    )
    print(f"own copies: first use after {own_seconds * 1000:.1f} ms, {own_bytes >> 20} MiB of memory in all workers")


if __name__ == "__main__":
    main()

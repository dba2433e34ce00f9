"""One copy of a model's weights for all workers, against every worker loading its own. Needs safetensors.

The file is read once, straight into memory that can be shared: 8 bytes of header length (little-endian), the header in
JSON (dtype, shape and data offsets of every tensor), then the data. To a GPU it goes by way of page-locked memory, and
the workers' streams wait for that copy, not the hosts.
"""

import argparse
import json
import multiprocessing
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import xpushare as xs

try:
    from safetensors.numpy import load_file, save_file
except ImportError:
    sys.exit("this example needs safetensors: pip install safetensors")

WORKERS = 3
LAYERS, SIZE = 16, 1024  # 16 matrices of 4 MiB
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "C64": "complex64", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def dtype_of(lib: Any, name: str) -> Any:
    """The library's dtype. NumPy has bfloat16 and the float8 family from ml_dtypes."""
    if name not in DTYPES:
        raise SystemExit(f"this example knows no elements of type {name}: it knows {', '.join(DTYPES)}")
    wanted = DTYPES[name]
    if lib is not np:
        return getattr(lib, wanted)
    if wanted.startswith(("bfloat", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, wanted))
    return np.dtype(wanted)


def write_model(path: Path) -> None:
    save_file({f"layer.{layer}": np.full((SIZE, SIZE), layer, "float32") for layer in range(LAYERS)}, path)


def library(device: xs.Device) -> tuple[Any, Callable[[Path], dict[str, Any]]]:
    """NumPy on the host, torch on a GPU, and how everybody loads a file with it. What both ways start is started."""
    xs.empty(1, device=device)
    if device.type == "cpu":
        return np, load_file
    import torch
    from safetensors.torch import load_file as load_tensors

    torch.ones(SIZE, device=device.ordinal).sum().item()
    return torch, lambda path: load_tensors(path, device=f"cuda:{device.ordinal}")


def load(path: Path, device: xs.Device) -> tuple[xs.SharedArray, xs.Queue | None]:
    """The data of the file, and the queue on which it is complete (on the host it is complete at once)."""
    with path.open("rb") as file:
        begin = 8 + struct.unpack("<Q", file.read(8))[0]
        file.seek(begin)
        data = xs.empty(path.stat().st_size - begin, "uint8", device=device)
        if device.type == "cpu":
            assert file.readinto(memoryview(data)) == data.nbytes
            return data, None
        staging = xs.malloc_host(data.nbytes, device)
        assert file.readinto(memoryview(staging)) == data.nbytes
        queue = xs.Queue(device)
        queue.copy(data, staging)  # holds the staging memory until it is done
        return data, queue


def attach(path: Path, handle: bytes, lib: Any) -> dict[str, Any]:
    """The tensors by name, views of the shared data."""
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch ignores")  # that the weights are read-only: nobody here writes
        data = lib.from_dlpack(xs.attach(handle))
    found = {}
    for name, each in header.items():
        begin, end = each["data_offsets"]
        found[name] = data[begin:end].view(dtype_of(lib, each["dtype"])).reshape(each["shape"])
    return found


def work(path: Path, device: str, pipe: Connection) -> None:
    lib, load_own = library(xs.Device(device))
    pipe.send("ready")
    handle = pipe.recv()
    begin = time.perf_counter()
    model = attach(path, handle, lib) if handle else load_own(path)
    first_use = float(model["layer.7"][-1, -1])
    seconds = time.perf_counter() - begin
    assert first_use == 7
    pipe.send((seconds, sum(float(each.sum()) for each in model.values())))  # touches every page
    pipe.recv()  # until then all of them hold the weights


def in_use(device: xs.Device, pids: list[int | None]) -> int:
    """Bytes: what the processes have of the host's memory, shared pages counted once; or what the GPU has given out."""
    if device.type == "gpu":
        import torch

        free, total = torch.cuda.mem_get_info(device.ordinal)
        return total - free
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(text.split("\nPss:")[1].split()[0]) * 1024 for text in texts)


def run(path: Path, device: xs.Device, shared: bool) -> tuple[float, float]:
    """(seconds from the weights or their handle at the door to their first use, MiB for all processes together)"""
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(WORKERS)]
    workers = [spawn.Process(target=work, args=(path, str(device), there)) for _, there in pipes]
    for worker, (_, there) in zip(workers, pipes, strict=True):
        worker.start()
        there.close()
    pids = [multiprocessing.current_process().pid, *(worker.pid for worker in workers)]
    assert [here.recv() for here, _ in pipes] == ["ready"] * WORKERS
    before = in_use(device, pids)
    handle = None
    if shared:
        data, queue = load(path, device)
        handle = xs.share(data, stream=queue, read_only=True)
    for here, _ in pipes:
        here.send(handle and bytes(handle))
    answers = [here.recv() for here, _ in pipes]
    assert {total for _, total in answers} == {float(sum(range(LAYERS)) * SIZE**2)}
    more = in_use(device, pids) - before
    for (here, _), worker in zip(pipes, workers, strict=True):
        here.send("end")
        worker.join()
        assert worker.exitcode == 0
    if handle:
        handle.close()
    return max(seconds for seconds, _ in answers), more / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description="One copy of a model's weights for all workers.")
    parser.add_argument("--device", default=str(xs.default_device()), help="native_cpu:0, or cuda:0 (needs torch)")
    device = xs.Device(parser.parse_args().device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        write_model(path)
        seconds, mib = run(path, device, shared=True)
        own_seconds, own_mib = run(path, device, shared=False)
    assert mib < own_mib / 2, f"{mib:.0f} MiB shared, {own_mib:.0f} MiB in copies"
    print(f"{WORKERS} workers on {device}, {LAYERS * SIZE**2 * 4 >> 20} MiB of weights")
    print(f"loaded once, attached: first use after {seconds * 1000:6.1f} ms, {mib:4.0f} MiB of memory in all")
    print(f"each loading its own:  first use after {own_seconds * 1000:6.1f} ms, {own_mib:4.0f} MiB of memory in all")
    print(f"ratio: {own_seconds / seconds:.1f} times sooner, {mib / own_mib:.2f} of the memory")


if __name__ == "__main__":
    main()

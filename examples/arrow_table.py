"""An Arrow table that several processes read where it lies. Needs pyarrow.

The table is written once, in Arrow's IPC format, straight into shared memory. Each worker opens it there: its columns
are buffers inside the mapping, and neither Arrow nor the worker allocates a copy. With a GPU, the same bytes lie there
as well, and the columns are tensors over them: Arrow on the host says at which offsets.
"""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import xpushare as xs

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    sys.exit("this example needs pyarrow: pip install pyarrow")

WORKERS = 4
ROWS = 1 << 21
COLUMNS = ("price", "quantity")


def make_table() -> pa.Table:
    rows = np.arange(ROWS)
    region = pa.DictionaryArray.from_arrays((rows % 3).astype("int8"), ["north", "south", "west"])
    return pa.table({"price": rows * 7 % 10007, "quantity": rows % 13, "region": region})


def write(table: pa.Table, sink: Any) -> Any:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink


def share_table(table: pa.Table, device: xs.Device) -> tuple[xs.ArrayHandle, xs.ArrayHandle]:
    """(the table in host memory, the same bytes on the device)"""
    memory = xs.malloc_host(write(table, pa.MockOutputStream()).size(), device)
    write(table, pa.FixedSizeBufferWriter(pa.py_buffer(memory)))
    handle = xs.share(memory, read_only=True)
    if device.type == "cpu":
        return handle, handle
    there = xs.empty(memory.nbytes, "uint8", device=device)
    queue = xs.Queue(device)
    queue.copy(there, memory)
    return handle, xs.share(there, read_only=True, stream=queue)  # readers' streams wait for the copy


def private_bytes() -> int:
    """What this process has of memory that no other one has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def total(worker: int, handle: bytes, on_device: bytes) -> dict[str, Any]:
    """The sums of this worker's share of the rows, and what reading them cost."""
    on_gpu = xs.ArrayHandle(on_device).handle.backend != "native_cpu"
    pc.sum(pa.array([1, 2])).as_py()  # loads what sums
    if on_gpu:
        import torch

        torch.ones(2, dtype=torch.int64, device="cuda").sum().item()
    before = private_bytes()
    memory = xs.attach(handle)
    table = pa.ipc.open_stream(pa.py_buffer(memory)).read_all()
    columns = {name: table.column(name).chunk(0) for name in table.schema.names}
    buffers = [buffer for column in columns.values() for buffer in column.buffers() if buffer is not None]
    offsets = [(each.address - memory.ptr, each.size) for each in buffers]
    share = slice(worker * ROWS // WORKERS, (worker + 1) * ROWS // WORKERS)
    if not on_gpu:
        sums = {name: pc.sum(columns[name][share]).as_py() for name in COLUMNS}
    else:
        data = torch.from_dlpack(xs.attach(on_device))
        sums = {}
        for name in COLUMNS:
            buffer = columns[name].buffers()[1]
            at = buffer.address - memory.ptr
            sums[name] = int(data[at : at + buffer.size].view(torch.int64)[share].sum())
    return {
        "sums": sums,
        "regions": columns["region"].dictionary.to_pylist(),
        "inside": all(0 <= at <= memory.nbytes - size for at, size in offsets),
        "allocated by Arrow": pa.total_allocated_bytes(),
        "more private memory": private_bytes() - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="An Arrow table read by several processes.")
    parser.add_argument("--device", default=str(xs.default_device()), help="native_cpu:0, or cuda:0 (needs torch)")
    device = xs.Device(parser.parse_args().device)

    table = make_table()
    handle, on_device = share_table(table, device)
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(total, worker, bytes(handle), bytes(on_device)) for worker in range(WORKERS)]
        found = [task.result(60) for task in tasks]
    for name in COLUMNS:
        assert sum(each["sums"][name] for each in found) == pc.sum(table[name]).as_py()
    private = max(each["more private memory"] for each in found)
    for each in found:
        assert each["regions"] == ["north", "south", "west"]
        assert each["inside"], "a column lies outside the shared memory"
        assert each["allocated by Arrow"] == 0
    if device.type == "cpu":  # what CUDA takes of the host's memory is its own affair
        assert private < handle.nbytes / 4, f"a worker has {private} bytes more of its own"
    print(f"{handle.nbytes >> 20} MiB of Arrow table read by {WORKERS} processes on {device}")
    print(f"allocated by Arrow: 0 bytes; more private memory in a process: at most {private >> 10} KiB")
    for each in {handle, on_device}:
        each.close()


if __name__ == "__main__":
    main()

"""Weights are replaced under a running reader, which never sees half of one version and half of another.

Two buffers: the reader uses the newest complete one, the writer fills the other once the reader has left it. Two
events say which version is there and up to which version the reader needs none of the older ones.
"""

import multiprocessing

import numpy as np

import xpushare as xs

VERSIONS = 200
SHAPE = (256, 1024)


def read(buffers: list[xs.SharedArray], ready: xs.Event, passed: xs.Event) -> None:
    weights = [np.asarray(buffer) for buffer in buffers]
    seen, reads = 0, 0
    while seen < VERSIONS:
        ready.wait(30, at_least=seen + 1)
        while passed.value < ready.value - 1:  # versions skipped are passed, too
            passed.signal()
        version = ready.value
        if version - passed.value > 1:
            continue  # a newer one came meanwhile
        found = weights[version % 2]
        first, last = found[0, 0], found[-1, -1]
        assert (found == version).all(), f"torn: {first} to {last} in version {version}"
        passed.signal()
        seen, reads = version, reads + 1
    print(f"{reads} versions read whole, the others of {VERSIONS} skipped")


def main() -> None:
    buffers = [xs.empty(SHAPE, "float32") for _ in range(2)]
    ready, passed = (xs.Event("native_cpu:0", enable_ipc=True) for _ in range(2))
    reader = multiprocessing.get_context("spawn").Process(target=read, args=(buffers, ready, passed))
    reader.start()
    for version in range(1, VERSIONS + 1):
        if version > 2:
            passed.wait(30, at_least=version - 2)  # nobody reads the version before the last any more
        np.asarray(buffers[version % 2])[:] = version
        assert ready.signal() == version
    reader.join()
    assert reader.exitcode == 0
    assert passed.value == VERSIONS


if __name__ == "__main__":
    main()

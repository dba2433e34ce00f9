"""A cache that one process fills and makes longer, while another reads it at an address that never changes."""

import multiprocessing

import numpy as np

import xpushare as xs

BLOCK, BLOCKS, DEVICE = 1 << 20, 32, "native_cpu:0"


def decode(handle: xs.ArrayHandle[xs.VirtualRange], seen: xs.Event) -> None:
    with xs.attach(handle) as cache:
        address = cache.ptr
        for number in range(1, BLOCKS + 1):
            cache.changed.wait(60, at_least=number)
            cache.refresh()
            assert (cache.ptr, cache.nbytes >= number * BLOCK) == (address, True)
            block = np.asarray(cache.as_array(BLOCK, "uint8", (number - 1) * BLOCK))
            if number > 1:  # the newest block may still be filled: what comes before it is complete
                before = np.asarray(cache.as_array(BLOCK, "uint8", (number - 2) * BLOCK))
                assert (before == number - 1).all()
                del before
            del block
            seen.signal()


def main() -> None:
    with (
        xs.VirtualRange(BLOCKS * BLOCK, DEVICE, growable=True) as cache,
        xs.share(cache) as handle,
        xs.Event(DEVICE, enable_ipc=True) as seen,
    ):
        reader = multiprocessing.get_context("spawn").Process(target=decode, args=(handle, seen))
        reader.start()
        for number in range(1, BLOCKS + 1):
            cache.grow(BLOCK)
            np.asarray(cache.as_array(BLOCK, "uint8", (number - 1) * BLOCK))[:] = number
        seen.wait(60, at_least=BLOCKS)
        reader.join()
        assert reader.exitcode == 0
        print(f"the reader followed {cache.nbytes >> 20} MiB at one address")


if __name__ == "__main__":
    main()

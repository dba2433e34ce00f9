"""The software stream driver for tests: streams on threads, called by address through the recipes of a queue."""

import ctypes
import os
import subprocess
from pathlib import Path

from native_peer import SRC, n, until

PATH = "XPUSHARE_TEST_STREAMS"  # in the environment, for peers
NOT_READY = 600


def build(folder):
    """The path of the library: the one beside the package's adapters, or one that is compiled into `folder`."""
    installed = Path(n.__file__).parent / "adapters" / "mock" / "software_streams.so"
    path = os.environ.get(PATH)
    if path is None and installed.exists():
        path = str(installed)
    elif path is None:
        path = str(folder / "software_streams.so")
        source = SRC / "native" / "mock" / "software_streams.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", path, str(source), "-lpthread"], check=True)
    os.environ[PATH] = path
    return path


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL(os.environ[PATH])
        self.streams = []

    def at(self, name):
        return ctypes.cast(getattr(self.library, "ss_" + name), ctypes.c_void_p).value

    def call(self, name, *arguments):
        return getattr(self.library, "ss_" + name)(
            *(ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments)
        )

    def stream(self, beside=0, device=0):
        made = ctypes.c_uint64()
        assert self.call("stream_create", device, beside, ctypes.byref(made)) == 0
        self.streams.append(made.value)
        return made.value

    def idle(self):
        """Whether all streams have done everything that they have."""
        return all(self.call("stream_query", stream) == 0 for stream in self.streams)

    def rule(self, name, nth, code=0, stall=False):
        self.library.ss_rule(name.encode(), nth, code, stall)

    def go(self, name):
        self.library.ss_go(name.encode())

    def calls(self, name):
        return self.library.ss_calls(name.encode())

    def mark(self):
        made = ctypes.c_uint64()
        assert self.call("mark_create", ctypes.byref(made)) == 0
        return made.value

    def finished(self, mark):
        return self.call("mark_query", mark) == 0

    # how four kinds of drivers are called

    def table(self, kind, **more):
        host = (self.at("host"), ("queue", "function", "data"))
        store = (self.at("store64"), ("queue", "address", "point"))
        captured = (self.at("captured"), ("queue", "status_out"))
        if kind == "words":
            return n.QueueCalls(host, store, (self.at("wait64_geq"), ("queue", "address", "point")), captured, **more)
        if kind == "masked":
            wait = (self.at("wait_masked"), ("queue", "address", "point", 0, 2**64 - 1))
            return n.QueueCalls(host, store, wait)
        if kind == "half":
            wait = (self.at("wait32_geq"), ("queue", "address", "point_low"))
            return n.QueueCalls(host, store, wait, wait_bits=32)
        if kind == "halves":
            store = (self.at("store32"), ("queue", "address", "point_low"))
            wait = (self.at("wait32_geq"), ("queue", "address", "point_low"))
            return n.QueueCalls(host, store, wait, wait_bits=32, store_bits=32)
        assert kind == "callbacks"
        steps = (
            (self.at("marker"), ("queue", "out")),
            (self.at("callback"), ("made", "function", "data")),
            (self.at("mark_destroy"), ("made",), True),
            (self.at("flush"), ("queue",)),
        )
        return n.QueueCalls(steps, host_data=2)

    def queue(self, number, ordering="device", kind="words", beside=None, adopted=False, table=None):
        return Queue(self, number, ordering, table or self.table(kind), beside, adopted)


class Queue:
    """A stream and the native queue over it."""

    def __init__(self, driver, number, ordering, table, beside, adopted):
        self.driver = driver
        self.stream = driver.stream(beside.stream if beside else 0)
        self.native = n.StreamQueue(number, self.stream, table, ordering, adopted)

    def wait(self, slot, point):
        return self.native.wait(slot, slot.address, point)

    def signal(self, slot):
        """The point; a device that holds nothing is told to wait for another signaller's first."""
        point, after, code = self.native.signal(slot, slot.address)
        if after:
            assert self.wait(slot, after) == 0
            code = self.native.finish(slot, point)
        assert code == 0
        return point

    def copy(self, to, source, nbytes):
        return self.native.submit([(self.driver.at("copy"), self.stream, to, source, nbytes)])

    def fill(self, to, byte, nbytes):
        return self.native.submit([(self.driver.at("fill"), self.stream, to, byte, nbytes)])

    def mark(self):
        """(mark, its place in the queue)"""
        mark = self.driver.mark()
        at, code = self.native.submit([(self.driver.at("mark_record"), mark, self.stream)])
        assert code == 0
        return mark, at

    def pause(self, yes):
        self.driver.library.ss_pause(ctypes.c_uint64(self.stream), yes)

    def finished(self):
        """Nothing is held, and the stream has done everything."""
        if self.native.held:
            return False
        mark, at = self.mark()
        until(lambda: self.native.handed >= at)
        try:
            until(lambda: self.driver.finished(mark), 0.05)
        except AssertionError:
            return False
        finally:
            self.driver.call("mark_destroy", mark)
        return True

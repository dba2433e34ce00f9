"""A beginner's mistakes: each message says what happened in the user's words, and then what to do."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from ctypes.util import find_library
from typing import Any

import numpy as np
import pytest

import xpushare as xs

HOST = "native_cpu:0"
PRIVATE = "is private to its library", "xs.empty", "xs.array(x)", "xs.share(x, copy=True)"
VIEW = "np.asarray(a)", "torch.from_dlpack(a)"


class Scene:
    """What the mistakes are made with."""

    def __init__(self) -> None:
        self.array = xs.zeros((4, 4), "f4")
        self.handle = xs.share(self.array)
        self.raw = bytes(self.handle)
        self.event = xs.Event(HOST, enable_ipc=True)
        self.memory = xs.malloc_host(64, HOST)
        self.channel: Any = xs.Channel.create("frames", 2, slots=3)

    def close(self) -> None:
        self.handle.close()
        self.event.close()
        self.memory.close()
        self.channel.close()

    def part(self, path: str) -> None:
        """Attach a part of a tree."""
        with xs.share({"w": self.array, "layers": [self.array, 1]}) as handle:
            xs.attach(handle, only=path)

    def closed(self) -> xs.SharedArray:
        self.array.close()
        return self.array

    def closed_lock(self) -> xs.Lock:
        lock = xs.Lock()
        lock.close()
        return lock

    def version(self, kept: int, wanted: int) -> Any:
        """Look for a version that nobody published, beside those that are kept."""
        for _ in range(kept):
            xs.publish("v", self.array, replace=True, versions=kept)
        try:
            return xs.lookup("v", version=wanted, timeout=0)
        finally:
            xs.unpublish("v")

    def full(self) -> None:
        with xs.Channel.open("frames"):
            for _ in range(4):
                self.channel.send([1.0, 2.0], timeout=0.01)

    def empty(self) -> None:
        with xs.Channel.open("frames") as reader:
            reader.receive(0.01)

    def without_writer(self) -> None:
        with xs.Channel.open("frames", reconnect=True) as reader:
            self.channel.close()
            reader.receive(0.01)

    def closed_frame(self) -> Any:
        with xs.Channel.open("frames") as reader:
            self.channel.send([1.0, 2.0])
            frame = reader.receive(10)
            frame.close()
            return frame

    def ended(self, name: str) -> None:
        xs.publish("weights", self.array)
        try:
            xs.unpublish(name)
        finally:
            xs.unpublish("weights")

    def assigned(self) -> None:
        with self.channel.loan() as loan:
            loan[:] = 1

    def once(self) -> bytes:
        """A handle whose only open is used up."""
        handle = xs.share(self.array, opens=1)
        xs.attach(handle)
        return bytes(handle)

    def altered(self) -> bytes:
        raw = bytearray(self.raw)
        raw[40] ^= 1
        return bytes(raw)

    def misspelt(self) -> None:
        xs.publish("weights", self.array)
        try:
            xs.lookup("weigths", timeout=0.01)
        finally:
            xs.unpublish("weights")

    def twice(self) -> None:
        xs.publish("q", self.array)
        try:
            xs.publish("q", self.array)
        finally:
            xs.unpublish("q")


MISTAKES: dict[str, tuple[Callable[[Scene], Any], type[BaseException], tuple[str, ...]]] = {
    # sharing
    "a private array": (lambda _: xs.share(np.ones(3)), xs.FeatureNotSupportedError, PRIVATE),
    "a private array, published": (lambda _: xs.publish("z", np.ones(3)), xs.FeatureNotSupportedError, PRIVATE),
    "a private array by ipc": (lambda _: xs.ipc.memory.get(np.ones(3)), xs.FeatureNotSupportedError, PRIVATE),
    "a private array in a tree": (
        lambda _: xs.share({"a": np.ones(3)}), xs.FeatureNotSupportedError,
        (*PRIVATE, "at 'a': the memory of this numpy.ndarray"),
    ),
    "a number": (lambda _: xs.share(5), xs.InvalidArgumentError, ("A single int is not shared", "xs.array")),
    "a str": (lambda _: xs.share("x"), xs.InvalidArgumentError, ("A single str is not shared", "put it into a tree")),
    "a set": (lambda _: xs.share({1}), xs.InvalidArgumentError, ("set is not", "`share` takes arrays")),
    "a set in a tree": (
        lambda s: xs.share({"a": s.array, "b": [0, {1}]}), xs.InvalidArgumentError,
        ("at 'b.1': set is not", "dict, list, tuple", "complex, str, bytes and NumPy scalars"),
    ),
    "objects": (
        lambda _: xs.share(np.array([{}, 1], dtype=object), copy=True), xs.InvalidArgumentError,
        ("Python objects", "x.astype(float)"),
    ),
    "a closed array": (
        lambda s: xs.share(s.closed()), xs.InvalidArgumentError,
        ("SharedArray is closed", "close() was called", "Keep it open while it is used"),
    ),
    "opens=0": (lambda s: xs.share(s.array, opens=0), xs.InvalidArgumentError, ("how often", "from 1", "not 0")),
    "ttl=-1": (
        lambda s: xs.share(s.array, ttl=-1), xs.InvalidArgumentError,
        ("number of seconds", "above 0", "-1"),
    ),
    "ttl as text": (
        lambda s: xs.share(s.array, ttl="5"), xs.InvalidArgumentError, ("ttl is a number of seconds, not str",),
    ),
    # attaching
    "the repr of a handle": (
        lambda s: xs.attach(repr(s.handle)), xs.InvalidHandleError, ("the repr of a handle", "str(handle)"),
    ),
    "a text that was cut": (
        lambda s: xs.attach(str(s.handle)[:301]), xs.InvalidHandleError,
        ("cut or altered on the way", "str(handle) whole"),
    ),
    "a handle as an array": (
        lambda s: np.asarray(s.handle), TypeError, ("a handle, not an array", "np.asarray(xs.attach(handle))"),
    ),
    "a handle of a channel": (
        lambda s: xs.attach(s.channel.handle), xs.InvalidHandleError,
        ("handle of a channel", "xs.Channel.open opens it"),
    ),
    "a handle of a channel, by ipc": (
        lambda s: xs.ipc.memory.open(s.channel.handle), xs.InvalidHandleError,
        ("handle of a channel", "xs.Channel.open"),
    ),
    "bytes of an array's handle, by ipc": (
        lambda s: xs.ipc.memory.open(s.raw), xs.InvalidHandleError, ("handle of an array", "xs.attach opens it"),
    ),
    "a path that a tree lacks": (
        lambda s: s.part("q"), xs.InvalidArgumentError, ("no array at 'q'", "it has 'w', 'layers.0'"),
    ),
    "an array instead of its handle": (
        lambda _: xs.attach(np.ones(3)), xs.InvalidArgumentError, ("what `xs.share` returned", "not numpy.ndarray"),
    ),
    "a SharedArray instead of its handle": (
        lambda s: xs.attach(s.array), xs.InvalidArgumentError, ("the array itself", "np.asarray(a)", "xs.share(a)"),
    ),
    "None": (lambda _: xs.attach(None), xs.InvalidArgumentError, ("what `xs.share` returned", "not NoneType")),
    "a name": (
        lambda _: xs.attach("weights"), xs.InvalidHandleError,
        ("'weights' is not a handle", "xs.lookup('weights')"),
    ),
    "other bytes": (
        lambda _: xs.attach(b"hello"), xs.InvalidHandleError,
        ("5 bytes are not an array handle", "what `xs.share` returned"),
    ),
    "half a handle": (lambda s: xs.attach(s.raw[:100]), xs.InvalidHandleError, ("100 bytes", "cut on the way")),
    "an altered handle": (
        lambda s: xs.attach(s.altered()), xs.InvalidHandleError,
        ("cut or altered", "XPUSHARE_KEY_FILE"),
    ),
    "a closed handle": (
        lambda s: (s.close(), xs.attach(s.raw)), xs.HandleExpiredError,
        ("the exporter closed it", "Keep it open until the receiver has attached", "opens=1"),
    ),
    "a closed handle object": (
        lambda s: (s.close(), xs.attach(s.handle)), xs.InvalidArgumentError, ("ArrayHandle is closed", "Keep it open"),
    ),
    "an open too many": (lambda s: xs.attach(s.once()), xs.HandleExpiredError, ("opens are used up", "larger opens=")),
    "a handle of memory": (
        lambda _: xs.attach(xs.ipc.memory.get(xs.malloc_device(64, HOST))), xs.InvalidHandleError,
        ("handle of memory", "ipc.memory.open"),
    ),
    "a handle of an array, by ipc": (
        lambda s: xs.ipc.memory.open(s.handle), xs.InvalidHandleError, ("handle of an array", "xs.attach", "`handle`"),
    ),
    "an unknown library": (
        lambda s: xs.attach(s.handle, like="tensorflow"), xs.InvalidArgumentError,
        ("numpy, torch, cupy, jax", "'tensorflow'"),
    ),
    "the class of a library's arrays": (
        lambda s: xs.attach(s.handle, like=np.ndarray), xs.InvalidArgumentError,
        ("pass like='numpy', not numpy.ndarray",),
    ),
    "a handle of an event": (
        lambda s: xs.attach(xs.ipc.event.get(s.event)), xs.InvalidHandleError,
        ("this is a handle of an event, not of an array", "ipc.event.open"),
    ),
    "a word for a yes": (
        lambda s: xs.share(s.array, copy="yes"), xs.InvalidArgumentError, ("copy is True or False, not 'yes'",),
    ),
    "a word for read-only": (
        lambda s: xs.share(s.array, read_only="no"), xs.InvalidArgumentError, ("read_only is True or False, not 'no'",),
    ),
    # making
    "a misspelt dtype": (
        lambda _: xs.empty(3, "flaot32"), xs.InvalidArgumentError, ("'flaot32'", "Did you mean 'float32'?"),
    ),
    "a device in the dtype's place": (
        lambda _: xs.zeros(2, "gpu"), xs.InvalidArgumentError,
        ("dtype", "'gpu'", "For a device write device='gpu'"),
    ),
    "a GPU that is not there": (
        lambda _: xs.empty(3, device="cuda"), xs.InvalidArgumentError,
        ("no device 'cuda' here", *("driver",) * (find_library("cuda") is None), "Visible: native_cpu:0"),
    ),
    "any GPU": (lambda _: xs.empty(3, device="gpu"), xs.InvalidArgumentError, ("no gpu here", "Visible: native_cpu:0")),
    "a device by number": (lambda _: xs.empty(3, device=0), xs.InvalidArgumentError, ("'cuda:0' or a uuid", "not int")),
    "a device called host": (
        lambda _: xs.empty(3, device="host"), xs.InvalidArgumentError,
        ("'host'", "'cpu', 'gpu', 'native_cpu:0', 'cuda:0' or a uuid"),
    ),
    "arguments in the other order": (
        lambda _: xs.malloc_device(HOST, 64), xs.InvalidArgumentError, ("device is named by a string", "not int"),
    ),
    "a GPU by number": (lambda _: xs.empty(3, device="gpu:0"), xs.InvalidArgumentError, ("'gpu:0'", "'cuda:0'")),
    "a shape in two arguments": (
        lambda _: xs.empty(3, 4), xs.InvalidArgumentError, ("4 is not a dtype", "one tuple: xs.empty((2, 3))"),
    ),
    "a channel by its class": (lambda _: xs.Channel("camera"), TypeError, ("Channel.create", "Channel.open")),
    "a channel by its class, by keyword": (
        lambda _: xs.Channel(name="camera"), TypeError, ("Channel.create", "Channel.open"),
    ),
    "an unknown dtype": (lambda _: xs.empty(3, "float33"), xs.InvalidArgumentError, ("'float33'", "dtype")),
    "8 PiB": (
        lambda _: xs.empty(1 << 50), xs.OutOfMemoryError,
        ("cannot allocate 8 PiB (shape (1125899906842624,), float64) on native_cpu:0: Cannot allocate memory",),
    ),
    "a negative shape": (lambda _: xs.empty(-3), xs.InvalidArgumentError, ("no negative length", "-3")),
    "a shape as text": (lambda _: xs.empty("3"), xs.InvalidArgumentError, ("an integer or a tuple of integers", "'3'")),
    "a shape of floats": (
        lambda _: xs.empty(3.5), xs.InvalidArgumentError,
        ("an integer or a tuple of integers", "3.5"),
    ),
    # using
    "an index": (lambda s: s.array[0], TypeError, VIEW),
    "arithmetic": (lambda s: s.array + 1, TypeError, VIEW),
    "float()": (lambda s: float(s.array), TypeError, ("does not calculate", *VIEW)),
    "int()": (lambda s: int(s.array), TypeError, ("does not calculate", *VIEW)),
    "a minus": (lambda s: -s.array, TypeError, ("does not calculate", *VIEW)),
    "abs()": (lambda s: abs(s.array), TypeError, ("does not calculate", *VIEW)),
    "an index of memory": (
        lambda s: s.memory[5], TypeError, ("memory.slice(offset, nbytes)", "memoryview(memory)"),
    ),
    "a view of bytes that are not mapped": (
        lambda _: np.asarray(xs.VirtualRange(1 << 20, HOST).as_array(10, "i4")), xs.InvalidArgumentError,
        ("not mapped",),
    ),
    "a loop over memory": (lambda s: list(s.memory), TypeError, ("memory.slice(offset, nbytes)",)),
    "a copy of a private array": (
        lambda s: xs.Queue(HOST).copy(s.memory, np.ones(8)), xs.InvalidArgumentError,
        ("not ndarray", "xs.array(x) makes a shared copy"),
    ),
    "mean()": (lambda s: s.array.mean(), AttributeError, VIEW),
    "a length": (lambda s: len(s.array), TypeError, VIEW),
    "a loop": (lambda s: list(s.array), TypeError, VIEW),
    "numpy()": (lambda s: s.array.numpy(), AttributeError, VIEW),
    "cuda()": (lambda s: s.array.cuda(), AttributeError, VIEW),
    "fill()": (lambda s: s.array.fill(3), AttributeError, VIEW),
    "unlink()": (lambda s: s.array.unlink(), AttributeError, ("close()", "freed with the last one")),
    "a view of a closed array": (
        lambda s: np.asarray(s.closed()), xs.InvalidArgumentError,
        ("is closed", "`with` block"),
    ),
    "from_numpy": (lambda _: xs.from_numpy, AttributeError, ("xs.array(x)",)),
    "SharedMemory": (lambda _: xs.SharedMemory, AttributeError, ("xs.empty",)),
    "ones": (lambda _: xs.ones, AttributeError, ("np.asarray(xs.empty(shape))[:] = 1",)),
    "a pattern that is a number": (
        lambda s: xs.Queue(HOST).fill(s.array, 0), xs.InvalidArgumentError,
        ("a pattern is bytes such as b'\\0'", "not int"),
    ),
    "a pattern that does not fit": (
        lambda s: xs.Queue(HOST).fill(s.memory, b"abc"), xs.InvalidArgumentError,
        ("the 64 bytes to fill are not a multiple of the pattern's 3 bytes",),
    ),
    "a negative size": (
        lambda s: s.memory.slice(0, -1), xs.InvalidArgumentError, ("are 0 or more, not 0 and -1",),
    ),
    "a range that cannot grow": (
        lambda _: xs.VirtualRange(1 << 20, HOST).grow(1), xs.InvalidArgumentError,
        ("cannot grow", "growable=True"),
    ),
    # events
    "a wait for nobody": (
        lambda s: s.event.wait(0.01, at_least=1), TimeoutError,
        ("signal 1", "within 0.01 s", "nobody has submitted it", "look for its traceback"),
    ),
    "a negative number": (lambda s: s.event.wait(at_least=-1), xs.InvalidArgumentError, ("number of a signal", "-1")),
    "a time below 0": (lambda s: s.event.wait(-1, at_least=1), TimeoutError, ("within 0 s",)),
    "a time as text": (lambda s: s.event.wait("1"), xs.InvalidArgumentError, ("number of seconds", "not str")),
    "a private event": (
        lambda _: pickle.dumps(xs.Event(HOST)), xs.InvalidArgumentError,
        ("not made for sharing", "xs.Event(enable_ipc=True)"),
    ),
    "a signal of an event that only waits": (
        lambda s: xs.ipc.event.open(xs.ipc.event.get(s.event), signals=False).signal(), xs.InvalidArgumentError,
        ("only waits", "open it without signals=False"),
    ),
    "the times of an event without them": (
        lambda s: s.event.times, xs.InvalidArgumentError, ("not profiled", "xs.Event(enable_profiling=True)"),
    ),
    "an event of no library": (
        lambda _: xs.Event.from_native(3), xs.FeatureNotSupportedError, ("events of int",),
    ),
    "set()": (lambda s: s.event.set(), AttributeError, ("signal()",)),
    "is_set()": (lambda s: s.event.is_set(), AttributeError, ("done",)),
    "clear()": (lambda s: s.event.clear(), AttributeError, ("at_least=event.pending + 1",)),
    "an event as a condition": (lambda s: bool(s.event), TypeError, ("event.done",)),
    "an event instead of a list": (lambda s: xs.wait_any(s.event), xs.InvalidArgumentError, ("a list", "[event]")),
    # channels, locks and atomics
    "put()": (lambda s: s.channel.put(1), AttributeError, ("Channel has no attribute 'put'", "send(x) sends a frame")),
    "get()": (lambda s: s.channel.get(), AttributeError, ("receive() takes the next frame",)),
    "a channel that nobody has made": (
        lambda _: xs.Channel.open("nosuch", timeout=0), TimeoutError,
        ("nobody has created the channel 'nosuch'", "channels now: frames", "xs.Channel.create('nosuch', shape)"),
    ),
    "a misspelt channel": (
        lambda _: xs.Channel.open("framse", timeout=0), TimeoutError, ("Did you mean 'frames'?",),
    ),
    "an array's handle as a channel's": (
        lambda s: xs.Channel.open(s.handle), xs.InvalidHandleError, ("handle of an array", "xs.attach opens it"),
    ),
    "the text of an array's handle as a channel's": (
        lambda s: xs.Channel.open(str(s.handle)), xs.InvalidHandleError, ("handle of an array", "xs.attach opens it"),
    ),
    "other bytes as a channel's handle": (
        lambda _: xs.Channel.open(b"hello"), xs.InvalidHandleError, ("not a handle of a channel", "`channel.handle`"),
    ),
    "a loan without with": (
        lambda s: s.channel.loan().array, xs.InvalidArgumentError, ("not on loan", "`with ch.loan() as frame:`"),
    ),
    "a channel of one slot": (
        lambda _: xs.Channel.create("few", 3, slots=1), xs.InvalidArgumentError,
        ("slots is a number from 3 to", "not 1"),
    ),
    "a frame of another dtype": (
        lambda s: s.channel.send(np.ones(2, "f4")), xs.InvalidArgumentError,
        ("(2,) float64, not (2,) float32", "np.asarray(x, 'float64')"),
    ),
    "a frame of another shape": (
        lambda s: s.channel.send(np.ones(3)), xs.InvalidArgumentError,
        ("(2,) float64, not (3,) float64", "an array of that shape", "nbytes="),
    ),
    "a channel that is there with other frames": (
        lambda _: xs.Channel.create("frames", 3, slots=4, on_full="raise"), xs.InvalidArgumentError,
        ("'frames' is there", "(2,) float64 on native_cpu:0, not (3,) float64 on native_cpu:0; slots=3, not 4; ",
         "on_full='block', not 'raise'. Create it with the same, or under another name"),
    ),
    "no slot in time": (
        lambda s: s.full(), TimeoutError,
        ("no slot of 'frames' became free within 0.01 s: close frames", "more slots, or with on_full='overwrite'"),
    ),
    "no frame of a writer": (
        lambda s: s.empty(), TimeoutError, (f"writer (pid {os.getpid()}) is alive, but no frame of 'frames' came",),
    ),
    "no frame without a writer": (
        lambda s: s.without_writer(), TimeoutError,
        ("no frame of 'frames' came within 0.01 s: it has no writer now", "xs.Channel.create"),
    ),
    "a loan closed": (
        lambda s: s.channel.loan().close(), AttributeError,
        ("Loan has no attribute 'close'", "leaving its `with` block sends the frame"),
    ),
    "a handle unlinked": (lambda s: s.handle.unlink(), AttributeError, ("close() withdraws the export",)),
    "whether a lock is locked": (lambda _: xs.Lock().locked(), AttributeError, ("acquire(timeout=0) tries once",)),
    "a closed frame": (
        lambda s: s.closed_frame().array, xs.InvalidArgumentError, ("frame is closed", "np.array(frame)"),
    ),
    "a frame of None": (lambda s: s.channel.send(None), xs.InvalidArgumentError, ("(2,) float64, not NoneType",)),
    "a closed channel": (
        lambda s: (s.channel.close(), s.channel.statistics()), xs.InvalidArgumentError,
        ("Channel is closed: close() was called, or its `with` block has ended", "make or open another"),
    ),
    "a send by a closed channel": (
        lambda s: (s.channel.close(), s.channel.send([1.0, 2.0])), xs.InvalidArgumentError,
        ("Channel is closed: close() was called, or its `with` block has ended",),
    ),
    "a loan of a dropped channel": (
        lambda _: xs.Channel.create("dropped", 3).loan().__enter__(), xs.InvalidArgumentError,
        ("this Channel is closed", "nothing refers to it any more", "Keep the channel in a variable"),
    ),
    "an element of a handle": (
        lambda s: s.handle[0], TypeError, ("this is a handle, not an array: np.asarray(xs.attach(handle))",),
    ),
    "the sum of a handle": (
        lambda s: s.handle.sum(), AttributeError, ("this is a handle, not an array: np.asarray(xs.attach(handle))",),
    ),
    "an array of a channel": (
        lambda s: np.asarray(s.channel), TypeError, ("a Channel is not an array: np.asarray(frame)",),
    ),
    "elements of a loan": (
        lambda s: s.assigned(), TypeError,
        ("'Loan' object does not support item assignment: np.asarray(frame)[:] = ...",),
    ),
    "a closed lock": (
        lambda s: s.closed_lock().acquire(), xs.InvalidArgumentError,
        ("this Lock or Atomic is closed: close()", "same name"),
    ),
    "a lock that is not held": (
        lambda _: xs.Lock().release(), xs.InvalidArgumentError, ("does not hold the lock", "acquire()", "`with lock:`"),
    ),
    "a lock twice": (
        lambda _: (lock := xs.Lock()).acquire() and lock.acquire(), xs.InvalidArgumentError,
        ("holds the lock already", "Release it first"),
    ),
    "the name of an atomic first": (
        lambda _: xs.Atomic("hits"), xs.InvalidArgumentError, ("not 'hits'", "xs.Atomic(0, 'hits')"),
    ),
    "a text added": (lambda _: xs.Atomic().add("x"), xs.InvalidArgumentError, ("an int of 64 bits", "not an int")),
    "a number beyond 64 bits": (
        lambda _: xs.Atomic().store(1 << 70), xs.InvalidArgumentError,
        ("from -2**63 to 2**63 - 1", "outside this range"),
    ),
    "an atomic in a sum": (lambda _: xs.Atomic() + 1, TypeError, ("load() returns the number", "add(n) changes it")),
    "an atomic as a number": (lambda _: int(xs.Atomic()), TypeError, ("load() returns the number",)),
    # names
    "a name that nobody has": (
        lambda _: xs.lookup("nosuch", timeout=0.01), TimeoutError,
        ("nobody has published 'nosuch' within 0.01 s", "published now: nothing", "xs.publish('nosuch', array)"),
    ),
    "a misspelt name": (
        lambda s: s.misspelt(), TimeoutError, ("published now: weights", "Did you mean 'weights'?"),
    ),
    "a misspelt function": (lambda _: xs.shrae, AttributeError, ("did you mean 'share'?",)),
    "an event as an array": (
        lambda s: xs.share(s.event), xs.InvalidArgumentError, ("not an array", "xs.publish(name, event)"),
    ),
    "a name twice": (lambda s: s.twice(), xs.InvalidArgumentError, ("has published 'q' already", "replace=True")),
    "a path as a name": (
        lambda s: xs.publish("a/b", s.array), xs.InvalidArgumentError,
        ("'a/b' is not a valid name", "A-Z a-z 0-9"),
    ),
    "a name last": (lambda s: xs.publish(s.array, "n"), xs.InvalidArgumentError, ("xs.publish(name, array)",)),
    "a name of another": (lambda _: xs.unpublish("zzz"), xs.InvalidArgumentError, ("has not published 'zzz'",)),
    "a name of nobody": (
        lambda _: xs.unpublish("zzz"), xs.InvalidArgumentError, ("nobody has", "nothing to unpublish"),
    ),
    "a name to end, misspelt": (lambda s: s.ended("weigths"), xs.InvalidArgumentError, ("Did you mean 'weights'?",)),
    "a version that never was": (
        lambda s: s.version(1, 7), xs.HandleExpiredError,
        ("version 7 of 'v' is not there: only version", "versions=n", "look up a newer one"),
    ),
    "a version before those that are kept": (
        lambda s: s.version(3, 7), xs.HandleExpiredError, ("version 7 of 'v' is not there: versions", "are kept"),
    ),
    "a closed watch": (
        lambda _: (watch := xs.watch("zzz")).close() or watch.next(), xs.InvalidArgumentError,
        ("watch is closed", "xs.watch"),
    ),
}  # fmt: skip


@pytest.mark.misuse
@pytest.mark.parametrize("mistake", MISTAKES)
def test_message_names_the_fix(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*")
    make, kind, words = MISTAKES[mistake]
    scene = Scene()
    try:
        with pytest.raises(kind) as caught:
            make(scene)
    finally:
        scene.close()
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert not [word for word in words if word not in said], said


def test_channel_by_its_class_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The half-made object is dropped without a second traceback."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(TypeError):
        xs.Channel("camera")
    gc.collect()
    assert not ignored


def test_second_writer_is_told_how_to_be_one() -> None:
    with (
        xs.Channel.create("camera", 3),
        xs.Channel.open("camera") as reader,
        pytest.raises(xs.InvalidArgumentError, match=r"'camera' already has 1 writer, .* pass writers=2 to Chan"),
    ):
        reader.send([1, 2, 3])


def test_closed_channel_says_so_before_it_looks_at_the_array() -> None:
    with xs.Channel.create("camera", 3) as writer:
        pass
    with pytest.raises(xs.InvalidArgumentError, match="closed"):
        writer.send([1, 2])


def test_handle_says_how_many_arrays_it_has() -> None:
    array = xs.zeros(3)
    for tree, words in (
        ({"steps": [1, 2, 3]}, "a tree without arrays"),
        ([array], "a tree of 1 array in 1 allocation,"),
    ):
        with xs.share(tree) as handle:
            assert words in repr(handle)
    with xs.share([array, xs.zeros(2, label="other")]) as handle:
        assert "a tree of 2 arrays in 2 allocations," in repr(handle)


def test_exporter_that_has_exited() -> None:
    source = "import xpushare as xs; print(xs.share(xs.empty(3), opens=1))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    with pytest.raises(xs.HandleExpiredError, match=r"\(pid \d+\) has exited .* Keep it running .*keep=True"):
        xs.attach(done.stdout)


def test_write_to_a_read_only_array() -> None:
    with xs.share(xs.zeros(3), read_only=True) as handle, pytest.raises(ValueError, match="read-only"):
        np.asarray(xs.attach(handle))[0] = 1


@pytest.mark.parametrize("numbers", [[1, 2], (1.0, 2j), [np.float32(1)]])
def test_a_list_of_numbers_warns_that_it_is_no_array(numbers: Any) -> None:
    for copy in (False, True):
        with pytest.warns(UserWarning, match=r"holds no array.*xs\.array\(\[\.\.\.\]\)") as caught:
            xs.share(numbers, copy=copy).close()
        assert caught[0].filename == __file__
    for tree in ([], {"step": 1}, ["a", 1], {"steps": [1, 2]}):
        xs.share(tree).close()


def test_advice_is_no_attribute() -> None:
    with xs.Channel.create("frames", 2) as channel:
        assert "put" not in dir(channel)
        assert not hasattr(channel, "put")
    with xs.share(xs.zeros(3)) as handle:
        assert "sum" not in dir(handle)
        assert not hasattr(handle, "sum")


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda event: event.wait(5), r"wait\(5, at_least=1\)"),
        (lambda event: event.wait(), r"wait\(at_least=1\)"),
        (lambda event: xs.wait_any([event], 0.1), r"wait_any\(\[\(event, 1\)\]\)"),
        (lambda event: xs.wait_any([event]), r"wait_any\(\[\(event, 1\)\]\)"),
    ],
)
def test_a_wait_that_has_nothing_to_wait_for_warns(call: Callable[[xs.Event], Any], advice: str) -> None:
    with xs.Event(HOST) as event:
        with pytest.warns(UserWarning, match=f"returns at once, since no signal .* {advice} waits for the") as caught:
            call(event)
        assert [each.filename for each in caught] == [__file__]
        event.wait(0)  # asks for the state
        event.signal()
        call(event)


def test_lost_handle_warns() -> None:
    array = xs.zeros(3)
    with pytest.warns(ResourceWarning, match=r"is lost: .* Close it, or share with opens= or ttl="):
        xs.share(array)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_after_a_fork() -> None:
    array = xs.zeros(3)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            np.asarray(array)
        except xs.ForkError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        said = file.read()
    os.waitpid(child, 0)
    assert "spawn or forkserver" in said
    assert "send it the handle" in said


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="becomes another user by setpriv")
def test_handle_of_another_user() -> None:
    source = """
import sys, xpushare as xs
try:
    xs.attach(sys.argv[1])
except xs.InvalidHandleError as error:
    print(error)
"""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("XPUSHARE")}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, xs.share(xs.zeros(3)) as handle:
        os.chown(folder, 65534, 65534)
        environment["XPUSHARE_RUNTIME_DIR"] = folder  # else one that stays
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", source, str(handle)],
            capture_output=True, text=True, timeout=60, check=True, env=environment,
        )  # fmt: skip
    assert "made by another user (uid 0): xpushare shares between processes of one user only" in done.stdout

"""Faults of opening and closing, of forks and of pickling."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from faults.planting import mutant, nothing, set_, wrap


@mutant("a read-only import gives writable views and mappings", "3.11a", "3.11b")
def read_only_writable() -> None:
    from xpushare.core import memory

    original = memory.open_
    set_(memory, "open_", lambda *args, **options: original(*args, **options).replace(read_only=False))
    read_only_mapped_writable()


@mutant("a read-only import is mapped writable", "3.11b")
def read_only_mapped_writable() -> None:
    import ctypes

    from xpushare.sharing.peers import Peer

    mprotect = ctypes.CDLL(None).mprotect
    mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*arguments: Any) -> Any:
            what, lease = original(*arguments)
            if what.mapping is not None:
                assert mprotect(what.mapping.address, what.mapping.nbytes, 3) == 0  # PROT_READ | PROT_WRITE
            return what._replace(read_only=False), lease

        return opened

    wrap(Peer, "opened", make)


@mutant("close unmaps under views", "2.10")
def close_unmaps_under_views() -> None:
    from xpushare._native import End
    from xpushare.objects.memory import Memory

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def close(self: Any) -> None:
            found = None if self.closed else self._use()
            original(self)
            if found is not None:
                for end in gc.get_referents(found.allocation):
                    if isinstance(end, End):
                        end.__del__()

        return close

    wrap(Memory, "close", make)


@mutant("a queue does not hold its operands", "2.10", "4.10")
def queue_holds_nothing() -> None:
    from xpushare.core import queue

    original = queue.operand
    set_(queue, "operand", lambda *args: original(*args)._replace(keep=None))


@mutant("close of one import closes all", "3.4a", "3.4d")
def close_closes_all() -> None:
    from xpushare.objects.event import Event
    from xpushare.objects.memory import Memory

    for cls in (Memory, Event):

        def make(original: Callable[..., Any], cls: Any = cls) -> Callable[..., Any]:
            def close(self: Any) -> None:
                handle = None if self.closed or not self.is_imported else self.handle
                original(self)
                if handle is not None:
                    for other in gc.get_objects():
                        if isinstance(other, cls) and not other.closed and other.is_imported and other.handle == handle:
                            original(other)

            return close

        wrap(cls, "close", make)


@mutant("close is not idempotent", "2.8")
def close_raises() -> None:
    from xpushare.common.errors import InvalidArgumentError
    from xpushare.objects.event import Event

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def close(self: Any) -> None:
            if self.closed:
                raise InvalidArgumentError("this Event is closed")
            original(self)

        return close

    wrap(Event, "close", make)


@mutant("ipc.memory.close closes own memory", "3.4b")
def close_verb_on_own() -> None:
    from xpushare.ipc import memory

    set_(memory, "close", lambda found: found.close())


@mutant("an import is not let go of", "2.11", "3.7b")
def import_never_released() -> None:
    from xpushare.sharing.peers import Peers

    held: list[Any] = []

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def open_(self: Any, *args: Any) -> Any:
            held.append(original(self, *args))
            return held[-1]

        return open_

    wrap(Peers, "_open", make)
    wrap(Peers, "open_slot", make)


@mutant("a slot is used again while an importer has the event", "3.7c")
def slot_reused() -> None:
    from xpushare.core import event
    from xpushare.sharing import node

    original = vars(event)["Slot"]
    used: list[int] = []

    def slot(domain: Any, index: int) -> Any:
        table = node.current().table_if_any
        if table is not None and domain is table.domain:
            used.append(index)
            index = used[0]
        return original(domain, index)

    set_(event, "Slot", slot)


@mutant("a forked child may use the parent's objects", "3.9a")
def fork_allowed() -> None:
    from xpushare.objects import lifecycle

    class Always(int):
        def __ne__(self, _other: object) -> bool:
            return False

        __eq__ = int.__eq__
        __hash__ = int.__hash__

    set_(lifecycle, "forks", lambda: Always(0))


@mutant("the importer's object is of the exporter's device", "3.0c", "3.3l")
def device_ignored() -> None:
    from xpushare.core import memory, opening

    def opening_device(handle: Any, device: Any, context: Any) -> Any:
        del device, context
        return opening.opening_device(handle, None, None)

    set_(memory, "opening_device", opening_device)


@mutant("what is opened on another backend's device is of the exporter's", "3.3l", "3.13a")
def backend_ignored() -> None:
    from xpushare.core import memory

    original = memory.open_

    def open_(handle: Any, device: Any = None, context: Any = None) -> Any:
        found = original(handle, device, context)
        named: Any = found.handle
        if found.device.backend == named.backend:
            return found
        return found.replace(device=original(handle).device)

    set_(memory, "open_", open_)


@mutant("errors cannot be pickled", "3.12f")
def errors_not_picklable() -> None:
    from xpushare.common.errors import XpuShareError

    def reduce(_self: Any) -> Any:
        raise TypeError("cannot pickle this error")

    set_(XpuShareError, "__reduce__", reduce)


@mutant("pickled errors lose what they say", "3.12f", "8.7")
def errors_lose_fields() -> None:
    from xpushare.common.errors import XpuShareError

    set_(XpuShareError, "__reduce__", lambda self: (type(self), (self.message,)))


@mutant("a queue can be pickled", "3.12d")
def queue_pickles() -> None:
    from xpushare.objects.queue import Queue

    set_(Queue, "__reduce__", lambda _self: (list, ()))


@mutant("each array of a tree is exported by itself", "6.2")
def tree_exports_each() -> None:
    from xpushare.arrays.place import Placing

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def ranges(self: Any, *arguments: Any) -> Any:
            found = original(self, *arguments)
            return [*found, *found[:1] * (len(self.arrays) - len(found))]

        return ranges

    wrap(Placing, "ranges", make)


@mutant("an array that occurs twice in a tree becomes two", "6.3")
def tree_doubles() -> None:
    from xpushare.arrays import share
    from xpushare.arrays.containers import flatten as original

    def doubling(tree: Any) -> Any:
        arrays, described = original(tree)
        if isinstance(described, list) and described[0] == "l" and len(arrays) == 2:
            inner = described[1][1]
            if isinstance(inner, list) and inner[0] == "d":
                inner[2][0] = len(arrays)
                arrays.append(arrays[0])
        return arrays, described

    set_(share, "flatten", doubling)


@mutant("an attach of a tree that fails takes an open away", "6.7")
def tree_takes_opens() -> None:
    from xpushare.objects import opened

    set_(opened, "give_open", nothing)

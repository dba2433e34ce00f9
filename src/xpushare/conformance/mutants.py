"""Planted faults: proof that the suite bites. `python -m xpushare.conformance.mutants` lists which rules caught each.

Each is a small patch of the adapter, the core or the UR face, applied in the suite's process and in every child when
the environment variable XPUSHARE_CONFORMANCE_MUTANT names it (`harness.apply_mutant`). `aim` are the rules that should
notice; the others run only with `--full`, or where these did not.
"""

# pyright: basic, reportOptionalMemberAccess=false

from __future__ import annotations

import argparse
import gc
import json
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["MUTANTS", "Caught", "Mutant", "apply", "check", "main"]


class Mutant(NamedTuple):
    """A fault: what it is, the rules that should notice, and how it is planted."""

    name: str
    text: str
    aim: tuple[str, ...]
    plant: Callable[[], None]


MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(text: str, *aim: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__
        MUTANTS[name] = Mutant(name, text, aim, plant)
        return plant

    return register


def apply(name: str) -> None:
    """Plant the fault of that name in this process.

    Besides the mutants there are some for the tests of the suite itself: "crash", "hang", "lacks:<aspect>" (the mock
    adapter says so) and "unrefused:<aspect>" (and nothing refuses it).
    """
    tool, _, aspect = name.partition(":")
    if tool in _TOOLS:
        _TOOLS[tool](aspect)
    else:
        MUTANTS[name].plant()


def _crash(_aspect: str) -> None:
    import os

    from xpushare._queue import Queue

    _set(Queue, "close", lambda _self: os._exit(7))


def _hang(_aspect: str) -> None:
    import threading

    from xpushare._queue import Queue

    _set(Queue, "close", lambda _self: threading.Event().wait())


def _lacks(aspect: str) -> None:
    from xpushare._aspects import Support
    from xpushare.adapters.mock import Mock

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def support(self: Any, device: Any, asked: Any) -> Any:
            return Support("no", "the harness says so") if asked == aspect else original(self, device, asked)

        return support

    _wrap(Mock, "support", make)


def _unrefused(aspect: str) -> None:
    from xpushare._device import Device

    _lacks(aspect)
    _set(Device, "require", _nothing)


_TOOLS: Final[dict[str, Callable[[str], None]]] = {
    "crash": _crash,
    "hang": _hang,
    "lacks": _lacks,
    "unrefused": _unrefused,
}


def _wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace `owner.name` by what `make` makes of it."""
    found = vars(owner)[name]
    if isinstance(found, classmethod):
        original = found.__func__
        setattr(owner, name, classmethod(make(original)))
    else:
        setattr(owner, name, make(getattr(owner, name)))


def _set(owner: Any, name: str, value: object) -> None:
    """Replace `owner.name`, which must be there: a fault that meets nothing proves nothing."""
    assert hasattr(owner, name), f"{owner} has no {name} any more: mend this mutant"
    setattr(owner, name, value)


def _the_long_way() -> None:
    """Open nothing by the short cuts, which ask the exporter by themselves."""
    from xpushare.sharing.peers import Peers

    _set(Peers, "acquire_known", lambda _self, _handle, _key, _opener: None)


def _nothing(*_arguments: object, **_options: object) -> None:
    pass


# --- handles and the table --------------------------------------------------------------------------------------------


@mutant("put does nothing", "3.3g", "3.5b")
def put_does_nothing() -> None:
    from xpushare.core import memory

    _set(memory, "put", _nothing)


@mutant("a handle can be put twice", "3.5c")
def put_twice() -> None:
    from xpushare._errors import InvalidArgumentError
    from xpushare.sharing.table import Table

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def put(self: Any, handle: Any) -> None:
            try:
                original(self, handle)
            except InvalidArgumentError:
                if handle._fields.cookie != self.cookie:
                    raise

        return put

    _wrap(Table, "put", make)


@mutant("put takes handles of other processes", "3.5d")
def put_of_others() -> None:
    from xpushare.sharing.table import Table

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def put(self: Any, handle: Any) -> None:
            if handle._fields.cookie == self.cookie:
                original(self, handle)

        return put

    _wrap(Table, "put", make)


@mutant("the seal is not checked", "3.3b", "3.3e")
def seal_ignored() -> None:
    from xpushare.sharing import handle

    _set(handle, "compare_digest", lambda *_digests: True)


@mutant("the version is not checked", "3.3d")
def version_ignored() -> None:
    from xpushare.sharing import handle

    original = handle._parse

    def parse(raw: bytes) -> Any:
        beginning = handle._BEGINNING
        _set(handle, "_BEGINNING", beginning[:8])
        try:
            return original(raw)
        finally:
            _set(handle, "_BEGINNING", beginning)

    _set(handle, "_parse", parse)


@mutant("the boot is not checked", "3.3f")
def boot_ignored() -> None:
    from xpushare.sharing import handle, identity

    original = handle._parse

    def parse(raw: bytes) -> Any:
        here = identity.boot_id
        _set(identity, "boot_id", lambda: raw[48:64])
        try:
            return original(raw)
        finally:
            _set(identity, "boot_id", here)

    _set(handle, "_parse", parse)


@mutant("the kind is not checked", "3.3c")
def kind_ignored() -> None:
    from xpushare.core import memory
    from xpushare.sharing.handle import Handle

    _set(memory, "expect_kind", lambda handle, _kind: Handle(handle))


@mutant("the generation is not compared", "3.3g", "3.3h")
def generation_ignored() -> None:
    from xpushare.sharing.peers import Peer

    _set(Peer, "expect_exported", _nothing)
    _the_long_way()


@mutant("an open from the cache does not ask the exporter", "3.3g", "3.3i")
def cache_not_rechecked() -> None:
    from xpushare.sharing.peers import Peers

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def acquire(self: Any, handle: Any, opener: Any) -> Any:
            fields = handle._fields
            known = self._cache.get((fields.cookie, fields.object, opener, fields.flags & 1))
            found = None if known is None else known()
            if found is not None:
                return found, None
            return original(self, handle, opener)

        return acquire

    _wrap(Peers, "acquire", make)
    _the_long_way()


@mutant("the short way to open again does not ask the exporter", "3.3g", "3.3i")
def reopen_not_rechecked() -> None:
    from xpushare.sharing.peers import Peers

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def acquire_known(self: Any, handle: Any, key: Any, opener: Any) -> Any:
            known = self._cache.get(key)
            found = None if known is None else known()
            return original(self, handle, key, opener) if found is None else (found, None)

        return acquire_known

    _wrap(Peers, "acquire_known", make)


@mutant("a handle's sizes are not compared with the exporter's", "3.3k")
def sizes_ignored() -> None:
    from xpushare._errors import InvalidHandleError
    from xpushare.core import memory

    original = memory.open_

    def open_(handle: Any, device: Any = None, context: Any = None) -> Any:
        try:
            return original(handle, device, context)
        except InvalidHandleError as error:
            if "does not fit" not in str(error):
                raise
            return memory.allocate("device", 64, device, context)

    _set(memory, "open_", open_)


@mutant("two gets return the same handle", "3.1a", "3.5f")
def same_handle() -> None:
    from xpushare.sharing.table import Table

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def export(self: Any, kind: str, device: Any, what: Any, source: Any, **options: Any) -> Any:
            for each in self._exports.values():
                same = each.source is source or (isinstance(source, tuple) and each.source == source)
                if same and (each.handle._fields.offset, each.handle.nbytes) == (
                    options.get("offset", 0), options.get("nbytes", 0)
                ):  # fmt: skip
                    return each.handle
            return original(self, kind, device, what, source, **options)

        return export

    _wrap(Table, "export", make)


@mutant("the offset of a range is dropped", "3.1b")
def offset_dropped() -> None:
    from xpushare.sharing.table import Table

    _wrap(Table, "export", lambda original: lambda *args, **options: original(*args, **{**options, "offset": 0}))


@mutant("a slice exports the whole allocation", "3.1b")
def slice_exports_all() -> None:
    from xpushare.core import memory

    original = memory.get
    _set(
        memory,
        "get",
        lambda source, *args, **options: original(
            source._replace(offset=0, nbytes=source.allocation.nbytes), *args, **options
        ),
    )


@mutant("imported memory can be exported again", "3.1c")
def reexport_of_memory() -> None:
    from xpushare.core import memory

    original = memory.get

    def get(source: Any, *args: Any, **options: Any) -> Any:
        if source.handle is not None:
            return source.handle
        return original(source, *args, **options)

    _set(memory, "get", get)


@mutant("imported events can be exported again", "3.1c", "8.7")
def reexport_of_events() -> None:
    from xpushare.core import event

    original = event.get
    _set(
        event,
        "get",
        lambda source, *args, **options: (
            source.handle if source.handle is not None else original(source, *args, **options)
        ),
    )


@mutant("physical memory is exported without enable_ipc", "3.1e", "8.8")
def physical_without_ipc() -> None:
    from xpushare.core import physical

    original = physical.create
    _set(physical, "create", lambda nbytes, device, context, _enable: original(nbytes, device, context, True))


@mutant("events are exported without enable_ipc", "3.1e", "8.7")
def event_without_ipc() -> None:
    from xpushare.core import event

    original = event.create
    _set(event, "create", lambda device, context, _ipc, profiling: original(device, context, not profiling, profiling))


@mutant("an export does not hold its source", "3.5a")
def export_released_by_gc() -> None:
    import weakref

    from xpushare.core.resources import Resource
    from xpushare.sharing import node
    from xpushare.sharing.table import Table

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def export(self: Any, *args: Any, **options: Any) -> Any:
            handle = original(self, *args, **options)
            exported = self._exports[handle._fields.generation]
            source = exported.source[0] if isinstance(exported.source, tuple) else exported.source

            def end() -> None:
                table = node.current().table_if_any
                if table is not None:
                    table.withdraw(handle, 2)

            exported.source = weakref.proxy(source) if isinstance(source, Resource) else source
            _set(weakref.finalize(source, end), "atexit", False)
            return handle

        return export

    _wrap(Table, "export", make)


@mutant("a pickled object's export is never withdrawn", "3.12c", "3.3m")
def implicit_stays() -> None:
    from xpushare.core import memory

    _set(memory, "_withdraw", _nothing)


@mutant("a dead exporter is taken for alive", "3.3i")
def dead_exporter_accepted() -> None:
    from xpushare import _native
    from xpushare.sharing import peers

    class Immortal:
        def __getattr__(self, name: str) -> Any:
            return (lambda _pidfds: []) if name == "dead" else getattr(_native, name)

    _set(peers, "_native", Immortal())
    _set(peers.Peer, "alive", lambda _self: True)


@mutant("a failed open leaves an fd behind", "3.8a")
def open_leaks_fds() -> None:
    import os

    from xpushare.core import memory

    original = memory.expect_kind
    leaked: list[int] = []

    def expect_kind(handle: Any, kind: str) -> Any:
        try:
            return original(handle, kind)
        except Exception:
            leaked.append(os.dup(0))
            raise

    _set(memory, "expect_kind", expect_kind)


# --- opening and closing ----------------------------------------------------------------------------------------------


@mutant("a read-only import gives writable views and mappings", "3.11a", "3.11b")
def read_only_writable() -> None:
    from xpushare.core import memory
    from xpushare.sharing import layout, peers

    original = memory.open_
    _set(memory, "open_", lambda *args, **options: original(*args, **options)._replace(read_only=False))
    entry = peers.Peer.entry

    def writable(self: Any, handle: Any) -> Any:
        found = entry(self, handle)
        return found._replace(flags=found.flags & ~layout.ENTRY_READ_ONLY)

    _set(peers.Peer, "entry", writable)
    _the_long_way()


@mutant("a read-only import is mapped writable", "3.11b")
def read_only_mapped_writable() -> None:
    from xpushare.sharing import layout, peers

    entry = peers.Peer.entry

    def writable(self: Any, handle: Any) -> Any:
        found = entry(self, handle)
        return found._replace(flags=found.flags & ~layout.ENTRY_READ_ONLY)

    _set(peers.Peer, "entry", writable)
    _the_long_way()


@mutant("close unmaps under views", "2.10")
def close_unmaps_under_views() -> None:
    from xpushare._memory import Memory

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def close(self: Any) -> None:
            found = self._range
            original(self)
            if found is not None and found.allocation._end is not None:
                del found.allocation._end
                found.allocation._end = None

        return close

    _wrap(Memory, "close", make)


@mutant("a queue does not hold its operands", "2.10", "4.10")
def queue_holds_nothing() -> None:
    from xpushare.core import queue

    original = queue._operand
    _set(queue, "_operand", lambda *args: original(*args)._replace(keep=None))


@mutant("close of one import closes all", "3.4a", "3.4d")
def close_closes_all() -> None:
    from xpushare._event import Event
    from xpushare._memory import Memory

    for cls, slot in ((Memory, "_range"), (Event, "_opened")):

        def make(original: Callable[..., Any], cls: Any = cls, slot: str = slot) -> Callable[..., Any]:
            def close(self: Any) -> None:
                found = getattr(self, slot)
                handle = None if found is None else found.handle
                original(self)
                if handle is not None:
                    for other in gc.get_objects():
                        if isinstance(other, cls):
                            state = getattr(other, slot)
                            if state is not None and state.handle == handle:
                                original(other)

            return close

        _wrap(cls, "close", make)


@mutant("close is not idempotent", "2.8")
def close_raises() -> None:
    from xpushare._errors import InvalidArgumentError
    from xpushare._event import Event

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def close(self: Any) -> None:
            if self._opened is None:
                raise InvalidArgumentError("this Event is closed")
            original(self)

        return close

    _wrap(Event, "close", make)


@mutant("ipc.memory.close closes own memory", "3.4b")
def close_verb_on_own() -> None:
    from xpushare.ipc import memory

    _set(memory, "close", lambda found: found.close())


@mutant("an import is not let go of", "2.11", "3.7b")
def import_never_released() -> None:
    from xpushare.sharing.peers import Peers

    held: list[Any] = []

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def acquire(self: Any, *args: Any) -> Any:
            held.append(original(self, *args))
            return held[-1]

        return acquire

    _wrap(Peers, "acquire", make)
    _wrap(Peers, "acquire_slot", make)


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

    _set(event, "Slot", slot)


@mutant("a forked child may use the parent's objects", "3.9a")
def fork_allowed() -> None:
    from xpushare import _event, _memory, _physical_memory, _queue

    class Always(int):
        def __ne__(self, _other: object) -> bool:
            return False

        __eq__ = int.__eq__
        __hash__ = int.__hash__

    for module in (_event, _memory, _physical_memory, _queue):
        _set(module, "forks", lambda: Always(0))


@mutant("the importer's object is of the exporter's device", "3.0c", "3.3l")
def device_ignored() -> None:
    from xpushare.core import memory, opening

    def opening_device(handle: Any, device: Any, context: Any) -> Any:
        del device, context
        return opening.opening_device(handle, None, None)

    _set(memory, "opening_device", opening_device)


@mutant("what is opened on another backend's device is of the exporter's", "3.3l")
def backend_ignored() -> None:
    from xpushare.core import memory

    original = memory.open_

    def open_(handle: Any, device: Any = None, context: Any = None) -> Any:
        found = original(handle, device, context)
        named: Any = found.handle
        if found.device.backend == named.backend:
            return found
        return found._replace(device=original(handle).device)

    _set(memory, "open_", open_)


@mutant("errors cannot be pickled", "3.12f")
def errors_not_picklable() -> None:
    from xpushare._errors import XpuShareError

    def reduce(_self: Any) -> Any:
        raise TypeError("cannot pickle this error")

    _set(XpuShareError, "__reduce__", reduce)


@mutant("pickled errors lose what they say", "3.12f", "8.7")
def errors_lose_fields() -> None:
    from xpushare._errors import XpuShareError

    _set(XpuShareError, "__reduce__", lambda self: (type(self), (self.message,)))


@mutant("a queue can be pickled", "3.12d")
def queue_pickles() -> None:
    from xpushare._queue import Queue

    _set(Queue, "__reduce__", lambda _self: (list, ()))


# --- virtual memory ---------------------------------------------------------------------------------------------------


@mutant("a part is mapped without partial_map's offset", "4.7")
def offset_of_part_ignored() -> None:
    from xpushare.adapters._host import HostRange

    original = HostRange.map
    _set(
        HostRange,
        "map",
        lambda self, at, physical, _offset, nbytes, access: original(self, at, physical, 0, nbytes, access),
    )


@mutant("parts are refused although the device has partial_map", "4.7")
def parts_refused() -> None:
    from xpushare._errors import InvalidArgumentError
    from xpushare.core import physical

    original = physical.map_

    def map_(reserved: Any, source: Any, at: int, offset: int, nbytes: Any, access: str) -> None:
        if (offset, nbytes or source.pages.nbytes) != (0, source.pages.nbytes):
            raise InvalidArgumentError("no parts")
        original(reserved, source, at, offset, nbytes, access)

    _set(physical, "map_", map_)


@mutant("a second map over a mapped range is allowed", "4.5", "8.6")
def overlapping_map() -> None:
    from xpushare.core import physical

    original = physical.map_

    def map_(reserved: Any, *args: Any) -> None:
        found = physical.Reserved.overlapping
        _set(physical.Reserved, "overlapping", lambda _self, _at, _nbytes: [])
        try:
            original(reserved, *args)
        finally:
            _set(physical.Reserved, "overlapping", found)

    _set(physical, "map_", map_)


@mutant("unmap of part of a mapping is allowed", "4.6", "8.6")
def unmap_of_part() -> None:
    from xpushare.core.physical import Reserved

    _set(Reserved, "whole", lambda self, at, nbytes: self.overlapping(*self.check(at, nbytes)))


@mutant("the granularity is not demanded", "4.3", "8.5", "8.6")
def granularity_ignored() -> None:
    from xpushare.core import physical

    _set(physical, "multiple", _nothing)


@mutant("the access of a mapping is ignored", "4.8")
def access_ignored() -> None:
    from xpushare.adapters._host import HostRange

    original = HostRange.map
    _set(
        HostRange,
        "map",
        lambda self, at, physical, offset, nbytes, _access: original(self, at, physical, offset, nbytes, "rw"),
    )


@mutant("set_access only notes it", "4.8")
def set_access_notes() -> None:
    from xpushare.adapters._host import HostRange

    _set(HostRange, "set_access", _nothing)


@mutant("access() always answers rw", "4.8", "4.1", "8.6")
def access_always_rw() -> None:
    from xpushare.core import physical

    _set(physical, "access_of", lambda _reserved, _at: "rw")


@mutant("views do not keep bytes from being unmapped", "4.10")
def views_do_not_pin() -> None:
    from xpushare.core.physical import Mapped

    original = Mapped.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)

        class Sieve:
            add = staticmethod(_nothing)

            def __len__(self) -> int:
                return 0

        self.pins = Sieve()

    _set(Mapped, "__init__", init)


# --- queues and events ------------------------------------------------------------------------------------------------


@mutant("copy ignores the bounds", "5.2", "8.5")
def copy_ignores_bounds() -> None:
    from xpushare.core import queue

    original = queue._operand

    def operand(work: Any, what: str, source: Any, offset: int, total: int, nbytes: Any, write: bool) -> Any:
        length = total if nbytes is None else operator.index(nbytes)
        return original(work, what, source, offset, total, max(0, min(length, total)), write)

    _set(queue, "_operand", operand)


@mutant("fill ignores all but the pattern's first byte", "5.1")
def fill_ignores_pattern() -> None:
    from xpushare.core import queue

    original = queue.fill
    _set(
        queue, "fill", lambda work, dst, pattern, nbytes: original(work, dst, bytes(pattern)[:1] * len(pattern), nbytes)
    )


@mutant("a pattern that does not divide the size is accepted", "5.2")
def fill_takes_any_pattern() -> None:
    from xpushare.core import queue

    original = queue.fill
    _set(
        queue,
        "fill",
        lambda work, dst, pattern, nbytes: original(
            work,
            dst,
            pattern[:1] if isinstance(pattern, bytes) and len(pattern) == 3 else pattern,
            nbytes,
        ),
    )


@mutant("a queue runs its newest operation first", "5.3")
def queue_order() -> None:
    from xpushare.adapters._host_queue import HostQueue

    class Stack(list[Any]):
        popleft = list.pop

    original = HostQueue.__init__

    def init(self: Any) -> None:
        original(self)
        self._todo = Stack()

    _set(HostQueue, "__init__", init)


@mutant("what fails in a queue is swallowed at synchronize", "5.4", "5.17", "5.19")
def failures_swallowed() -> None:
    from xpushare.core import queue

    original = queue.synchronize

    def synchronize(work: Any, timeout: Any) -> None:
        try:
            original(work, timeout)
        except TimeoutError:
            raise
        except Exception as error:
            if not isinstance(error, ValueError) or "timeout" not in str(error):
                return
            raise

    _set(queue, "synchronize", synchronize)


@mutant("synchronize returns early", "5.23")
def synchronize_early() -> None:
    from xpushare.adapters._host_queue import HostQueue

    _set(HostQueue, "synchronize", lambda _self, _timeout: None)


@mutant("signal returns the number before", "5.6", "5.7", "5.11")
def signal_number() -> None:
    from xpushare.core import event, queue

    for module in (event, queue):
        original = module.signal
        _set(module, "signal", lambda *args, original=original: original(*args) - 1)


@mutant("a queue's signal is complete before the work ahead of it", "5.7", "5.8")
def value_ahead() -> None:
    from xpushare.adapters._host_queue import HostQueue

    def signal(self: Any, slot: Any, profile: Any) -> int:
        point, _first = slot.submit(self.number)
        slot.complete(point)
        self._put(lambda: None)
        del profile
        number: int = point
        return number

    _set(HostQueue, "signal", signal)


@mutant("Event.wait returns early", "5.9", "5.7")
def wait_early() -> None:
    from xpushare.core import event

    _set(event, "wait", _nothing)


@mutant("at_least is ignored", "5.9", "5.5")
def at_least_ignored() -> None:
    from xpushare.core import event

    original = event.wait
    _set(event, "wait", lambda opened, timeout, _at_least: original(opened, timeout, None))


@mutant("a queue's wait holds nothing back", "5.8", "5.25")
def queue_wait_ignored() -> None:
    from xpushare.core import queue

    original = queue.wait

    def wait(work: Any, opened: Any, at_least: Any) -> None:
        original(work, opened, 0 if (isinstance(at_least, int) and at_least >= 0) or at_least is None else at_least)

    _set(queue, "wait", wait)


@mutant("reached returns early", "5.10")
def reached_early() -> None:
    from xpushare.core import event

    async def reached(_opened: Any, _at_least: Any) -> None:
        pass

    _set(event, "reached", reached)


@mutant("a lost point counts as done", "5.15", "5.20", "8.13")
def lost_is_done() -> None:
    from xpushare import _native
    from xpushare.core import event

    original = event.wait

    def wait(opened: Any, timeout: Any, at_least: Any) -> None:
        slot = opened.timeline.slot
        point = slot.pending if at_least is None else at_least
        if slot.wait(point, timeout) != _native.LOST:
            original(opened, timeout, at_least)

    _set(event, "wait", wait)


@mutant("PeerLostError is never raised: waits go on", "5.15", "5.16")
def peer_lost_never() -> None:
    import time

    from xpushare._errors import PeerLostError
    from xpushare.core import event

    original = event.wait

    def wait(opened: Any, timeout: Any, at_least: Any) -> None:
        try:
            original(opened, timeout, at_least)
        except PeerLostError:
            threshold = time.monotonic() + (3600 if timeout is None else timeout)
            while time.monotonic() < threshold:
                time.sleep(0.05)
            raise TimeoutError("waited in vain") from None

    _set(event, "wait", wait)


@mutant("the clean exit of a process is a loss", "5.18")
def exit_is_loss() -> None:
    from xpushare.sharing import node

    def leave() -> None:
        import os

        node.left.append(True)
        table = node.current().table_if_any
        for peer in list(node.current().peers._peers.values()):
            for known in list(node.current().peers._cache.values()):
                found: Any = known()
                if hasattr(found, "slot") and found.slot.domain is peer.domain:
                    found.slot.submit(99)
        del table
        os._exit(0)

    _set(node, "_leave", leave)


@mutant("a host signal is allowed over a pending point", "5.12")
def host_signal_over_pending() -> None:
    from xpushare.core import event

    original = event.signal

    def signal(opened: Any) -> int:
        slot = opened.timeline.slot
        if slot.pending > slot.value:
            point: int = slot.submit(77)[0]
            return point
        return original(opened)

    _set(event, "signal", signal)


@mutant("a second signaller's queue does not wait for the pending point", "5.12")
def second_signaller() -> None:
    from xpushare.adapters._host_queue import HostQueue

    original = HostQueue._signal

    def signal(self: Any, slot: Any, point: int, _first: int, profile: Any) -> None:
        original(self, slot, point, 0, profile)

    _set(HostQueue, "_signal", signal)


@mutant("work behind a lost wait never runs", "5.17")
def released_work_dropped() -> None:
    from xpushare import _native
    from xpushare.adapters import _host_queue
    from xpushare.timeline.loss import peer_lost

    def wait(self: Any, slot: Any, point: int) -> None:
        if slot.wait(point) == _native.LOST:
            self._failures.append(peer_lost(slot, point))
            with self._changed:
                self._todo.clear()

    _set(_host_queue.HostQueue, "_wait", wait)


@mutant("signals behind a lost wait complete", "5.17")
def loss_forgotten() -> None:
    from xpushare.adapters._host_queue import HostQueue

    def signal(_self: Any, slot: Any, point: int, first: int, _profile: Any) -> None:
        if first:
            slot.wait(first)
        slot.complete(point)

    _set(HostQueue, "_signal", signal)


@mutant("IPC and profiling together are accepted", "5.13")
def ipc_and_profiling() -> None:
    from xpushare.core import event

    original = event.create
    _set(event, "create", lambda device, context, ipc, profiling: original(device, context, ipc, profiling and not ipc))


@mutant("every event opens a file", "5.14")
def event_costs_fd() -> None:
    import os

    from xpushare.core import event

    original = event.open_
    opened: list[int] = []

    def open_(*args: Any) -> Any:
        opened.append(os.open(os.devnull, os.O_RDONLY))
        return original(*args)

    _set(event, "open_", open_)


@mutant("bool of an event works", "5.22")
def bool_works() -> None:
    from xpushare._event import Event

    _set(Event, "__bool__", lambda self: self.done)


# --- the UR face ------------------------------------------------------------------------------------------------------


@mutant("ur answers one result for another", "8.1", "8.3", "8.5")
def ur_wrong_result() -> None:
    from xpushare import ur

    original = ur.URError.__init__

    def init(self: Any, message: str, **options: Any) -> None:
        original(self, message, **options)
        if self.result is ur.Result.ERROR_INVALID_SIZE:
            self.result = ur.Result.ERROR_INVALID_VALUE

    _set(ur.URError, "__init__", init)


@mutant("ur ignores the reference count", "8.9")
def ur_refcount() -> None:
    from xpushare.ur import _objects

    def release(self: Any) -> None:
        self._references = 0
        self._end()

    _set(_objects.Counted, "_release", release)


@mutant("ur takes dead handles", "8.2", "8.9")
def ur_dead_handles() -> None:
    from xpushare.ur import _objects

    _set(_objects.Counted, "_release", _nothing)


@mutant("urUSMFree frees opened memory", "8.4")
def ur_free_opened() -> None:
    from xpushare import ur

    original = ur.urUSMFree

    def free(context: Any, pointer: Any) -> None:
        from xpushare.ur import _objects

        if pointer in _objects.places.opened:
            ur.urIPCCloseMemHandleExp(context, pointer)
        else:
            original(context, pointer)

    _set(ur, "urUSMFree", free)


@mutant("ur does not refuse memory of unknown addresses", "8.4")
def ur_unknown_addresses() -> None:
    from xpushare import ur

    original = ur.urUSMFree

    def free(context: Any, pointer: Any) -> None:
        try:
            original(context, pointer)
        except ur.URError as error:
            if error.result is not ur.Result.ERROR_INVALID_MEM_OBJECT:
                raise

    _set(ur, "urUSMFree", free)


@mutant("profiling times are always there", "8.12")
def ur_profiling() -> None:
    from xpushare import ur

    original = ur.urEventGetProfilingInfo

    def info(event: Any, query: Any) -> int:
        try:
            found: int = original(event, query)
        except ur.URError as error:
            if error.result is not ur.Result.ERROR_PROFILING_INFO_NOT_AVAILABLE:
                raise
            return 0
        return found

    _set(ur, "urEventGetProfilingInfo", info)


# --- running them -----------------------------------------------------------------------------------------------------


class Caught(NamedTuple):
    """A mutant and the rules that failed because of it."""

    mutant: str
    rules: tuple[str, ...]
    seconds: float
    problem: str = ""
    """Why it could not be planted."""


def check(name: str, device: str = "native_cpu:0", importer: str | None = None, *, full: bool = False) -> Caught:
    """Run the suite with the fault planted: the rules aimed at first, all of them if these miss it (or `full`)."""
    from xpushare.conformance import runner

    found = MUTANTS[name]
    seconds = 0.0
    caught: tuple[str, ...] = ()
    for rules in ((), ) if full else (found.aim, ()):  # fmt: skip
        report = runner.run(device, importer, rules=rules, mutant=name, stop=not full and not rules, rule_timeout=20.0)
        seconds += report.seconds
        caught = tuple(
            each.rule.number for each in report.outcomes if any(part.status == "failed" for part in each.parts)
        )
        if not caught and report.problem:
            return Caught(name, (), seconds, report.problem)
        if caught:
            break
    return Caught(name, caught, seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Check mutants; 0 if each was caught."""
    parser = argparse.ArgumentParser(prog="python -m xpushare.conformance.mutants", description=__doc__)
    parser.add_argument("mutants", nargs="*", help="by name; all by default")
    parser.add_argument("--device", default="native_cpu:0")
    parser.add_argument("--importer-device")
    parser.add_argument("--full", action="store_true", help="all rules on each, not only those aimed at")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.mutants if name not in MUTANTS]:
        parser.error(f"there is no mutant {', '.join(unknown)}; they are {', '.join(MUTANTS)}")
    found: list[Caught] = []
    for name in arguments.mutants or MUTANTS:
        caught = check(name, arguments.device, arguments.importer_device, full=arguments.full)
        found.append(caught)
        if not arguments.json:
            by = ", ".join(caught.rules) or "NOBODY"
            if caught.problem:
                by += f", since it could not be planted: {caught.problem}"
            print(f"{name:<28} {MUTANTS[name].text}\n{'':<28} caught by {by} ({caught.seconds:.1f} s)", flush=True)
    survived = [each.mutant for each in found if not each.rules]
    if arguments.json:
        print(json.dumps([each._asdict() for each in found], indent=2))
    else:
        print(
            f"{len(found) - len(survived)} of {len(found)} mutants caught"
            + (f"; survived: {survived}" if survived else "")
        )
    return 1 if survived else 0


if __name__ == "__main__":
    # `apply` looks the fault up in the module of that name, which this one, as __main__, is not.
    sys.exit(main())

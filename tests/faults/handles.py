"""Faults of handles and of the table of exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults.planting import mutant, nothing, set_, wrap
from xpushare.sharing import layout
from xpushare.sharing.handle import fields_of


@mutant("put does nothing", "3.3g", "3.5b")
def put_does_nothing() -> None:
    from xpushare.core import memory

    set_(memory, "put", nothing)


@mutant("a handle can be put twice", "3.5c")
def put_twice() -> None:
    from xpushare.common.errors import InvalidArgumentError
    from xpushare.sharing.table import Table

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def put(self: Any, handle: Any) -> None:
            try:
                original(self, handle)
            except InvalidArgumentError:
                if fields_of(handle).cookie != self.cookie:
                    raise

        return put

    wrap(Table, "put", make)


@mutant("put takes handles of other processes", "3.5d")
def put_of_others() -> None:
    from xpushare.sharing.table import Table

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def put(self: Any, handle: Any) -> None:
            if fields_of(handle).cookie == self.cookie:
                original(self, handle)

        return put

    wrap(Table, "put", make)


def _read_as(corrected: Callable[[bytes, bytes], bytes]) -> None:
    """Read every handle as if its body were `corrected(body, seal)`, and sealed."""
    from xpushare.sharing import handle

    original = handle.parse

    def parse(raw: bytes) -> Any:
        body = corrected(raw[: -handle.SEAL_NBYTES], raw[-handle.SEAL_NBYTES :])
        return original(body + handle.keyed_hash(body) if len(raw) == handle.Handle.NBYTES else raw)

    set_(handle, "parse", parse)


@mutant("the seal is not checked", "3.3b", "3.3e")
def seal_ignored() -> None:
    _read_as(lambda body, _seal: body)


@mutant("the version is not checked", "3.3d")
def version_ignored() -> None:
    from xpushare.sharing import handle

    def corrected(body: bytes, seal: bytes) -> bytes:
        if handle.keyed_hash(body) != seal:
            return b"X" + body[1:]  # refused as before
        return body[:8] + handle.VERSION.to_bytes(2, "little") + body[10:]

    _read_as(corrected)


@mutant("the boot is not checked", "3.3f")
def boot_ignored() -> None:
    from xpushare.sharing import handle, identity

    original = handle.parse

    def parse(raw: bytes) -> Any:
        here = identity.boot_id
        set_(identity, "boot_id", lambda: raw[48:64])
        try:
            return original(raw)
        finally:
            set_(identity, "boot_id", here)

    set_(handle, "parse", parse)


@mutant("the kind is not checked", "3.3c")
def kind_ignored() -> None:
    from xpushare.core import memory
    from xpushare.sharing.handle import Handle

    set_(memory, "expect_kind", lambda handle, _kind: Handle(handle))


@mutant("the generation is not compared", "3.3g", "3.3h")
def generation_ignored() -> None:
    from xpushare._native import CONSTANTS, Refusal
    from xpushare.sharing.peers import Peer

    ended = CONSTANTS["REFUSED_ENTRY_ENDED"]

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            found = original(*arguments)
            if isinstance(found, Refusal) and found.code == ended:
                return Refusal((CONSTANTS["REFUSED_ENTRY_UNFIT"], 0, "", 0))
            return found

        return call

    for name in ("open", "hold", "find"):
        set_(Peer, name, make(getattr(Peer, name)))
    set_(Peer, "ended", nothing)


@mutant("an open from the cache does not ask the exporter", "3.3g", "3.3i")
def cache_not_rechecked() -> None:
    from xpushare.sharing.peers import Peers

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def open_(self: Any, handle: Any, key: Any, opener: Any, met: Any) -> Any:
            found = self.imports.get(key)
            return original(self, handle, key, opener, met) if found is None else (found, None)

        return open_

    wrap(Peers, "_open", make)


@mutant("what is found open is not held at the exporter", "3.3g", "3.3i")
def reopen_not_rechecked() -> None:
    from xpushare.sharing.peers import Peers

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def import_(self: Any, peer: Any, handle: Any, key: Any, opener: Any) -> Any:
            found = self.imports.get(key)
            return original(self, peer, handle, key, opener) if found is None else (found, None)

        return import_

    wrap(Peers, "_import", make)


@mutant("a handle's sizes are not compared with the exporter's", "3.3k")
def sizes_ignored() -> None:
    from xpushare.common.errors import InvalidHandleError
    from xpushare.core import memory

    original = memory.open_

    def open_(handle: Any, device: Any = None, context: Any = None) -> Any:
        try:
            return original(handle, device, context)
        except InvalidHandleError as error:
            if "does not fit" not in str(error):
                raise
            return memory.allocate("device", 64, device, context)

    set_(memory, "open_", open_)


@mutant("two gets return the same handle", "3.1a", "3.5f")
def same_handle() -> None:
    from xpushare.sharing.table import Table

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def export(self: Any, exports: Any, *limits: Any) -> Any:
            handles = original(self, exports, *limits)
            for at, new in enumerate(exports):
                for each in self.exports():
                    if each is not new and each.source is new.source and _range(each.handle) == _range(new.handle):
                        self.withdraw(new.handle, layout.REASON_PUT)
                        handles[at] = each.handle
                        break
            return handles

        return export

    wrap(Table, "export", make)


def _range(handle: Any) -> tuple[int, int]:
    return fields_of(handle).offset, handle.nbytes


@mutant("the offset of a range is dropped", "3.1b")
def offset_dropped() -> None:
    from xpushare.core import memory

    original = memory.get
    set_(memory, "get", lambda source, *args, **options: original(source.replace(offset=0), *args, **options))


@mutant("a slice exports the whole allocation", "3.1b")
def slice_exports_all() -> None:
    from xpushare.core import memory

    original = memory.get
    set_(
        memory,
        "get",
        lambda source, *args, **options: original(
            source.replace(offset=0, nbytes=source.allocation.nbytes), *args, **options
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

    set_(memory, "get", get)


@mutant("imported events can be exported again", "3.1c", "8.7")
def reexport_of_events() -> None:
    from xpushare.core import event

    original = event.get
    set_(
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
    set_(physical, "create", lambda nbytes, device, context, _enable: original(nbytes, device, context, True))


@mutant("events are exported without enable_ipc", "3.1e", "8.7")
def event_without_ipc() -> None:
    from xpushare.core import event

    original = event.create
    set_(
        event,
        "create",
        lambda device, context, _ipc, profiling, *rest: original(device, context, not profiling, profiling, *rest),
    )


@mutant("an export does not hold its source", "3.5a")
def export_released_by_gc() -> None:
    import weakref

    from xpushare.core import event, memory, physical
    from xpushare.sharing import node
    from xpushare.sharing.table import Exported

    def made(prepared: Any, source: Any, *arguments: Any, **options: Any) -> Exported:
        found = Exported(prepared, weakref.proxy(source), *arguments, **options)

        def end() -> None:
            table = node.current().table_if_any
            if table is not None and found.handle is not None:
                table.withdraw(found.handle, layout.REASON_FREED)

        set_(weakref.finalize(source, end), "atexit", False)
        return found

    for module in memory, event, physical:
        set_(module, "Exported", made)


@mutant("a pickled object's export is never withdrawn", "3.12c", "3.3m")
def implicit_stays() -> None:
    from xpushare.sharing.table import Table

    set_(Table, "outlive", nothing)


@mutant("a pickled object's export ends with it", "3.12c")
def pickles_without_grace() -> None:
    from xpushare.core import pickles

    set_(pickles, "_grace", lambda: 0)


@mutant("unpickling raises", "3.12c", "3.3m")
def unpickling_raises() -> None:
    from xpushare.core import pickles

    def fail(_self: Any, error: Exception, _pickle: Any) -> None:
        raise error

    set_(pickles.Unopened, "__init__", fail)


@mutant("a dead exporter is taken for alive", "3.3i")
def dead_exporter_accepted() -> None:
    from xpushare import _native
    from xpushare.sharing import peers

    class Immortal:
        def __getattr__(self, name: str) -> Any:
            return (lambda _pidfds: []) if name == "dead" else getattr(_native, name)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def import_(self: Any, peer: Any, handle: Any, key: Any, opener: Any) -> Any:
            fields, found = fields_of(handle), self.imports.get(key)
            if found is None or peer.ended(fields) is not None:
                return original(self, peer, handle, key, opener)
            return found, _native.Lease(peer.domain, fields.entry, peer)

        return import_

    set_(peers, "_native", Immortal())
    set_(peers.Peer, "alive", lambda _self: True)
    wrap(peers.Peers, "_import", make)


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

    set_(memory, "expect_kind", expect_kind)


@mutant("memory serves again while importers have it open", "6.13")
def serves_while_open() -> None:
    from xpushare.core import reuse

    set_(reuse.Block, "free", lambda _self: True)


@mutant("zeros show what an earlier array held", "6.12")
def zeros_of_before() -> None:
    from xpushare.core import memory

    set_(memory, "is_zero", lambda _source: True)

"""The first open from an exporter: when it fails, nothing of the acquaintance stays (rule 8)."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import pytest
from peering import exported, exported_event, exported_physical, kind

import harness
import xpushare as xs
from harness import Child
from xpushare.sharing import node

__all__ = ["kind"]

MAKERS = {"memory": exported, "physical_memory": exported_physical, "event": exported_event}


def put(handle: xs.ipc.Handle) -> None:
    getattr(xs.ipc, handle.kind).put(handle)


@pytest.mark.usefixtures("exporting")
def test_a_failed_first_open_leaves_no_acquaintance(kind: str) -> None:
    with Child() as child:
        handle = child.call(MAKERS[kind], "native_cpu:0")
        child.call(put, handle)
        gc.collect()
        before = harness.fd_count()
        with pytest.raises(xs.HandleExpiredError, match="put"):
            getattr(xs.ipc, kind).open(handle)
        gc.collect()
        assert handle._fields.cookie not in node.current().peers._peers
        assert harness.fd_count() <= before  # what an earlier test left may have gone meanwhile
        with getattr(xs.ipc, kind).open(child.call(MAKERS[kind], "native_cpu:0")) as good:
            assert good.is_imported


def test_too_little_address_space_is_told_so() -> None:
    def limited(raw: bytes, room: int) -> str:
        import resource

        xs.ipc.Handle(raw)  # what is imported for it needs room, too
        with contextlib.suppress(xs.InvalidHandleError):
            xs.ipc.memory.open(bytes(256))
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
        try:
            with xs.ipc.memory.open(raw) as memory:
                return f"opened {memory.nbytes}"
        except xs.OutOfMemoryError as error:
            return str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    with xs.malloc_device(64 << 20, "native_cpu:0") as memory, Child() as child:
        raw = bytes(xs.ipc.memory.get(memory))
        for room in (8 << 20, 100 << 20, 200 << 20):  # the table's mapping, the commons', the memory's does not fit
            assert "Cannot allocate memory" in child.call(limited, raw, room)
        assert child.call(limited, raw, 1 << 30) == f"opened {64 << 20}"

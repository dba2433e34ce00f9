"""The first open from an exporter: when it fails, nothing of the acquaintance stays (rule 8)."""

from __future__ import annotations

import gc

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

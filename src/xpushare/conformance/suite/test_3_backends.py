"""Section 3, other backends: opening handles on a device of a different backend."""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import pytest

import xpushare as xs
from xpushare import adapters
from xpushare.conformance import actions
from xpushare.conformance.actions import NBYTES, granule, read_bytes, write_bytes
from xpushare.conformance.harness import TIMEOUT, Child, kept
from xpushare.conformance.plugin import Pair
from xpushare.conformance.rules import KIND_ASPECTS, rule


def strangers(device: str, kind: str) -> list[str]:
    """Return devices of other backends that can share objects of that kind, one device for each backend."""
    found: dict[str, str] = {}
    for each in xs.devices():
        if each.backend != xs.Device(device).backend and all(each.has(aspect) for aspect in KIND_ASPECTS[kind]):
            found.setdefault(each.backend, str(each))
    return list(found.values())


@rule("3.13a")
@pytest.mark.parametrize("kind", ["memory", "physical_memory"])
def test_content(pair: Pair, peer: Child, kind: str) -> None:
    refusals: list[str] = []
    opened = 0
    for stranger in strangers(pair.exporter, kind):
        nbytes = NBYTES if kind == "memory" else granule(pair.exporter, stranger)
        for exporter, importer in ((pair.exporter, stranger), (stranger, pair.importer)):
            handle = peer.call(actions.export, importer, kind, exporter, b"from the exporter", nbytes)
            error, text = actions.outcome(actions.open_, "opened", kind, handle, importer)
            if error:
                assert error == "FeatureNotSupportedError", text
                assert xs.Device(exporter).backend in text
                assert importer in text
                refusals.append(text)
                continue
            opened += 1
            with kept.pop("opened") as thing:
                assert (thing.device, thing.is_imported, thing.nbytes) == (xs.Device(importer), True, nbytes)
                assert read_bytes(thing, 17) == b"from the exporter"
                write_bytes(thing, b"from the importer")
                assert peer.call(actions.read, importer, 17) == b"from the importer"
    if not opened:
        pytest.skip("; ".join(refusals) or "there is no device of another backend")


@rule("3.13b")
@pytest.mark.parametrize("kind", ["event"])
def test_event(pair: Pair, peer: Child, kind: str) -> None:
    found = strangers(pair.exporter, kind)
    for exporter, importer in (each for one in found for each in ((pair.exporter, one), (one, pair.importer))):
        handle = peer.call(actions.export, importer, kind, exporter)
        with xs.ipc.event.open(handle, device=importer) as event, xs.Queue(importer) as queue:
            assert event.device == xs.Device(importer)
            queue.wait(event, at_least=1)
            with pytest.raises(TimeoutError):
                queue.synchronize(0.01)
            assert peer.call(actions.queue_signal, importer, exporter) == 1
            queue.synchronize(TIMEOUT)
            event.wait(TIMEOUT, at_least=1)
            if xs.Device(importer).has("two_way_events"):
                waiting = peer.start(actions.wait, importer, 2)
                assert queue.signal(event) == 2
                waiting.result()
    if not found:
        pytest.skip("there is no device of another backend")


@rule("3.13c")
@pytest.mark.parametrize("kind", ["event"])
def test_event_of_a_hidden_device(pair: Pair, kind: str) -> None:
    devices = [pair.exporter, *strangers(pair.exporter, kind)]
    hidden = next((each for each in devices if xs.Device(each).backend != adapters.HOST), None)
    if hidden is None:
        pytest.skip("the host is the only device")
    handle = actions.export("event", kind, hidden)
    with Child(env={"ONEAPI_DEVICE_SELECTOR": f"{adapters.HOST}:*"}) as child:
        imported, opened_on = child.call(actions.open_, "event", kind, handle)
        assert imported
        assert xs.Device(opened_on).backend == adapters.HOST
        waiting = child.start(actions.wait, "event", 1)
        assert actions.queue_signal("event", hidden) == 1
        waiting.result()

"""Owners and the keeper with memory of each vendor's software driver: what is a file descriptor outlives its maker."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "arrays"))

import vendor_arrays
import vendor_drivers
from keepers import keeper_fds, listed
from test_vendor_pairs import attach, begin, content

import xpushare as xs
from harness import Child, kept

DEVICES = ("native_cpu:0", "mock:0", "cuda:0", "hip:0", "level_zero:0")


def make(device: str) -> str:
    kept["array"] = vendor_arrays.ours(device)
    kept["handle"] = xs.share(kept["array"])
    return str(kept["handle"])


def own(handle: str) -> tuple[str, bytes]:
    """The handle by which this process shares it."""
    kept["owned"] = xs.attach(handle, own=True)
    kept["again"] = xs.share(kept["owned"])
    return str(kept["again"]), content(kept["owned"])


def keep_owned(name: str) -> int:
    return xs.publish(name, {"array": kept["owned"]}, keep=True)


def look_up(name: str) -> tuple[str, bytes]:
    array = xs.attach(xs.lookup(name, timeout=0))["array"]
    return str(array.device), content(array)


def refused(row: str) -> list[str]:
    """What becomes of memory that ends with its process."""
    array = vendor_arrays.ROWS[row].make()
    handle = kept["legacy"] = xs.share(array)
    found = [str(handle)]
    try:
        xs.publish("legacy", array, keep=True)
    except xs.FeatureNotSupportedError as error:
        found.append(str(error))
    return found


def own_refused(handle: str) -> str:
    try:
        xs.attach(handle, own=True)
    except xs.FeatureNotSupportedError as error:
        return str(error)
    return ""


def test_each_vendors_memory(tmp_path: Path) -> None:
    environment = vendor_drivers.build(tmp_path)
    with Child(env=environment) as heir, Child(env=environment) as reader:
        there = heir.call(begin)
        assert {*DEVICES} <= {*there}
        reader.call(begin)
        for device in DEVICES:
            with Child(env=environment) as maker:
                maker.call(begin)
                message = maker.call(make, device)
                again, found = heir.call(own, message)
                assert found == vendor_arrays.CONTENT, device
                maker.kill()
            assert reader.call(attach, again, device) == vendor_arrays.CONTENT, device
            heir.call(keep_owned, device.replace(":", "-"))
        for row in "CUDA's, by DLPack", "HIP's, by DLPack":
            handle, why = heir.call(refused, row)
            assert "ends with the process" in why
            assert "ends with the process" in reader.call(own_refused, handle)
        heir.kill()
        for device in DEVICES:
            assert reader.call(look_up, device.replace(":", "-")) == (device, vendor_arrays.CONTENT)
        assert len(listed()) == len(DEVICES)
        assert not any("/dev/dri" in each or "nvidia" in each for each in keeper_fds())

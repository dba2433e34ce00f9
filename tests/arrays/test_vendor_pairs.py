"""Memory of two vendors is never confused: each pair of an array of some library and a device that opens it works, or
is refused with the reason. No pair crashes.

The drivers of all vendors that can be had here are in one process (`vendor_drivers`). A table says what becomes of each
array (`vendor_arrays`). What is not on this machine is left out: `scripts/opencl` adds two drivers and pyopencl,
`scripts/level_zero` dpctl.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vendor_arrays
import vendor_drivers
from vendor_arrays import OPENERS, ROWS

import xpushare as xs
from harness import Child, ChildDied, kept
from xpushare.integrations import vulkan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
Outcome = tuple[str, Any]  # the name of the error, and what it says; or "" and what was done


# --- in the children


def outcome(function: Callable[..., Any], *arguments: Any) -> Outcome:
    try:
        return "", function(*arguments)
    except xs.XpuShareError as error:
        return type(error).__name__, str(error)
    except vendor_arrays.NotHere as error:
        return "not here", str(error)


def begin() -> list[str]:
    """The devices that there are, of those that open arrays."""
    vendor_drivers.begin()
    found = [each for each in sorted({*sum(OPENERS.values(), ())}) if not each.startswith("vulkan")]
    named = [str(vendor_arrays.vulkan_device(ordinal)) for ordinal in range(2)]
    return [each for each in found if outcome(vendor_arrays.on, each)[0] != "not here"] + named


def share(name: str, copy: bool) -> Outcome:
    if not copy:
        kept["array"] = outcome(ROWS[name].make)
    if kept["array"][0]:
        return kept["array"]
    kept["handle"] = outcome(_shared, kept["array"][1], copy)
    return kept["handle"][0], str(kept["handle"][1])


def _shared(array: Any, copy: bool) -> xs.ArrayHandle:
    """Vulkan has no events that a reader of a copy could wait for: here the copy is there when `share` returns."""
    if copy and isinstance(array, xs.SharedArray):
        assert _shared_and_read(array, copy) == vendor_arrays.CONTENT
        again = xs.array(array)
        assert (again.device, content(again)) == (array.device, vendor_arrays.CONTENT)
    return xs.share(array, copy=copy, stream=-1 if copy else None)


def content(array: xs.SharedArray) -> bytes:
    if array.device.backend != "vulkan":
        return bytes(np.asarray(xs.array(array, device="native_cpu:0")))
    found = vulkan.memory_fd(array.memory)
    try:
        with open(vendor_drivers.backing(found.fd), "rb") as file:
            file.seek(found.offset)
            return file.read(found.nbytes)
    finally:
        os.close(found.fd)


def attach(handle: str, device: str) -> bytes:
    array = xs.attach(handle, device=device)
    assert str(array.device) == device
    return content(array)


def attach_on(handle: str, devices: list[str]) -> dict[str, Outcome]:
    return {each: outcome(attach, handle, each) for each in devices}


def export_address() -> Outcome:
    return outcome(lambda: xs.ipc.memory.get(vendor_arrays.known_to_both()[1]))


def share_without_hips_device() -> list[Outcome]:
    """CUDA's array, where HIP's library is loaded and finds no device."""
    vendor_drivers.begin()
    ctypes.CDLL(os.environ["XPUSHARE_HIP_LIBRARY"])
    array = vendor_arrays.says_cuda(vendor_arrays.by_cuda())
    return [outcome(_shared_and_read, array, copy) for copy in (False, True)]


def share_nothing() -> Outcome:
    empty = vendor_arrays.says_cuda((None, 0))
    empty.__cuda_array_interface__ = {**empty.__cuda_array_interface__, "shape": (0,)}
    return outcome(_shared_and_read, empty, False)


def _shared_and_read(array: Any, copy: bool) -> bytes:
    with xs.share(array, copy=copy) as handle, xs.attach(handle) as found:
        return content(found)


# --- the table


def judge(name: str, copy: bool, children: tuple[Child, Child], devices: list[str]) -> list[str]:
    """What is wrong with one array."""
    row = ROWS[name]
    wanted = row.copied if copy else row.shared
    error, text = children[0].call(share, name, copy)
    if error == "not here":
        print(f"not here: {name} ({text})")
        return []
    if wanted not in OPENERS:
        refused = error in ("FeatureNotSupportedError", "InvalidArgumentError") and wanted in text
        return [] if refused else [f"should be refused ({wanted}): {error or 'shared'} {text}"]
    if error:
        return [f"should be shared: {error} {text}"]
    wrong = []
    for where, child in zip(("here", "there"), children, strict=True):
        for device, (error, found) in child.call(attach_on, text, devices).items():
            if device in OPENERS[wanted]:
                good = (error, found) == ("", vendor_arrays.CONTENT)
            else:
                why = f"cannot be opened on {device}[:,] |imported only by the driver"
                good = error in ("FeatureNotSupportedError", "InvalidArgumentError") and bool(re.search(why, found))
            if not good:
                wrong.append(f"{where}, on {device}: {error} {found!r}")
    return wrong


@pytest.mark.exhaustive
def test_every_pair_works_or_is_refused(tmp_path: Path) -> None:
    environment = vendor_drivers.build(tmp_path)
    wrong: dict[tuple[str, bool], list[str]] = {}
    with Child(env=environment) as here, Child(env=environment) as there:
        devices = here.call(begin)
        assert there.call(begin) == devices
        assert {"native_cpu:0", "mock:0", "cuda:0", "hip:0", "level_zero:0", "vulkan:0", "vulkan:1"} <= {*devices}
        for name in ROWS:
            for copy in False, True:
                try:
                    if found := judge(name, copy, (here, there), devices):
                        wrong[name, copy] = found
                except ChildDied as error:  # what comes later would only say so again
                    pytest.fail(f"{name}, {copy=}: {error}; before: {wrong}")
        assert here.call(share_nothing) == ("", b""), "no driver knows where an array without bytes is"
        error, why = here.call(export_address)
        assert (error, vendor_arrays.EACH in why) == ("FeatureNotSupportedError", True), why
    assert not wrong


def test_a_hip_without_devices_leaves_cuda_its_arrays(tmp_path: Path) -> None:
    environment = {**vendor_drivers.build(tmp_path), "HIP_FORWARD_TO": "/nowhere"}
    with Child(env=environment) as child:
        assert child.call(share_without_hips_device) == [("", vendor_arrays.CONTENT)] * 2

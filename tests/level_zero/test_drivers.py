"""What the other tests rely on: the layer sees bad calls first, and the software driver notices what it claims to."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from ctypes import byref, c_void_p

import pytest
from bare import Bare
from level_zero_driver import ROOT, driver

from xpushare.adapters.level_zero._bindings import ze_command_queue_desc_t

INVALID_NULL_POINTER = 0x78000007


@pytest.mark.drivers("soft", "neo")
def test_the_layer_refuses_a_planted_bad_call() -> None:
    """Without a description the drivers would crash; the layer answers before they see the call."""
    bare = Bare()
    address = c_void_p()
    soft = os.environ["XPUSHARE_LEVEL_ZERO"] == "soft"
    seen = driver().calls().get("zeMemAllocDevice") if soft else None
    result = bare.ze["zeMemAllocDevice"](bare.context, None, 4096, 0, bare.device, byref(address))
    assert result == INVALID_NULL_POINTER
    if soft:
        assert driver().calls().get("zeMemAllocDevice") == seen


def _elsewhere(code: str) -> str:
    """What the code prints in a process of its own: nothing else is in the driver's books there."""
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.drivers("soft", "stand-in")
def test_books() -> None:
    code = """
from bare import Bare
from level_zero_driver import driver

bare, soft = Bare(), driver()
before = soft.left()
address = bare.allocate(8 << 20)
assert soft.left() != before, before
soft.fail("zeMemFree")
assert bare.ze["zeMemFree"](bare.context, address) == 0x70000001
assert "memory" in soft.left(), soft.left()
bare("zeMemFree", bare.context, address)
assert soft.left() == before, (before, soft.left())
assert soft.calls()["zeMemFree"] == 2
print("balanced")
"""
    assert _elsewhere(code) == "balanced\n"


@pytest.mark.drivers("soft", "stand-in")
def test_a_closed_fd_of_the_driver_is_noticed() -> None:
    bare, soft = Bare(), driver()
    address = bare.allocate(4096, exported=True)
    os.close(bare.exported(address))
    bare.ze["zeMemFree"](bare.context, address)
    assert "violation" in soft.left()
    soft.reset()


@pytest.mark.drivers("soft", "stand-in")
def test_unfinished_work_is_noticed() -> None:
    code = """
import ctypes, time
from ctypes import byref, c_void_p
from bare import Bare
from level_zero_driver import driver
from xpushare.adapters.level_zero._bindings import HOST_FUNCTION, ze_command_queue_desc_t

bare, made = Bare(), c_void_p()
bare("zeCommandListCreateImmediate", bare.context, bare.device, byref(ze_command_queue_desc_t()), byref(made))
sleep = HOST_FUNCTION(lambda _: time.sleep(0.5))
bare("zeCommandListAppendHostFunction", made, ctypes.cast(sleep, c_void_p), None, None, None, 0, None)
bare("zeCommandListDestroy", made)
print(driver().left())
"""
    assert "destroyed with unfinished work" in _elsewhere(code)


@pytest.mark.drivers("soft", "neo", "stand-in")
def test_device_addresses_are_unsigned() -> None:
    bare = Bare()
    address = bare.allocate(8 << 20)
    assert address.value is not None
    assert address.value >= 1 << 63
    bare("zeMemFree", bare.context, address)


@pytest.mark.drivers("soft", "neo")
def test_the_driver_hands_out_one_fd() -> None:
    """What the software driver copies of Intel's: the same fd at each call, and small allocations share a buffer."""
    bare = Bare()
    exported = bare.allocate(8 << 20, exported=True)
    assert bare.exported(exported) == bare.exported(exported) >= 0
    one, other = bare.allocate(4096), bare.allocate(4096)
    assert bare.exported(one) == bare.exported(other)
    assert os.lseek(bare.exported(one), 0, os.SEEK_END) == 2 << 20
    for each in (exported, one, other):
        bare("zeMemFree", bare.context, each)


def test_versions_are_recorded() -> None:
    if os.environ["XPUSHARE_LEVEL_ZERO"] != "stand-in":
        assert "libze1 " in (ROOT / "versions.txt").read_text()


def test_copies_arrive() -> None:
    """Through device memory and back; on Intel's driver by the copy engine, as kernels do not run there."""
    bare, made = Bare(), c_void_p()
    ordinal = 1 if os.environ["XPUSHARE_LEVEL_ZERO"] == "neo" else 0
    desc = ze_command_queue_desc_t(ordinal=ordinal)
    bare("zeCommandListCreateImmediate", bare.context, bare.device, byref(desc), byref(made))
    nbytes = 3 << 20
    source, target, device = bare.host(nbytes), bare.host(nbytes), bare.allocate(nbytes)
    content = os.urandom(nbytes)
    ctypes.memmove(source, content, nbytes)
    for to, origin in ((device, source), (target, device)):
        bare("zeCommandListAppendMemoryCopy", made, to, origin, nbytes, None, 0, None)
        bare("zeCommandListHostSynchronize", made, 10**10)
    assert ctypes.string_at(target, nbytes) == content
    bare("zeCommandListDestroy", made)
    for each in (source, target, device):
        bare("zeMemFree", bare.context, each)

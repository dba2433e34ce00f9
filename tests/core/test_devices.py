"""Devices, selectors and contexts."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import uuid
from typing import Any

import pytest

import xpushare as xs


def names(selector: str | None = None) -> list[str]:
    return [str(device) for device in xs.devices(selector)]


@pytest.fixture(autouse=True)
def no_selector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEAPI_DEVICE_SELECTOR", raising=False)


def test_the_host_is_always_there_and_mock_only_when_selected() -> None:
    assert "native_cpu:0" in names()
    assert not any("mock" in name for name in names())
    assert not any("mock" in name for name in names("*:*"))
    assert names("mock:*") == ["mock:0", "mock:1"]
    assert names("mock:1") == ["mock:1"]
    assert names("native_cpu:*") == ["native_cpu:0"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("native_cpu:*", ["native_cpu:0"]),
        ("native_cpu:0", ["native_cpu:0"]),
        ("native_cpu:cpu", ["native_cpu:0"]),
        ("NATIVE_CPU:CPU", ["native_cpu:0"]),
        ("*:cpu", ["native_cpu:0"]),
        ("native_cpu:1", []),
        ("native_cpu:gpu", []),
        ("native_cpu:0,1", ["native_cpu:0"]),
        ("mock:0,1", ["mock:0", "mock:1"]),
        ("mock:fpga", ["mock:0", "mock:1"]),
        ("native_cpu:*;mock:1", ["native_cpu:0", "mock:1"]),
        ("mock:*;native_cpu:*", ["native_cpu:0", "mock:0", "mock:1"]),
        ("mock:*;!mock:0", ["mock:1"]),
        ("native_cpu:*;!*:cpu", []),
        ("!*:gpu;!native_cpu:*", []),
        ("native_cpu:0.0", []),
        ("native_cpu:*.*", []),
        (" mock:0 ; native_cpu:* ", ["native_cpu:0", "mock:0"]),
        # As Unified Runtime's loader reads it.
        ("native_cpu:0;", ["native_cpu:0"]),
        ("native_cpu:0,", ["native_cpu:0"]),
        ("mock:0,;native_cpu:*,;", ["native_cpu:0", "mock:0"]),
        ("mock:**", ["mock:0", "mock:1"]),
        ("mock:acc", ["mock:0", "mock:1"]),
        ("mock:-1", ["mock:0", "mock:1"]),
        ("native_cpu:x", ["native_cpu:0"]),
        ("native_cpu:cpu.cpu", []),
        ("mock:1,*", ["mock:1", "mock:0"]),
        ("mock:*,1", ["mock:0", "mock:1"]),
        ("!mock:0;mock:*", ["mock:1"]),
        ("**:cpu", ["native_cpu:0"]),
        ("mock:*;!native_cpu:*", ["mock:0", "mock:1"]),
        ("mock:1;!*:gpu", ["mock:1"]),
    ],
)
def test_the_grammar(selector: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(selector) == expected
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", selector)
    assert names() == expected


@pytest.mark.parametrize(
    "selector",
    ["", ":", "cuda", "native_cpu:", ":0", "nosuch:0", "native_cpu:0:1", "native_cpu:0.0.0.0", ";", "native_cpu:0;;",
     ";native_cpu:0", "native_cpu:,", "native_cpu:0,,", "native_cpu:*.0", "native_cpu:1.*.2", "native_cpu:*.gpu"],
)  # fmt: skip
def test_what_is_no_selector(selector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(xs.InvalidArgumentError, match="grammar"):
        xs.devices(selector)
    if selector:
        monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", selector)
        with pytest.raises(xs.InvalidArgumentError, match="grammar"):
            xs.devices()


@pytest.mark.parametrize("selector", [0, b"native_cpu:0", ["native_cpu:0"], xs])
def test_a_selector_is_a_string(selector: Any) -> None:
    with pytest.raises(xs.InvalidArgumentError, match=f"string .* not {type(selector).__name__}"):
        xs.devices(selector)


def test_a_number_that_is_too_long_for_python_selects_nothing() -> None:
    ordinal = "9" * (sys.get_int_max_str_digits() + 1)
    assert xs.devices(f"native_cpu:{ordinal}") == []
    assert names(f"native_cpu:{ordinal},00") == ["native_cpu:0"]
    with pytest.raises(xs.InvalidArgumentError, match="no device"):
        xs.Device(f"native_cpu:{ordinal}")


def test_the_environment_and_the_argument_both_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:1;native_cpu:*")
    assert names() == ["native_cpu:0", "mock:1"]
    assert names("mock:*") == ["mock:1"]
    assert names("*:*") == ["native_cpu:0", "mock:1"]
    assert names("mock:0") == []
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "")
    assert "native_cpu:0" in names()


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = xs.Device("native_cpu:0")
    assert xs.Device("cpu") == xs.Device("native_cpu") == xs.Device(cpu) == cpu
    assert xs.Device("CPU") == xs.Device("Native_CPU:0") == cpu  # as in a selector
    assert xs.Device(cpu.uuid) == xs.Device(cpu.uuid.upper()) == cpu
    assert xs.Device(cpu.uuid) is cpu
    assert (cpu.backend, cpu.ordinal, cpu.type) == ("native_cpu", 0, "cpu")
    assert str(uuid.UUID(cpu.uuid)) == cpu.uuid
    assert cpu.name
    assert str(cpu) in repr(cpu)
    assert xs.Device("mock:1").type == "accelerator"
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*")
    assert xs.Device("accelerator") == xs.Device("mock:0")
    assert xs.Device(xs.Device("mock:1").uuid) == xs.Device("mock:1")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nosuch",
        "nosuch:0",
        "native_cpu:7",
        "native_cpu:x",
        "mock:2",
        "cuda:99",
        "hip:0",
        "*:99",
        "*",
        "*:x",
        "0",
        "native_cpu:0:0",
    ],
)
def test_devices_that_are_not_here(name: str) -> None:
    with pytest.raises(xs.InvalidArgumentError):
        xs.Device(name)


@pytest.mark.parametrize("selector", ["*:0", "*:cpu", "*:*", "native_cpu:*"])
def test_a_selector_names_the_first_device(selector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*")
    assert str(xs.Device(selector)) == "native_cpu:0"
    with xs.malloc_host(64, selector) as memory:
        assert memory.device == xs.Device("native_cpu:0")
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*;native_cpu:*")
    assert xs.Device(selector) == xs.devices(selector)[0]


def test_the_variable_that_hides_a_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*")
    with pytest.raises(xs.InvalidArgumentError, match=r"ONEAPI_DEVICE_SELECTOR=mock:\* hides devices of native_cpu"):
        xs.Device("native_cpu:0")
    monkeypatch.delenv("ONEAPI_DEVICE_SELECTOR")
    with pytest.raises(xs.InvalidArgumentError, match=r"no device 'native_cpu:7' here\. Visible"):
        xs.Device("native_cpu:7")


@pytest.mark.parametrize("name", [None, 0, b"native_cpu:0", 1.5, ["native_cpu:0"]])
def test_what_names_no_device(name: Any) -> None:
    for call in (xs.Device, lambda name: xs.malloc_device(1, name) if name is not None else xs.Device(name)):
        with pytest.raises(xs.InvalidArgumentError, match="string"):
            call(name)


def test_a_uuid_that_is_not_visible_has_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = xs.Device("mock:0").uuid
    for wanted in (hidden, str(uuid.uuid4())):
        with pytest.raises(xs.InvalidArgumentError, match=f"{wanted} is not visible") as caught:
            xs.Device(wanted)
        assert "CUDA_VISIBLE_DEVICES" in str(caught.value)
        assert "native_cpu:0" in str(caught.value)
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:*")
    assert str(xs.Device(hidden)) == "mock:0"


def test_devices_compare_by_backend_and_uuid() -> None:
    one, two = xs.devices("mock:*")
    assert one != two
    assert one == xs.Device("mock:0")
    assert len({one, two, xs.Device("mock:0"), xs.Device("native_cpu:0")}) == 3
    assert one != "mock:0"
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_pickle_of_a_device_that_is_not_visible() -> None:
    """Unpickling does not raise, each use does."""
    one = xs.Device("mock:0")
    names = uuid.UUID(one.uuid).bytes
    altered = pickle.dumps(one, 5).replace(names, bytes(16))
    found = pickle.loads(altered)
    assert pickle.dumps(found, 5) == altered
    assert found == pickle.loads(altered) != one
    assert "may not see" in repr(found)
    for use in lambda: found.name, lambda: xs.malloc_device(8, found), lambda: found.context, lambda: str(found):
        with pytest.raises(xs.InvalidArgumentError, match="may not see"):
            use()


def test_the_uuid_is_the_same_in_every_process() -> None:
    code = "import xpushare as xs; print(xs.Device('native_cpu:0').uuid, xs.Device('mock:1').uuid)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    ).stdout.split()
    assert found == [xs.Device("native_cpu:0").uuid, xs.Device("mock:1").uuid]


def test_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*")
    assert str(xs.default_device()) == "native_cpu:0"
    assert str(xs.malloc_device(16).device) == "native_cpu:0"
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "mock:1")
    assert str(xs.default_device()) == "mock:1"
    assert str(xs.Event().device) == str(xs.Queue().device) == "mock:1"
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:5")
    with pytest.raises(xs.FeatureNotSupportedError, match="ONEAPI_DEVICE_SELECTOR leaves no device"):
        xs.default_device()


def test_aspects() -> None:
    for device in [xs.Device("native_cpu:0"), *xs.devices("mock:*")]:
        for aspect in xs.Aspect:
            support = device.support(aspect)
            assert support.state in ("yes", "no", "unknown")
            assert support.reason
            assert (
                device.has(aspect) == device.has(str(aspect)) == (support.state == "yes") == (aspect in device.aspects)
            )
        assert device.aspects <= set(xs.Aspect)
        for wrong in ("nosuch", "", None, 3):
            with pytest.raises(xs.InvalidArgumentError, match="not an aspect"):
                device.has(wrong)  # type: ignore[arg-type]
    cpu = xs.Device("native_cpu:0")
    assert {
        "ext_oneapi_ipc_memory",
        "ext_oneapi_ipc_physical_memory",
        "ext_oneapi_ipc_event",
        "two_way_events",
    } <= cpu.aspects
    assert not cpu.has("foreign_memory")
    for aspect, states in {"device_ordering": ("yes", "yes"), "adopted_queues": ("no", "yes")}.items():
        assert tuple(xs.Device(name).support(aspect).state for name in ("native_cpu:0", "mock:0")) == states


def test_an_aspect_is_its_name() -> None:
    for name, aspect in xs.Aspect.__members__.items():
        assert aspect == name == str(aspect) == aspect.value
        assert pickle.loads(pickle.dumps(aspect)) is xs.Aspect(name) is aspect


def test_contexts() -> None:
    one, two = xs.devices("mock:*")
    both = xs.Context([one, "mock:1"])
    assert both.devices == (one, two)
    assert both == xs.Context(["mock:0", two])
    assert both != xs.Context([two, one])
    assert hash(both) == hash(xs.Context([one, two]))
    assert one.context == xs.Context("mock:0") == xs.Context([one])
    assert one.context is one.context
    for wrong in ([], [one, one], [one, "native_cpu:0"], ["nosuch"], [3], None, 3):
        with pytest.raises(xs.InvalidArgumentError):
            xs.Context(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        pickle.dumps(both)


def test_where_a_context_is_taken() -> None:
    one, two = xs.devices("mock:*")
    both = xs.Context([one, two])
    makers: list[Any] = [
        lambda **options: xs.malloc_device(16, **options),
        lambda **options: xs.malloc_host(16, **options),
        lambda **options: xs.malloc_shared(16, **options),
        lambda **options: xs.PhysicalMemory(1 << 16, **options),
        lambda **options: xs.VirtualRange(1 << 16, **options),
        xs.Event,
        xs.Queue,
    ]
    for make in makers:
        assert make(device=two).context == two.context
        assert make(device=two, context=both).device == two
        assert make(device="mock:1", context=both).context is both
        assert make(context=both).device == one
        with pytest.raises(xs.InvalidArgumentError, match="not in"):
            make(device="native_cpu:0", context=both)
        with pytest.raises(xs.InvalidArgumentError, match="Context"):
            make(device=one, context="mock:0")
        with pytest.raises(xs.InvalidArgumentError, match="Context"):
            make(context=one)


def test_an_open_takes_the_contexts_device() -> None:
    memory = xs.malloc_device(16, "mock:0")
    handle = xs.ipc.memory.get(memory, context=xs.Context(["mock:1", "mock:0"]))
    assert str(xs.ipc.memory.open(handle).device) == "mock:0"
    assert str(xs.ipc.memory.open(handle, context=xs.Context("mock:1")).device) == "mock:1"
    assert str(xs.ipc.memory.open(handle, context=xs.Context(["mock:1", "mock:0"])).device) == "mock:0"
    assert str(xs.ipc.memory.open(handle, device="mock:1").device) == "mock:1"
    with pytest.raises(xs.InvalidArgumentError):
        xs.ipc.memory.get(memory, context=xs.Context("mock:1"))
    xs.ipc.memory.put(handle)


def test_listing_starts_nothing() -> None:
    code = "import xpushare as xs, os; xs.devices(); print(len(os.listdir('/proc/self/task')))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20, env=dict(os.environ)
    )
    assert found.stdout.strip() == "1"


def test_without_proc_nothing_is_listed_and_the_reason_told() -> None:
    code = """
import xpushare as xs
from xpushare.common import system
system.BOOT_ID = "/nowhere/boot_id"
assert not xs.devices("native_cpu:*")
try:
    xs.malloc_host(1, "native_cpu:0")
except xs.FeatureNotSupportedError as error:
    assert "mount -t proc" in str(error), error
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_drivers_that_are_nowhere_have_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the loader makes of it, so these tests see no device of OpenCL on any machine."""
    from xpushare.adapters.opencl import _adapter

    monkeypatch.setattr(_adapter, "ask_child", lambda *_: {"devices": [["uuid", "a device", "1"]]})
    monkeypatch.delenv("OCL_ICD_FILENAMES", raising=False)
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nowhere")
    assert _adapter.OpenCL().devices() == []
    assert "no /nowhere" in _adapter.OpenCL().why_none()
    monkeypatch.setenv("OCL_ICD_VENDORS", "libmine.so")
    assert len(_adapter.OpenCL().devices()) == 1


def test_refused_devices_are_told_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from xpushare import adapters
    from xpushare.adapters.opencl import _adapter
    from xpushare.cli import info
    from xpushare.cli.doctor import devices

    said = {"devices": [["uuid", "a device", "1"]], "refused": {"another": "a GPU: it has no address"}}
    monkeypatch.setattr(_adapter, "ask_child", lambda *_: said)
    monkeypatch.setenv("OCL_ICD_VENDORS", "libmine.so")
    monkeypatch.setattr(adapters, "_adapters", {"opencl": _adapter.OpenCL()})
    assert adapters.refused("opencl") == ["a GPU: it has no address"]
    assert info.collect("native_cpu:0")["refused_devices"] == {"opencl": ["a GPU: it has no address"]}
    [check] = [each for each in devices.examine("native_cpu:0")[1] if each.name == "opencl"]
    assert (check.state, check.why) == ("absent", "not listed: a GPU: it has no address")
    monkeypatch.setattr(_adapter, "ask_child", lambda *_: {**said, "devices": []})
    monkeypatch.setattr(adapters, "_adapters", {"opencl": _adapter.OpenCL()})
    assert "opencl" not in info.collect("native_cpu:0")["refused_devices"], "told as the reason why there is none"
    assert adapters.why_none("opencl").startswith("a GPU: it has no address; ")

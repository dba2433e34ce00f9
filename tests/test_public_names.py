"""The public names are those of the contract, and importing the package starts nothing."""

from __future__ import annotations

import inspect
import json
import operator
import subprocess
import sys

import pytest

import xpushare as xs

# The contract's names, section by section.
CONTRACT = {
    # 1 devices
    "Aspect", "Context", "Device", "Support", "default_device", "devices",
    # 2 memory
    "Memory", "malloc_device", "malloc_host", "malloc_shared",
    # 3 explicit handles
    "Event", "PhysicalMemory", "ipc",
    # 4 virtual memory
    "VirtualRange",
    # 5 queues and events
    "Queue", "any_of", "wait_any",
    # 6 arrays
    "ArrayHandle", "Lost", "SharedArray", "array", "attach", "empty", "lookup", "publish", "published", "share",
    "unpublish", "trim", "watch", "zeros",
    # 7 errors
    "DeviceError", "FeatureNotSupportedError", "ForkError", "HandleExpiredError", "InvalidArgumentError",
    "InvalidHandleError", "OutOfMemoryError", "PeerLostError", "RouteError", "XpuShareError",
    # 8 Unified Runtime
    "enable_layers", "ur",
    # 9 commands
    "shares",
    # 10 channels
    "Atomic", "Channel", "ChannelFull", "Frame", "Held", "Loan", "Lock",
}  # fmt: skip

# Of these, what this version does not have yet. A name that appears must be taken out here.
NOT_YET: set[str] = set()

IPC = {"Handle", "event", "memory", "physical_memory"}


def test_names() -> None:
    assert set(xs.__all__) == CONTRACT - NOT_YET
    assert not {name for name in NOT_YET if hasattr(xs, name)}


@pytest.mark.parametrize("name", sorted(CONTRACT - NOT_YET))
def test_each_loads(name: str) -> None:
    assert getattr(xs, name) is getattr(xs, name)
    assert name in dir(xs)


def test_ipc_names() -> None:
    assert set(xs.ipc.__all__) == IPC
    for kind in ("memory", "physical_memory", "event"):
        assert {"get", "open", "put"} <= set(getattr(xs.ipc, kind).__all__)
    assert "close" in xs.ipc.memory.__all__


# Their arguments, where the contract names them.
ARGUMENTS = {
    "devices": "(selector=None)",
    "malloc_device": "(nbytes, device=None, *, context=None)",
    "malloc_host": "(nbytes, device=None, *, context=None)",
    "malloc_shared": "(nbytes, device=None, *, context=None)",
    "Memory.slice": "(self, offset, nbytes)",
    "Memory.as_array": "(self, shape, dtype, offset=0)",
    "ipc.memory.get": "(obj, *, context=None, read_only=False)",
    "ipc.memory.open": "(h, *, device=None, context=None)",
    "ipc.memory.put": "(h)",
    "PhysicalMemory": "(nbytes, device=None, *, context=None, enable_ipc=False)",
    "ipc.physical_memory.open": "(h, *, device=None, context=None)",
    "ipc.physical_memory.put": "(h)",
    "Event": "(device=None, *, context=None, enable_ipc=False, enable_profiling=False, signals=None, label=None)",
    "ipc.event.open": "(h, *, device=None, context=None, signals=None)",
    "ipc.event.put": "(h)",
    "VirtualRange": "(nbytes, device=None, *, context=None, address=None, growable=False)",
    "VirtualRange.grow": "(self, nbytes)",
    "VirtualRange.shrink": "(self, nbytes)",
    "VirtualRange.refresh": "(self)",
    "VirtualRange.map": "(self, pm, at=0, *, offset=0, nbytes=None, access='rw')",
    "VirtualRange.unmap": "(self, at, nbytes)",
    "VirtualRange.set_access": "(self, at, nbytes, access)",
    "VirtualRange.access": "(self, at)",
    "VirtualRange.as_array": "(self, shape, dtype, offset=0)",
    "Queue": "(device=None, *, context=None)",
    "Queue.copy": "(self, dst, src, nbytes=None)",
    "Queue.fill": "(self, dst, pattern, nbytes=None)",
    "Queue.synchronize": "(self, timeout=None)",
    "Event.recovered": "(self, timeout=None)",
    "Event.wait": "(self, timeout=None, *, at_least=None)",
    "empty": "(shape, dtype=float, *, device='native_cpu:0', isolated=False, label=None)",
    "array": "(x, *, dtype=None, device=None)",
    "attach": "(h, *, device=None, stream=None, like=None, types=(), only=None, own=False)",
    "unpublish": "(name)",
    "Atomic": "(initial=0, name=None)",
    "Lock": "(name=None, *, label=None)",
    "lookup": "(name, *, timeout=None, version=None)",
    "watch": "(name, *, timeout=None, lost=False)",
    "zeros": "(shape, dtype=float, *, device='native_cpu:0', isolated=False, label=None)",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str) -> None:
    found = inspect.signature(operator.attrgetter(name)(xs))
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    shown = found.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    assert str(shown).replace("<class 'float'>", "float") == ARGUMENTS[name]


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = xs.no_such_name


def test_import_starts_nothing() -> None:
    """No numpy, no driver, no socket, no thread, no file descriptor: names load at their first use."""
    source = """
import json, os, sys
before, fds = set(sys.modules), set(os.listdir("/proc/self/fd"))
import xpushare
print(json.dumps({
    "modules": sorted(set(sys.modules) - before),
    "fds": len(set(os.listdir("/proc/self/fd")) - fds),
    "threads": len(os.listdir("/proc/self/task")),
    "version": xpushare.__version__,
}))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    ours = {name for name in found["modules"] if name.partition(".")[0] == "xpushare"}
    assert ours == {"xpushare"}
    heavy = {
        "numpy",
        "socket",
        "ctypes",
        "multiprocessing",
        "asyncio",
        "subprocess",
        "cuda",
        "torch",
        "cupy",
        "jax",
        "trio",
    }
    assert not {name for name in found["modules"] if name.partition(".")[0] in heavy}
    assert found["fds"] == 0
    assert found["threads"] == 1
    assert found["version"] == xs.__version__


def test_numpy_is_not_needed_to_list_devices() -> None:
    source = "import sys, xpushare; xpushare.devices('native_cpu:*'); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"

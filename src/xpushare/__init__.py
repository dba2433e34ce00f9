"""Share arrays in CPU and GPU memory between Python processes, without copying them.

Names are loaded when they are first used. Importing the package starts no thread and uses no driver. Type checkers and
editors read the names from `__init__.pyi`, which scripts/stub writes.
"""

import importlib as _importlib  # editors would offer the name without the underscore

__version__ = "0.1.0"

_WHERE = {
    "ArrayHandle": "objects.array_handle",
    "Aspect": "common.aspects",
    "Atomic": "channels.locks",
    "Channel": "channels.channel",
    "ChannelFull": "common.errors",
    "Context": "core.device",
    "Device": "core.device",
    "DeviceError": "common.errors",
    "Event": "objects.event",
    "FeatureNotSupportedError": "common.errors",
    "ForkError": "common.errors",
    "Frame": "channels.ends",
    "HandleExpiredError": "common.errors",
    "Held": "channels.locks",
    "InvalidArgumentError": "common.errors",
    "InvalidHandleError": "common.errors",
    "Loan": "channels.ends",
    "Lock": "channels.locks",
    "Lost": "arrays.names",
    "Memory": "objects.memory",
    "OutOfMemoryError": "common.errors",
    "PeerLostError": "common.errors",
    "PhysicalMemory": "objects.physical_memory",
    "Queue": "objects.queue",
    "RouteError": "common.errors",
    "SharedArray": "objects.array",
    "Support": "common.aspects",
    "VirtualRange": "objects.physical_memory",
    "XpuShareError": "common.errors",
    "any_of": "arrays.waits",
    "array": "arrays.copies",
    "attach": "arrays.attach",
    "default_device": "core.device",
    "devices": "core.device",
    "empty": "arrays.creation",
    "enable_layers": "core.layers",
    "lookup": "arrays.names",
    "malloc_device": "objects.memory",
    "malloc_host": "objects.memory",
    "malloc_shared": "objects.memory",
    "publish": "arrays.names",
    "published": "arrays.names",
    "share": "arrays.share",
    "shares": "arrays.names",
    "trim": "objects.memory",
    "unpublish": "arrays.names",
    "wait_any": "arrays.waits",
    "watch": "arrays.names",
    "zeros": "arrays.creation",
}
_MODULES = ("ipc", "ur")

__all__ = [*sorted(_WHERE), *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


# Names that other libraries use for the same.
_ADVICE = {
    "SharedMemory": "xs.empty makes memory that can be shared, as an array",
    "from_numpy": "xs.array(x) makes a shared copy, and xs.share(x, copy=True) shares one",
    "full": "fill a NumPy view: np.asarray(xs.empty(shape))[:] = value",
    "get": "xs.attach opens the handle of an array, and xs.lookup finds one by its name",
    "ones": "fill a NumPy view: np.asarray(xs.empty(shape))[:] = 1",
    "open": "xs.attach opens the handle of an array, and xs.ipc.memory.open one of memory",
    "put": "xs.share makes the handle of an array, and xs.publish gives it a name",
    "tensor": "xs.array(x) makes a shared copy, and torch.from_dlpack gives a tensor of it",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE and name not in _MODULES:
        near = [] if name.startswith("_") else _importlib.import_module("difflib").get_close_matches(name, __all__, 1)
        advice = f" ({_ADVICE[name]})" if name in _ADVICE else f" (did you mean {near[0]!r}?)" if near else ""
        raise AttributeError(f"module 'xpushare' has no attribute {name!r}{advice}")
    from xpushare.common.loading import load  # raises a RuntimeError while that module is only half loaded

    if _WHERE.get(name) not in ("common.aspects", "core.device", "common.errors"):
        load("xpushare._native")  # if it is missing, this raises the reason, before an import of a Unix module fails
    value = load(f"xpushare.{_WHERE.get(name, name)}")
    if name in _WHERE:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

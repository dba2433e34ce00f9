"""Share accelerator memory, physical memory and events between Python processes.

Names are loaded when they are first used: importing the package starts nothing and touches no driver.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from typing import Any

    from xpushare import ipc as ipc
    from xpushare import ur as ur
    from xpushare._device import Context as Context
    from xpushare._device import Device as Device
    from xpushare._device import default_device as default_device
    from xpushare._device import devices as devices
    from xpushare.arrays.attach import attach as attach
    from xpushare.arrays.copies import array as array
    from xpushare.arrays.copies import empty as empty
    from xpushare.arrays.copies import zeros as zeros
    from xpushare.arrays.names import Lost as Lost
    from xpushare.arrays.names import lookup as lookup
    from xpushare.arrays.names import publish as publish
    from xpushare.arrays.names import published as published
    from xpushare.arrays.names import shares as shares
    from xpushare.arrays.names import unpublish as unpublish
    from xpushare.arrays.names import watch as watch
    from xpushare.arrays.share import share as share
    from xpushare.arrays.waits import any_of as any_of
    from xpushare.arrays.waits import wait_any as wait_any
    from xpushare.channels.channel import Channel as Channel
    from xpushare.channels.locks import Atomic as Atomic
    from xpushare.channels.locks import Lock as Lock
    from xpushare.common.aspects import Aspect as Aspect
    from xpushare.common.aspects import Support as Support
    from xpushare.common.errors import ChannelFull as ChannelFull
    from xpushare.common.errors import DeviceError as DeviceError
    from xpushare.common.errors import FeatureNotSupportedError as FeatureNotSupportedError
    from xpushare.common.errors import ForkError as ForkError
    from xpushare.common.errors import HandleExpiredError as HandleExpiredError
    from xpushare.common.errors import InvalidArgumentError as InvalidArgumentError
    from xpushare.common.errors import InvalidHandleError as InvalidHandleError
    from xpushare.common.errors import OutOfMemoryError as OutOfMemoryError
    from xpushare.common.errors import PeerLostError as PeerLostError
    from xpushare.common.errors import RouteError as RouteError
    from xpushare.common.errors import XpuShareError as XpuShareError
    from xpushare.core.layers import enable_layers as enable_layers
    from xpushare.objects.array import SharedArray as SharedArray
    from xpushare.objects.array_handle import ArrayHandle as ArrayHandle
    from xpushare.objects.event import Event as Event
    from xpushare.objects.memory import Memory as Memory
    from xpushare.objects.memory import malloc_device as malloc_device
    from xpushare.objects.memory import malloc_host as malloc_host
    from xpushare.objects.memory import malloc_shared as malloc_shared
    from xpushare.objects.memory import trim as trim
    from xpushare.objects.physical_memory import PhysicalMemory as PhysicalMemory
    from xpushare.objects.physical_memory import VirtualRange as VirtualRange
    from xpushare.objects.queue import Queue as Queue

__version__ = "0.1.0"

_WHERE = {
    "ArrayHandle": "objects.array_handle",
    "Aspect": "common.aspects",
    "Atomic": "channels.locks",
    "Channel": "channels.channel",
    "ChannelFull": "common.errors",
    "Context": "_device",
    "Device": "_device",
    "DeviceError": "common.errors",
    "Event": "objects.event",
    "FeatureNotSupportedError": "common.errors",
    "ForkError": "common.errors",
    "HandleExpiredError": "common.errors",
    "InvalidArgumentError": "common.errors",
    "InvalidHandleError": "common.errors",
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
    "default_device": "_device",
    "devices": "_device",
    "empty": "arrays.copies",
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
    "zeros": "arrays.copies",
}
_MODULES = ("ipc", "ur")

__all__ = [*sorted(_WHERE), *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


# Names that other libraries have for what is meant.
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


def __getattr__(name: str) -> Any:
    if name not in _WHERE and name not in _MODULES:
        advice = f" ({_ADVICE[name]})" if name in _ADVICE else ""
        raise AttributeError(f"module 'xpushare' has no attribute {name!r}{advice}")
    load = import_module("xpushare.common.loading").load
    if _WHERE.get(name) not in ("common.aspects", "_device", "common.errors"):
        load("xpushare._native")  # raises what says why it is not there, before modules of Unix are missed
    value = load(f"xpushare.{_WHERE.get(name, name)}")
    if name in _WHERE:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

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
    from xpushare._array import SharedArray as SharedArray
    from xpushare._array_handle import ArrayHandle as ArrayHandle
    from xpushare._aspects import Aspect as Aspect
    from xpushare._aspects import Support as Support
    from xpushare._device import Context as Context
    from xpushare._device import Device as Device
    from xpushare._device import default_device as default_device
    from xpushare._device import devices as devices
    from xpushare._errors import DeviceError as DeviceError
    from xpushare._errors import FeatureNotSupportedError as FeatureNotSupportedError
    from xpushare._errors import ForkError as ForkError
    from xpushare._errors import HandleExpiredError as HandleExpiredError
    from xpushare._errors import InvalidArgumentError as InvalidArgumentError
    from xpushare._errors import InvalidHandleError as InvalidHandleError
    from xpushare._errors import OutOfMemoryError as OutOfMemoryError
    from xpushare._errors import PeerLostError as PeerLostError
    from xpushare._errors import RouteError as RouteError
    from xpushare._errors import XpuShareError as XpuShareError
    from xpushare._event import Event as Event
    from xpushare._memory import Memory as Memory
    from xpushare._memory import malloc_device as malloc_device
    from xpushare._memory import malloc_host as malloc_host
    from xpushare._memory import malloc_shared as malloc_shared
    from xpushare._memory import trim as trim
    from xpushare._names import lookup as lookup
    from xpushare._names import publish as publish
    from xpushare._names import published as published
    from xpushare._names import shares as shares
    from xpushare._names import unpublish as unpublish
    from xpushare._names import watch as watch
    from xpushare._physical_memory import PhysicalMemory as PhysicalMemory
    from xpushare._physical_memory import VirtualRange as VirtualRange
    from xpushare._queue import Queue as Queue
    from xpushare._share import array as array
    from xpushare._share import attach as attach
    from xpushare._share import empty as empty
    from xpushare._share import share as share
    from xpushare.core.layers import enable_layers as enable_layers

__version__ = "0.1.0"

_WHERE = {
    "ArrayHandle": "_tree_handle",  # which reads both kinds
    "Aspect": "_aspects",
    "Context": "_device",
    "Device": "_device",
    "DeviceError": "_errors",
    "Event": "_event",
    "FeatureNotSupportedError": "_errors",
    "ForkError": "_errors",
    "HandleExpiredError": "_errors",
    "InvalidArgumentError": "_errors",
    "InvalidHandleError": "_errors",
    "Memory": "_memory",
    "OutOfMemoryError": "_errors",
    "PeerLostError": "_errors",
    "PhysicalMemory": "_physical_memory",
    "Queue": "_queue",
    "RouteError": "_errors",
    "SharedArray": "_array",
    "Support": "_aspects",
    "VirtualRange": "_physical_memory",
    "XpuShareError": "_errors",
    "array": "_share",
    "attach": "_share",
    "default_device": "_device",
    "devices": "_device",
    "empty": "_share",
    "enable_layers": "core.layers",
    "lookup": "_names",
    "malloc_device": "_memory",
    "malloc_host": "_memory",
    "malloc_shared": "_memory",
    "publish": "_names",
    "published": "_names",
    "share": "_share",
    "shares": "_names",
    "trim": "_memory",
    "unpublish": "_names",
    "watch": "_names",
}
_MODULES = ("ipc", "ur")

__all__ = [*sorted(_WHERE), *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if (name in _WHERE or name in _MODULES) and _WHERE.get(name) not in ("_aspects", "_device", "_errors"):
        import_module("xpushare._native")  # raises what says why it is not there, before modules of Unix are missed
    if name in _WHERE:
        value = getattr(import_module(f"xpushare.{_WHERE[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"xpushare.{name}")
    else:
        raise AttributeError(f"module 'xpushare' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

# Made by scripts/stub from __init__.py: not to be edited.

from xpushare import ipc as ipc
from xpushare import ur as ur
from xpushare.arrays.attach import attach as attach
from xpushare.arrays.copies import array as array
from xpushare.arrays.creation import empty as empty
from xpushare.arrays.creation import zeros as zeros
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
from xpushare.channels.ends import Frame as Frame
from xpushare.channels.ends import Loan as Loan
from xpushare.channels.locks import Atomic as Atomic
from xpushare.channels.locks import Held as Held
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
from xpushare.core.device import Context as Context
from xpushare.core.device import Device as Device
from xpushare.core.device import default_device as default_device
from xpushare.core.device import devices as devices
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

__version__: str

__all__ = [
    "ArrayHandle",
    "Aspect",
    "Atomic",
    "Channel",
    "ChannelFull",
    "Context",
    "Device",
    "DeviceError",
    "Event",
    "FeatureNotSupportedError",
    "ForkError",
    "Frame",
    "HandleExpiredError",
    "Held",
    "InvalidArgumentError",
    "InvalidHandleError",
    "Loan",
    "Lock",
    "Lost",
    "Memory",
    "OutOfMemoryError",
    "PeerLostError",
    "PhysicalMemory",
    "Queue",
    "RouteError",
    "SharedArray",
    "Support",
    "VirtualRange",
    "XpuShareError",
    "any_of",
    "array",
    "attach",
    "default_device",
    "devices",
    "empty",
    "enable_layers",
    "lookup",
    "malloc_device",
    "malloc_host",
    "malloc_shared",
    "publish",
    "published",
    "share",
    "shares",
    "trim",
    "unpublish",
    "wait_any",
    "watch",
    "zeros",
    "ipc",
    "ur",
]

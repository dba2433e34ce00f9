"""The capabilities of devices, and the answers to whether a device has them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple, Self

__all__ = ["Aspect", "Support"]


class Aspect(StrEnum):
    """A capability that a device may have. The `ext_oneapi_*` aspects are SYCL's.

    `doc` describes the capability. `query` is the name of the `ur.DeviceInfo` member that queries the aspect, or empty
    if Unified Runtime has no such query.

    Examples:
        >>> xs.Aspect.two_way_events.doc
        "an importer's queue can signal, too"
    """

    doc: str
    query: str

    def __new__(cls, value: str, doc: str = "", query: str = "") -> Self:
        self = str.__new__(cls, value)
        self._value_ = value
        self.doc = self.__doc__ = doc
        self.query = query
        return self

    # Faster than the enumeration's own, which is Python code: devices look up aspects in a dict.
    __hash__ = str.__hash__

    ext_oneapi_ipc_memory = "ext_oneapi_ipc_memory", "memory can be shared", "IPC_MEMORY_SUPPORT_EXP"
    ext_oneapi_ipc_physical_memory = (
        "ext_oneapi_ipc_physical_memory",
        "physical memory can be shared",
        "IPC_PHYSICAL_MEMORY_SUPPORT_EXP",
    )
    ext_oneapi_ipc_event = "ext_oneapi_ipc_event", "events can be shared", "IPC_EVENT_SUPPORT_EXP"
    ext_oneapi_virtual_mem = "ext_oneapi_virtual_mem", "addresses are reserved and mapped", "VIRTUAL_MEMORY_SUPPORT"
    ext_oneapi_per_event_profiling = (
        "ext_oneapi_per_event_profiling",
        "an event says when its command ran",
        "PER_EVENT_PROFILING_SUPPORT_EXP",
    )
    two_way_events = "two_way_events", "an importer's queue can signal, too"
    host_signal_events = "host_signal_events", "the host can signal"
    outlives_exporter = "outlives_exporter", "an import keeps its content after its exporter has freed it or died"
    partial_map = "partial_map", "part of a physical memory can be mapped"
    enforced_read_only = "enforced_read_only", "an importer cannot get round `read_only=True`"
    foreign_memory = "foreign_memory", "memory of other libraries can be exported"
    device_ordering = (
        "device_ordering",
        (
            "a wait for any point happens on the device; without it the queue holds the operations behind a wait for "
            "a point that nobody has submitted"
        ),
    )
    adopted_queues = "adopted_queues", "other libraries' queues can wait and signal"


class Support(NamedTuple):
    """The answer to whether a device has an aspect. The answer comes from the driver or from a trial of the feature,
    never from an assumption.

    Attributes:
        state: "yes", "no" or "unknown".
        reason: The evidence for the state.

    Examples:
        >>> xs.Support("no", "the driver cannot export it").state
        'no'
    """

    state: Literal["yes", "no", "unknown"]
    reason: str

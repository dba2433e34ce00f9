"""What a device can do, and how sure we are."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

__all__ = ["Aspect", "Support"]


class Aspect(StrEnum):
    """Capabilities of a device; the `ext_oneapi_*` ones are SYCL's aspects of those names."""

    ext_oneapi_ipc_memory = "ext_oneapi_ipc_memory"
    ext_oneapi_ipc_physical_memory = "ext_oneapi_ipc_physical_memory"
    ext_oneapi_ipc_event = "ext_oneapi_ipc_event"
    ext_oneapi_virtual_mem = "ext_oneapi_virtual_mem"
    ext_oneapi_per_event_profiling = "ext_oneapi_per_event_profiling"
    two_way_events = "two_way_events"
    host_signal_events = "host_signal_events"
    outlives_exporter = "outlives_exporter"
    partial_map = "partial_map"
    enforced_read_only = "enforced_read_only"
    foreign_memory = "foreign_memory"


class Support(NamedTuple):
    """Whether a device has an aspect: asked of the driver or tried, never assumed. `reason` says how that is known."""

    state: Literal["yes", "no", "unknown"]
    reason: str

"""Functions for queues."""

from __future__ import annotations

from typing import Any, Final

from xpushare.common.aspects import Aspect
from xpushare.common.errors import XpuShareError
from xpushare.common.result import Result
from xpushare.core import queue as core_queue
from xpushare.core.device import require
from xpushare.objects.lifecycle import use
from xpushare.objects.queue import Queue as WorkQueue
from xpushare.ur._enums import QueueFlags, QueueInfo
from xpushare.ur._error import HostTaskError, URError
from xpushare.ur._functions.device import queue_flags
from xpushare.ur._objects import Context, Device, Queue
from xpushare.ur._spec import UNSUPPORTED_QUERY, Info, function, rule
from xpushare.ur._structs import QueueProperties


@function(
    92,
    "INVALID_CONTEXT",
    "INVALID_DEVICE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    rules=(
        rule(
            "INVALID_QUEUE_PROPERTIES",
            "pProperties is not None and pProperties.flags & QueueFlags.PRIORITY_HIGH "
            "and pProperties.flags & QueueFlags.PRIORITY_LOW",
            "`pProperties.flags` has both `PRIORITY_HIGH` and `PRIORITY_LOW`",
        ),
        rule(
            "INVALID_QUEUE_PROPERTIES",
            "pProperties is not None and pProperties.flags & QueueFlags.SUBMISSION_BATCHED "
            "and pProperties.flags & QueueFlags.SUBMISSION_IMMEDIATE",
            "`pProperties.flags` has both `SUBMISSION_BATCHED` and `SUBMISSION_IMMEDIATE`",
        ),
    ),
    operations=("Queue",),
    makes="queue",
    python="`xs.Queue(device, context=…)`",
)
def urQueueCreate(hContext: Context, hDevice: Device, pProperties: QueueProperties | None) -> Queue:
    """Create a queue for a device."""
    flags = 0 if pProperties is None else pProperties.flags
    profiling = bool(flags & QueueFlags.PROFILING_ENABLE)
    if profiling:
        require(hDevice.shared, Aspect.ext_oneapi_per_event_profiling)
    refused = flags & ~queue_flags(hDevice)
    if refused:
        raise URError(f"queues cannot have {QueueFlags(refused)!r}", result=Result.ERROR_UNSUPPORTED_FEATURE)
    queue = WorkQueue(hDevice.shared, context=hContext.shared)
    return Queue.make(hContext, hDevice, queue, flags, profiling)


_QUEUE: Final = Info(
    QueueInfo,
    {
        "handle:context": "CONTEXT",
        "handle:device": "DEVICE",
        "handle:queue": "DEVICE_DEFAULT",
        "flags:QueueFlags": "FLAGS",
        "uint32": "REFERENCE_COUNT SIZE",
        "bool": "EMPTY",
    },
    answers={
        QueueInfo.CONTEXT: lambda queue: queue.context,
        QueueInfo.DEVICE: lambda queue: queue.device,
        QueueInfo.FLAGS: lambda queue: queue.flags,
        QueueInfo.REFERENCE_COUNT: lambda queue: queue.references,
        QueueInfo.EMPTY: lambda queue: use(queue.shared).driver.idle(),
    },
    optional="DEVICE_DEFAULT EMPTY",
    changing="REFERENCE_COUNT EMPTY",
)


@function(
    91,
    UNSUPPORTED_QUERY,
    ("INVALID_QUEUE", "`propName` is `QueueInfo.SIZE`, which only on-device queues have"),
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
    python="`queue.context`, `queue.device`",
)
def urQueueGetInfo(hQueue: Queue, propName: QueueInfo) -> Any:
    """Return the property `propName` of a queue."""
    if propName is QueueInfo.SIZE:
        raise URError(f"{hQueue!r} is a queue of the host", result=Result.ERROR_INVALID_QUEUE)
    return _QUEUE.answer(propName, hQueue)


@function(93, "INVALID_QUEUE", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES", makes="queue")
def urQueueRetain(hQueue: Queue) -> None:
    """Add a reference to a queue."""
    hQueue.retain()


@function(94, "INVALID_QUEUE", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES", ends="queue", python="`queue.close()`")
def urQueueRelease(hQueue: Queue) -> None:
    """Release a reference to a queue. Even after the last release, the commands that are still in the queue run to
    their end.
    """
    hQueue.release()


@function(97, "INVALID_QUEUE", "OUT_OF_HOST_MEMORY", operations=("Queue.synchronize",), python="`queue.synchronize()`")
def urQueueFinish(hQueue: Queue) -> None:
    """Wait until all commands of a queue are complete."""
    try:
        core_queue.synchronize(use(hQueue.shared), None)
    except HostTaskError as error:
        cause = error.__cause__
        result = cause.result if isinstance(cause, XpuShareError) else Result.ERROR_UNKNOWN
        raise URError(str(error), result=result) from cause


@function(98, "INVALID_QUEUE", "OUT_OF_HOST_MEMORY")
def urQueueFlush(hQueue: Queue) -> None:
    """Submit the commands of a queue to its device.

    This does nothing, since a queue submits each command by itself, either immediately or when the events that the
    command waits for are complete.
    """
    use(hQueue.shared)

"""Queues."""

from __future__ import annotations

from xpushare._aspects import Aspect
from xpushare._lifecycle import use
from xpushare._queue import Queue as WorkQueue
from xpushare._result import Result
from xpushare.core import queue as core_queue
from xpushare.ur._enums import QueueFlags
from xpushare.ur._error import URError
from xpushare.ur._functions.device import QUEUE_FLAGS
from xpushare.ur._objects import Context, Device, Queue
from xpushare.ur._spec import function, rule
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
    """Makes a queue for a device."""
    flags = 0 if pProperties is None else pProperties.flags
    if flags & ~QUEUE_FLAGS:
        raise URError(
            f"queues cannot have {QueueFlags(flags & ~QUEUE_FLAGS)!r}",
            result=Result.ERROR_UNSUPPORTED_FEATURE,
        )
    profiling = bool(flags & QueueFlags.PROFILING_ENABLE)
    if profiling:
        hDevice.shared.require(Aspect.ext_oneapi_per_event_profiling)
    queue = WorkQueue(hDevice.shared, context=hContext.shared)
    return Queue.make(hContext, hDevice, queue, profiling)


@function(93, "INVALID_QUEUE", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES", makes="queue")
def urQueueRetain(hQueue: Queue) -> None:
    """Takes a reference to a queue."""
    hQueue.retain()


@function(94, "INVALID_QUEUE", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES", ends="queue", python="`queue.close()`")
def urQueueRelease(hQueue: Queue) -> None:
    """Gives up a reference to a queue; the last one flushes it, and its commands still run."""
    hQueue.release()


@function(97, "INVALID_QUEUE", "OUT_OF_HOST_MEMORY", operations=("Queue.synchronize",), python="`queue.synchronize()`")
def urQueueFinish(hQueue: Queue) -> None:
    """Waits until all commands of a queue are complete."""
    core_queue.synchronize(use(hQueue.shared), None)

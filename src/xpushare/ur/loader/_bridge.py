"""The Python half of the library that Unified Runtime's loader loads. It converts C's arguments to Python, calls the
functions of `xpushare.ur`, and returns their results to C.

Each function of `xpushare.ur` gets a wrapper that answers calls of the C function with the same name. The wrapper is
made from the function's declaration and the C prototype. It takes the C arguments as ints and returns a result code as
an int.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from xpushare import _native, ur
from xpushare.adapters.host.queue import HostQueue
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.common import leaving
from xpushare.common.errors import XpuShareError
from xpushare.common.result import Result
from xpushare.core.declare import layers_on
from xpushare.objects.lifecycle import use
from xpushare.ur._functions import FUNCTIONS, INFOS
from xpushare.ur._functions.enqueue import Handover, failed, handing_over, renew
from xpushare.ur._objects import Context, Counted, Queue, selected_by_loader
from xpushare.ur._spec import Function
from xpushare.ur.loader import LIBRARY
from xpushare.ur.loader._answers import after, answer
from xpushare.ur.loader._arguments import Call, Post, arguments, packer
from xpushare.ur.loader._boxes import NUMBERS, Boxes, library
from xpushare.ur.loader._tables import NUMBERED, command_of

__all__ = ["Boxes", "boxes", "carry", "end", "is_clean", "leave", "start", "wrapper"]

_log: Final = logging.getLogger("xpushare.ur")
_LISTS: Final = ("urAdapterGet", "urDeviceGet")
_OUT_OF_MEMORY: Final = int(Result.ERROR_OUT_OF_HOST_MEMORY)
_NEWEST: Final = (1 << 64) - 1  # as a point, it means the newest by now

# --- the wrappers ---------------------------------------------------------------------------------


def wrapper(function: Function, boxes: Boxes, post: Post) -> Callable[..., int]:
    """Return the wrapper that answers calls of the C function with the same name as `function`. `post` is the library's
    function for calling the program's callbacks.
    """
    call = Call.of(function, boxes, post)
    given = arguments(call)
    used = {name for each in given for name in each.uses}
    answered = answer(call, [each.name for each in call.parameters if each.name not in used])
    reads = [each.read for each in given]
    refusal, hand_out, finish = answered.refusal, answered.hand_out, after(call)
    do = getattr(ur, function.name)
    if function.name in _LISTS:
        do = selected_by_loader(do)
    asks = function.ends or function.returns.startswith("info:")  # returns the count of references, or ends one
    learned = [call.at[each.name] for each in call.parameters if asks and each.passed == "handle"]

    def answer_call(*words: int) -> int:
        try:
            if result := refusal(words):
                return result
            values: list[Any] = []
            for read in reads:  # takes half the time of a comprehension
                values.append(read(words))  # noqa: PERF401
            for at in learned:
                boxes.learn(words[at])
            result = hand_out(words, do(*values))
            for each in finish:
                each(words, values)
        except XpuShareError as error:
            return int(error.result)
        except MemoryError:
            return _OUT_OF_MEMORY
        return result

    return answer_call


# --- start and end --------------------------------------------------------------------------------


def _boxes() -> Boxes:
    make, count, known = library.xpushare_ur_box, library.xpushare_ur_count, library.xpushare_ur_is_box
    make.restype, make.argtypes = ctypes.c_void_p, []
    count.restype, count.argtypes = None, [ctypes.c_void_p, ctypes.c_int32]
    known.restype, known.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    return Boxes(lambda: make() or 0, count, known)


boxes: Final = _boxes()
_wrappers: Final[list[Callable[..., int]]] = []


def end(handle: int) -> None:
    """Remove a handle whose last reference the program has released, and release its object."""
    boxes.end(handle)


def carry(function: int, event: int, queued: int, count: int, *numbers: int) -> int:
    """Enqueue a command that the program submitted at the time `queued`. `function` is the number of the C function.
    `event` is the handle of the command's event, or 0 if it has none. Return the result code.

    The first `count` of the `numbers` are the points of the events that the command waits for. The others are the words
    of the C call.
    """
    points = tuple(None if each == _NEWEST else each for each in numbers[:count])
    arguments = numbers[count:]
    fill = functools.partial(boxes.fill, event) if event else None
    with boxes.carrying(), handing_over(Handover(points, queued, fill)):
        result = _wrappers[function](*arguments)
    if result:
        text = f"{NUMBERED[function]} had been accepted, and failed: {Result(result).name}"
        _log.error("%s", text)
        error = ur.URError(text, result=Result(result))
        try:
            made = failed(boxes.objects[arguments[0]], command_of(NUMBERED[function]), error)
        except XpuShareError:  # there is not even room for an event that reports it, so its handle stays stale
            return result
        if fill is None:
            made.release()
        else:
            fill(made)
    queue = boxes.objects[arguments[0]]
    if queue.timelines:
        with suppress(XpuShareError):  # if it fails, Python carries out the next one, too
            renew(queue)
    return result


def is_clean(queue: int) -> int:
    """Return whether a queue has no error to report. A queue that runs on the host must also have no unfinished work.
    `queue` is its handle.
    """
    driver = use(boxes.objects[queue].shared).driver
    return isinstance(driver, (HostQueue, DeviceQueue)) and driver.clean()


_ENGINE: Final = (
    *("xp_newest_point", "xp_state_at", "xp_wait_at", "xp_let_slot_go", "xp_fill", "xp_mapped"),
    *("xp_queue_work", "xp_queue_after"),
)
"""The functions of the native module that the library calls, in the order of its `xp_engine_functions`."""


_ASKED: Final[dict[type[Counted], str]] = {Context: "ContextInfo", Queue: "QueueInfo"}
"""For a class of handles, the enumeration of its queries. When a handle is created, the answers that never change are
passed to the library, which can then answer these queries without Python.
"""


def _ask(handle: int, found: Any) -> None:
    """Pass the properties of a new handle's object that never change to the library, which caches them."""
    name = _ASKED.get(found.__class__)
    if name is not None:
        info = INFOS[name]
        for query in info.lasting:
            packed = _property_packer(name, query)(info.answer(query, found))
            library.xpushare_ur_remember(handle, NUMBERS[found.__class__], query, packed, len(packed))


@functools.cache
def _property_packer(info: str, query: int) -> Callable[[Any], bytes]:
    declared = INFOS[info]
    return packer(declared.kinds[declared.enumeration(query).name], boxes)


def start(site: str) -> list[Callable[..., int]]:
    """Return the wrappers in the order of `NUMBERED`. The library calls this once. `site` is the folder that contains
    the library's package. Raise `ImportError` if this Python has imported the package from another folder.
    """
    if not LIBRARY.parents[3].samefile(site):
        raise ImportError(
            f"this Python has another xpushare than that of the library: {LIBRARY.parents[3]}, not {site}"
        )
    if not layers_on:  # layers must see every call
        engine = ctypes.CDLL(_native.__file__)
        asked = (ctypes.c_void_p * len(_ENGINE))(
            *(ctypes.cast(getattr(engine, name), ctypes.c_void_p).value for name in _ENGINE)
        )
        boxes.ask = _ask
        library.xpushare_ur_engine(asked)
    atexit.register(library.xpushare_ur_end)
    library.xpushare_ur_post.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_char_p]
    _wrappers[:] = [wrapper(FUNCTIONS[name], boxes, library.xpushare_ur_post) for name in NUMBERED]
    return _wrappers


def leave() -> None:
    """Run the package's usual cleanup in a program that exits without finalizing Python."""
    leaving.leave()

"""The Python half of the library that Unified Runtime's loader loads: C arguments in, results and outputs out.

For each function of `xpushare.ur` a wrapper is compiled from its declaration and its C prototype. It takes the C
arguments as ints and answers a result's number. A handle is the address of a box, whose first word is the loader's
table; what was released leaves its box behind, which stays a stale handle for the rest of the process.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import struct
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final

from xpushare import _leaving, _native, ur
from xpushare._device import Device
from xpushare._errors import XpuShareError
from xpushare._lifecycle import use
from xpushare._result import Result
from xpushare.adapters.host.queue import HostQueue
from xpushare.adapters.stream.queue import DeviceQueue
from xpushare.core.declare import layers_on
from xpushare.ur import _objects, _structs
from xpushare.ur._callbacks import call_soon
from xpushare.ur._functions import FUNCTIONS, INFOS
from xpushare.ur._functions.enqueue import Handover, complete, failed, handed_over, handing_over, renew
from xpushare.ur._objects import HANDLES, Context, Counted, Event, Queue, selected_by_loader
from xpushare.ur._spec import Arg, Function
from xpushare.ur.loader import LIBRARY
from xpushare.ur.loader._tables import (
    COUNTED,
    HOST,
    KIND_NUMBERS,
    NUMBERED,
    TRAITS,
    Parameter,
    command_of,
    kept_queries,
    parameters,
)

__all__ = ["carry", "end", "is_clean", "leave", "start", "wrapper"]

_log: Final = logging.getLogger("xpushare.ur")
_HANDLE_NBYTES: Final = 256
_WORD: Final = struct.Struct("Q")
_LISTS: Final = ("urAdapterGet", "urDeviceGet")
_AXES: Final = 3  # words of a struct that C passes by value
# Commands may use all of it, from when it is made until it is ended.
_MEMORY: Final = "USM memory", "opened memory", "registered host memory"
_MOST: Final = 1 << 20  # bytes of a pattern or of data that are looked at

_NEWEST: Final = (1 << 64) - 1  # for a point: the one that there is by now

_library: Final = ctypes.CDLL(str(LIBRARY))
_library.xpushare_ur_range.argtypes = [
    *(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint16, ctypes.c_uint16, ctypes.c_bool)
]
_library.xpushare_ur_device_queue.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
_library.xpushare_ur_no_range.argtypes = [ctypes.c_uint64]
_library.xpushare_ur_forget.argtypes = [ctypes.c_void_p]
_library.xpushare_ur_remember.argtypes = [
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.c_char_p,
    ctypes.c_size_t,
]

# --- handles --------------------------------------------------------------------------------------


class _Stale:
    """What a handle stands for whose object was released."""

    def __repr__(self) -> str:
        return "a handle that was released before, or that is none"


STALE: Final = _Stale()


class _BoxWord(ctypes.Union):
    _fields_: ClassVar = [("function", ctypes.c_uint16), ("traits", ctypes.c_uint16)]


class _BoxLast(ctypes.Union):
    _fields_: ClassVar = [("queue", ctypes.c_void_p), ("backend", ctypes.c_uint16)]


class _Box(ctypes.Structure):
    """`xp_box` of the library: a handle points to one."""

    _anonymous_: ClassVar = ["word", "last"]
    _fields_: ClassVar = [
        ("dispatch", ctypes.c_void_p),
        ("kind", ctypes.c_uint8),
        ("type", ctypes.c_uint8),
        ("owed", ctypes.c_uint8),
        ("done", ctypes.c_uint8),
        ("known", ctypes.c_uint8),
        ("word", _BoxWord),
        ("references", ctypes.c_int32),
        ("holds", ctypes.c_int32),
        ("event", ctypes.c_void_p),
        ("last", _BoxLast),
        ("point", ctypes.c_uint64),
    ]


_EVENT: Final = 1 + COUNTED.index("event")
_QUEUE: Final = 1 + COUNTED.index("queue")
_NUMBERS: Final = {HANDLES[kind]: number for number, kind in enumerate(COUNTED, 1)}


_backends: Final[dict[str, int]] = {}
_devices: Final[dict[Device, int]] = {}


def _backend(device: Device) -> int:
    """A number for the backend of a device."""
    return _backends.setdefault(device.backend, len(_backends))


def _device_number(device: Device) -> int:
    """A number for a device."""
    return _devices.setdefault(device, len(_devices))


def _engine_queue(queue: Queue) -> int:
    """The engine's queue, for commands that need no Python; 0 if such a queue takes none."""
    driver = use(queue.shared).driver
    if layers_on or queue.profiling or not isinstance(driver, DeviceQueue) or not driver.works_natively:
        return 0
    try:
        renew(queue)
    except XpuShareError as error:
        _log.info("a queue gets its commands by Python alone: %s", error)
        return 0
    return driver.engine


class Boxes:
    """Which handle stands for which object.

    Of the kinds in `COUNTED` the library counts the references in the box, without Python; an object here has those
    that Python knows of, and one at least while its handle lives.
    """

    def __init__(
        self, make: Callable[[], int], count: Callable[[int, int], object], known: Callable[[int], bool]
    ) -> None:
        """`make` makes a box, `count` adds to its references, `known` says whether there is, or was, such a handle."""
        self._make = make
        self._count = count
        self.known = known
        self.ask: Callable[[int, Any], object] | None = None  # about what a new handle stands for
        self._lock = threading.Lock()
        self._carriers: set[int] = set()  # threads
        self._of: dict[int, int] = {}  # by identity; `objects` keeps them alive
        self._seen: dict[int, int] = {}  # the references of counted objects that their boxes have counted, by handle
        self.objects: dict[int, Any] = {}

    def put(self, found: Any) -> int:
        """The handle of an object; 0 of none."""
        if found is None:
            return 0
        new = found.__class__ is Queue and found.references and id(found) not in self._of
        engine = _engine_queue(found) if new else 0
        with self._lock:
            handle = self._of.get(id(found))
            unknown = handle is None
            if handle is None:
                handle = self._make()
                if not handle:
                    raise MemoryError
                self.objects[handle] = found
                self._of[id(found)] = handle
                number = _NUMBERS.get(found.__class__)
                if number is not None and found.references:
                    box = _Box.from_address(handle)
                    box.references = self._seen[handle] = found.references
                    if number == _EVENT:
                        box.event = use(found.shared).timeline.slot.engine
                    elif number == _QUEUE:
                        device = found.device.shared
                        box.backend = _backend(device)
                        box.traits = sum(1 << i for i, aspect in enumerate(TRAITS) if device.has(aspect))
                        if isinstance(use(found.shared).driver, HostQueue) and not found.profiling:
                            box.traits |= HOST
                        if engine:
                            _library.xpushare_ur_device_queue(handle, engine, _device_number(device))
                    box.type = box.kind = number
            self._tell(handle, found)
        if unknown and found.references and self.ask is not None:
            self.ask(handle, found)
        return handle

    def fill(self, handle: int, event: Event) -> Event:
        """Have a handle that the program has already stand for `event`, if for no other yet; the one that it stands
        for. The program's reference is counted.
        """
        with self._lock:
            known: Event | None = self.objects.get(handle)
            if known is not None:
                return known
            self.objects[handle] = event
            self._of[id(event)] = handle
            self._seen[handle] = event.references
            box = _Box.from_address(handle)
            if not box.point:
                box.event = use(event.shared).timeline.slot.engine
            box.known = 1
            return event

    def _tell(self, handle: int, found: Any) -> None:
        """Count in the box what Python's count has become."""
        references: int = found.references  # once: a callback may give one up meanwhile
        seen = self._seen.get(handle, references)
        if references != seen:
            self._count(handle, references - seen)
            self._seen[handle] = references

    def tell(self, found: Any) -> None:
        """Count in the box what Python has given up by itself."""
        with self._lock:
            handle = self._of.get(id(found))
            if handle is not None:
                self._tell(handle, found)

    def lend(self, event: Event) -> int:
        """The handle of an event, with a reference that the library gives up."""
        handle = self.put(event)
        self._count(handle, 1)
        return handle

    def take_back(self, handle: int) -> None:
        """What was lent, and never got to the library."""
        self._count(handle, -1)

    def learn(self, handle: int) -> None:
        """Count here what the library has counted: before Python tells how many references there are, or ends one."""
        if handle in self._seen and not self._released(handle):
            found = self.objects[handle]
            with self._lock:
                counted = _Box.from_address(handle).references
                more = counted - self._seen[handle]
                for _ in range(abs(more)):
                    found.take() if more > 0 else found.release()
                self._seen[handle] = counted

    def end(self, handle: int) -> None:
        """The program gave up the last reference of a box."""
        with self._lock:
            found: Counted | None = self.objects.pop(handle, None)
            if found is None:
                return  # the making of its event failed
            del self._of[id(found)], self._seen[handle]
        while found.references:
            found.release()

    def get(self, handle: int) -> Any:
        if not handle:
            return None
        found = self.objects.get(handle)
        if found is None:
            return self._carried_out(handle)
        return STALE if handle in self._seen and self._released(handle) else found

    def _released(self, handle: int) -> bool:
        """Whether it is stale, although commands that the program has handed in still need the object."""
        return not _Box.from_address(handle).references and threading.get_ident() not in self._carriers

    def _carried_out(self, handle: int) -> Any:
        """The event of a command that was carried out, or handed to a device, without Python."""
        if not self.known(handle) or self._released(handle):
            return STALE
        box = _Box.from_address(handle)
        if not (box.done or box.point):
            return STALE
        queue, command = self.objects[box.queue], command_of(NUMBERED[box.function])
        made = handed_over(queue, command, box.event, box.point) if box.point else complete(queue, command)
        return self.fill(handle, made)

    @contextmanager
    def carrying(self) -> Generator[None]:
        """Commands are enqueued here and now that were handed in: they need no reference of the program's."""
        self._carriers.add(threading.get_ident())
        try:
            yield
        finally:
            self._carriers.discard(threading.get_ident())

    def drop(self, *given: Any) -> None:
        """Forget those that were released for the last time."""
        for each in given:
            handle = self._of.get(id(each))
            if handle is None or not isinstance(each, Counted):
                continue
            with self._lock:
                self._tell(handle, each)
                if not each.references:
                    del self._of[id(each)], self.objects[handle]
                    _library.xpushare_ur_forget(handle)
                    if self._seen.pop(handle, None) is not None:
                        _Box.from_address(handle).kind = 0


# --- what wrappers call ---------------------------------------------------------------------------


def _write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def _handles(boxes: Boxes, address: int, count: int) -> tuple[Any, ...]:
    raw = struct.unpack(f"{count}Q", ctypes.string_at(address, count * 8))
    return tuple(boxes.get(each) for each in raw)


def _list(boxes: Boxes, count: int, address: int) -> tuple[Any, ...] | None:
    """An array that must be there."""
    return _handles(boxes, address, count) if address else None


def _optional_list(boxes: Boxes, count: int, address: int) -> tuple[Any, ...]:
    """A wait list; of one whose count and address contradict each other, an element is null."""
    if bool(count) != bool(address):
        return (None,)
    return _handles(boxes, address, count) if count else ()


def _in_out(boxes: Boxes, address: int) -> Any:
    """What comes out through `address` may also be given; what is no handle of ours was never written."""
    if not address:
        return None
    (handle,) = struct.unpack("Q", ctypes.string_at(address, 8))
    return boxes.get(handle) if boxes.known(handle) else None


def _pattern(address: int, nbytes: int, size: int) -> bytes | None:
    """As much of a pattern as the checks need."""
    if not address:
        return None
    return ctypes.string_at(address, nbytes) if nbytes <= min(size, _MOST) else bytes(min(size, _MOST) + 1)


_given: Final[dict[int, Any]] = {}  # the handle data that the program holds, by address


def _give(address: int, size: int, data: bytes) -> None:
    kept = ctypes.create_string_buffer(data, len(data))
    _given[ctypes.addressof(kept)] = kept
    _write(address, struct.pack("Q", ctypes.addressof(kept)))
    _write(size, struct.pack("Q", len(data)))


def _number(address: int, nbytes: int) -> int:
    """One of type `size_t` that lies at an address."""
    if not address:
        raise ur.URError("it is null", result=Result.ERROR_INVALID_NULL_POINTER)
    if nbytes != _WORD.size:
        raise ur.URError(f"it has {nbytes} bytes", result=Result.ERROR_INVALID_SIZE)
    (number,) = _WORD.unpack(ctypes.string_at(address, nbytes))
    return int(number)


def _data(address: int, nbytes: int) -> bytes | None:
    """Handle data; of a wrong size only the size counts."""
    if not address:
        return None
    return ctypes.string_at(address, nbytes) if nbytes == _HANDLE_NBYTES else bytes(min(nbytes, _MOST))


def _given_data(address: int) -> bytes | None:
    """Handle data that come without their size: what was given out."""
    if not address:
        return None
    kept = _given.get(address)
    return b"" if kept is None else bytes(kept.raw)


def _string(address: int) -> str | None:
    return ctypes.string_at(address).decode(errors="replace") if address else None


def _reachable(address: int) -> None:
    """Have commands with this memory be enqueued without Python."""
    found = _objects.places.known(address)
    if found is not None:
        device = found.device
        _library.xpushare_ur_range(
            found.address, found.nbytes, _backend(device), _device_number(device), not found.read_only
        )


_strings: Final[dict[str, Any]] = {}  # given out, for ever


def _string_packer(text: str) -> bytes:
    """The address of a C string that stays."""
    kept = _strings.setdefault(text, ctypes.create_string_buffer(text.encode()))
    return struct.pack("Q", ctypes.addressof(kept))


_HOST_TASK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Post = Callable[[int, int, int, int, bytes | None], object]
"""The library's: have its own thread call a function of the program."""


def _callbacks(boxes: Boxes, post: Post) -> dict[str, Callable[[int], Callable[..., object] | None]]:
    """What turns a function pointer into a callable, by the kind of the callback. The library's own thread calls the
    function; it holds nothing of Python's.
    """

    def event(function: int) -> Callable[..., object] | None:
        def call(event: Event, status: int, data: int | None) -> None:
            handle = boxes.lend(event)
            if post(function, handle, int(status), data or 0, None):
                boxes.take_back(handle)  # there is no memory, or no thread
            call_soon(functools.partial(boxes.tell, event))  # the reference of `urEventSetCallback` is given up then

        return call if function else None

    def logger(function: int) -> Callable[..., object] | None:
        return (lambda level, text, data: post(function, 0, int(level), data or 0, text.encode())) if function else None

    def host_task(function: int) -> Callable[..., object] | None:
        """A queue's thread calls it, and goes on once it has returned."""
        return _HOST_TASK(function) if function else None

    return {"_callback_event": event, "_callback_logger": logger, "_callback_host_task": host_task}


# --- values ---------------------------------------------------------------------------------------

_FORMATS: Final = {"uint32": "I", "int32": "i", "uint64": "Q", "size": "Q", "pointer": "Q", "bool": "?", "handle": "Q"}


def _format(kind: str) -> str:
    """Of one value: enumerations and flags have 32 bits."""
    return _FORMATS.get(kind.partition(":")[0].removesuffix("?"), "I")


def _layout(name: str) -> tuple[str, int]:
    """Of a struct: the format of its fields, and where they begin."""
    fields = "".join(_format(kind) for kind in _structs.FIELD_KINDS[name].values())
    return fields, 16 if name in _structs.STRUCTURE_TYPES else 0


def _reader(name: str, boxes: Boxes) -> Callable[[int], Any]:
    """What makes the dataclass from a struct at an address."""
    fields, begin = _layout(name)
    pad = f"{begin}x{fields}"
    made = getattr(_structs, name)
    handles = [kind.startswith("handle:") for kind in _structs.FIELD_KINDS[name].values()]

    def read(address: int) -> Any:
        if not address:
            return None
        values = struct.unpack(pad, ctypes.string_at(address, struct.calcsize(pad)))
        return made(*(boxes.get(each) if is_handle else each for each, is_handle in zip(values, handles, strict=True)))

    return read


def _packer(kind: str, boxes: Boxes) -> Callable[[Any], bytes]:
    """What turns a value of that kind into the bytes that C has for it."""
    family, _, name = kind.partition(":")
    if kind.endswith("]"):
        one = _packer(kind[: kind.index("[")], boxes)
        return lambda values: b"".join(map(one, values))
    if family == "handle":
        return lambda value: struct.pack("Q", boxes.put(value))
    if family == "string":
        return lambda value: str(value).encode() + b"\0"
    if family == "bytes":
        return bytes
    if family == "struct":
        fields, begin = _layout(name)
        whole = struct.Struct(f"{f'I4xQ{fields}' if begin else fields}0Q")
        head = (_structs.STRUCTURE_TYPES[name], 0) if begin else ()
        kinds = list(_structs.FIELD_KINDS[name].values())
        return lambda value: whole.pack(
            *head,
            *(
                boxes.put(each) if kind.startswith("handle:") else int(each)
                for each, kind in zip(vars(value).values(), kinds, strict=True)
            ),
        )
    code = struct.Struct(_format(kind))
    if code.format == "I":
        return lambda value: code.pack(int(value) & 0xFFFFFFFF)
    return lambda value: code.pack(value)


# --- the wrappers ---------------------------------------------------------------------------------


def _inputs(function: Function, given: tuple[Parameter, ...]) -> tuple[dict[str, str], list[int]]:
    """For each argument the expression that makes it from `a0`, `a1` …; the numbers of the parameters left over, the
    outputs.
    """
    args: dict[str, Arg] = {arg.name: arg for arg in function.args}
    numbers = {parameter.name: i for i, parameter in enumerate(given)}
    assert args.keys() <= numbers.keys(), f"{function.name} has no {args.keys() - numbers.keys()} in C"
    made: dict[str, str] = {}
    used: set[int] = set()
    outputs: set[int] = set()
    for name, arg in args.items():
        i = numbers[name]
        family, _, kind = arg.base_kind.partition(":")
        a = f"a{i}"
        count, after = i - 1, given[i + 1].name if i + 1 < len(given) else ""
        if family == "handle" and given[i].passed == "ptr":
            made[name] = f"_in_out(_boxes, {a})"
            outputs.add(i)
        elif family == "handle":
            made[name] = f"_get({a})"
        elif family == "bool":
            made[name] = f"{a} != 0"
        elif family == "sequence":
            made[name] = f"{'_optional_list' if arg.optional else '_list'}(_boxes, a{i - 1}, {a})"
        elif family == "struct":
            made[name] = f"_read_{kind}({a})"
        elif family == "value":
            made[name] = f"_{kind}({', '.join(f'{a}_{axis}' for axis in range(_AXES))})"
        elif family == "pattern":
            count = numbers["patternSize"]
            filled = ["size"] if "size" in numbers else ["width", "height"]
            made[name] = f"_pattern({a}, a{count}, {' * '.join(f'a{numbers[each]}' for each in filled)})"
        elif family == "string":
            made[name] = f"_string({a})"
        elif family == "callback":
            made[name] = f"_callback_{kind}({a})"
        elif family == "data":
            made[name] = f"{a} or None"
        elif family == "size" and given[i].passed == "ptr":  # it lies there, and has a size
            used.add(i + 1)
            made[name] = f"_number({a}, a{i + 1})"
        elif family == "bytes" and after.lower().endswith("size") and after not in args:
            used.add(i + 1)
            made[name] = f"_data({a}, a{i + 1})"
        elif family == "bytes":
            made[name] = f"_given_data({a})"
        else:
            made[name] = a
        if family in ("sequence", "pattern"):
            assert given[count].name not in args, f"{function.name}: {given[count].name} is no count"
            used.add(count)
        used.add(i)
    return made, [i for i in range(len(given)) if i not in used or i in outputs]


def _number_of(function: Function) -> int:
    """The number of the kind of handles that it asks about."""
    return KIND_NUMBERS[function.args[0].base_kind.removeprefix("handle:")]


def _checks(function: Function, given: tuple[Parameter, ...], outputs: list[int]) -> Iterator[str]:
    """Statements that refuse null where an output must go, and what an answer of any size must not be."""
    kinds, null = function.returns, int(Result.ERROR_INVALID_NULL_POINTER)
    if kinds.startswith("info:"):
        *size, value, written = (f"a{i}" for i in outputs)
        yield f"if {size[0] if size else 0} and not {value} or not ({value} or {written}): return {null}"
    elif kinds.endswith("[]"):
        room, array, _count = (f"a{i}" for i in outputs)
        yield f"if {room} and not {array}: return {null}"
    else:
        for i in outputs:
            if not given[i].optional or kinds == "bytes":
                yield f"if not a{i}: return {null}"


def _answers(function: Function, given: tuple[Parameter, ...], outputs: list[int]) -> Iterator[str]:
    """Statements that hand `_value` out."""
    kinds = function.returns
    out = [f"a{i}" for i in outputs]
    if kinds.startswith("info:"):
        *size, value, written = out
        yield "_packed = _packers[a_propName](_value)"
        if kept_queries(function):
            number = _number_of(function)
            yield f"if a_propName in _kept_queries: _remember(a0, {number}, a_propName, _packed, len(_packed))"
        yield f"if {value}:"
        if size:
            yield f"    if {size[0]} < len(_packed): return {int(Result.ERROR_INVALID_SIZE)}"
        yield f"    _write({value}, _packed)"
        yield f"if {written}: _write({written}, _pack_size(len(_packed)))"
    elif kinds.endswith("[]"):
        room, array, count = out
        yield f"if {array} and not {room}: return {int(Result.ERROR_INVALID_SIZE)}"
        yield f"_kept = _value[:{room}] if {array} else []"
        yield f"if {array}: _write({array}, _pack(_kept))"
        yield f"if {count}: _write({count}, _pack_count(len(_value)))"
        if function.makes:
            yield "for _each in _value[len(_kept):]: _each.release()"
    elif kinds == "bytes":
        yield f"_give({out[0]}, {out[1]}, _value)"
    elif "+" in kinds:
        for number, i in enumerate(outputs):
            yield f"if a{i}: _write(a{i}, _pack[{number}](_value[{number}]))"
            kind = kinds.split("+")[number]
            if kind == "pointer" and not set(_MEMORY).isdisjoint(function.made):
                yield f"_reachable(_value[{number}])"
            if given[i].optional and kind.removeprefix("handle:") in function.made:
                yield f"else: _value[{number}].release()"
    elif kinds != "None":
        (i,) = outputs
        yield f"if a{i}: _write(a{i}, _pack(_value))"
        if kinds == "pointer" and function.makes in _MEMORY:
            yield "_reachable(_value)"
        if given[i].optional and function.makes:
            yield "else: _value.release()"
    else:
        assert not outputs, f"{function.name} answers nothing, but C has {[given[i].name for i in outputs]}"
    if kinds == "None" and function.makes in _MEMORY:
        yield from (f"_reachable(h_{arg.name})" for arg in function.args if arg.kind == "pointer")
    if any(arg.kind == "callback:event" for arg in function.args):  # it has taken a reference
        yield from (f"_boxes.tell(h_{arg.name})" for arg in function.args if arg.kind == "handle:event")
    if function.ends in _MEMORY:
        yield from (f"_unreachable(h_{arg.name})" for arg in function.args if arg.kind == "pointer")
    if function.ends:
        handles = [arg.name for arg in function.args if arg.kind.startswith("handle:")]
        data = [arg.name for arg in function.args if arg.kind == "bytes"]
        names = [parameter.name for parameter in given]
        yield f"_drop({', '.join(f'h_{name}' for name in handles)})"
        yield from (f"_given.pop(a{names.index(name)}, None)" for name in data)


def wrapper(function: Function, boxes: Boxes, post: Post) -> Callable[..., int]:
    """What answers the C function of that name."""
    given = parameters(function.name)
    call = getattr(ur, function.name)
    made, outputs = _inputs(function, given)
    words: list[str] = []
    for i, parameter in enumerate(given):
        words += [f"a{i}_{axis}" for axis in range(_AXES)] if parameter.passed == "u64x3" else [f"a{i}"]
    lines = [f"def {function.name}({', '.join(words)}):", "    try:"]
    lines += [f"        {line}" for line in _checks(function, given, outputs)]
    lines += [f"        h_{name} = {expression}" for name, expression in made.items()]
    if function.ends or function.returns.startswith("info:"):
        handles = [i for i, each in enumerate(given) if each.passed == "handle"]
        lines += [f"        _learn(a{i})" for i in handles]
    lines += [f"        _value = _function({', '.join(f'h_{arg.name}' for arg in function.args)})"]
    lines += [f"        {line}" for line in _answers(function, given, outputs)]
    lines += ["    except _XpuShareError as error: return int(error.result)"]
    lines += [f"    except MemoryError: return {int(Result.ERROR_OUT_OF_HOST_MEMORY)}", "    return 0", ""]
    text = "\n".join(lines).replace("a_propName", "h_propName")
    scope: dict[str, Any] = {
        **{f"_read_{name}": _reader(name, boxes) for name in _structs.FIELD_KINDS},
        **{f"_{name}": getattr(_structs, name) for name in _structs.BY_VALUE},
        **{
            each.__name__: each
            for each in (_data, _give, _given_data, _in_out, _list, _number, _optional_list, _pattern, _string, _write)
        },
        **_callbacks(boxes, post),
        "_XpuShareError": XpuShareError,
        "_boxes": boxes,
        "_drop": boxes.drop,
        "_function": selected_by_loader(call) if function.name in _LISTS else call,
        "_get": boxes.get,
        "_given": _given,
        "_learn": boxes.learn,
        "_reachable": _reachable,
        "_unreachable": _library.xpushare_ur_no_range,
        "_kept_queries": kept_queries(function),
        "_remember": _library.xpushare_ur_remember,
        "_pack_count": struct.Struct("I").pack,
        "_pack_size": struct.Struct("Q").pack,
    }
    if function.returns.startswith("info:"):
        declared = INFOS[function.returns.removeprefix("info:")]
        numbers = declared.enumeration.__members__
        scope["_packers"] = {int(numbers[name]): _packer(kind, boxes) for name, kind in declared.kinds.items()}
    elif "+" in function.returns:
        scope["_pack"] = [_packer(kind, boxes) for kind in function.returns.split("+")]
    elif function.returns == "string":
        scope["_pack"] = _string_packer
    elif function.returns not in ("None", "bytes"):
        scope["_pack"] = _packer(function.returns, boxes)
    exec(compile(text, f"<{LIBRARY.name}: {function.name}>", "exec"), scope)
    made_wrapper: Callable[..., int] = scope[function.name]
    return made_wrapper


# --- start and end --------------------------------------------------------------------------------


def _boxes(library: ctypes.CDLL) -> Boxes:
    make, count, known = library.xpushare_ur_box, library.xpushare_ur_count, library.xpushare_ur_is_box
    make.restype, make.argtypes = ctypes.c_void_p, []
    count.restype, count.argtypes = None, [ctypes.c_void_p, ctypes.c_int32]
    known.restype, known.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    return Boxes(lambda: make() or 0, count, known)


boxes: Final = _boxes(_library)
_wrappers: Final[list[Callable[..., int]]] = []


def end(handle: int) -> None:
    """The program gave up the last reference of a handle, some time ago."""
    boxes.end(handle)


def carry(function: int, event: int, queued: int, count: int, *numbers: int) -> int:
    """Enqueue a command that the program handed in at the time `queued`, under that handle of an event, or 0.

    `numbers`: the points that it waits for, `count` of them, and its arguments.
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
        except XpuShareError:  # nor is there room for an event that says so: its handle stays stale
            return result
        if fill is None:
            made.release()
        else:
            fill(made)
    queue = boxes.objects[arguments[0]]
    if queue.timelines:
        with suppress(XpuShareError):  # else Python carries the next one, too
            renew(queue)
    return result


def is_clean(queue: int) -> int:
    """Whether a queue has nothing to report and, if it is the host's, no work."""
    driver = use(boxes.objects[queue].shared).driver
    return isinstance(driver, (HostQueue, DeviceQueue)) and driver.clean()


_ENGINE: Final = (
    *("xp_newest_point", "xp_state_at", "xp_wait_at", "xp_let_slot_go", "xp_fill", "xp_mapped"),
    *("xp_queue_work", "xp_queue_after"),
)
"""What the library calls of the native module, in the order of its `xp_engine_functions`."""


_ASKED: Final[dict[type[Counted], str]] = {Context: "ContextInfo", Queue: "QueueInfo"}
"""What the library knows from the start, as that asks no driver."""


def _ask(handle: int, found: Any) -> None:
    """Have the library know the properties of what a new handle stands for."""
    name = _ASKED.get(found.__class__)
    if name is not None:
        info = INFOS[name]
        for query in info.lasting:
            packed = _property_packer(name, query)(info.answer(query, found))
            _library.xpushare_ur_remember(handle, _NUMBERS[found.__class__], query, packed, len(packed))


@functools.cache
def _property_packer(info: str, query: int) -> Callable[[Any], bytes]:
    declared = INFOS[info]
    return _packer(declared.kinds[declared.enumeration(query).name], boxes)


def start(site: str) -> list[Callable[..., int]]:
    """The wrappers in the order of `NUMBERED`. The library calls this once; it lies in the package in `site`."""
    if not LIBRARY.parents[3].samefile(site):
        raise ImportError(
            f"this Python has another xpushare than that of the library: {LIBRARY.parents[3]}, not {site}"
        )
    if not layers_on:  # they see every call
        engine = ctypes.CDLL(_native.__file__)
        asked = (ctypes.c_void_p * len(_ENGINE))(
            *(ctypes.cast(getattr(engine, name), ctypes.c_void_p).value for name in _ENGINE)
        )
        boxes.ask = _ask
        _library.xpushare_ur_engine(asked)
    atexit.register(_library.xpushare_ur_end)
    _library.xpushare_ur_post.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_char_p]
    _wrappers[:] = [wrapper(FUNCTIONS[name], boxes, _library.xpushare_ur_post) for name in NUMBERED]
    return _wrappers


def leave() -> None:
    """The clean exit of a program that ends without ending Python."""
    _leaving.leave()

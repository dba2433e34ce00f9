"""The validation layers' records: the source locations where this process made, released and misused objects. Whether
an object is still retained is looked up in the table of exports and among living objects.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, final
from weakref import ref

from xpushare.common.errors import HandleExpiredError, InvalidArgumentError
from xpushare.common.leaving import Stage, at_leave
from xpushare.core.declare import Operation
from xpushare.core.logger import Level, Logger
from xpushare.sharing import node
from xpushare.sharing.handle import COUNTED, Handle, fields_of

__all__ = [
    "Books",
    "Call",
    "Place",
    "Record",
    "books",
    "by_program",
    "checks",
    "closing",
    "here",
    "inside",
    "made",
    "misused",
    "print_retained",
    "shown",
    "tell",
    "validated",
]

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PROGRAMS: Final = tuple(_PACKAGE + name + os.sep for name in ("bench", "cli", "conformance", "integrations"))
_DEPTH: Final = 8
_REMEMBERED: Final = 1 << 14  # the most released exports and addresses whose call site is remembered

Place = tuple[tuple[str, int, str], ...]
"""File, line and function of each call, the innermost first."""


def here() -> Place:
    """Return the source locations of the program's current calls, innermost first. Leaves out calls inside xpushare."""
    found: list[tuple[str, int, str]] = []
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # as `logging` and `warnings` do
    caller: Any = frame
    while caller is not None and len(found) < _DEPTH:
        code = caller.f_code
        file = code.co_filename
        inside = file.startswith(("<xpushare", _PACKAGE)) and not file.startswith(_PROGRAMS)
        # The caller of `with` may be this package or the program.
        if not inside and (found or file != contextlib.__file__):
            found.append((file, caller.f_lineno, code.co_qualname))
        caller = caller.f_back
    return tuple(found)


def shown(place: Place) -> str:
    """Return the innermost source location as text, in the form `file:line`."""
    return f"{place[0][0]}:{place[0][1]}" if place else ""


@final
class Record:
    """The source locations where one object was made and released, and its reference count."""

    __slots__ = ("count", "ended", "listed", "made", "nbytes", "owner", "what")

    def __init__(self, what: str, made: Place, nbytes: int = 0, owner: Callable[[], object] = lambda: None) -> None:
        self.what = what
        self.made = made
        self.nbytes = nbytes
        self.owner = owner  # a weak reference to the object that the address lies in
        self.count = 1
        self.listed = True
        self.ended: Place = ()


class _Known(NamedTuple):
    weak: ref[Any]
    record: Record


@final
class Books:
    """The records of where this process made and released objects. A Python object is looked up by its identity. Any
    other object is looked up by its kind and a key, which is an address or an export's number.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant, since the garbage collector may call `_died` while it is held
        self._objects: dict[int, _Known] = {}
        self._counted: dict[int, Record] = {}  # by id of the record, including records whose object has died
        self._keyed: OrderedDict[tuple[str, int], Record] = OrderedDict()

    # --- objects

    def made(self, thing: object, what: str, *, counted: bool = False, listed: bool = True) -> None:
        """Record a new object, or one more reference to it. Unless `counted` is true, the record ends when the object
        dies. If `listed` is false, the object is recorded but never counts as retained.
        """
        with self._lock:
            found = self.of(thing)
            if found is not None and found.count > 0:
                found.count += 1
                return
            record = Record(what, here())
            record.listed = listed
            if counted:
                self._counted[id(record)] = record
            self._objects[id(thing)] = _Known(ref(thing, functools.partial(self._died, id(thing))), record)

    def _died(self, key: int, weak: ref[Any]) -> None:
        with self._lock:
            found = self._objects.get(key)
            if found is not None and found.weak is weak:
                del self._objects[key]

    def of(self, thing: object) -> Record | None:
        """Return the record of an object."""
        found = self._objects.get(id(thing))
        return found.record if found is not None and found.weak() is thing else None

    def released(self, thing: object) -> None:
        """Record that an object was closed, or that a reference to it was released."""
        with self._lock:
            record = self.of(thing)
            if record is not None:
                self._release(record)
                if not record.count:
                    self._counted.pop(id(record), None)

    def _release(self, record: Record) -> None:
        if record.count > 0:
            record.count -= 1
            if not record.count:
                record.ended = here()

    # --- what has a key

    def add(self, kind: str, key: int, what: str, nbytes: int = 0, owner: object = None) -> None:
        """Record that an object of that kind was made, or that one more reference to it was taken."""
        with self._lock:
            found = self._keyed.get((kind, key))
            if found is not None and found.count > 0:
                found.count += 1
                return
            weak = (lambda: None) if owner is None else ref(owner)
            self._keyed[kind, key] = Record(what, here(), nbytes, weak)
            self._keyed.move_to_end((kind, key))
            self._forget()

    def _forget(self) -> None:
        """Drop the records of the oldest released objects, to limit the number of records."""
        if len(self._keyed) > _REMEMBERED:
            for key in [key for key, record in self._keyed.items() if not record.count][: _REMEMBERED // 2]:
                del self._keyed[key]

    def end(self, kind: str, key: int) -> None:
        with self._lock:
            record = self._keyed.get((kind, key))
            if record is not None:
                self._release(record)

    def keyed(self, kind: str, key: int) -> Record | None:
        return self._keyed.get((kind, key))

    def covering(self, kinds: Iterable[str], address: int) -> Record | None:
        """Return the record of the memory that contains an address, or last contained it."""
        wanted = set(kinds)
        with self._lock:
            for (kind, start), record in reversed(self._keyed.items()):
                if kind in wanted and start <= address < start + max(record.nbytes, 1):
                    return record
        return None

    # --- what is retained

    def retained(self, objects: bool = True) -> list[Record]:
        """Return the records of objects that were made and not released. If `objects` is false, this leaves out the
        Python objects that release themselves when they die.
        """
        gc.collect()  # so that objects in reference cycles do not count as leaked
        with self._lock:
            alive = [known.record for known in self._objects.values() if known.weak() is not None]
            exports = {fields_of(each).generation: each for each in _exports()}
            keyed = [
                record
                for (kind, key), record in self._keyed.items()
                if record.count and (not kind.endswith(" handle") or key in exports)
            ]
            before = [
                Record(f"{each.kind.replace('_', ' ')} handle {each!r}", ())
                for generation, each in exports.items()
                if (_kind_of(each), generation) not in self._keyed
            ]
            counted = set(map(id, self._counted.values()))
            others = [record for record in alive if record.count and record.listed and id(record) not in counted]
            return [*before, *keyed, *self._counted.values(), *(others if objects else ())]

    def clear(self) -> None:
        with self._lock:
            self._objects.clear()
            self._counted.clear()
            self._keyed.clear()

    def renew_lock(self) -> None:
        self._lock = threading.RLock()


def _kind_of(handle: Handle) -> str:
    return f"{handle.kind.replace('_', ' ')} handle"


def _exports() -> list[Handle]:
    """Return the exports that only the program can end. Exports of pickles and exports with `opens` or `ttl` end by
    themselves.
    """
    table = node.current().table_if_any
    if table is None:
        return []
    return [
        each.handle
        for each in table.exports()
        if not (each.implicit or each.deadline or fields_of(each.handle).flags & COUNTED)
    ]


books: Final = Books()
checks: Final[set[str]] = set()
"""The enabled checks of "leaks", "lifetime" and "bounds"."""

_inside = threading.local()


@final
class Call:
    """Stands for a running function of `xpushare.ur`. The function itself records the objects that it makes and closes,
    so while it runs, the operations that it calls do not record them.
    """

    def __init__(self) -> None:
        self.told = False  # whether a layer has reported the mistake
        self.overrun = ""  # the message of an operation that found an access out of bounds; the UR function adds to it


@contextmanager
def inside() -> Generator[Call]:
    """Mark this thread as running a function of `xpushare.ur`."""
    before, _inside.call = _call(), Call()
    try:
        yield _inside.call
    finally:
        _inside.call = before


def _call() -> Call | None:
    return getattr(_inside, "call", None)


def by_program() -> bool:
    """Return whether this thread is outside all functions of `xpushare.ur`."""
    return _call() is None


# --- messages


@functools.cache
def logger() -> Logger:
    return Logger("VALIDATION", Level.WARNING)


def _place(title: str, place: Place) -> list[str]:
    return [title, *(f"#{n} {file}:{line} in {name}" for n, (file, line, name) in enumerate(place))] if place else []


def tell(text: str, record: Record | None = None, *, used: bool = True) -> None:
    """Write an error message, followed by source locations: where the object of `record` was made and released, and,
    unless `used` is false, where the program is now.
    """
    if (call := _call()) is not None:
        call.told = True
    lines = [text]
    if record is not None:
        lines += _place(f"{record.what} was recorded for first time here:", record.made)
        lines += _place("It was released here:", record.ended)
    now = here()
    if used:
        lines += _place("This happened here:", now)
    log = logger()
    where = shown(now)
    for line in lines:
        log.log(Level.ERROR, line, where)


def print_retained() -> int:
    """Write which objects are retained and where they were made. Returns how many there are."""
    found = books.retained()
    for record in found:
        tell(f"Retained {record.count} reference(s) to {record.what}", record, used=False)
    return len(found)


def misused(layer: str, error: Exception, subject: object) -> None:
    """Write a message, in the name of the layer `layer`, that the program has misused `subject`. The caller then raises
    `error`. `declare.misused` calls this function.
    """
    if layer in checks:
        if layer == "lifetime" and subject is not None:
            record = books.of(subject)
            name = record.what if record is not None else repr(subject)
            tell(f"There are no valid references to {name}", record)
        elif layer == "bounds" and (call := _call()) is not None:
            call.overrun = str(error)
        else:
            tell(str(error))


# --- objects of the object face


def made(thing: object, listed: bool) -> None:
    """Handle `declare.made`: the program made an object."""
    if "leaks" in checks and by_program():
        books.made(thing, repr(thing), listed=listed)


def closing(thing: object, handles: Iterable[Handle]) -> None:
    """Handle `declare.closing`: the program closes an object."""
    if "leaks" in checks and by_program():
        books.released(thing)
        for handle in handles:
            books.end("memory handle", fields_of(handle).generation)


# --- operations


def validated(operation: Operation, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `call` so that its exports and withdrawals are recorded. Other operations are returned unchanged."""
    if operation.makes is None and operation.ends is None and HandleExpiredError not in operation.raises:
        return call

    def kept(*arguments: Any, **options: Any) -> Any:
        try:
            result = call(*arguments, **options)
        except (HandleExpiredError, InvalidArgumentError) as error:
            if "lifetime" in checks:
                _check_handle(operation, error, arguments[0] if arguments else options.get("handle"))
            raise
        if operation.makes is not None and not options.get("implicit"):
            books.add(operation.makes, fields_of(result).generation, f"{operation.makes} {result!r}")
        elif operation.ends is not None:
            books.end(operation.ends, fields_of(Handle(arguments[0])).generation)
        return result

    return functools.wraps(operation.function)(kept)


def _check_handle(operation: Operation, error: Exception, given: Any) -> None:
    """Report the misuse if an operation refused a handle because this process had withdrawn it."""
    try:
        handle = Handle(given)
    except (InvalidArgumentError, TypeError):
        return
    fields = fields_of(handle)
    kind = _kind_of(handle)
    record = books.keyed(kind, fields.generation)
    if record is None or not node.current().is_own(fields.cookie) or record.count:
        return
    if operation.ends == kind:
        tell(f"Attempting to release nonexistent {record.what}", record)
    elif isinstance(error, HandleExpiredError):
        tell(f"There are no valid references to {record.what}", record)


def _at_exit(_deadline: float) -> None:
    if "leaks" in checks:
        print_retained()


def _after_fork() -> None:
    books.renew_lock()
    books.clear()  # the parent's records
    _inside.call = None


os.register_at_fork(after_in_child=_after_fork)
at_leave(_at_exit, Stage.REPORT)

"""The common behaviour of this package's objects: `close`, `with`, pickles, and errors for copies, after `close` and
after a fork.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Protocol, TypeVar

from xpushare._native import ObjectBase
from xpushare.common.errors import ForkError, InvalidArgumentError, XpuShareError
from xpushare.core.declare import misused
from xpushare.core.memory import FORK_ADVICE
from xpushare.core.pickles import Pickled, Unopened, anew, forwards, reduced

if TYPE_CHECKING:
    from xpushare.core.device import Context, Device
    from xpushare.sharing.handle import Handle

__all__ = [
    "CLOSED",
    "Advice",
    "Advised",
    "Closable",
    "DeviceObject",
    "Exportable",
    "Holder",
    "advise",
    "expect_opened",
    "unpickles",
    "use",
    "why_unusable",
]


class OnDevice(Protocol):
    """The state of an object on a device."""

    @property
    def device(self) -> Device: ...
    @property
    def context(self) -> Context: ...


class Importable(OnDevice, Protocol):
    """The state of an object that may have been opened from a handle."""

    @property
    def handle(self) -> Handle | None: ...


S = TypeVar("S")
D = TypeVar("D", bound=OnDevice)
I = TypeVar("I", bound=Importable)  # noqa: E741
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound="Closable")


class _AdvisedClass(type):
    """The metaclass of `Advised`. It makes `dir` leave out the names that only give advice, so that `help` does not
    show them.
    """

    _advice: frozenset[str]

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if name not in cls._advice]


class Advised(metaclass=_AdvisedClass):
    """A base class whose subclasses give advice for missing attributes. See `advise`."""

    __slots__ = ()

    _advice: ClassVar[frozenset[str]] = frozenset()  # names that only give advice

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in self._advice]  # pyright: ignore[reportPrivateUsage]


class Closable(Advised):
    """An object that is closed by `close()`, or at the end of its `with` block."""

    __slots__ = ()

    _copy_advice: ClassVar[str]

    def _use(self) -> object:
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        raise NotImplementedError

    def close(self) -> None:
        """End this object's use of its resource. Idempotent. In a forked child, this does not affect the parent's
        objects.
        """
        raise NotImplementedError

    def __enter__(self: C) -> C:  # Jedi takes `Self` for this base class
        self._use()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __copy__(self) -> NoReturn:
        raise TypeError(f"this {type(self).__name__} cannot be copied: {self._copy_advice}")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()


class Holder(ObjectBase, Closable, Generic[S]):
    """An object that holds a resource. Dropping the last reference to the object closes it silently: the resource
    releases itself once nothing holds it any more.
    """

    __slots__ = ()

    _pickle_advice: ClassVar[str]  # of a class that cannot be pickled

    def _use(self) -> S:
        return use(self)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._held is None

    def __reduce__(self) -> tuple[Any, ...]:
        held = self._held
        if isinstance(held, Unopened):
            return held.pickle
        found = self._reduce()
        reduced(found[1])
        return found

    def _reduce(self) -> tuple[Any, ...]:
        raise TypeError(f"this {type(self).__name__} cannot be pickled: {self._pickle_advice}")


class Advice:
    """Stands for an attribute that people expect but that does not exist, and raises an error with advice.
    (`__getattr__` would make each use of any attribute slower.)
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, _thing: object, _kind: type | None = None) -> NoReturn:
        raise AttributeError(self._text)


def advise(kind: type[Advised], **advice: str) -> None:
    """Make missing attributes of a class raise an error that names the right ones."""
    kind._advice = frozenset(advice)  # pyright: ignore[reportPrivateUsage]
    for name, text in advice.items():
        setattr(kind, name, Advice(f"{kind.__name__} has no attribute {name!r}: {text}"))


def why_unusable(held: object) -> str:
    """Return the text by which `repr` describes an object that is closed or could not be opened."""
    return "closed" if held is None else f"not opened: {held}" if isinstance(held, Unopened) else ""


def expect_opened(held: object) -> None:
    if isinstance(held, Unopened):
        held()


_UNOPENED: Final = 0xFFFFFFFF  # no process has forked that often, so what could not be opened is never usable


def unpickles(kind: Any) -> Callable[[F], F]:
    """Decorate a function that pickles call. The decorated function never raises, since an error would kill the threads
    in which pools unpickle. An object that cannot be opened becomes a `kind` that raises at each use.
    """

    def wrap(open_: Any) -> Any:
        @functools.wraps(open_)
        def reopen(*arguments: Any) -> Any:
            try:
                return open_(*arguments)
            except (XpuShareError, OSError, MemoryError) as error:
                self = ObjectBase.__new__(kind)
                self._hold(Unopened(error, (reopen, arguments)), _UNOPENED)
                return self

        return reopen

    return wrap


CLOSED: Final = (
    ": close() was called, or its `with` block has ended. Keep it open while it is used, or make or open another"
)


def use(thing: Holder[S]) -> S:
    """Return the internal object that an open public object holds. Raises `InvalidArgumentError` if it is closed, or
    `ForkError` in a forked child of the process that made the object.
    """
    found: S | None = thing._usable
    if found is None:
        _refuse(thing)
    return found


def _refuse(thing: Holder[Any]) -> NoReturn:
    """Raise the error that explains why an object cannot be used."""
    found = thing._held
    if found is None:
        raise misused("lifetime", InvalidArgumentError(f"this {type(thing).__name__} is closed{CLOSED}"), thing)
    expect_opened(found)
    raise ForkError(f"this {type(thing).__name__} {FORK_ADVICE}")


class DeviceObject(Holder[D]):
    """An object on a device."""

    __slots__ = ()

    @property
    def device(self) -> Device:
        """The device that the object was made on, or that it was opened on."""
        return use(self).device

    @property
    def context(self) -> Context:
        """The context that the object belongs to."""
        return use(self).context


class Exportable(DeviceObject[I]):
    """An object that `ipc` can export as a handle and open from a handle. A pickle of the object carries a handle."""

    __slots__ = ()

    _kind: ClassVar[str]  # its module in `ipc`

    @property
    def is_imported(self) -> bool:
        """Whether the object was opened from a handle."""
        return use(self).handle is not None

    @property
    def handle(self) -> Handle:
        """The handle that this object was opened from. An object that was made here raises `InvalidArgumentError`."""
        found = use(self).handle
        if found is None:
            name = type(self).__name__
            raise InvalidArgumentError(f"this {name} is not imported: xs.ipc.{self._kind}.get makes a handle of it")
        return found

    def _forwarded(self, found: I) -> Handle | None:
        """Return the handle that this object was opened from. Pickles of the object contain that handle while its
        exporter lives. Return None if this process exports the object itself.
        """
        return found.handle

    def _handle_to_pickle(self, found: I, get: Callable[..., Handle]) -> Handle:
        """Return the handle that this object was opened from, if its exporter is still alive. Otherwise return the
        handle of a new export, which `get` makes.
        """
        imported = self._forwarded(found)
        if imported is not None and self._exports is None and forwards(imported):
            return imported
        export = functools.partial(get, found, implicit=True)
        while True:
            kept: Pickled | None = self._exports
            handle = None if kept is None else kept.sent(found.device)
            if handle is not None:
                return handle
            with Pickled.lock:
                if self._exports is not kept:
                    continue  # another thread has exported it
                made = Pickled(export()) if imported is None else anew(self, found.device, export)
                if made is None:
                    assert imported is not None
                    return imported  # it has expired, as its first use will say
                self._exports = made

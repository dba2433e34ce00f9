"""The common behaviour of all objects of this package: `close`, `with`, errors after close and after a fork, copies,
pickles.

All bases have empty `__slots__`. Each class declares the slots itself, since a class over `BufferBase` cannot inherit
any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Protocol, TypeVar

from xpushare._native import forks
from xpushare.common.errors import ForkError, InvalidArgumentError, XpuShareError
from xpushare.core.declare import misused
from xpushare.core.memory import FORK_ADVICE
from xpushare.core.pickles import Pickled, Unopened, anew, forwards

if TYPE_CHECKING:
    from xpushare._device import Context, Device
    from xpushare.sharing.handle import Handle

__all__ = [
    "Advice",
    "Closable",
    "DeviceObject",
    "Exportable",
    "advise",
    "expect_opened",
    "public",
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
C = TypeVar("C", bound="Closable[Any]")


class Closable(Generic[S]):
    """An object that is closed by `close()`, at the end of its `with` block, or silently when its last reference is
    dropped.

    The last case needs no code. The object in `held` releases its resource once nothing holds it any more.
    """

    __slots__ = ()

    held: S | None  # the whole state; None once the object is closed
    forks: int  # of the resource that it holds: how often this line of processes had forked when that was made
    _copy_advice: ClassVar[str]
    _pickle_advice: ClassVar[str]  # of a class that cannot be pickled

    def _use(self) -> S:
        return use(self)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.held is None

    def close(self) -> None:
        """Give up this object's hold. Idempotent; in a forked child it touches nothing of the parent's."""
        raise NotImplementedError

    def __enter__(self: C) -> C:  # Jedi takes `Self` for this base class
        self._use()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __dir__(self) -> list[str]:
        return public(type(self), super().__dir__())

    def __copy__(self) -> NoReturn:
        raise TypeError(f"this {type(self).__name__} cannot be copied: {self._copy_advice}")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        held: Any = self.held
        return held.pickle if isinstance(held, Unopened) else self._reduce()

    def _reduce(self) -> tuple[Any, ...]:
        raise TypeError(f"this {type(self).__name__} cannot be pickled: {self._pickle_advice}")


class Advice:
    """Takes the place of an attribute that people look for but that does not exist. (`__getattr__` would make each use
    of any attribute slower.)
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, _thing: object, _kind: type | None = None) -> NoReturn:
        raise AttributeError(self._text)


def public(kind: type, names: Iterable[str]) -> list[str]:
    """Leave out names that are for this package alone, which have no docstrings, and names that only give advice."""

    def is_documented(name: str) -> bool:
        found = [vars(base)[name] for base in kind.__mro__ if name in vars(base)]
        return not isinstance(found[0], Advice) and any(each.__doc__ for each in found)

    return [name for name in names if name.startswith("_") or is_documented(name)]


def advise(kind: type, **advice: str) -> None:
    """Make missing attributes of a class raise an error that names the right ones."""
    for name, text in advice.items():
        setattr(kind, name, Advice(f"{kind.__name__} has no attribute {name!r}: {text}"))


def why_unusable(held: object) -> str:
    """Return what `repr` says of an object that is closed, or that could not be opened."""
    return "closed" if held is None else f"not opened: {held}" if isinstance(held, Unopened) else ""


def expect_opened(held: object) -> None:
    if isinstance(held, Unopened):
        held()


_UNOPENED: Final = (
    0xFFFFFFFF  # no count of forks: what each use compares already shows that there is nothing to be used
)


def unpickles(kind: Any) -> Callable[[F], F]:
    """Decorate the functions that pickles call. They never raise, since that would kill the threads of pools, which
    unpickle. An object that cannot be opened becomes a `kind` that raises at each use.
    """

    def wrap(open_: Any) -> Any:
        @functools.wraps(open_)
        def reopen(*arguments: Any) -> Any:
            try:
                return open_(*arguments)
            except XpuShareError as error:
                self = kind.__base__.__new__(kind)
                self.held = Unopened(error, (reopen, arguments))
                self.forks = _UNOPENED
                self.pickled = None
                return self

        return reopen

    return wrap


_CLOSED: Final = ": close() was called, or its `with` block has ended"


def use(thing: Closable[S]) -> S:
    """Return the object behind an open object. Raises `InvalidArgumentError` if it is closed, `ForkError` in a forked
    child of its process.
    """
    found = thing.held
    if found is None:
        raise misused("lifetime", InvalidArgumentError(f"this {type(thing).__name__} is closed{_CLOSED}"), thing)
    if thing.forks != forks():
        expect_opened(found)
        raise ForkError(f"this {type(thing).__name__} {FORK_ADVICE}")
    return found


class DeviceObject(Closable[D]):
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
    """An object that `ipc` makes handles of and opens from handles. Its pickle carries such a handle."""

    __slots__ = ()

    _kind: ClassVar[str]  # its module in `ipc`
    pickled: Pickled | None  # what pickling it has exported

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
        """Return the handle that a pickle carries as long as its exporter lives, or None for an object that is exported
        from here.
        """
        return found.handle

    def _handle_to_pickle(self, found: I, get: Callable[..., Handle]) -> Handle:
        """Return the handle that an import was opened from, if its exporter lives, else that of an export by `get`."""
        imported = self._forwarded(found)
        if imported is not None and self.pickled is None and forwards(imported):
            return imported
        export = functools.partial(get, found, implicit=True)
        while (kept := self.pickled) is None or (handle := kept.sent(found.device)) is None:
            with Pickled.lock:
                if self.pickled is not kept:
                    continue  # another thread has exported it
                made = Pickled(export()) if imported is None else anew(self, found.device, export)
                if made is None:
                    assert imported is not None
                    return imported  # it has expired, as its first use will say
                self.pickled = made  # type: ignore[misc]  # a slot of each sub-class
        return handle

"""`Lock` and `Atomic`, which processes share in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self, TypeVar, final

from xpushare import _native
from xpushare.arrays.changes import Changes
from xpushare.channels import groups
from xpushare.channels.groups import ATOMIC, LOCK, Place, file_of
from xpushare.common.errors import HandleExpiredError, InvalidArgumentError, Unread, XpuShareError
from xpushare.common.numbers import integer
from xpushare.core import event as events
from xpushare.core.declare import public
from xpushare.objects.lifecycle import Advised, advise
from xpushare.timeline.waiting import readable

__all__ = ["Atomic", "Lock"]

_L = TypeVar("_L", bound="Lock")
_A = TypeVar("_A", bound="Atomic")

_LOOK: Final = 1.0  # seconds between the looks of a task that waits
_CANNOT_OPEN: Final = (XpuShareError, OSError, MemoryError)


@final
class Held:
    """The result of `Lock.acquire`, which reports whether the previous owner died.

    Attributes:
        owner_died (bool): Whether the last owner died, exited or closed its object while it held the lock. The
            guarded data may then be half-changed.

    Examples:
        >>> lock = xs.Lock()
        >>> with lock as held:
        ...     held
        <Held owner_died=False>
        >>> lock.close()
    """

    __slots__ = ("_name", "owner_died")

    def __init__(self, name: str, owner_died: bool) -> None:
        self._name: Final = name
        self.owner_died: Final = owner_died

    def __repr__(self) -> str:
        return f"<Held{_shown(self._name)} owner_died={self.owner_died}>"


def _shown(name: str) -> str:
    """Return the part of a repr that shows the name, or an empty string if the user has not chosen a name."""
    return "" if name.startswith(".") else f" {name!r}"


def _gone(kind: str) -> HandleExpiredError:
    return HandleExpiredError(
        f"nobody has this {kind} open any more: keep the object that was pickled open until the receiver has "
        "unpickled it"
    )


class _Shared(Advised):
    """The common base of locks and atomics. If the object could not be opened, `_at` is the reason."""

    __slots__ = ()

    _at: Place | Unread
    _pickle: tuple[Any, ...]  # a function, and its arguments: the name comes first
    closed: bool
    """Whether `close` was called."""
    _leave: ClassVar[Any]  # of the native base

    def __copy__(self) -> NoReturn:
        raise TypeError(f"this {type(self).__name__} cannot be copied: make another of the same name")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickle

    def _close(self) -> None:
        place = getattr(self, "_at", None)
        groups.first_close(self)
        if isinstance(place, Place):  # each step has its effect once: after an interrupt, all can be done again
            place.parting()
            self._leave()
            groups.reap()

    __del__ = _close

    def _trouble(self) -> str | None:
        """Return the part of a repr that says why the object cannot be used, or None."""
        return " closed" if self.closed else f" not opened: {self._at}" if isinstance(self._at, Unread) else None


@final
class Lock(_native.LockMember, _Shared):
    """A lock between processes. If its owner dies, the next process gets the lock.

    `with lock as held:` acquires it. Objects with the same name represent the same lock, which exists as long as any
    process has it open. A lock without a name can be sent to other processes by pickle. The lock is not re-entrant.
    Waiters get it roughly in the order of their calls. A lock does not order work on a device. Use an `Event` for that.

    Tasks of asyncio and trio write `async with lock as held:`, which waits without blocking the event loop. A task that
    holds the lock must not acquire it again. Do not use `with lock:` in an event loop: while it waits, tasks of this
    loop that hold the lock, or are next in turn, cannot continue.

    Args:
        name (str | None): 1 to 128 of the characters `A-Z a-z 0-9 . _ -`, not beginning with a dot. With None, the lock
            can be passed to other processes only by pickling.
        label (str | None): The name of this object in `ls`.

    Raises:
        InvalidArgumentError: The name is invalid, or 1,024 processes have this lock open already.
        TimeoutError: A stopped process is about to remove the lock of this name.

    Examples:
        >>> lock = xs.Lock("database")
        >>> with lock as held:
        ...     held.owner_died
        False
        >>> lock.close()
    """

    __slots__ = {"__weakref__": None, "_at": None, "_pickle": None, "closed": "Whether `close` was called."}

    def __new__(cls, name: str | None = None, *, label: str | None = None) -> Self:
        return _open_lock(cls, groups.check_name(name), groups.check_label(label), create=True)

    def acquire(self, timeout: float | None = None) -> Held:
        """Acquire the lock.

        If the owner dies, the next process gets the lock within milliseconds.

        Args:
            timeout: Seconds to wait. None waits as long as it takes.

        Returns:
            An object whose `owner_died` says whether the last owner died, exited or closed its object
            while it held the lock. The guarded data may then be half-changed.

        Raises:
            TimeoutError: Another process or thread held the lock until the timeout.
            InvalidArgumentError: This thread holds the lock already, or the object is closed.

        Examples:
            >>> lock = xs.Lock()
            >>> lock.acquire(timeout=1).owner_died
            False
            >>> lock.release()
            >>> lock.close()
        """
        seconds = events.timeout_argument(timeout)
        found: Held | None = self._acquire(seconds)
        if found is None:
            raise TimeoutError(f"another process or thread held the lock for {seconds:g} s")
        return found

    def close(self) -> None:
        """Close this object. If it holds the lock, the next owner gets the lock, and finds `owner_died` true as
        after a death. Idempotent.

        Examples:
            >>> lock = xs.Lock()
            >>> lock.close()
            >>> lock
            <Lock closed>
        """
        self._close()

    async def __aenter__(self) -> Held:
        ticket, overtaken = self._ticket(), False
        held: Held | None = self._poll(ticket, overtaken)
        if held is not None:
            return held
        assert isinstance(self._at, Place)  # otherwise `_ticket` has raised
        changes = Changes(file_of(self._at), file=True)
        try:
            while True:
                with changes.ready(None) as ready:
                    held = self._poll(ticket, overtaken)
                    if held is not None:
                        return held
                    await readable(ready.fileno(), changes.limit(_LOOK, False))
                changes.drain()
                overtaken = True
        finally:  # the wait may have been cancelled
            self._give_up(ticket)
            changes.close()

    async def __aexit__(self, *_error: object) -> None:
        self.release()

    if TYPE_CHECKING:

        def __enter__(self) -> Held: ...

    def __repr__(self) -> str:
        return f"<Lock{_shown(self._pickle[1][0])}{self._trouble() or ''}>"


@final
class Atomic(_native.AtomicMember, _Shared):
    """A signed 64-bit number that several processes can change atomically. It wraps around on overflow.

    Objects with the same name represent the same number, which exists as long as any process has it open. A number
    without a name can be sent to other processes by pickle. The number lies in host memory. `wait` does not detect that
    another process has died.

    Args:
        initial (int): The initial value, which is used only if the number does not exist yet.
        name (str | None): 1 to 128 of the characters `A-Z a-z 0-9 . _ -`, not beginning with a dot. With None, the
            number can be passed to other processes only by pickling.

    Raises:
        InvalidArgumentError: The name is invalid, `initial` is not a signed 64-bit number, or 1,024 processes have this
            number open already.
        TimeoutError: A stopped process is about to remove the number of this name.

    Examples:
        >>> with xs.Atomic(5) as number:
        ...     number.add(2), number.load()
        (5, 7)
    """

    __slots__ = {"__weakref__": None, "_at": None, "_pickle": None, "closed": "Whether `close` was called."}

    def __new__(cls, initial: int = 0, name: str | None = None) -> Self:
        if isinstance(initial, str):
            raise InvalidArgumentError(
                f"initial is an int of 64 bits, not {initial!r:.100}; the name is the second argument: "
                f"xs.Atomic(0, {initial!r:.100})"
            )
        number = integer("initial", initial, lambda number: -(1 << 63) <= number < 1 << 63, "is an int of 64 bits")
        return _open_atomic(cls, groups.check_name(name), number, create=True)

    def compare_exchange(self, old: int, new: int) -> bool:
        """Store `new` if the current number is `old`.

        Args:
            old: The expected current number.
            new: The number to store.

        Returns:
            Whether it was stored.

        Raises:
            InvalidArgumentError: An argument is not a signed 64-bit number, or the object is closed.

        Examples:
            >>> with xs.Atomic(1) as number:
            ...     number.compare_exchange(1, 2), number.compare_exchange(1, 3), number.load()
            (True, False, 2)
        """
        return self._swap(old, new)

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Wait until the number differs from `value`.

        Args:
            value: The number to compare with.
            timeout: Seconds to wait. None waits as long as it takes.

        Raises:
            TimeoutError: The number did not change in time.
            InvalidArgumentError: The object is closed.

        Examples:
            >>> import threading
            >>> with xs.Atomic(0) as number:
            ...     threading.Thread(target=number.add, args=(1,)).start()
            ...     number.wait(0)
            ...     number.load()
            1
        """
        seconds = events.timeout_argument(timeout)
        if not self._wait(value, seconds):
            raise TimeoutError(f"the number was {value} for {seconds:g} s")

    def close(self) -> None:
        """Close this object. Other processes keep the number. Idempotent.

        Examples:
            >>> number = xs.Atomic(5)
            >>> number.close()
            >>> number
            <Atomic closed>
        """
        self._close()

    if not TYPE_CHECKING:  # to type checkers there is no arithmetic

        def __add__(self, *_others: object) -> NoReturn:
            raise TypeError("an Atomic does not calculate: load() returns the number, and add(n) changes it")

        __radd__ = __sub__ = __rsub__ = __int__ = __add__

    def __enter__(self) -> Self:
        self.load()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            state = self._trouble() or f" {self.load()}"
        except XpuShareError:  # another thread has closed it meanwhile, or it belongs to the parent process
            state = " that cannot be used here"
        return f"<Atomic{_shown(self._pickle[1][0])}{state}>"


def _brief(shared: Lock | Atomic) -> str:
    return str(shared._pickle[1][0])  # pyright: ignore[reportPrivateUsage]


advise(
    Lock,
    locked="acquire(timeout=0) tries once. It raises TimeoutError if another process or thread holds the lock",
)


def _open_lock(kind: type[_L], name: str, label: str, *, create: bool) -> _L:
    def join(place: Place) -> _L:
        held, died = Held(name, False), Held(name, True)
        made = place.admit(lambda: _native.LockMember.__new__(kind, place.native, place.number, held, died))
        _begin(made, place, (_reopen_lock, (name, label)))
        return made

    made = groups.meet(LOCK, name, groups.home if create else None, join)
    if made is None:
        raise _gone("lock")
    return made


def _open_atomic(kind: type[_A], name: str, initial: int, *, create: bool) -> _A:
    def join(place: Place) -> _A:
        made = place.admit(lambda: _native.AtomicMember.__new__(kind, place.native, place.number))
        _begin(made, place, (_reopen_atomic, (name,)))
        return made

    made = groups.meet(ATOMIC, name, groups.home if create else None, join, initial=initial)
    if made is None:
        raise _gone("atomic")
    return made


def _reopen_lock(name: str, label: str) -> Lock:
    try:
        return _open_lock(Lock, name, label, create=False)
    except _CANNOT_OPEN as error:
        late: Lock = _unopened(Lock, _native.LockMember, error, (_reopen_lock, (name, label)))
        return late


def _reopen_atomic(name: str) -> Atomic:
    try:
        return _open_atomic(Atomic, name, 0, create=False)
    except _CANNOT_OPEN as error:
        late: Atomic = _unopened(Atomic, _native.AtomicMember, error, (_reopen_atomic, (name,)))
        return late


def _unopened(kind: Any, base: Any, error: Exception, pickle: tuple[Any, ...]) -> Any:
    """Return a placeholder for an object whose pickle could not be opened. Each use of it raises `error`, because
    unpickling itself must not raise.
    """
    reason = Unread(error)
    self = base.__new__(kind, reason, 0)
    _begin(self, reason, pickle)
    return self


def _begin(self: Any, at: Place | Unread, pickle: tuple[Any, ...]) -> None:
    self.closed = False
    self._at = at
    self._pickle = pickle


public(
    Lock, "acquire", "release", "close", brief=_brief, __new__="Lock", __enter__="Lock.acquire", __exit__="Lock.release"
)
public(Atomic, "add", "load", "store", "compare_exchange", "wait", "close", brief=_brief, __new__="Atomic")

"""The sharing state of this process: its table, its peers and its live objects. A forked child starts with an empty
state.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from functools import partial
from typing import Any, Final, TypeVar, final
from weakref import ref

from xpushare import _native
from xpushare._native import AddressMap, left
from xpushare.common.leaving import Stage, at_leave
from xpushare.sharing.peers import Peers
from xpushare.sharing.table import Table

__all__ = ["ByName", "Node", "current", "here", "left"]

T = TypeVar("T")


@final
class ByName:
    """The live allocations of other libraries, by identity. The map holds only weak references."""

    def __init__(self) -> None:
        self._known: dict[Hashable, ref[Any]] = {}

    def get(self, name: Hashable) -> Any | None:
        found = self._known.get(name)
        return None if found is None else found()

    def add(self, name: Hashable, made: T) -> T:
        """Return the live allocation with the identity `name`. If there is none, register `made` under it and return
        it.
        """
        own: ref[Any] = ref(made, partial(self._forget, name))
        while (known := self._known.setdefault(name, own)) is not own:
            found: T | None = known()
            if found is not None:
                return found
            self._forget(name, known)
        return made

    def _forget(self, name: Hashable, dead: ref[Any]) -> None:
        """Forget an allocation that died, unless a newer one has taken its identity."""
        if self._known.get(name) is dead:
            forgotten = self._known.pop(name, dead)  # the handler of a signal, or a finaliser, may have been here
            if forgotten is not dead:
                self._known.setdefault(name, forgotten)


@final
class Node:
    """The sharing state of one process. `current()` returns the state of this process."""

    __slots__ = ("_lock", "allocations", "foreign", "idle", "peers", "table_if_any")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant, for signal handlers
        self.table_if_any: Table | None = None
        self.peers = Peers()
        self.idle = self.peers.idle
        self.allocations = AddressMap()
        self.foreign = ByName()

    def table(self) -> Table:
        """Return this process's table, and create it at the first use."""
        found = self.table_if_any
        if found is None:
            with self._lock:
                if self.table_if_any is None:
                    made = Table()
                    if self.table_if_any is None:  # a signal handler may have been first
                        self.table_if_any = made
                found = self.table_if_any
        return found

    def is_own(self, cookie: bytes) -> bool:
        table = self.table_if_any
        return table is not None and table.cookie == cookie

    def leave(self) -> None:
        """At a clean exit, record the signals that this process has not delivered as lost, and release everything."""
        self.peers.leave()
        if self.table_if_any is not None:
            self.table_if_any.leave()
        _native.close_warden()
        _native.close_relay()


def current() -> Node:
    return here[0]


def inherited(address: int) -> bool:
    """Return whether `address` lies in memory that a parent process allocated or opened before a fork."""
    return any(each.allocations.find(address) is not None or each.peers.maps(address) for each in _parents)


def leave(_deadline: float) -> None:
    """Leave all peers at a clean exit, even of a forked child."""
    here[0].idle.end()
    _native.left(True)
    here[0].leave()


here: Final[list[Node]] = [Node()]
"""A list with the result of `current`. Code that has to be fast reads it here, without a call."""


def _after_fork() -> None:
    _parents.append(here[0])  # kept, since the child must not destroy its parent's objects
    here[0] = Node()
    _native.left(False)


_parents: list[Node] = []
os.register_at_fork(after_in_child=_after_fork)
at_leave(leave, Stage.LEAVE)

"""The keeper's connections to its clients. A client that fails, floods the keeper or says nothing loses its own
connection, and nothing else.

The keeper is one thread, and answers one message at a time. Bounds keep each client from delaying the others:

- A client that sends no message for `SILENT` seconds is disconnected.
- If all connections are in use, others wait until the process with the most connections has one that has been silent
  for `_PATIENCE` seconds, which is then closed.
- `spare` descriptor numbers are kept free for connections and answers. Memory that is handed over must fit below them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from typing import Final, final

from xpushare._native import End, Exported
from xpushare.common.errors import InvalidArgumentError, OutOfMemoryError, XpuShareError, from_os_error
from xpushare.common.fds import OwnedFd, close_all
from xpushare.sharing import keeping

__all__ = ["SILENT", "Client", "Clients", "Handed", "report", "unharmed"]

SILENT: Final = 10.0  # seconds without a message after which a client is disconnected
_HAND_OVER: Final = 60.0  # seconds for which a client may have memory here that it has not published
_PATIENCE: Final = 0.2  # seconds
_CONNECTIONS: Final = 256
_REST: Final = 0.2  # seconds without accepting, for want of descriptors or memory
_WORK: Final = 64  # descriptors that the keeper needs at a time, apart from connections and memory
_WANT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@contextlib.contextmanager
def unharmed(what: str) -> Generator[None]:
    """Report an exception of the block, whatever it is, and go on. The keeper must not end by one client's or one
    name's fault. `what` says what the block does.
    """
    try:
        yield
    except Exception as error:
        report(what, error)


def report(what: str, error: Exception) -> None:
    """Write an error that the keeper survives to standard error. `what` says what failed."""
    with contextlib.suppress(Exception):
        print(f"xpushare keep: {what}: {type(error).__name__}: {error}", file=sys.stderr)


class Handed:
    """Memory that was handed to the keeper but not published yet."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fds: list[OwnedFd] = []
        self.exports: dict[bytes, Exported] = {}  # by handle
        self.count = 0  # of the descriptors of both


@final
class Client(Handed):
    """A connection to a client, and the memory that the client has handed over on this connection."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        pid, self.uid, _gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        super().__init__(pid)
        self.connection = connection
        self.heard = now
        self.begun: float | None = None  # when the client handed over the first memory that is not published

    def due(self) -> float:
        """Return when this client has to be disconnected if it sends no message."""
        return self.heard + SILENT if self.begun is None else min(self.heard + SILENT, self.begun + _HAND_OVER)


@final
class Clients:
    """The connections. `answer(client, op, fds)` does an operation. Descriptors that it leaves in `fds` are closed.
    `give_up(client)` drops what an ended client has handed over.
    """

    def __init__(
        self,
        listening: socket.socket,
        answer: Callable[[Client, bytes, list[OwnedFd]], bytes],
        give_up: Callable[[Handed], None],
    ) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most: Final = min(_CONNECTIONS, max(limit // 8, 2))
        spare = min(self._most + _WORK, limit // 2)
        self._below: Final = limit - spare
        self.predecessor: int | None = None  # process of the keeper that hands everything over, which has no bounds
        self._answer: Final = answer
        self._give_up: Final = give_up
        self._listening = listening
        self._accepts_again: float | None = None  # None while connections are accepted
        self._clients: Final[dict[int, Client]] = {}  # by descriptor
        self._ended: Final[list[Client]] = []  # whose memory is to be given up
        self._poll: Final = select.poll()
        self._poll.register(listening, select.POLLIN)

    def watch(self, number: int) -> None:
        """Have `wait` return this descriptor, too, once it is readable."""
        self._poll.register(number, select.POLLIN)

    def unwatch(self, number: int) -> None:
        self._poll.unregister(number)

    def listen_at(self, listening: socket.socket) -> None:
        """Accept connections at this socket, and close the one before."""
        self._poll.unregister(self._listening)
        self._listening.close()
        self._listening = listening
        self._poll.register(listening, select.POLLIN)
        self._accepts_again = None

    def wait(self, seconds: float | None) -> list[int]:
        """Wait until there is something to do, at most so long. Returns the descriptors that are ready."""
        now = time.monotonic()
        due = [client.due() for client in self._clients.values()]
        if self._accepts_again is not None:
            due.append(self._accepts_again)
        pauses = [each - now for each in due] + ([] if seconds is None else [seconds])
        ready = self._poll.poll(max(int(min(pauses) * 1000) + 1, 0) if pauses else None)
        return [number for number, _event in ready]

    def serve(self, number: int) -> None:
        """Accept a connection or answer a message, whichever that descriptor is for."""
        if number == self._listening.fileno():
            with unharmed("accepting a client"):
                self._let_in()
        elif (client := self._clients.get(number)) is not None:
            now = client.heard = time.monotonic()
            try:
                keep = self._respond(client)
            except Exception:  # it does not read its answers, or there is no memory for one
                keep = False
            client.begun = None if not client.count or client.pid == self.predecessor else client.begun or now
            if not keep:
                self._end(client)

    def tend(self) -> None:
        """Disconnect clients that are due, and accept connections again. Called after each `wait`."""
        now = time.monotonic()
        for client in [each for each in self._clients.values() if each.due() <= now]:
            self._end(client)
        if self._accepts_again is not None and self._accepts_again <= now:
            self._accept(None)
        with unharmed("giving up what a client has handed over"):  # if that fails, the next turn tries again
            while self._ended:
                self._give_up(self._ended[-1])
                self._ended.pop()

    # --- bounds

    def expect_descriptors(self, client: Handed, fds: list[OwnedFd]) -> None:
        """Raise `OutOfMemoryError` if the keeper cannot keep these descriptors, which were just received."""
        if client.pid == self.predecessor:
            return
        if any(fd.number >= self._below for fd in fds):
            raise OutOfMemoryError(
                "the keeper has no file descriptor left for this: drop what is not needed (xpushare keep --list, "
                "--drop NAME), or start it with a higher `ulimit -n`",
                native=errno.EMFILE,
            )
        if client.count + len(fds) > self._below // 2:
            raise OutOfMemoryError(
                f"a client may hand over {self._below // 2} file descriptors at a time, and this is more: start the "
                "keeper with a higher `ulimit -n`",
                native=errno.EMFILE,
            )

    def expect_descriptor(self, client: Handed) -> None:
        """Raise `OutOfMemoryError` if no descriptor is left for the file of one more name."""
        probe = OwnedFd.copied(self._listening.fileno())
        try:
            self.expect_descriptors(client, [probe])
        finally:
            probe.close()

    # --- connections

    def _accept(self, again: float | None) -> None:
        """Accept connections, or accept none until that time."""
        self._poll.modify(self._listening, select.POLLIN if again is None else 0)
        self._accepts_again = again

    def _let_in(self) -> None:
        now = time.monotonic()
        if len(self._clients) >= self._most and not self._make_room(now):
            return
        try:
            connection, _ = self._listening.accept()
        except OSError as error:
            if error.errno in _WANT:
                self._accept(now + _REST)
            return
        with End(connection.close):
            connection.setblocking(False)
            client = Client(connection, now)
            if client.uid == os.geteuid():
                self._poll.register(connection, select.POLLIN)
                self._clients[connection.fileno()] = client
                return
        connection.close()

    def _make_room(self, now: float) -> bool:
        """Close a connection, and return True. If each has been used a moment ago, accept none until then."""
        counts = Counter(each.pid for each in self._clients.values())
        most = max(counts.values())
        silent = min((each for each in self._clients.values() if counts[each.pid] == most), key=lambda each: each.heard)
        if silent.heard + _PATIENCE > now:
            self._accept(silent.heard + _PATIENCE)
            return False
        self._end(silent)
        return True

    def _respond(self, client: Client) -> bool:
        """Receive one message from a client and answer it. Returns False at the end of the connection."""
        fds: list[OwnedFd] = []
        try:
            message = keeping.receive(client.connection)
            if message is None:
                return False
            op, fds = message
            answer, good = self._answer(client, op, fds), True
        except XpuShareError as error:  # only its text is kept: its traceback holds descriptors
            answer, good = keeping.refusal(error), False
        except OSError as error:
            answer, good = keeping.refusal(from_os_error(error, "keeping")), False
        except MemoryError:
            answer, good = keeping.refusal(OutOfMemoryError("the keeper's process has too little memory")), False
        except Exception as error:
            text = f"the message makes no sense: {type(error).__name__}: {error}"
            answer, good = keeping.refusal(InvalidArgumentError(text[:500])), False
        finally:
            close_all(fds)
        keeping.reply(client.connection, answer, good)
        return True

    def _end(self, client: Client) -> None:
        if self._clients.pop(client.connection.fileno(), None) is None:
            return
        self._ended.append(client)
        with unharmed("disconnecting a client"):
            self._poll.unregister(client.connection)
        with unharmed("disconnecting a client"):
            client.connection.close()

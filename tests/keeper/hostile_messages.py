"""Messages to the keeper that no honest client sends, made from any source of chance, such as hypothesis or a fuzzer's
input.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

import xpushare as xs
from xpushare.common import system
from xpushare.common.errors import XpuShareError
from xpushare.common.fds import OwnedFd, close_all
from xpushare.sharing import keeping

__all__ = ["FACT", "NBYTES", "Chance", "Talk", "memory_file", "step"]

NBYTES = 4096
NAMES = ("other", "other", "other", "another", "another", ".hidden", "", "a/b", "x" * 200, "\ud800", None, 7, ["other"])
OPS = (
    keeping.FDS, keeping.FDS, keeping.HOLD, keeping.HOLD, keeping.HOLD, keeping.PUBLISH, keeping.PUBLISH, keeping.LIST,
    keeping.DROP, keeping.REPLACE, b"?",
)  # fmt: skip
VALUES = (
    None, True, False, 0, 1, -1, 2, 255, 4096, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 70, 0.5,
    float("nan"), float("inf"), "", "x", "x" * 300, "\ud800", "00", "memory", "native_cpu", [], [[]], {}, {"a": None},
)  # fmt: skip
SOCKETS = (b"", b"keeper", b"keeper.1", b"keeper.99999999999", b"../keeper", b"key", b"\xff", b"names")


class Chance(Protocol):
    def below(self, most: int) -> int:
        """Return a number from 0 to `most` - 1."""

    def content(self, most: int) -> bytes:
        """Return at most so many bytes of any values."""


def memory_file(nbytes: int = NBYTES) -> OwnedFd:
    made = system.memfd("xpushare-memory")
    os.ftruncate(made.number, nbytes)
    system.seal(made.number, system.F_SEAL_SHRINK | system.F_SEAL_GROW)
    return made


def FACT(**changes: Any) -> list[Any]:
    """The facts of an export of `memory_file()`, as a message carries them."""
    uuid = str(xs.Device("native_cpu:0").uuid)
    honest = keeping.Fact("memory", "native_cpu", uuid, "", "", NBYTES, NBYTES, "", 1, 0, 1, 0, NBYTES, False)
    return list(honest._replace(**changes))


def other_file(chance: Chance) -> OwnedFd:
    """A descriptor that is no memory."""
    kind = chance.below(4)
    if kind == 0:
        reading, writing = os.pipe()
        os.close(writing)
        return OwnedFd(reading)
    if kind == 1:
        return OwnedFd(os.open(keeping.lock_path(), os.O_RDWR | os.O_CLOEXEC))  # the keeper's own
    if kind == 2:
        return OwnedFd(os.open("/", os.O_PATH | os.O_CLOEXEC))
    return memory_file(chance.below(2) * 100)


class Talk:
    """A connection of a hostile client. `turn` lets the keeper work, if it is no other process."""

    def __init__(self, turn: Callable[[], None] = lambda: None) -> None:
        self._turn = turn
        self.handles: list[bytes] = []
        self.handed = 0  # descriptors that the keeper has got for the next exports
        found = keeping.connect()
        assert found is not None, "the keeper has ended"
        self.socket: socket.socket = found
        self.open = True

    def say(self, op: bytes, content: bytes | None, fds: list[OwnedFd], count: int | None = None) -> bytes | None:
        """Send a message, and return the keeper's good answer. `count` is a false number of descriptors."""
        body = [] if content is None else [keeping._body(content)]
        every = [*body, *fds]
        head = op[:1].ljust(1) + (len(every) if count is None else count).to_bytes(4, "little")
        try:
            socket.send_fds(self.socket, [head], [each.number for each in every])
            self._turn()
            return self.answer()
        except OSError:
            self.open = False
            return None
        finally:
            close_all(every)

    def packet(self, raw: bytes) -> None:
        """Send any packet that does not end the keeper."""
        try:
            self.socket.send(raw if raw[:1] != keeping.STOP else b"?" + raw[1:])
            self._turn()
            self.answer()
        except OSError:
            self.open = False

    def answer(self) -> bytes | None:
        try:
            found = keeping.receive(self.socket)
        except XpuShareError:
            return None
        if found is None:
            self.open = False
            return None
        status, received = found
        try:
            return keeping.body_of(received[0], keeping.BODY_MOST) if status == keeping._GOOD else None
        finally:
            close_all(received)

    def close(self) -> None:
        self.socket.close()


def _nested(chance: Chance) -> bytes:
    return (b"[" if chance.below(2) else b'{"a":') * (1 << chance.below(17))


def _facts(chance: Chance, handed: int) -> bytes:
    kind = chance.below(8)
    if kind == 0:
        return _nested(chance)
    if kind == 1:
        return chance.content(64)
    facts = [FACT() for _ in range(chance.below(4) if kind == 4 else handed)]
    for _ in range(chance.below(3) if facts and chance.below(2) else 0):
        each = facts[chance.below(len(facts))]
        each[chance.below(len(each))] = VALUES[chance.below(len(VALUES))]
    if kind == 2 and facts:
        facts[0] = VALUES[chance.below(len(VALUES))]  # type: ignore[call-overload]
    if kind == 3 and facts:
        del facts[0][chance.below(len(facts[0])) :]
    return json.dumps(facts).encode()


def _publication(chance: Chance, talk: Talk) -> bytes:
    kind = chance.below(16)
    if kind == 0:
        return _nested(chance) + b"\n" + chance.content(300)
    head: list[Any] = [NAMES[chance.below(len(NAMES))], bool(chance.below(2)), 1 + chance.below(3), False, None]
    if kind == 1:
        head[chance.below(len(head))] = VALUES[chance.below(len(VALUES))]
    if kind == 2:
        head[4] = [[VALUES[chance.below(len(VALUES))] for _ in range(5)] for _ in range(chance.below(3))]
    message = talk.handles[-1 - chance.below(len(talk.handles))] if talk.handles else b"x" * keeping.HANDLE_NBYTES
    if kind == 3:
        message = chance.content(1024)
    if kind == 4:  # a message of many handles, by its own account
        message = bytearray(layout_header()) + message
        message[chance.below(len(message))] = chance.below(256)
    return json.dumps(head).encode() + b"\n" + bytes(message)


def layout_header() -> bytes:
    from xpushare.sharing import layout

    count = len(layout.MESSAGE.unpack(bytes(layout.MESSAGE.size)))
    return layout.MESSAGE.pack(b"XPUSHARE", *[1] * (count - 1))


def _hold(chance: Chance, talk: Talk, count: int | None) -> None:
    if not talk.handed and chance.below(4):
        talk.handed += talk.say(keeping.FDS, None, [memory_file()]) is not None
    found = talk.say(keeping.HOLD, _facts(chance, talk.handed), [], count)
    talk.handed = 0
    size = keeping.HANDLE_NBYTES
    talk.handles += [found[at : at + size] for at in range(0, len(found), size)] if found else []


def step(chance: Chance, talk: Talk) -> None:
    """Send one message, and perhaps those that have to come before it."""
    op = OPS[chance.below(len(OPS))]
    false = VALUES[chance.below(len(VALUES))] if chance.below(16) == 0 else None
    count = false if type(false) is int and 0 <= false < 1 << 32 else None
    if op == keeping.FDS:
        fds = [other_file(chance) if chance.below(16) == 15 else memory_file() for _ in range(chance.below(4))]
        talk.handed += len(fds) if talk.say(op, None, fds, count) is not None else 0
    elif op == keeping.HOLD:
        _hold(chance, talk, count)
    elif op == keeping.PUBLISH:
        if not talk.handles and chance.below(4):
            _hold(chance, talk, None)
        if talk.say(op, _publication(chance, talk), [], count) is not None:
            talk.handles.clear()
    elif op == keeping.DROP:
        name = NAMES[chance.below(len(NAMES))]
        talk.say(op, name.encode(errors="surrogatepass") if isinstance(name, str) else chance.content(40), [], count)
    elif op == keeping.REPLACE:
        talk.say(op, SOCKETS[chance.below(len(SOCKETS))], [], count)
    elif op == keeping.LIST:
        talk.say(op, None, [other_file(chance) for _ in range(chance.below(3))], count)
    elif chance.below(2):
        code = bytes([chance.below(256)])
        talk.say(b"?" if code == keeping.STOP else code, chance.content(64), [], count)
    else:
        talk.packet(chance.content(12) or b"x")

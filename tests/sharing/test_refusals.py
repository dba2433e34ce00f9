"""The errors that are made from the codes with which native code refuses."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from peering import exported

import xpushare as xs
from harness import Child
from xpushare._native import CONSTANTS, Refusal
from xpushare.sharing import layout
from xpushare.sharing.handle import fields_of
from xpushare.sharing.refusals import Blocked, error_of, flaw_of, leaf_flaw_of

GONE, INVALID, MEMORY = xs.HandleExpiredError, xs.InvalidHandleError, xs.OutOfMemoryError
EXPECTED: dict[str, tuple[type[Exception], str]] = {
    "OTHER_PIDS": (Blocked, "--pid=container"),
    "PIDFD_BLOCKED": (Blocked, "not permitted: "),
    "PID_OURS": (GONE, "its pid is this process's now"),
    "PID_UNUSED": (GONE, "no process has its pid"),
    "PID_REUSED": (GONE, "a process without that file descriptor"),
    "FD_REUSED": (GONE, "used again by something else"),
    "MET_ENDING": (GONE, "while it was being opened \\(Operation not permitted\\)"),
    "CALL_FAILED": (xs.DeviceError, "^pidfd_getfd: pidfd_getfd: Operation not permitted"),
    "TABLE_UNREAD": (xs.DeviceError, "^looking at the exporter's table: pidfd_getfd: Operation"),
    "TABLE_FAILED": (xs.DeviceError, "^mapping the table of process [0-9]+: pidfd_getfd: Operation"),
    "TABLE_UNFIT": (INVALID, "^mapping the table of process [0-9]+: pidfd_getfd$"),
    "TABLE_OTHER": (INVALID, "it is not the one that the handle names"),
    "TABLE_VERSION": (INVALID, "the table of process [0-9]+ has version 99 of the shared layout"),
    "COMMONS_OTHER": (INVALID, "its commons is another file"),
    "COMMONS_VERSION": (INVALID, "the commons of process [0-9]+ has version 99"),
    "COMMONS_FULL": (MEMORY, "as many importing processes as it can"),
    "EXPORTER_ENDED": (GONE, "it ended"),
    "ENTRY_NONE": (INVALID, "^the handle names no entry of a table$"),
    "ENTRY_ENDED": (GONE, "^the handle has expired: its exporter withdrew it$"),
    "ENTRY_UNFIT": (INVALID, "^the handle does not fit what process [0-9]+ exports under it$"),
    "NOT_DIRECT": (Blocked, "by another route"),
    "ON_DEMAND": (Blocked, "made on demand, by the exporter's socket only"),
    "FD_FREED": (GONE, "^the handle has expired: the object behind it was freed just now$"),
    "FD_OTHER": (GONE, "^the handle has expired: its file descriptor number was used again$"),
    "OBJECT_UNREAD": (xs.DeviceError, "^looking at an object of process [0-9]+: pidfd_getfd: Operation"),
    "MEMORY_FAILED": (xs.DeviceError, "^mapping 99 bytes of process [0-9]+: pidfd_getfd: Operation"),
    "MEMORY_UNFIT": (INVALID, "^mapping 99 bytes of process [0-9]+: pidfd_getfd$"),
}


@pytest.fixture(scope="module")
def fields() -> Any:
    with Child() as child:
        return fields_of(child.call(exported, "native_cpu:0"))


def test_every_code_has_an_error() -> None:
    assert {f"REFUSED_{name}" for name in EXPECTED} == {name for name in CONSTANTS if name.startswith("REFUSED_")}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_code_and_its_error(fields: Any, name: str) -> None:
    kind, text = EXPECTED[name]
    error = error_of(Refusal((CONSTANTS[f"REFUSED_{name}"], errno.EPERM, "pidfd_getfd", 99)), fields)
    assert type(error) is kind
    with pytest.raises(kind, match=text):
        raise error


@pytest.mark.parametrize(
    ("call", "number", "text"),
    [("pidfd_getfd", errno.ENOSYS, "older than Linux 5.6"), ("pidfd_open", errno.EPERM, "^pidfd_open: Operation not"),
     ("pidfd_getfd", errno.EIO, "^pidfd_getfd: Input/output error$")],
)  # fmt: skip
def test_what_blocks_pidfd_getfd(fields: Any, call: str, number: int, text: str) -> None:
    with pytest.raises(Blocked, match=text):
        raise error_of(Refusal((CONSTANTS["REFUSED_PIDFD_BLOCKED"], number, call, 0)), fields)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_descriptors_or_memory_run_out(fields: Any, number: int) -> None:
    with pytest.raises(MEMORY, match=r"^pidfd_open: pidfd_open: "):
        raise error_of(Refusal((CONSTANTS["REFUSED_CALL_FAILED"], number, "pidfd_open", 0)), fields)


def test_every_flaw_of_bytes_has_a_text() -> None:
    """The texts, with what lies in the bytes; tests/native/c/test_seal.c has the codes."""
    with xs.share(xs.zeros(3)) as message, xs.malloc_host(8) as memory:
        raw, handle = bytes(message), bytes(xs.ipc.memory.get(memory))
        texts = {}
        for name, code in CONSTANTS.items():
            if name.startswith("FLAW_LEAF"):
                texts[name] = leaf_flaw_of(code, 0, message, (8,))
            elif name.startswith("FLAW_"):
                whole = raw if name.startswith("FLAW_MESSAGE") and name != "FLAW_MESSAGE_HANDLE" else handle
                texts[name] = flaw_of(code, whole, layout.MESSAGE.size if name == "FLAW_MESSAGE_KIND" else 0)
        xs.ipc.memory.put(handle)
    assert len({str(each) for each in texts.values()}) == len(texts) == 19
    assert {type(each) for each in texts.values()} == {INVALID}

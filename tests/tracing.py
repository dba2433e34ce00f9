"""Processes that are stopped at each system call of a part of them: ptrace, on x86-64.

A traced program calls `os.getsid(0)` where that part begins and where it ends, and nowhere else.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections.abc import Iterator

from harness import wait_until

__all__ = ["available", "end_all", "fork_at_each_call", "kill_at_call", "wait_until_stopped"]

_SYSCALL, _GETREGS, _SETREGS, _DETACH, _SEIZE = 24, 12, 13, 17, 0x4206
_GOOD, _FORKS, _EXITKILL = 1, 2, 0x100000  # options
_EVENT_FORK = 1
_ANY = 0x40000000  # __WALL
_FORK, _GETSID = 57, 124
_KEPT = frozenset({15, 56, 58, 59, 60, 231, 435})  # sigreturn, clone, vfork, execve, exit, exit_group, clone3
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


_NAMES = ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
          "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs")  # fmt: skip


class _Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in _NAMES]


def _ptrace(request: int, pid: int, data: int | ctypes.Structure = 0) -> None:
    given = data if isinstance(data, int) else ctypes.addressof(data)
    if _libc.ptrace(request, pid, None, given) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")


def available() -> bool:
    """Return whether this process may trace a child of its own."""
    if platform.machine() != "x86_64":
        return False
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        _ptrace(_SEIZE, pid, _EXITKILL)
    except OSError:
        return False
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return True


def wait_until_stopped(pid: int) -> None:
    """Wait until a child of this process, or a child's child, has stopped itself."""

    def stopped() -> bool:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"

    wait_until(stopped)


def end_all(children: list[int]) -> None:
    """Kill what `fork_at_each_call` has returned."""
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, _ANY)


def _seize(pid: int) -> None:
    """Trace the main thread of a process that has stopped itself, and resume it."""
    _ptrace(_SEIZE, pid, _GOOD | _FORKS | _EXITKILL)
    os.kill(pid, signal.SIGCONT)


def _calls(pid: int) -> Iterator[_Registers]:
    """Yield the registers at the beginning of each system call of the part."""
    inside, began = False, True
    while True:
        _, status = os.waitpid(pid, _ANY)
        if not os.WIFSTOPPED(status):
            raise AssertionError(f"the traced process has ended: {status:#x}")
        event, deliver = status >> 16, 0
        if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80:
            registers = _Registers()
            _ptrace(_GETREGS, pid, registers)
            if began:
                if registers.orig_rax == _GETSID:
                    inside = not inside
                    if not inside:
                        _ptrace(_DETACH, pid)
                        return
                elif inside:
                    yield registers
            began = not began
        elif event == 0:
            deliver = os.WSTOPSIG(status)
        _ptrace(_SYSCALL, pid, deliver)


def _resume(pid: int) -> int:
    """Resume until the next stop, and return its status."""
    _ptrace(_SYSCALL, pid)
    return os.waitpid(pid, _ANY)[1]


def fork_at_each_call(pid: int) -> list[int]:
    """Make a raw child at each system call of the part, and return their pids. They stay stopped, with all that they
    have inherited, and no handler of a fork has run in them. The process has stopped itself.
    """
    children: list[int] = []
    _seize(pid)
    for registers in _calls(pid):
        if registers.orig_rax in _KEPT:
            continue
        call = registers.orig_rax
        registers.orig_rax = _FORK
        _ptrace(_SETREGS, pid, registers)
        assert _resume(pid) >> 16 == _EVENT_FORK
        _resume(pid)  # the end of the fork
        _ptrace(_GETREGS, pid, registers)
        children.append(registers.rax)
        os.waitpid(registers.rax, _ANY)
        registers.rip -= 2  # the call itself, which follows
        registers.rax = registers.orig_rax = call
        _ptrace(_SETREGS, pid, registers)
        _resume(pid)
    return children


def kill_at_call(pid: int, which: int) -> bool:
    """Kill the process, which has stopped itself, at a system call of the part. Returns False if there are not as many
    calls.
    """
    _seize(pid)
    for count, _ in enumerate(_calls(pid)):
        if count == which:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, _ANY)
            return True
    return False

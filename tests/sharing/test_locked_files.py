"""Files under names in the runtime folder: which are opened, and what an interrupt leaves."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import fd_count
from interrupting import Interrupt
from xpushare.sharing import locked_files


def _link(path: Path) -> None:
    (path.parent / "target").touch()
    path.symlink_to(path.parent / "target")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


@pytest.mark.parametrize("strange", [_link, _socket, os.mkfifo, Path.mkdir])
def test_only_a_file_is_opened(strange: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "name"
    assert locked_files.open_file(path) is None
    assert locked_files.open_file(path / "below") is None
    assert locked_files.inode_at(path) is None
    strange(path)
    before = fd_count()
    with pytest.raises(xs.InvalidHandleError, match="name is not a file of this user: remove it") as error:
        locked_files.open_file(path)
    assert error.traceback
    assert fd_count() == before, "although the exception is still there"


def test_a_file_of_another_user_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = locked_files.temporary_in(tmp_path)
    with locked_files.make(path) as fd:
        assert locked_files.inode_of(os.fstat(fd.number)) == locked_files.inode_at(path)
    with pytest.raises(FileExistsError):
        locked_files.make(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    before = fd_count()
    with pytest.raises(xs.InvalidHandleError, match="is not a file that this user published") as error:
        locked_files.open_file(path, "that this user published")
    assert error.traceback
    assert fd_count() == before


@pytest.mark.parametrize("call", [locked_files.open_file, locked_files.make])
def test_an_interrupt_leaves_no_descriptor(call: Callable[[Path], Any], tmp_path: Path) -> None:
    errors: list[BaseException] = []
    before = fd_count()
    for nth in range(1, 100):
        path = tmp_path / f"{nth}"
        if call is locked_files.open_file:
            path.touch()
        interrupt = Interrupt(nth)
        sys.setprofile(interrupt)
        try:
            call(path).close()
        except KeyboardInterrupt as error:
            errors.append(error)  # its frames refer to what they opened
        finally:
            sys.setprofile(None)
        assert fd_count() == before, f"interrupted at point {nth}"
        if interrupt.left > 0:
            assert nth > 3
            return
    raise AssertionError("it never ends")

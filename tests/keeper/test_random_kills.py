"""The short form of soak/keeper_kills.py, and its oracle."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from keepers import environment, keeper_pid

import xpushare as xs
from harness import Child, kept, wait_until
from xpushare.bench.measure import Settings
from xpushare.sharing import keeping

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_publishers_heirs_and_keepers_are_killed() -> None:
    command = [sys.executable, "-m", "soak.keeper_kills", "--quick", "--seed", "1"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_oracle_knows_that_a_dead_publishers_last_message_is_still_read(
    publisher: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from soak import common, keeper_kills

    settings = Settings(True, common.DEVICE, str(tmp_path))
    run = keeper_kills._Run(common.Soak(True, 1, random.Random(1), settings, argparse.Namespace()), tmp_path)
    publisher.call(keep_version, str(ROOT), 1)
    with Child() as child:
        child.start(die_before_it_is_read, str(ROOT), 2)
        wait_until(lambda: not child.alive)
    found, seen, pid = run.found, [], keeper_pid()
    assert pid is not None

    def look() -> int:
        try:
            seen.append(found())
        finally:
            os.kill(pid, signal.SIGCONT)
        return seen[-1]

    monkeypatch.setattr(run, "found", look)
    assert run.newest(done=1, begun=2) == 2
    assert seen == [1, 2]


def keep_version(root: str, value: int) -> None:
    """Publish a version as the soak program does."""
    sys.path.insert(0, root)
    from soak import keeper_kills

    kept["tree"] = keeper_kills._tree(value)
    xs.publish(keeper_kills.NAME, kept["tree"], keep=True, replace=True)


def die_before_it_is_read(root: str, value: int) -> None:
    """Die after the last message was sent to the keeper, which is stopped just before."""
    send = keeping._send

    def sending(connection: Any, op: bytes, content: Any, fds: Any = ()) -> None:
        last = op == keeping.PUBLISH
        if last:
            pid = keeper_pid() or 0
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: stopped(pid), what="the keeper to stop")
        send(connection, op, content, fds)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    keeping._send = sending
    keep_version(root, value)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

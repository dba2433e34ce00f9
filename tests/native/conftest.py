import contextlib
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import native_peer


@pytest.fixture
def exporter():
    e = native_peer.Exporter()
    yield e
    e.domain.leave()


@pytest.fixture
def peers(exporter):
    """Make peers of the exporter's domain; they are killed at the end."""
    made = []

    def make(slot=None):
        made.append(exporter.peer(slot))
        return made[-1]

    yield make
    for p in made:
        p.close()


@pytest.fixture
def event(exporter):
    """A slot of the exporter with its own attachment."""
    index = exporter.domain.new_slot()
    slot = native_peer.n.Slot(exporter.domain, index)
    yield slot
    with contextlib.suppress(ValueError):
        slot.detach()


def open_fds():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    # A bell lives as long as its Domain object, which pytest still has in its hands.
    return sorted(name for name in found if name != "anon_inode:[eventfd]")


def close_warden():
    """What this process exports is served by the warden, too: the next export starts that again."""
    native_peer.n.close_warden()
    node = sys.modules.get("xpushare.sharing.node")
    table = None if node is None else node.current().table_if_any
    if table is not None:
        table._serving = False


@pytest.fixture(autouse=True)
def no_leaked_fds():
    native_peer.n.notification_fd()
    close_warden()
    before = open_fds()
    yield
    close_warden()
    native_peer.n.due()
    assert open_fds() == before

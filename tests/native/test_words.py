"""Words, futexes, lock bytes, pidfds."""

import ctypes
import mmap
import os
import signal
import time

import pytest
from native_peer import Peer, load32, n, store32, unlock, until


@pytest.fixture
def page():
    fd = os.memfd_create("page")
    os.ftruncate(fd, 4096)
    mapping = n.Mapping(fd, 4096)
    yield fd, mapping.address
    os.close(fd)


def test_words(page):
    _, a = page
    n.store64(a + 8, 2**64 - 1)
    assert n.load64(a + 8) == 2**64 - 1
    n.store64(a + 8, -1)
    assert n.load64(a + 8) == 2**64 - 1
    n.store64(a + 8, 2**63)
    assert n.load64(a + 8) == 2**63
    assert n.load64(a) == n.load64(a + 16) == 0


def test_bad_addresses(page):
    _, a = page
    for bad in (0, a + 1, a + 2, a + 4):
        with pytest.raises(ValueError, match="aligned"):
            n.load64(bad)
    with pytest.raises(ValueError, match="aligned"):
        n.futex_wake(a + 2)
    with pytest.raises(ValueError, match="aligned"):
        n.store64(a + 4, 1)
    with pytest.raises(TypeError):
        n.store64(a)


def test_futex_differs_and_times_out(page):
    _, a = page
    store32(a, 1)
    assert n.futex_wait(a, 0)
    assert not n.futex_wait(a, 1, 0)
    start = time.monotonic()
    assert not n.futex_wait(a, 1, timeout=0.02, spin=0.001)
    assert time.monotonic() - start >= 0.02
    assert n.futex_wake(a) == 0
    with pytest.raises(ValueError, match="number"):
        n.futex_wait(a, 1, float("nan"))


@pytest.mark.parametrize("spin", [0.0, 0.05])
def test_futex_across_processes(page, spin):
    fd, a = page
    peer = Peer([fd])
    try:
        peer.run(f"m = n.Mapping({fd}, 4096)")
        peer.send(f"n.futex_wait(m.address, 0, 20, {spin})")
        store32(a, 1)
        n.futex_wake(a)
        assert peer.result() is True
    finally:
        peer.close()


def test_futex_interrupted(page):
    fd, a = page
    peer = Peer([fd])
    try:
        peer.run(f"m = n.Mapping({fd}, 4096)")
        peer.send("store32(m.address + 4, 1), n.futex_wait(m.address, 0)")
        until(lambda: load32(a + 4))
        os.kill(peer.pid, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            peer.result()
    finally:
        peer.close()


def test_signal_handlers_run_and_the_wait_goes_on(page):
    _, a = page
    seen = []
    old = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert not n.futex_wait(a, 0, 0.1)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert seen == [1]


def test_lock_bytes(page):
    fd, _ = page
    at = 0x40000005
    assert n.lock_holder(fd, at) is None
    assert n.lock(fd, at)
    assert n.lock(fd, at)
    assert n.lock_holder(fd, at) is None  # ours does not count
    peer = Peer([fd])
    try:
        assert peer.run(f"n.lock_holder({fd}, {at})") == os.getpid()
        assert peer.run(f"n.lock({fd}, {at})") is False
        assert peer.run(f"n.lock({fd}, {at} + 1)") is True
        assert n.lock_holder(fd, at + 1) == peer.pid
        assert not n.lock(fd, at + 1)
        unlock(fd, at)
        assert peer.run(f"n.lock({fd}, {at})") is True
        peer.kill()
        assert n.lock_holder(fd, at) is None
        with pytest.raises(OSError, match="F_GETLK"):
            n.lock_holder(-1, 0)
    finally:
        peer.close()


def test_pidfds(page):
    fd, _ = page
    peer = Peer([fd])
    pidfd = os.pidfd_open(peer.pid)
    try:
        assert n.dead([pidfd]) == []
        got = n.OwnedFd.fetched(pidfd, fd).take()
        assert os.fstat(got).st_ino == os.fstat(fd).st_ino
        assert not os.get_inheritable(got)
        os.close(got)
        with pytest.raises(OSError, match="pidfd_getfd"):
            n.OwnedFd.fetched(pidfd, 10_000)
        peer.kill()
        assert n.dead([pidfd]) == [pidfd]
    finally:
        os.close(pidfd)
        peer.close()


def test_copy_and_fill(page):
    _, a = page
    block = mmap.mmap(-1, 200_000)
    b = ctypes.addressof(ctypes.c_char.from_buffer(block))
    n.fill(b, b"\x01\x02\x03", 199_998)
    assert block[:199_998] == b"\x01\x02\x03" * 66_666
    assert block[199_998:] == b"\0\0"
    n.fill(b, b"z", 5)
    n.copy(a, b, 8)
    assert bytes(memoryview(n.Span(a, 8, True, None))) == b"zzzzz\x03\x01\x02"
    n.fill(b, b"abc", 0)
    with pytest.raises(ValueError, match="multiple"):
        n.fill(b, b"abc", 4)
    with pytest.raises(ValueError, match="multiple"):
        n.fill(b, b"", 4)
    with pytest.raises(ValueError, match="range"):
        n.copy(0, b, 1)


def test_fds_by_their_links():
    fds = [os.memfd_create(name) for name in ("one", "other", "two", "on", "one more")]
    try:
        found = n.fds_linked_to("/proc/self/fd", "/memfd:one", "/memfd:two")
        assert sorted(found) == sorted([fds[0], fds[2], fds[4]])
    finally:
        for fd in fds:
            os.close(fd)
    assert n.fds_linked_to("/proc/self/fd", "/memfd:one", "/memfd:two") == []
    with pytest.raises(FileNotFoundError, match="/proc/self/nothing"):
        n.fds_linked_to("/proc/self/nothing", "a", "b")
    with pytest.raises(NotADirectoryError):
        n.fds_linked_to("/proc/self/status", "a", "b")

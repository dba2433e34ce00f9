"""What one process damages (a page, a file, a label) hides nothing of the others: readers skip it and name it."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xpushare as xs
from harness import Child, kept
from sampling import sampled
from xpushare import cli
from xpushare.channels.survey import channels
from xpushare.common import foreign
from xpushare.common.foreign import printable, skipping
from xpushare.objects.array import memory_over
from xpushare.sharing import identity, lives, naming

ESCAPES = "\x1b[31mRED\x1b]0;title\x07\u202egnp\n"


@pytest.fixture(autouse=True)
def _each_warning_again() -> None:
    foreign._told.clear()


@pytest.fixture
def neighbour(peer: Child) -> Iterator[Child]:
    """Another process, with a name and a channel that are sound."""
    peer.call(offer)
    yield peer
    peer.call(withdraw)


def offer() -> None:
    kept["array"] = xs.zeros(3)
    xs.publish("sound", kept["array"])
    kept["channel"] = xs.Channel.create("sound", 4)


def withdraw() -> None:
    xs.unpublish("sound")
    kept.pop("channel").close()
    kept.pop("array").close()


def sound() -> None:
    """The neighbour's name and channel are listed, and can be opened at once."""
    assert "sound" in xs.published()
    assert xs.attach(xs.lookup("sound", timeout=0)).shape == (3,)
    assert "sound" in [each["name"] for each in channels()]
    assert any("sound" in row["names"] for row in xs.shares())
    xs.Channel.open("sound", timeout=0).close()
    with xs.watch("sound") as versions:
        versions.next(0)
    with pytest.raises(TimeoutError, match=r"channels now: .*sound"):
        xs.Channel.open("nobody", timeout=0)
    with pytest.raises(TimeoutError, match=r"published now: .*sound"):
        xs.lookup("nobody", timeout=0)


def commands_show(capfd: pytest.CaptureFixture[str]) -> str:
    """What the commands print, which all succeed. It has no character that controls a terminal."""
    capfd.readouterr()
    cli.main(["ls"])  # its status says whether a process has left something
    assert cli.main(["top", "--interval", "0.05"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("sound") >= 3
    assert not set(shown) & set("\x1b\x07\u202e")
    assert cli.main(["ls", "--json"]) in (0, 1)
    assert "sound" in [each["name"] for each in json.loads(capfd.readouterr().out)["channels"]]
    return shown


# --- pages


@pytest.fixture
def bad() -> Iterator[xs.Channel]:
    with xs.Channel.create("bad", 4, label="writer") as channel:
        yield channel


DESCRIPTIONS: list[bytes] = [
    b"", b"123", b"null", b"{}", b'["a","b"]', b"[1,2,3]", b'["a",2,null]', b"[" * 1024, b"\xff\xfe\x80", b"1" * 1024,
    b'["a","b",[[1e999],"<f8",8]]', b'["a","b",[[%d],"<f8",8]]' % (1 << 70), b'["a","b",[[-4],"<f8",8]]',
    b'["a","b",{}]', b'["a","b",[]]', b'["a","b",[[4],"O",8]]', b'["a","b",[[4],%s,8]]' % (b'["<f8",[2' + b"]" * 400),
    b'["a","b",[[4],{"names":[]},8]]', b'["\\ud800","\\u001b[31m",7]',
]  # fmt: skip


@pytest.mark.parametrize("text", sampled(DESCRIPTIONS, [b"123", b"[" * 1024, b"\xff\xfe\x80", b'["a","b",{}]']))
def test_a_damaged_description_of_a_channel(
    text: bytes, neighbour: Child, bad: xs.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    del neighbour
    words = memoryview(memory_over(bad._end.place.ranges[0]))
    good = bad._end.geometry.text.ljust(1024, b"\0")
    at = bytes(words).index(good)
    words[at : at + 1024] = text.ljust(1024, b"\0")
    try:
        sound()
        with pytest.raises(xs.InvalidHandleError):
            xs.Channel.open("bad", timeout=0)
        listed = [each["name"] for each in channels()]
        assert ("bad" in listed) != ("the channel 'bad'" in caplog.text)
        try:
            bad.statistics()
        except xs.InvalidHandleError:
            assert "bad" not in listed
    finally:
        words[at : at + 1024] = good


def test_a_label_and_a_description_with_control_characters(
    neighbour: Child, bad: xs.Channel, capfd: pytest.CaptureFixture[str]
) -> None:
    del neighbour
    words = memoryview(memory_over(bad._end.place.ranges[0]))
    good, label = bad._end.geometry.text.ljust(1024, b"\0"), b"writer".ljust(64, b"\0")
    at, at_label = bytes(words).index(good), bytes(words).index(label)
    words[at : at + 1024] = json.dumps([ESCAPES, ESCAPES, None]).encode().ljust(1024, b"\0")
    words[at_label : at_label + 64] = ESCAPES.encode().ljust(64, b"\0")
    try:
        assert r"\x1b[31mRED\x1b]0;title\x07\u202egnp\n" in commands_show(capfd)
        pytest.importorskip("prometheus_client")
        assert cli.main(["metrics"]) == 0
        assert "\x1b" not in capfd.readouterr().out
    finally:
        words[at : at + 1024], words[at_label : at_label + 64] = good, label


# --- files


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _empty(path: Path) -> None:
    path.touch()


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


def _unreadable(path: Path) -> None:
    path.touch(mode=0)


def _noise(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def _endless_list(path: Path) -> None:
    path.write_bytes(naming.HEAD.pack(naming.MAGIC, 0xFFFFFFFF, 0, b"") + bytes(100))


def _huge_version(path: Path) -> None:
    entry = naming.ENTRY.pack((1 << 64) - 1, 0xFFFFFFFF)
    path.write_bytes(naming.HEAD.pack(naming.MAGIC, naming.FORMAT << 16 | 1, 0, b"") + entry + b"x" * 300)


FILES: list[Callable[[Path], None]] = [
    _fifo, _folder, _loop, _empty, _sparse, _unreadable, _noise, _endless_list, _huge_version,
]  # fmt: skip


@pytest.fixture
def made() -> Iterator[list[Path]]:
    paths: list[Path] = []
    yield paths
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def hold(paths: list[str], byte: int) -> None:
    """Live with these files, as a publisher or a member does."""
    from xpushare import _native

    for path in paths:
        try:
            kept[path] = open(path, "r+b")  # noqa: SIM115 held until the process ends
        except OSError:
            continue  # a folder, a link
        _native.lock(kept[path].fileno(), byte)
        if kept[path].read(len(naming.MAGIC)) == naming.MAGIC:
            os.pwrite(kept[path].fileno(), lives.record(), naming.HEAD.size - lives.RECORD_NBYTES)


def _damaged(where: Path, prefix: str, made: list[Path]) -> list[str]:
    found = []
    for make in FILES:
        name = f"{prefix}bad{make.__name__}"
        made.append(where / name)
        make(where / name)
        found.append(name)
    for name in (f"{prefix}{ESCAPES}", f"{prefix}a b", os.fsdecode(prefix.encode() + b"\xff\x80")):
        made.append(where / name)
        (where / name).write_bytes(b"?")
    return found


@pytest.mark.parametrize("alive", [True, False])
def test_damaged_files_of_names(
    alive: bool, neighbour: Child, made: list[Path], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    del neighbour
    names = _damaged(naming.names_folder(), "", made)
    with Child() as hostile:
        if alive:
            hostile.call(hold, [str(path) for path in made if not path.is_fifo()], 0)
        with caplog.at_level(logging.WARNING, "xpushare"):
            sound()
        commands_show(capfd)
        assert set(xs.published()) == {"sound"}
        for name in names:
            with pytest.raises((xs.InvalidHandleError, TimeoutError)) as caught:
                xs.lookup(name, timeout=0)
            assert not alive or caught.type is xs.InvalidHandleError
            assert f"the published name '{name}'" in caplog.text or caught.type is TimeoutError
        hostile.kill()


@pytest.mark.parametrize("alive", [True, False])
def test_damaged_files_of_channels(
    alive: bool, neighbour: Child, made: list[Path], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:

    del neighbour
    names = _damaged(identity.runtime_dir() / "crews", "channel.", made)
    with Child() as hostile:
        if alive:
            hostile.call(hold, [str(path) for path in made if not path.is_fifo()], 0)
        with caplog.at_level(logging.WARNING, "xpushare"):
            sound()
        commands_show(capfd)
        for name in [each.removeprefix("channel.") for each in names]:
            with pytest.raises((xs.InvalidHandleError, TimeoutError)) as caught:
                xs.Channel.open(name, timeout=0)
            # The other files have no record of a member, as if it still joined.
            broken = name in ("bad_fifo", "bad_folder", "bad_loop", "bad_noise")
            assert not (alive and broken) or caught.type is xs.InvalidHandleError
            assert f"the channel '{name}'" in caplog.text or caught.type is TimeoutError
        hostile.kill()


# --- the guard itself


@pytest.mark.parametrize(
    "error", [RecursionError("deep"), MemoryError(), OverflowError("large"), KeyError("x"), OSError(5, "io")]
)
def test_the_guard_skips_whatever_a_reader_raises(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with skipping("the page of\x1b[31m somebody"):
            raise error
    assert [
        record.getMessage().startswith(r"skipping the page of\x1b[31m somebody: ") for record in caplog.records
    ] == [True]


def test_the_guard_raises_what_says_nothing_about_the_data() -> None:
    for error in (OSError(24, "no fd"), xs.OutOfMemoryError("no fd", native=24), KeyboardInterrupt()):
        with pytest.raises(type(error)), skipping("a page"):
            raise error


def test_the_guard_is_silent_about_the_dead(caplog: pytest.LogCaptureFixture) -> None:
    for error in (xs.HandleExpiredError("gone"), ProcessLookupError(3, "gone"), xs.DeviceError("gone", native=2)):
        with skipping("a page"):
            raise error
    assert not caplog.records


def test_printable() -> None:
    assert printable("plain text ü 字") == "plain text ü 字"
    found: Any = printable("\x00\x9b\u2028\u200f\udc80\x7f\t")
    assert found == r"\x00\x9b\u2028\u200f\udc80\x7f\t"

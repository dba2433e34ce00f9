"""A pytest plugin that runs the suite. It provides options and fixtures, skips tests of features that the device lacks,
limits the time of each test, and writes the results for `runner`.
"""

# pyright: basic, reportPossiblyUnboundVariable=false, reportOptionalMemberAccess=false

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

import xpushare as xs
from xpushare.conformance import actions, harness, silence
from xpushare.conformance.harness import Child
from xpushare.conformance.refusals import NotRefused, check_refused
from xpushare.conformance.rules import KIND_ASPECTS, RULES
from xpushare.core.declare import layers_on
from xpushare.sharing import node

__all__ = ["Pair"]

_UNSUPPORTED: Final = pytest.StashKey[tuple[str, str]]()
_RESULTS: Final = pytest.StashKey[Any]()
_STDERR: Final = pytest.StashKey[int]()
_KEPT: Final = "XPUSHARE_CONFORMANCE_KEPT"
_GRACE: Final = 30.0  # seconds between a test's time limit and the end of the suite's process


class RuleTimeout(AssertionError):
    """A test took longer than the time limit, probably because a wait never ended."""


@dataclass(frozen=True)
class Pair:
    """The selectors of the exporting process's device and of the importing process's device."""

    exporter: str
    importer: str

    @property
    def granule(self) -> int:
        return actions.granule(self.exporter, self.importer)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("xpushare conformance")
    group.addoption("--device", default=None)
    group.addoption("--importer-device", default=None)
    group.addoption("--rules", default="", help="only these, comma-separated")
    group.addoption("--results", default=None, help="file for one JSON line an event")
    group.addoption("--rule-timeout", type=float, default=60.0)
    group.addoption("--runner", type=int, default=None, help="pid of the process to end with")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rule(number): the rule that a test checks")
    config.addinivalue_line("markers", silence.MISUSE)
    if layers_on:
        config.pluginmanager.register(silence)
    runner: Any = config.getoption("--runner")
    if runner is not None:
        harness.die_with(runner)
    harness.set_up()
    path = config.getoption("--results")
    config.stash[_RESULTS] = open(path, "w", buffering=1) if path else None  # noqa: SIM115 closed in unconfigure
    config.stash[_STDERR] = os.dup(2)  # before pytest captures it


def pytest_unconfigure(config: pytest.Config) -> None:
    stream = config.stash.get(_RESULTS, None)
    if stream is not None:
        stream.close()
    os.close(config.stash[_STDERR])


def _tell(config: pytest.Config, **event: Any) -> None:
    stream = config.stash[_RESULTS]
    if stream is not None:
        stream.write(json.dumps(event) + "\n")


def _number(item: pytest.Item) -> str:
    marks = list(item.iter_markers("rule"))
    if len(marks) != 1:
        raise pytest.UsageError(f"{item.nodeid} names {len(marks)} rules, not one")
    number: str = marks[0].args[0]
    return number


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rules: Any = config.getoption("--rules")
    wanted = {name for name in rules.split(",") if name}
    if unknown := wanted - RULES.keys():
        raise pytest.UsageError(f"there is no rule {', '.join(sorted(unknown))}")
    order = {number: place for place, number in enumerate(RULES)}
    items[:] = sorted(
        (item for item in items if not wanted or _number(item) in wanted), key=lambda item: order[_number(item)]
    )
    _tell(config, event="collected", tests=len(items))


def pytest_collection_finish() -> None:
    """Start the process that forks the children. Exclude the objects that exist now from garbage collection. Most of
    these objects belong to pytest and imported modules, and are never freed.
    """
    harness.prepare()
    gc.collect()
    gc.freeze()


# --- one test ---------------------------------------------------------------------------------------------------------


def _part(item: pytest.Item) -> str:
    """Return the text that distinguishes this test from the other tests of its rule."""
    return item.name.removeprefix("test_")


def _overdue(_number: int, _frame: object) -> None:
    raise RuleTimeout("the time for one test is over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _tell(item.config, event="started", rule=_number(item), part=_part(item))
    limit: Any = item.config.getoption("--rule-timeout")
    previous = signal.signal(signal.SIGALRM, _overdue)
    # If not even a signal ends a wait, write the stacks to stderr, which the runner reports.
    faulthandler.dump_traceback_later(limit + _GRACE, exit=True, file=item.config.stash[_STDERR])
    signal.setitimer(signal.ITIMER_REAL, limit, 1.0)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, previous)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.when == "call" or (report.when == "setup" and report.skipped) or report.failed:
        aspect, reason = item.stash.get(_UNSUPPORTED, (None, ""))
        if report.skipped and aspect is None:
            reason = report.longrepr[2].removeprefix("Skipped: ")
        status = "failed" if report.failed else "not supported" if report.skipped else "passed"
        message = str(report.longrepr) if report.failed else ""
        _tell(item.config, event="ended", rule=_number(item), part=_part(item), status=status, aspect=aspect,
              reason=reason, message=message, seconds=round(report.duration, 3))  # fmt: skip
    return report  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _applies(request: pytest.FixtureRequest, pair: Pair) -> None:
    """Run the test only if both devices have the aspects that the rule needs. If a device lacks an aspect, check that
    the device refuses the feature, and skip the test.
    """
    rule = RULES[_number(request.node)]
    parameters = getattr(request.node, "callspec", None)
    kind = parameters.params.get("kind") if parameters is not None else None
    for aspect in (*rule.aspects, *(KIND_ASPECTS[kind] if kind else ())):
        for device in dict.fromkeys((pair.exporter, pair.importer)):
            support = xs.Device(device).support(aspect)
            if support.state != "yes":
                try:
                    checked = check_refused(aspect, device)
                except NotRefused as error:
                    pytest.fail(f"{device} lacks {aspect} ({support.reason}), but {error}", pytrace=False)
                request.node.stash[_UNSUPPORTED] = (str(aspect), f"{device}: {support.reason}; {checked}")
                pytest.skip(support.reason)


@pytest.fixture(autouse=True)
def _nothing_survives() -> Iterator[None]:
    """Fail a test that has left processes running, and kill these processes."""
    yield
    left = [child for child in harness.children if child not in _shared.values()]
    for child in left:
        child.kill()
    try:
        actions.forget()
    finally:
        gc.collect()
    assert not left, f"the test left {left} running"


# --- fixtures ---------------------------------------------------------------------------------------------------------

_shared: dict[str, Child] = {}


@pytest.fixture(scope="session")
def pair(pytestconfig: pytest.Config) -> Pair:
    """Return the devices of the exporting process and the importing process."""
    exporter: Any = pytestconfig.getoption("--device")
    importer: Any = pytestconfig.getoption("--importer-device")
    exporter = exporter or str(xs.default_device())
    return Pair(exporter, importer or exporter)


def _borrow(name: str) -> Iterator[Child]:
    child = _shared.get(name)
    if child is None or not child.alive:
        child = _shared[name] = Child()
    yield child
    if not child.alive or child.busy:
        child.kill()
        return
    try:
        child.call(actions.forget)
    except BaseException:
        child.kill()
        raise


@pytest.fixture
def peer() -> Iterator[Child]:
    """Yield a child process that many tests share. In tests that need an exporter, this process is the exporter. Tests
    must not end it.
    """
    yield from _borrow("peer")


@pytest.fixture
def other() -> Iterator[Child]:
    """Yield a second child process, which tests use as another importer. Many tests share it, so tests must not
    end it.
    """
    yield from _borrow("other")


@pytest.fixture(params=actions.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return a kind of object, such as "memory". The test runs once for each kind."""
    return str(request.param)


@pytest.fixture
def nothing_left(pair: Pair, peer: Child) -> Callable[[], None]:
    """Return a function that asserts that the test has left no file descriptor, mapping or export of the package
    behind.
    """
    for device in dict.fromkeys((pair.exporter, pair.importer)):  # opens everything that a process never closes
        warm_up(device)
    for each in actions.KINDS:  # opens everything that this process keeps open for the peer
        if all(
            xs.Device(device).has(aspect) for device in (pair.exporter, pair.importer) for aspect in KIND_ASPECTS[each]
        ):
            handle = peer.call(actions.export, "warm", each, pair.exporter)
            actions.verbs(each).open(handle, device=pair.importer).close()
            peer.call(actions.put, each, handle)
            break
    peer.call(actions.drop)
    gc.collect()
    before = counts()

    def check() -> None:
        gc.collect()
        harness.wait_until(lambda: counts() <= before, f"no more than {before} as before; now {counts()}", 5)

    return check


def warm_up(device: str) -> None:
    """Export and open memory, and make an event, once in this process. Drivers allocate some resources for good at the
    first use, and later counts must not include them.
    """
    if xs.Device(device).has("ext_oneapi_ipc_memory"):
        with xs.malloc_device(actions.NBYTES, device) as memory:
            handle = xs.ipc.memory.get(memory)
            xs.ipc.memory.open(handle).close()
            xs.ipc.memory.put(handle)
    with xs.Event(device):
        pass


class Counts(tuple[int, ...]):
    """Numbers of resources that a process holds. `later <= earlier` is true if no number has grown."""

    def __le__(self, other: tuple[int, ...]) -> bool:
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))


def counts() -> Counts:
    """Return how many file descriptors, mappings of files and live exports this process has.
    `XPUSHARE_CONFORMANCE_KEPT` names files whose mappings do not count, because a driver on an emulated kernel
    interface caches them.
    """
    xs.trim()
    kept = os.environ.get(_KEPT)
    with open("/proc/self/maps") as file:
        mapped = sum(("memfd:" in line or "/dev/" in line) and not (kept and kept in line) for line in file)
    table = node.current().table_if_any
    return Counts((harness.fd_count(), mapped, len(table.exports()) if table is not None else 0))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    for child in _shared.values():
        if child.alive:
            child.kill() if child.busy else child.exit()
    _shared.clear()

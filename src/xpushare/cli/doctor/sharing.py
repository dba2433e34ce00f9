"""Test sharing of memory, physical memory and events between processes, on each device by each route."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Iterator
from typing import Any, Final

import xpushare as xs
from xpushare.adapters.vendor import Check
from xpushare.cli.doctor import processes
from xpushare.cli.doctor.machine import yama
from xpushare.cli.doctor.processes import Failed, Process
from xpushare.cli.doctor.routes import ROUTES, probe, why_no_getfd
from xpushare.conformance.harness import Pending

__all__ = ["KINDS", "Trial"]

KINDS: Final = ("memory", "physical_memory", "event")
_REPORT: Final = "xpushare info --json, and report it with this text"


def _fix_of(failed: Failed) -> str:
    if failed.errno in (errno.EMFILE, errno.ENFILE):
        return "ulimit -n 4096"
    if failed.errno == errno.ENOMEM or "cannot be mapped" in str(failed):
        return "ulimit -v unlimited, and more memory for the container (docker run --memory)"
    if failed.errno == errno.EFBIG:
        return "ulimit -f unlimited"
    if failed.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return "allow the call that it names in the seccomp profile or the security module's policy"
    if "pidfd_open" in str(failed):
        return "allow pidfd_open in the seccomp profile"
    if "socket" in str(failed):
        return "allow AF_UNIX sockets in the seccomp profile; one network namespace for both (--network=container:…)"
    return _REPORT


class Trial:
    """One run of the sharing tests, with the processes that it started and the results so far."""

    def __init__(self, devices: list[xs.Device], timeout: float, folder: str) -> None:
        self._devices = devices
        self._timeout = timeout
        self._processes: list[Process] = []
        self._folder = folder
        self._word = -1
        self._good: dict[tuple[str, str], list[str]] = {}  # (device, kind) -> routes
        self._bad: dict[tuple[str, str], dict[str, Failed]] = {}
        self._fixes: dict[str, str] = {}  # route -> what would enable it
        self._keys: dict[str, str] = {}  # route -> key of memory that its importer has open

    def _start(self, name: str, only: str = "") -> Process:
        made = Process(name, only, self._folder, self._timeout, () if self._word < 0 else (self._word,))
        self._processes.append(made)
        return made

    def close(self) -> None:
        for process in self._processes:
            process.end()
        if self._word >= 0:
            os.close(self._word)

    def run(self) -> Iterator[Check]:
        from xpushare.common import system

        try:
            self._word = system.memfd("xpushare-doctor-word").take()
            system.resize(self._word, 4096)
        except OSError:
            pass  # reported elsewhere; the futex is then not tried
        try:
            self._exporter = self._start("exporter")
            self._importers = {route: self._start(f"importer by {route}", route) for route in ROUTES}
            self._any = self._start("importer by any route")
            asked = [(process.name, process.start(processes.hello)) for process in self._processes]  # all at once
            greetings = {name: pending.result() for name, pending in asked}
        except Failed as failed:
            yield Check("processes", "start", "fails", str(failed), _fix_of(failed))
            for device in self._devices:
                for kind in KINDS:
                    yield Check(str(device), kind, "fails", "no processes to try it with", _fix_of(failed))
            return
        for device in self._devices:
            self._try_device(str(device))
        yield from self._routes(greetings)
        for device in self._devices:
            yield from self._results(str(device))
        yield self._futex()
        yield from self._fork()
        yield from self._death()

    def _try_device(self, device: str) -> None:
        for kind in KINDS:
            for route, importer in self._importers.items():
                try:
                    self._share(device, kind, route, importer)
                    self._good.setdefault((device, kind), []).append(route)
                except Failed as failed:
                    self._bad.setdefault((device, kind), {})[route] = failed

    def _share(self, device: str, kind: str, route: str, importer: Process) -> None:
        """Share one object of this kind from the exporter to the importer by one route, and check that it works. For
        memory, the importer writes an answer that the exporter checks. For an event, the exporter signals, and the
        importer signals back if the device supports that.
        """
        key = f"{device} {kind} {route}"
        handle = self._exporter.call(processes.offer, key, device, kind)
        importer.call(processes.take, key, device, kind, handle)
        if kind != "event":
            self._exporter.call(processes.expect_answer, key)
            if kind == "memory":
                self._keys[route] = key
            return
        patience = self._timeout / 3
        self._exporter.call(processes.signal_event, key)
        importer.call(processes.wait_for_point, key, 1, patience)
        if self._exporter.call(processes.two_way, device):
            importer.call(processes.signal_event, key)
            self._exporter.call(processes.wait_for_point, key, 2, patience)

    def _routes(self, greetings: dict[str, Any]) -> Iterator[Check]:
        for route, importer in self._importers.items():
            if not self._devices:
                yield Check("routes", route, "skipped", "there is no device to share on")
                continue
            if any(route in good for good in self._good.values()):
                yield Check("routes", route, "works", "between two processes of this user, neither the other's parent")
                continue
            failed = next((bad[route] for bad in self._bad.values() if route in bad), None)
            if failed is None or failed.kind not in ("RouteError", "Ended", "TimeoutError"):
                yield Check("routes", route, "skipped", f"nothing could be shared: {failed}")
                continue
            why, fix = str(failed), _fix_of(failed)
            if route == "pidfd_getfd":
                try:
                    found = importer.call(probe, self._exporter.pid, 0)
                    if any(found.values()):
                        theirs = greetings[self._exporter.name]
                        mine = greetings[importer.name]["status"]
                        why, fix = why_no_getfd(found, mine, theirs["status"], theirs["dumpable"], yama())
                except Failed:
                    pass  # then only the first failure is reported
            self._fixes[route] = fix
            other = any(set(good) - {route} for good in self._good.values())
            yield Check("routes", route, "limited" if other else "fails", why, fix)

    def _futex(self) -> Check:
        group, name = "processes", "futex"
        if self._word < 0:
            return Check(group, name, "skipped", "it takes memfd_create")
        patience = self._timeout / 3
        sleeper, waker = self._importers[ROUTES[0]], self._importers[ROUTES[1]]
        try:
            asleep = sleeper.start(processes.futex_sleep, self._word, patience)
            woken = waker.call(processes.futex_wake, self._word, patience / 2)
            awake = asleep.result()
        except Failed as failed:
            return Check(group, name, "fails", str(failed), "allow futex in the seccomp profile")
        if woken != 1 or not awake:
            return Check(group, name, "fails", f"{woken} processes were woken", "allow futex in the seccomp profile")
        return Check(group, name, "works", "one process wakes another")

    def _fork(self) -> Iterator[Check]:
        fix = 'multiprocessing.set_start_method("spawn")'
        for device in self._devices:
            name = f"fork, {device}"
            if (str(device), "memory") not in self._good:
                yield Check("processes", name, "skipped", "memory cannot be shared")
                continue
            try:
                handle = self._exporter.call(processes.offer, f"{device} fork", str(device), "memory")
                found = self._any.call(processes.open_after_fork, str(device), handle, self._timeout / 2)
            except Failed as failed:
                yield Check("processes", name, "fails", str(failed), fix)
                continue
            if found:
                yield Check("processes", name, "limited", f"a forked child cannot open handles: {found}", fix)
            else:
                yield Check("processes", name, "works", "a forked child opens handles itself")

    def _results(self, device: str) -> Iterator[Check]:
        for kind in KINDS:
            good, bad = self._good.get((device, kind), []), self._bad.get((device, kind), {})
            if good:
                only = "" if len(good) == len(ROUTES) else " only"
                yield Check(device, kind, "works", f"by {' and '.join(good)}{only}")
                continue
            kinds = {failed.kind for failed in bad.values()}
            why = "; ".join(dict.fromkeys(str(failed) for failed in bad.values()))
            if kinds == {"FeatureNotSupportedError"}:
                yield Check(device, kind, "absent", why)
            else:
                by_route = [self._fixes[route] for route, failed in bad.items()
                            if failed.kind == "RouteError" and route in self._fixes]  # fmt: skip
                yield Check(device, kind, "fails", why, by_route[0] if by_route else _fix_of(next(iter(bad.values()))))

    def _death(self) -> Iterator[Check]:
        """Kill the exporter while an importer waits for it, and report whether the importer is notified. This test ends
        the exporter, so it runs last.
        """
        name = "death"
        device = next((str(each) for each in self._devices if (str(each), "event") in self._good), None)
        if device is None:
            yield Check("processes", name, "skipped", "events cannot be shared")
            return
        routes = self._good[device, "event"]
        waits: list[Pending] = []
        try:
            for route in routes:
                key = f"{device} death {route}"
                handle = self._exporter.call(processes.offer, key, device, "event")
                self._importers[route].call(processes.take, key, device, "event", handle)
                waits.append(self._importers[route].start(processes.wait_for_death, key, self._timeout / 2))
            time.sleep(0.05)  # They most likely wait by now. If not, the result is the same.
            killed = time.monotonic()
            self._exporter.kill()
            late = max(pending.result() for pending in waits) - killed
            for route in routes:
                if self._keys.get(route, "").startswith(device + " "):
                    self._importers[route].call(processes.expect_answer, self._keys[route])
        except Failed as failed:
            yield Check("processes", name, "fails", str(failed), _REPORT)
            return
        why = f"a waiting process saw the exporter's death after {math.ceil(late * 1000)} ms, and still read its memory"
        slow = late > 1
        yield Check("processes", name, "limited" if slow else "works", why, "a less busy machine" if slow else None)

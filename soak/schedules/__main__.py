"""Random schedules of six processes against an oracle: no wait hangs, none is lost that is not, nothing is left.

A seed is one schedule (`--seed`); the long form plays that of each seed from there on. One that fails is played again
without some of its steps, for as long as `--shrink` says. `--schedule` plays a schedule that a failure printed.

Queues copy, too. Before a queue signals an event, it writes to the event's *board*, which is shared memory. Queues that
waited for the event copy the board, and what they find there is compared with what the event promises. With `--device`
they do so on that device, beside `native_cpu`; with `--other-device` every second process does so there.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import xpushare as xs
from soak.common import Failure, Soak, main
from soak.forked import Zygote, counting
from soak.schedules.model import Kind
from soak.schedules.process import Actor
from soak.schedules.world import STEPS, Step, World

_STEPS = 40, 90
_QUICK_STEPS = 20, 50
_DEVICES: dict[Kind, str] = {"host": "native_cpu:0", "device": "mock:0", "held": "mock:1"}


def drawn(seed: int, between: tuple[int, int]) -> list[Step]:
    """The schedule of a seed: some steps come more often in one schedule than in another."""
    pick = random.Random(seed)
    names = sorted(set(STEPS))
    weights = [STEPS.count(name) * pick.choice((0.3, 1.0, 1.0, 2.0)) for name in names]
    count = pick.randint(*between)
    slots = pick.choice((2, 3, 4, 6, 6))
    steps = pick.choices(names, weights, k=count)
    return [(name, pick.randrange(slots), pick.randrange(6), pick.randrange(12)) for name in steps]


def devices(selector: str | None) -> dict[Kind, str]:
    """What queues work on: the host, and a device of each kind or the one that was named."""
    if selector is None:
        return _DEVICES
    found = xs.Device(selector)
    # Others' queues wait on a device that lets some of ours wait there, too: more than the one that a process has here.
    on_device = found.has("device_ordering") or found.has("adopted_queues")
    kind: Kind = "host" if found.backend == "native_cpu" else "device" if on_device else "held"
    return {"host": _DEVICES["host"], kind: f"{found.backend}:{found.ordinal}"}


def play(zygote: Zygote, on: Sequence[Mapping[Kind, str]], steps: Sequence[Step], counts: Counter[str]) -> None:
    """One schedule, whose failure tells what has happened."""
    world = World(zygote, on, counts)
    counts["schedules"] += 1
    try:
        world.play(steps)
        world.finish()
    except Failure as failure:
        story = "\n".join(f"    {line}" for line in world.story)
        raise Failure(f"{failure}\n  what has happened:\n{story}") from None
    finally:
        world.end()


def shrunk(steps: list[Step], fails: Callable[[list[Step]], bool], until: float) -> list[Step]:
    """What is left of a schedule that fails when steps are taken out, first many at a time, as long as it fails."""
    size = len(steps) // 2
    while size and time.monotonic() < until:
        before = len(steps)
        at = 0
        while at < len(steps) and time.monotonic() < until:
            fewer = steps[:at] + steps[at + size :]
            if fails(fewer):
                steps = fewer
            else:
                at += size
        if size > 1 or len(steps) == before:
            size //= 2
    return steps


def _command(soak: Soak, *options: str) -> str:
    found = {"--device": soak.options.device, "--other-device": soak.options.other_device}
    devices = [word for option, device in found.items() if device for word in (option, device)]
    return shlex.join(["python", "-m", "soak.schedules", *devices, *options])


def _failed(soak: Soak, zygote: Zygote, on: Sequence[Mapping[Kind, str]], steps: list[Step], failure: Failure) -> str:
    """Shrink; what to tell."""
    last = failure

    def fails(fewer: list[Step]) -> bool:
        nonlocal last
        try:
            play(zygote, on, fewer, Counter())
        except Failure as error:
            last = error
            return True
        return False

    few = shrunk(steps, fails, time.monotonic() + soak.options.shrink)
    text = json.dumps(few, separators=(",", ":"))
    return f"{last}\n  {len(few)} of {len(steps)} steps: {_command(soak, '--schedule', text)}"


def run(soak: Soak) -> None:
    between = _QUICK_STEPS if soak.quick else _STEPS
    on = [devices(soak.options.device)]
    if soak.options.other_device is not None:
        on.append(devices(soak.options.other_device))
    if len({tuple(each) for each in on}) > 1:
        sys.exit("queues of both devices must wait in the same way: on the host, or on the device")
    selector = ";".join(sorted({f"{device.partition(':')[0]}:*" for each in on for device in each.values()}))
    with counting(soak, Actor, selector=selector) as (zygote, counts):
        if soak.options.schedule is not None:
            for _ in range(soak.options.times):
                play(zygote, on, [tuple(step) for step in json.loads(soak.options.schedule)], counts)
            return
        end, seed = time.monotonic() + soak.lasting(600, 20), soak.seed
        while time.monotonic() < end:
            steps = drawn(seed, between)
            try:
                play(zygote, on, steps, counts)
            except Failure as failure:
                again = _command(soak, "--seed", str(seed), "--seconds", "0.1", *["--quick"] * soak.quick)
                soak.say(f"a schedule of {len(steps)} steps fails ({again}): {failure}")
                soak.fail(f"{_failed(soak, zygote, on, steps, failure)}\n  again from the seed: {again}")
            seed += 1


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="SELECTOR", help="for queues and boards (default: three software devices)")
    parser.add_argument("--other-device", metavar="SELECTOR", help="the same for every second process")
    parser.add_argument("--schedule", metavar="JSON", help="play this schedule, as a failure prints it")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="so often")
    parser.add_argument("--shrink", type=float, default=60, metavar="SECONDS", help="how long a schedule is shrunk")


if __name__ == "__main__":
    sys.exit(main("schedules", run, _declare))

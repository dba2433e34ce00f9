"""Run every soak program, each in a process of its own; arguments (--quick, --seconds S, --seed N) are passed on."""

from __future__ import annotations

import subprocess
import sys

from soak.common import end_on_sigterm

PROGRAMS = (
    "handles", "kills", "channel_kills", "cycles", "many_events", "lost_peers", "schedules", "hostile", "arenas",
    "reuse", "interrupts", "keeper_kills", "batches",
)  # fmt: skip
MOST_SECONDS = 3600  # for one program: a hang must end


def run(name: str) -> int | None:
    """A program's exit status; None: it did not end in time, and was killed."""
    with subprocess.Popen([sys.executable, "-m", f"soak.{name}", *sys.argv[1:]]) as process:
        try:
            return process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
        except BaseException:
            process.terminate()  # it removes its folder
            raise


def main() -> int:
    end_on_sigterm()
    failed = []
    for name in PROGRAMS:
        status = run(name)
        if status is None:
            print(f"FAILED soak.{name}: not done after {MOST_SECONDS} s, killed", flush=True)
        failed += [name] * (status != 0)
    print(f"soak: FAILED {', '.join(failed)}" if failed else "soak: all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

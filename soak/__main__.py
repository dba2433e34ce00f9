"""Run every soak program, each in a process of its own; arguments (--quick, --seconds S, --seed N) are passed on."""

from __future__ import annotations

import subprocess
import sys

PROGRAMS = ("handles", "kills", "cycles", "many_events", "lost_peers", "schedules", "hostile", "arenas")
MOST_SECONDS = 3600  # for one program: a hang must end


def main() -> int:
    failed = []
    for name in PROGRAMS:
        try:
            done = subprocess.run([sys.executable, "-m", f"soak.{name}", *sys.argv[1:]], timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"FAILED soak.{name}: not done after {MOST_SECONDS} s, killed", flush=True)
            failed.append(name)
        else:
            failed += [name] * (done.returncode != 0)
    print(f"soak: FAILED {', '.join(failed)}" if failed else "soak: all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Planted faults: small patches of the adapter, the core or the UR face, which the suite has to notice.

One is applied in the suite's process and in every child when the environment variable of that name (`MUTANT`) names it.
`aim` are the rules that should notice. `xpushare.conformance.mutants` runs the suite on them.
"""

from __future__ import annotations

import os
from typing import Final

from xpushare import _hand_over
from xpushare.conformance.faults import handles, lifetimes, queues, ur, virtual  # they enter themselves into the list
from xpushare.conformance.faults.planting import MUTANTS, TOOLS, Mutant

__all__ = ["MUTANT", "MUTANTS", "Mutant", "apply", "apply_named", "handles", "lifetimes", "queues", "ur", "virtual"]

MUTANT: Final = "XPUSHARE_CONFORMANCE_MUTANT"


def apply(name: str) -> None:
    """Plant the fault of that name in this process.

    Besides the mutants there are some for the tests of the suite itself: "crash", "hang", "lacks:<aspect>" (every
    device says so) and "unrefused:<aspect>" (and nothing refuses it).
    """
    tool, _, aspect = name.partition(":")
    if tool in TOOLS:
        TOOLS[tool](aspect)
    else:
        _hand_over.off.append(name)  # faults are planted in Python
        MUTANTS[name].plant()


def apply_named() -> None:
    """Plant the fault that the environment names, if any. The suite's process and every child call this once."""
    name = os.environ.get(MUTANT)
    if name:
        apply(name)

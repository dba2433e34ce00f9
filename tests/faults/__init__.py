"""Planted faults: small patches of the adapter, the core or the UR face, which the conformance suite has to notice.

`python tests/faults` runs the suite on them. `mutants` does that and lists which rules noticed; `planted` plants the
fault that `XPUSHARE_PLANTED` names in each process of the suite; `planting` has what faults are made of; the others are
the faults, each with the rules that should notice it (`aim`).
"""

from __future__ import annotations

from faults import handles, lifetimes, queues, ur, virtual  # they enter themselves into the list
from faults.planting import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "handles", "lifetimes", "queues", "ur", "virtual"]

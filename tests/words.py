"""The words of a channel, lock or atomic in shared memory, for tests that look at them or damage them."""

from __future__ import annotations

import struct

from xpushare.channels.groups import Place
from xpushare.objects.array import memory_over

__all__ = ["words_of"]


def words_of(place: Place) -> memoryview:
    """The memory of a group from the words of this place on."""
    group = memoryview(memory_over(place.ranges[0]))
    members, places = struct.unpack_from("<II", group, 24)  # of src/engine/group.h, as the sizes below
    begin = -(-(64 + 544 * members + 144 * places) // 4096) * 4096
    return group[begin + 64 * place.number :]

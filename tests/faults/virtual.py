"""Faults of virtual memory."""

from __future__ import annotations

from typing import Any

from faults.planting import mutant, nothing, set_


@mutant("a part is mapped without partial_map's offset", "4.7", part="HostRange")
def offset_of_part_ignored() -> None:
    from xpushare.adapters.host.memory import HostRange

    original = HostRange.map
    set_(
        HostRange,
        "map",
        lambda self, at, physical, _offset, nbytes, access: original(self, at, physical, 0, nbytes, access),
    )


@mutant("parts are refused although the device has partial_map", "4.7")
def parts_refused() -> None:
    from xpushare.common.errors import InvalidArgumentError
    from xpushare.core import physical

    original = physical.map_

    def map_(reserved: Any, source: Any, at: int, offset: int, nbytes: Any, *rest: Any) -> None:
        if (offset, nbytes or source.pages.nbytes) != (0, source.pages.nbytes):
            raise InvalidArgumentError("no parts")
        original(reserved, source, at, offset, nbytes, *rest)

    set_(physical, "map_", map_)


@mutant("a second map over a mapped range is allowed", "4.5", "8.6")
def overlapping_map() -> None:
    from xpushare.core import physical

    original = physical.map_

    def map_(reserved: Any, *args: Any) -> None:
        found = physical.Reserved.overlapping
        set_(physical.Reserved, "overlapping", lambda _self, _at, _nbytes: [])
        try:
            original(reserved, *args)
        finally:
            set_(physical.Reserved, "overlapping", found)

    set_(physical, "map_", map_)


@mutant("unmap of part of a mapping is allowed", "4.6", "8.6")
def unmap_of_part() -> None:
    from xpushare.core.physical import Reserved

    set_(Reserved, "whole", lambda self, at, nbytes: self.overlapping(*self.check(at, nbytes)))


@mutant("the granularity is not demanded", "4.3", "8.5", "8.6")
def granularity_ignored() -> None:
    from xpushare.core import physical

    set_(physical, "multiple", nothing)


@mutant("the access of a mapping is ignored", "4.8", part="HostRange")
def access_ignored() -> None:
    from xpushare.adapters.host.memory import HostRange

    original = HostRange.map
    set_(
        HostRange,
        "map",
        lambda self, at, physical, offset, nbytes, _access: original(self, at, physical, offset, nbytes, "rw"),
    )


@mutant("set_access only notes it", "4.8", part="HostRange")
def set_access_notes() -> None:
    from xpushare.adapters.host.memory import HostRange

    set_(HostRange, "set_access", nothing)


@mutant("access() always answers rw", "4.8", "4.1", "8.6")
def access_always_rw() -> None:
    from xpushare.core import physical

    set_(physical, "access_of", lambda _reserved, _at: "rw")


@mutant("views do not keep bytes from being unmapped", "4.10")
def views_do_not_pin() -> None:
    from xpushare.core import physical

    original = physical.Pin
    set_(physical, "Pin", lambda piece, _mapped: original(piece, []))


@mutant("a range's memory has its buffers held as an allocation's are", "4.10")
def buffers_of_a_range_do_not_pin() -> None:
    from xpushare.core.physical import Reserved

    set_(Reserved, "hold", lambda _self, piece: (piece, piece.read_only))


@mutant("a follower maps what came, and keeps what went", "4.13")
def followers_keep_pieces() -> None:
    from xpushare.core import growth

    original = growth.Growth.read

    def read(self: Any) -> Any:
        turn, nbytes, handles = original(self)
        known = [each.piece.raw for each in self.pieces]
        return (turn, self.nbytes, known) if len(handles) < len(known) else (turn, nbytes, handles)

    set_(growth.Growth, "read", read)

"""Copies of private arrays, whose memory cannot be shared in place, for `share(copy=True)`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from xpushare import adapters
from xpushare._native import Span
from xpushare.arrays import description
from xpushare.arrays.copies import (
    Source,
    Spanned,
    copy_elements,
    copy_kind,
    copy_of,
    copy_out,
    host_view,
    is_gapless,
    kept_strides,
    lies_on_host,
    spanned,
    whole,
)
from xpushare.common.elements import extent
from xpushare.common.errors import FeatureNotSupportedError
from xpushare.core import memory
from xpushare.core.device import Device
from xpushare.objects.array import array_of, host_array

Placing = Any  # that of `place`, which imports this module

__all__ = ["Private", "copy_private"]

_ALIGNMENT: Final = 64  # alignment of copies in one allocation


class Private(NamedTuple):
    """An array whose memory cannot be shared in place and therefore has to be copied."""

    at: int
    array: Any
    found: description.Described | None


class _Storage:
    """A group of private arrays (arrays that have to be copied) whose bytes overlap, so that they are views of the same
    memory.
    """

    def __init__(self, each: Private, view: Spanned) -> None:
        self.views = [(each, view)]
        self.low, self.high = view.address, view.address + view.nbytes

    def add(self, each: Private, view: Spanned) -> None:
        """Add a view. Its first byte must not lie before those of the views that were added earlier."""
        self.views.append((each, view))
        self.high = max(self.high, view.address + view.nbytes)

    @property
    def nbytes(self) -> int:
        """Size of the group's copy on the host in bytes. The copy of a single array leaves out the gaps between its
        elements.
        """
        if len(self.views) > 1:
            return self.high - self.low
        view = self.views[0][1]
        low, high = extent(view.shape, kept_strides(view.shape, view.strides, view.dtype.itemsize), view.dtype.itemsize)
        return high - low

    def is_gapless(self) -> bool:
        """Return whether the views without gaps together cover every byte of the group."""
        end = self.low
        for _, view in self.views:
            if is_gapless(view) and view.address <= end:
                end = max(end, view.address + view.nbytes)
        return end == self.high


def _storages(private: list[Private]) -> list[_Storage]:
    """Group private arrays (arrays that have to be copied) by the memory that they are views of."""
    found: list[_Storage] = []
    spans = [(each, spanned(each.array, each.found)) for each in private]
    for each, view in sorted(spans, key=lambda span: span[1].address):
        if (
            found
            and view.nbytes
            and view.address < found[-1].high
            and _place_of(each) == _place_of(found[-1].views[0][0])
        ):
            found[-1].add(each, view)
        else:
            found.append(_Storage(each, view))
    return found


def _place_of(each: Private) -> Any:
    """Return the backend of the array's device memory, or None for host memory. Equal addresses mean the same memory
    only if the backends are equal, too.
    """
    if lies_on_host(each.array, each.found):
        return None
    return each.array.device.backend if each.found is None else each.found.backend


def _copy_bytes(target: Any, group: _Storage) -> None:
    """Copy all bytes that a group of views spans to `target`."""
    import numpy

    for each, view in group.views:
        if each.found is not None:
            description.expect_readable(each.array, each.found, -view.offset, view.nbytes - view.offset)
    keep = [view.keep for _, view in group.views]
    base: Any = Span(group.low, group.nbytes, True, keep)
    numpy.copyto(numpy.asarray(target), numpy.ndarray((group.nbytes,), "u1", base))


def copy_private(placing: Placing, private: list[Private]) -> None:
    """Copy the private arrays. All private arrays on the host share one allocation. If several arrays are views of
    the same memory, the memory is copied only once.
    """
    on_host: list[Private] = []
    on_devices: list[Private] = []
    for each in private:
        (on_host if lies_on_host(each.array, each.found) else on_devices).append(each)
    for group in _storages(on_devices):
        _copy_on_device(placing, group)
    if on_host:
        _copy_on_host(placing, private, _storages(on_host))


def _copy_on_device(placing: Placing, group: _Storage) -> None:
    first = group.views[0][0]
    placing.at = first.at
    if len(group.views) == 1:
        source, copied = copy_of(first.array, first.found, placing.given)
        placing.copied += copied
        _put_copy(placing, first, source)
        return
    if not group.is_gapless():
        raise FeatureNotSupportedError(
            f"these arrays of {type(first.array).__name__} are private views of one memory and have gaps, which "
            "its copy would expose: make them contiguous first"
        )
    device = first.array.device if first.found is None else description.device_of(first.array, first.found)
    nbytes = group.high - group.low
    kind = copy_kind(first.array) if first.found is None else "device"
    place = memory.allocate(kind, nbytes, device, None, isolated=False)
    keep = [view.keep for _, view in group.views]
    copy_out(
        first.array,
        first.found,
        group.views[0][1]._replace(address=group.low, nbytes=nbytes, keep=keep),
        place,
        device,
        placing.given,
    )
    placing.copied += nbytes
    for each, view in group.views:
        covered = place.replace(offset=place.offset + view.address - group.low, nbytes=view.nbytes)
        _put_copy(placing, each, Source(covered, view.offset, view.shape, view.strides, view.dtype))


def _put_copy(placing: Placing, each: Private, source: Source) -> None:
    work = placing.work_of(each.array, each.found, source.covered.device)
    if work is not None:
        placing.copying = (*placing.copying, work)
    placing.put_source(each.at, source, work)


def _copy_on_host(placing: Placing, private: list[Private], storages: list[_Storage]) -> None:
    import numpy

    total, firsts = 0, []
    for group in storages:
        firsts.append(total + group.low % _ALIGNMENT if len(group.views) > 1 else total)
        total = -(-(firsts[-1] + group.nbytes) // _ALIGNMENT) * _ALIGNMENT
    place = memory.allocate("device", max(total, 1), Device(f"{adapters.HOST}:0"), None, isolated=False)
    for group, first in zip(storages, firsts, strict=True):
        several = len(group.views) > 1
        placing.at = group.views[0][0].at
        whole_copied = group.nbytes > 0 and group.is_gapless()
        if whole_copied:
            _copy_bytes(array_of(place, (group.nbytes,), numpy.dtype("u1"), (1,), first), group)
        elif several:  # the bytes between the elements must not be read
            numpy.asarray(array_of(place, (group.nbytes,), numpy.dtype("u1"), (1,), first))[...] = 0
        for each, view in group.views:
            strides = view.strides if several else kept_strides(view.shape, view.strides, view.dtype.itemsize)
            at = (
                view.address - group.low + view.offset
                if several
                else -extent(view.shape, strides, view.dtype.itemsize)[0]
            )
            target = array_of(place, view.shape, view.dtype, strides, first + at)
            if not whole_copied:
                copy_elements(host_array(target), host_view(each.array, each.found))
            placing.put_source(each.at, whole(target), placing.work_of(private, None, target.device))
        placing.copied += group.nbytes

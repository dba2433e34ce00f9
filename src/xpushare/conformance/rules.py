"""The rules of the contract that the suite checks, in one table. docs/conformance.md is generated from the table.

The number of a rule consists of a section of the contract and a number in that section. For example, 3.5b is the second
part of rule 5 in section 3. `aspects` are the aspects that the devices must have for the rule to apply. If a device
lacks an aspect, the suite checks that the device refuses the feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from xpushare.common.aspects import Aspect
from xpushare.common.errors import InvalidArgumentError

__all__ = ["KIND_ASPECTS", "RULES", "Rule", "markdown", "rule", "select"]

T = TypeVar("T", bound=Callable[..., Any])

MEMORY: Final = Aspect.ext_oneapi_ipc_memory
PHYSICAL: Final = Aspect.ext_oneapi_ipc_physical_memory
EVENT: Final = Aspect.ext_oneapi_ipc_event
VIRTUAL: Final = Aspect.ext_oneapi_virtual_mem
OUTLIVES: Final = Aspect.outlives_exporter
TWO_WAY: Final = Aspect.two_way_events
HOST: Final = Aspect.host_signal_events
ADOPTED: Final = Aspect.adopted_queues

KIND_ASPECTS: Final[dict[str, tuple[Aspect, ...]]] = {
    "memory": (MEMORY,),
    "physical_memory": (VIRTUAL, PHYSICAL),
    "event": (EVENT,),
}
"""The aspects that a test of one kind of object needs. A rule about every kind is checked for the kinds that the device
supports.
"""


class Rule(NamedTuple):
    """One rule. It applies to devices that have all of its `aspects`."""

    number: str
    text: str
    aspects: tuple[Aspect, ...] = ()


_TABLE: Final = (
    # --- 2: memory ---
    Rule("2.1", "malloc_device, malloc_host and malloc_shared give memory of that size, device and context"),
    Rule("2.2", "A size that is not a positive integer raises InvalidArgumentError, a too large one OutOfMemoryError"),
    Rule("2.3", "A slice lies inside its memory and shares its ownership"),
    Rule("2.4", "Host-accessible memory is a buffer of bytes; other memory raises BufferError with advice"),
    Rule("2.5", "as_array gives an array of that shape and dtype over exactly those bytes, inside the memory only"),
    Rule("2.6", "Memory speaks DLPack 1.x, and reports its device"),
    Rule("2.7", "The array interfaces exist if they apply, and give the address of the memory"),
    Rule("2.8", "close is idempotent, `closed` reports it, and use after close raises InvalidArgumentError"),
    Rule("2.9", "The end of a `with` block closes the object"),
    Rule("2.10", "Memory stays after close while a buffer, array, slice or unfinished queue operation uses it"),
    Rule("2.11", "Dropping the last reference is a silent close", (MEMORY,)),
    Rule("2.12", "A context must contain the device; if none is given, device.context is used"),
    # --- 3: handles ---
    Rule("3.0a", "A handle is 256 bytes or URL-safe text, and either restores it", (MEMORY,)),
    Rule("3.0b", "A handle reports its kind, backend, device, sizes, access and exporter"),
    Rule("3.0c", "An import is on the opener's device, by default the one that the handle names", (MEMORY,)),
    Rule("3.1a", "Every get returns a distinct handle"),
    Rule("3.1b", "Any range of an allocation can be exported; the importer's object is exactly that range", (MEMORY,)),
    Rule("3.1c", "An imported Memory or Event cannot be exported again, unless it was attached with own=True"),
    Rule("3.1d", "An imported PhysicalMemory can be exported again", (VIRTUAL, PHYSICAL)),
    Rule("3.1e", "Physical memory and events are exported only if made with enable_ipc=True"),
    Rule("3.1f", "exposed_nbytes covers the range, and no other allocation made here for sharing", (MEMORY,)),
    Rule("3.1g", "get takes an array over memory that was made here", (MEMORY,)),
    Rule("3.1h", "get takes arrays of other libraries; an array that cannot be exported is refused with advice",
         (MEMORY, Aspect.foreign_memory)),
    Rule("3.2a", "Environment, JSON, pipes and bytes carry a handle, to any number of importers, any number of times"),
    Rule("3.2b", "One end sees what the other end writes and signals"),
    Rule("3.2c", "A handle opens in the exporter's own process, too"),
    Rule("3.3a", "open refuses a wrong length, and bytes that are not a handle"),
    Rule("3.3b", "open refuses a handle with any bit flipped"),
    Rule("3.3c", "open refuses a handle of another kind"),
    Rule("3.3d", "open refuses another version"),
    Rule("3.3e", "open refuses a handle made without this user's key"),
    Rule("3.3f", "open refuses a handle of another boot or host"),
    Rule("3.3g", "open refuses a handle after put"),
    Rule("3.3h", "open refuses an old handle whose entry in the exporter's table belongs to another object now"),
    Rule("3.3i", "open refuses a handle whose exporter has died or exited"),
    Rule("3.3j", "open refuses a handle whose exporter's pid or fd number has been reused"),
    Rule("3.3k", "open checks the sizes and offsets of a handle against the exporter's object", (MEMORY,)),
    Rule("3.3l", "open refuses a device that cannot import the object, or that this process may not see"),
    Rule("3.3m", "Each refusal has a message of its own"),
    Rule("3.4a", "Every open of memory or an event returns a new object, which is closed by itself"),
    Rule("3.4b", "ipc.memory.close raises for memory that is closed or was not opened", (MEMORY,)),
    Rule("3.4c", "Closing an import harms neither the exporter nor other importers", (MEMORY,)),
    Rule("3.4d", "Repeated opens are counted: they cost no further fd or address, and end with the last close",
         (MEMORY,)),
    Rule("3.5a", "An export holds its source until put, even if nobody refers to the object"),
    Rule("3.5b", "put withdraws the handle for new opens and leaves opened ones alone"),
    Rule("3.5c", "put raises for a handle that was put before"),
    Rule("3.5d", "put raises for a handle of another process"),
    Rule("3.5e", "put is allowed after the object's free, as Handle, bytes or text"),
    Rule("3.5f", "put of one handle leaves the others of the object"),
    Rule("3.5g", "Foreign memory stays held after put while a live importer has it open, or its device uses it",
         (MEMORY, Aspect.foreign_memory)),
    Rule("3.6a", "An open mapping keeps its content after the exporter freed the memory",
         (MEMORY, OUTLIVES)),
    Rule("3.6b", "An open mapping keeps its content after the exporter died by SIGKILL",
         (MEMORY, OUTLIVES)),
    Rule("3.7a", "Physical memory and events have no close verb"),
    Rule("3.7b", "The last release of an import tears it down"),
    Rule("3.7c", "An import outlives its source object"),
    Rule("3.8a", "A failed open leaves no fd, mapping or entry behind"),
    Rule("3.8b", "A failed get or map leaves no fd, mapping or entry behind"),
    Rule("3.9a", "A forked child may not use the parent's objects; ForkError names the alternatives"),
    Rule("3.9b", "Closing in a forked child never touches the parent's objects"),
    Rule("3.9c", "A forked child may open handles if the driver permits it, otherwise gets an error with the reason",
         (MEMORY,)),
    Rule("3.10a", "Many threads may open, use and close at once"),
    Rule("3.10b", "Many threads may export and put at once; exactly one of several puts of a handle succeeds"),
    Rule("3.11a", "A read-only import gives no writable view and is not a destination", (MEMORY,)),
    Rule("3.11b", "A read-only import is mapped read-only where the host can access it", (MEMORY,)),
    Rule("3.11c", "With enforced_read_only, an importer cannot circumvent the protection",
         (MEMORY, Aspect.enforced_read_only)),
    Rule("3.12a", "Objects pickle as plain bytes, and unpickling yields an import"),
    Rule("3.12b", "Pickling an import forwards the handle that it came from"),
    Rule("3.12c",
         "A pickle outlives its object until its first open, or for XPUSHARE_PICKLE_GRACE seconds; then it says so"),
    Rule("3.12d", "Queue, Context and VirtualRange refuse to be pickled"),
    Rule("3.12e", "copy and deepcopy of resources raise TypeError"),
    Rule("3.12f", "Every error can be pickled without losing anything"),
    Rule("3.13a", "A handle opens on a device of another backend with the same bytes, or is refused with the reason"),
    Rule("3.13b", "An event opens on devices of other backends, signalled and waited on from both ends"),
    Rule("3.13c", "In a process that may not see an event's device, the event opens on the host"),
    # --- 4: virtual memory ---
    Rule("4.1", "A VirtualRange only reserves addresses: nothing is mapped or accessible", (VIRTUAL,)),
    Rule("4.2", "Physical memory is mapped side by side, and mapped() lists it in order", (VIRTUAL,)),
    Rule("4.3", "Sizes and addresses are multiples of the granularity", (VIRTUAL,)),
    Rule("4.4", "Ranges lie inside the objects", (VIRTUAL,)),
    Rule("4.5", "A second map over a mapped range is refused", (VIRTUAL,)),
    Rule("4.6", "An unmap of part of a mapping is refused", (VIRTUAL,)),
    Rule("4.7", "Part of an object is mapped at its offset; without partial_map that raises InvalidArgumentError",
         (VIRTUAL, Aspect.partial_map)),
    Rule("4.8", "A mapping has the requested access, and set_access changes it", (VIRTUAL,)),
    Rule("4.9", "A mapping holds its physical memory, which may be closed", (VIRTUAL,)),
    Rule("4.10", "Arrays and views of mapped bytes prevent unmapping, and outlive the range's close", (VIRTUAL,)),
    Rule("4.11", "A requested address is used or refused", (VIRTUAL,)),
    Rule("4.12", "Two processes that map the same pages see each other's writes", (VIRTUAL, PHYSICAL)),
    Rule("4.13", "Followers see a range grow and shrink, at one address", (VIRTUAL, PHYSICAL)),
    # --- 5: queues and events ---
    Rule("5.1", "copy and fill work on whole operands or on the given number of bytes"),
    Rule("5.2", "copy and fill refuse operands that do not fit, have the wrong type, or are closed"),
    Rule("5.3", "A queue works in order", (EVENT,)),
    Rule("5.4", "submit runs callables in order if the device is the host; synchronize raises their exceptions"),
    Rule("5.5", "A new event is complete: value and pending are 0, and bare waits on it return at once", (EVENT,)),
    Rule("5.6", "A host signal raises pending by one, is complete at once, and returns its number", (HOST,)),
    Rule("5.7", "A queue's signal is pending until the work before it has finished; value never runs ahead", (EVENT,)),
    Rule("5.8", "A queue's wait holds back later work until the point is complete, and no longer", (EVENT,)),
    Rule("5.9", "Event.wait waits until the right point, not shorter; a time-out raises TimeoutError", (EVENT,)),
    Rule("5.10", "`await` and reached wait in an event loop, and can be cancelled", (EVENT,)),
    Rule("5.11", "Either end of a shared event can signal it, wait on it and query it", (EVENT, TWO_WAY)),
    Rule("5.12", "A second signaller's queue waits for the pending point; a host signal meanwhile is refused",
         (EVENT, TWO_WAY)),
    Rule("5.13", "IPC together with profiling raises InvalidArgumentError"),
    Rule("5.14", "Events cost no fd of their own", (EVENT,)),
    Rule("5.15", "When the process that owes a signal dies, waits raise PeerLostError within a second",
         (EVENT, TWO_WAY)),
    Rule("5.16", "A point that no living process can submit is lost with the last process that could have",
         (EVENT, TWO_WAY)),
    Rule("5.17", "A lost point releases queues: later work runs, later signals are lost, synchronize reports it once",
         (EVENT, TWO_WAY)),
    Rule("5.18", "A clean close or exit with nothing pending loses nothing", (EVENT, TWO_WAY)),
    Rule("5.19", "A queue that fails loses its points, with the cause in the message", (EVENT,)),
    Rule("5.20", "A lost point raises at each wait until a later signal completes", (EVENT, TWO_WAY, HOST)),
    Rule("5.21", "KeyboardInterrupt interrupts every wait", (EVENT,)),
    Rule("5.22", "bool of an event raises TypeError"),
    Rule("5.23", "synchronize has a time-out, after which the work still finishes", (EVENT,)),
    Rule("5.24", "from_native and native_ipc_handle refuse objects that no adapter knows"),
    Rule("5.25", "A queue of the importer can wait for an event before the event's first signal", (MEMORY, EVENT)),
    Rule("5.26", "Work behind a wait for a future point starts once the point completes, not before", (EVENT,)),
    Rule("5.27", "Queues of a device may wait for signals that its other queues get later, without a deadlock",
         (EVENT,)),
    Rule("5.28", "A loss passes from queue to queue, and the work behind it runs", (EVENT, TWO_WAY)),
    Rule("5.29", "An adopted queue waits, works and signals, and its stream stays the property of its library",
         (Aspect.adopted_queues,)),
    Rule("5.30", "If a process said signals=True or has signalled, its death alone counts, and all readers learn of it",
         (EVENT,)),
    Rule("5.31", "A signaller that closes cleanly loses nothing, and a new signaller ends a loss", (EVENT, TWO_WAY)),
    Rule("5.32", "With signals=False an event and its pickles only wait, and nobody relies on them", (EVENT,)),
    Rule("5.33", "A clean exit finishes what queues can finish, and waits for nothing else", (EVENT, TWO_WAY)),
    Rule("5.34", "An exit that abandons an event counts as a death, and so does a pickle that nobody opens in time",
         (EVENT, TWO_WAY)),
    # --- 6: arrays, and trees of them ---
    Rule("6.1", "A tree comes back with its keys, their order and types, its tuples, named tuples and other leaves",
         (MEMORY,)),
    Rule("6.2", "All arrays of a tree in one allocation have one export, and one mapping at the other end", (MEMORY,)),
    Rule("6.3", "An array that occurs twice in a tree is one array at the other end", (MEMORY,)),
    Rule("6.4", "Anything that is not a tree is refused: other keys, leaves and containers, a depth above 64",
         (MEMORY,)),
    Rule("6.5", "attach refuses the handle of a tree if any bit is flipped or any part is missing", (MEMORY,)),
    Rule("6.6", "opens and ttl count the whole tree", (MEMORY,)),
    Rule("6.7", "A failed attach of a tree leaves nothing open, and uses up no open", (MEMORY,)),
    Rule("6.8", "close withdraws the whole tree, and leaves attached arrays alone", (MEMORY,)),
    Rule("6.9", "attach(like=) returns the results of the function for each array", (MEMORY,)),
    Rule("6.10", "Readers of a tree wait for the stream that produces it", (MEMORY, EVENT)),
    Rule("6.11", "publish takes a tree, and replaces one", (MEMORY,)),
    Rule("6.12", "zeros are zero, even in memory that was used before", (MEMORY,)),
    Rule("6.13", "No later array lies in memory that an importer still has open, whoever else has closed it",
         (MEMORY,)),
    Rule("6.14", "A later array is attached with its own content, and the handles of an earlier one have expired",
         (MEMORY,)),
    Rule("6.15", "An owner shares, publishes and pickles attached arrays after their exporter has died by SIGKILL",
         (MEMORY, OUTLIVES)),
    Rule("6.16", "A chain of owners keeps memory alive, each after the death of the one before", (MEMORY, OUTLIVES)),
    Rule("6.17", "An owner exports nothing with more access than it attached, and with only= it owns only a part",
         (MEMORY, OUTLIVES)),
    Rule("6.18", "share forwards the original handles of other imports, as long as these can be opened",
         (MEMORY,)),
    Rule("6.19", "share of an import that is not owned here raises HandleExpiredError once the exporter is gone",
         (MEMORY, OUTLIVES)),
    # --- 8: the UR face ---
    Rule("8.1", "Every function checks its arguments, with UR's result for each fault"),
    Rule("8.2", "Every function refuses dead handles and other objects"),
    Rule("8.3", "Refused and expired handle data give ERROR_INVALID_VALUE", (MEMORY,)),
    Rule("8.4", "free, close and get take only addresses that functions of this face have returned", (MEMORY,)),
    Rule("8.5", "Sizes are checked against the memory: ERROR_INVALID_SIZE, ERROR_INVALID_USM_SIZE"),
    Rule("8.6", "Virtual memory is refused as in section 4, with ERROR_INVALID_VALUE", (VIRTUAL,)),
    Rule("8.7", "Events that cannot be shared, signalled or waited on are refused with UR's results"),
    Rule("8.8", "Physical memory made without ENABLE_IPC gives ERROR_INVALID_ARGUMENT", (VIRTUAL,)),
    Rule("8.9", "Objects are counted: they live until each reference has been released"),
    Rule("8.10", "Info queries return the objects and numbers that were given, and what a device supports"),
    Rule("8.11", "Memory, physical memory and events cross processes, and each face opens the handles of the other"),
    Rule("8.12", "Profiling times exist if requested; otherwise the result is ERROR_PROFILING_INFO_NOT_AVAILABLE"),
    Rule("8.13", "Waiting for an event whose signal was lost gives ERROR_IN_EVENT_LIST_EXEC_STATUS", (EVENT, TWO_WAY)),
    Rule("8.14", "Objects of another context, or a device that is not in it, are refused", (MEMORY,)),
    Rule("8.15", "The numbers of the results are Unified Runtime's"),
    # --- 9: waits ---
    Rule("9.1", "A wait of any kind takes at most 0.5 % of a CPU, or 2 % if only a device completes its signal",
         (MEMORY, EVENT, TWO_WAY)),
    # --- 10: channels, locks and atomics ---
    Rule("10.1",
         'Mode "all" sees every frame in order, "newest" the latest, "one" shares them out; finish() ends all',
         (MEMORY, EVENT, TWO_WAY)),
    Rule("10.2", "A frame that is held is never overwritten; a full channel behaves as its on_full says",
         (MEMORY, EVENT, TWO_WAY)),
    Rule("10.3", "A dead reader's frames are free; a writer's death ends the stream once it is drained",
         (MEMORY, EVENT, TWO_WAY, OUTLIVES)),
    Rule("10.4", "A lock has one holder, and reports its death to the next one; an atomic counts every addition"),
    Rule("10.5", "Device work on a frame follows its writer's, a slot's next writer that of its readers; no host waits",
         (MEMORY, EVENT, TWO_WAY, HOST, ADOPTED)),
    Rule("10.6", "Readers that reconnect get the next writer's frames, whether the slots outlive their maker or not",
         (MEMORY, EVENT, TWO_WAY)),
)  # fmt: skip

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
RULES: Final[dict[str, Rule]] = {each.number: each for each in _TABLE}
"""The table, by number."""


def select(wanted: Iterable[str]) -> list[str]:
    """Return the numbers of the rules that `wanted` selects. Each element of `wanted` is the number of a rule ("5.7" or
    "3.5b"), a number without its letter for all parts of that rule ("3.5"), or a section ("4").

    Raises `InvalidArgumentError` for anything else.
    """
    found: dict[str, None] = {}
    for item in wanted:
        numbers = [number for number in RULES if item in (number, number.partition(".")[0], number.rstrip(_LETTERS))]
        if not numbers:
            raise InvalidArgumentError(f"there is no rule {item}")
        found.update(dict.fromkeys(numbers))
    return list(found)


def rule(number: str) -> Callable[[T], T]:
    """Return a decorator that marks a test as a test of the rule with this number."""
    import pytest

    if number not in RULES:
        raise ValueError(f"there is no rule {number}")
    mark: Any = pytest.mark.rule(number)

    def name(test: T) -> T:
        marked: T = mark(test)
        return marked

    return name


_HEAD: Final = """# Conformance

`xpushare conformance --device gpu` checks every rule below on a device, across real processes, through the public API
only; with `--importer-device` the importing process works on another device of that backend. It needs pytest
(`pip install '.[conformance]'` in a checkout of xpushare) and takes less than a minute.

| in the report | means |
|---|---|
| passed | the rule holds |
| failed | the rule does not hold, or the device says that it lacks a feature but does not refuse it |
| not supported | the device lacks the named aspect, says why, and refuses the feature with `FeatureNotSupportedError` |

The exit status is 0 only if nothing failed. `--json` prints the same for programs; `--rules 3.5b,4` runs some of the
rules. In a clone of the repository, `python tests/faults` plants faults in the adapter and the core, one after the
other, and lists which rules caught each fault. Every fault must be caught.

There are {count} rules. Their numbers are sections of the contract. In section 3 the digits after the point are rules 1
to 11 of that section; 12 is pickling, and 13 other backends.
`python -m xpushare.conformance.rules` makes this page.
"""
_SECTIONS: Final = {
    "2": "Memory",
    "3": "Explicit handles",
    "4": "Virtual memory",
    "5": "Queues and events",
    "6": "Trees of arrays",
    "8": "The Unified Runtime face",
    "9": "Waits",
    "10": "Channels, locks and atomics",
}


def markdown() -> str:
    """Return the content of docs/conformance.md."""
    lines = [_HEAD.format(count=len(_TABLE))]
    for section, title in _SECTIONS.items():
        lines += [f"## {section}. {title}", "", "| rule | what holds | aspects |", "|---|---|---|"]
        for each in _TABLE:
            if each.number.split(".")[0] == section:
                lines.append(f"| {each.number} | {each.text} | {', '.join(each.aspects)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(), end="")

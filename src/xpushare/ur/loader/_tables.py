"""Generates the C half of the library from the declarations: an entry point for each function and dispatch tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from xpushare.common.aspects import Aspect
from xpushare.ur import _enums
from xpushare.ur._enums import Command, QueueInfo
from xpushare.ur._functions import FUNCTIONS, INFOS
from xpushare.ur._objects import HANDLES
from xpushare.ur._spec import Function, Touched
from xpushare.ur.loader._builds import BUILDS, OF_THE_LOADER, ORDER, PROTOTYPES, TABLES

__all__ = [
    "COUNTED",
    "HOST",
    "KIND_NUMBERS",
    "NUMBERED",
    "TRAITS",
    "Parameter",
    "command_of",
    "follows_queue",
    "kept_queries",
    "parameters",
    "tables",
    "takes_memory",
    "words_of",
]

NUMBERED: Final = sorted(FUNCTIONS.keys() - OF_THE_LOADER.split())
"""The names of the functions. The library identifies a function by its index in this list."""

_C: Final = {
    "u8": "uint8_t",
    "u32": "uint32_t",
    "i32": "int32_t",
    "u64": "uint64_t",
    "bool": "bool",
    "u64x3": "xp_three",
}

HEAD: Final = """\
/* Made by `python -m xpushare.ur._generate` from src/xpushare/ur: not to be edited. */
"""


class Parameter(NamedTuple):
    """A parameter of a C function."""

    name: str
    passed: str
    """How C passes it: `u8`, `i32`, `u32`, `u64`, `bool`, `u64x3`, `handle` or `ptr`."""
    optional: bool
    """Whether it may be null."""


def _prototypes() -> Iterator[tuple[str, tuple[Parameter, ...]]]:
    for line in PROTOTYPES.split(";"):
        name, *texts = line.split() or ("",)
        if name:
            split = (text.partition(":") for text in texts)
            yield name, tuple(Parameter(each, how.rstrip("?"), how.endswith("?")) for each, _colon, how in split)


_PARAMETERS: Final = dict(_prototypes())


def parameters(function: str) -> tuple[Parameter, ...]:
    """Return the parameters of the C function with the name `function`, in order."""
    return _PARAMETERS[function]


COUNTED: Final = tuple(kind for kind in HANDLES if kind not in ("adapter", "platform", "device"))
"""The kinds of handles whose references the library counts, in the order of their numbers, which begin at 1."""
KIND_NUMBERS: Final = {
    kind: number for number, kind in enumerate((*COUNTED, *(each for each in HANDLES if each not in COUNTED)), 1)
}
"""The numbers of all kinds of handles."""


def kept_queries(function: Function) -> frozenset[int]:
    """Return the queries whose answers the library can cache, because they depend only on a handle and never change.

    Queries of events are never cached, since their answers change when a newer command signals the event.
    """
    kinds = [arg.base_kind.replace("handle:event", "event").partition(":")[0] for arg in function.args]
    passed = [parameter.passed for parameter in parameters(function.name)]
    if kinds != ["handle", "enum"] or passed != ["handle", "u32", "u64", "ptr", "ptr"]:
        return frozenset()
    return INFOS[function.returns.removeprefix("info:")].lasting


def _native(function: Function) -> tuple[str, str] | None:
    """Return how the library answers calls of the function without Python, and the kind of handle that the function
    takes. Return None if the function needs Python.
    """
    kinds = [arg.base_kind.partition(":") for arg in function.args]
    family, _, kind = kinds[0] if kinds else ("", "", "")
    if family == "handle" and kind in COUNTED:
        if function.name == f"ur{HANDLES[kind].__name__}Retain":
            return "XP_RETAINS", kind
        if function.name == f"ur{HANDLES[kind].__name__}Release":
            return "XP_RELEASES", kind
    if any(arg.kind == "callback:event" for arg in function.args):
        return "XP_CALLS_BACK", kind
    if function.returns == "info:EventInfo":
        return "XP_STATUS", kind
    if kept_queries(function):
        return "XP_ASKS", kind
    if family == "sequence" and [each.name for each in function.operations] == ["Event.wait"]:
        return "XP_WAITS", kind
    if kind == "queue" and [each.name for each in function.operations] == ["Queue.synchronize"]:
        return "XP_FINISHES", kind
    return None


# --- commands that are enqueued without Python -------------------------------------------------------

TRAITS: Final = (Aspect.ext_oneapi_per_event_profiling,)
"""The aspects of a queue's device that some command needs. In the library, each of them is one bit of the queue."""
HOST: Final = 1 << len(TRAITS)
"""The bit of queues on the host, whose commands run without Python."""

_OPERATORS: Final[dict[type[ast.AST], str]] = {
    ast.And: "&&", ast.Or: "||", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Mod: "%", ast.BitAnd: "&",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "==", ast.IsNot: "!=",
}  # fmt: skip


class _OnlyPython(Exception):
    """Raised for a condition that cannot be translated to C."""


def _in_c(node: ast.expr, words: dict[str, int]) -> str:
    """Translate a condition of a check from Python to C. In C, the words of the call are in the array `a`. `words`
    gives the index of the word for each argument.
    """
    match node:
        case ast.BoolOp(op, values):
            return f"({f' {_OPERATORS[type(op)]} '.join(_in_c(each, words) for each in values)})"
        case ast.UnaryOp(ast.Not(), value):
            return f"!{_in_c(value, words)}"
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            return f"({_in_c(left, words)} {_OPERATORS[type(op)]} {_in_c(right, words)})"
        case ast.Compare(left, [op], [right]) if type(op) in _OPERATORS:
            return f"({_in_c(left, words)} {_OPERATORS[type(op)]} {_in_c(right, words)})"
        case ast.Call(ast.Name("len"), [ast.Name(name)]):
            return f"a[{words[name] - 1}]"
        case ast.Call(ast.Name("invalid_bits"), [ast.Name(flags), ast.Name(name)]):
            return f"(a[{words[name]}] & {_enums.INVALID_BITS[getattr(_enums, flags)]:#x}u)"
        case ast.Name(name) if name in words:
            return f"a[{words[name]}]"
        case ast.Constant(int(number)):
            return str(number)
        case ast.Constant(None):
            return "0"
        case _:
            raise _OnlyPython(ast.unparse(node))


_DOES: Final = {"Queue.copy": "XP_COPIES", "Queue.fill": "XP_FILLS", "": "XP_NOTHING"}
"""The library's constant for the work of a command, by the command's operation."""
_PLAIN: Final = ("handle", "sequence", "size", "pointer", "pattern", "bool", "flags")


def command_of(function: str) -> Command:
    """Return the kind of the command that the function with the name `function` enqueues."""
    words = re.findall(r"USM|2D|[A-Z][a-z]+", function.removeprefix("urEnqueue").removesuffix("Ext"))
    return Command["_".join(words).upper()]


def words_of(function: str) -> dict[str, int]:
    """Return, for each parameter of a C function, the index of the word in which it arrives."""
    found: dict[str, int] = {}
    at = 0
    for parameter in parameters(function):
        found[parameter.name] = at
        at += 3 if parameter.passed == "u64x3" else 1
    return found


def _form(function: Function) -> tuple[str, str] | None:
    """Return how the library can enqueue the function's command without Python, as two pieces of C source. The first is
    the initialiser of an `xp_command_form`. The second is a condition that is true if all checks succeed. If the
    condition is false, Python handles the call. Return None if Python has to handle every call.
    """
    words = words_of(function.name)
    if function.returns != "handle:event" or not function.args or function.args[0].kind != "handle:queue":
        return None
    form = {"event": str(words["phEvent"])}
    optional = {parameter.name for parameter in parameters(function.name) if parameter.optional}
    conditions = [] if "phEvent" in optional else [f"a[{form['event']}]"]
    touched = {each.pointer: each for each in function.touches}
    for arg in function.args[1:]:
        family = arg.base_kind.partition(":")[0]
        at = words[arg.name]
        if arg.kind == "sequence:event?":
            form["waits"] = str(at - 1)
        elif arg.kind == "handle:event?" and arg.name == "phEvent":
            form["given"] = "true"
        elif arg.optional:
            conditions.append(f"!a[{at}]")
        elif family not in _PLAIN or family == "handle" or (family == "pointer" and arg.name not in touched):
            return None
        elif family == "pattern":
            form["pattern"] = str(at)
        elif family == "bool":
            form["blocking"] = str(at)
    reaches: list[str] = []
    for each in function.touches:
        factors = [f"a[{words[name]}]" for name in each.nbytes.split(" * ")]
        nbytes, times = factors if len(factors) == 2 else (*factors, "1")
        use = f"XP_{each.use.upper()}"
        reaches.append(f"xp_reaches(backend, a[{words[each.pointer]}], {nbytes}, {times}, {use})")
    apart = {arg.name for arg in function.args if arg.optional} | {function.args[0].name}
    for check in function.checks:
        tree = ast.parse(check.condition, mode="eval").body
        named = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
        if named & apart:
            continue  # the queue and the events are checked, and the other optional parameters must be absent
        try:
            conditions.append(f"!{_in_c(tree, words)}")
        except _OnlyPython:
            return None
    if function.needs is not None:
        form["needs"] = str(1 << TRAITS.index(function.needs))
    if function.touches:
        form["uses"] = f"{{{', '.join(_use(words, each) for each in function.touches)}}}"
    form |= (does := _does(function, words))
    if "from" in does:  # drivers differ in how they treat overlapping bytes, so Python asks them
        sizes = [" * ".join(f"a[{words[name]}]" for name in each.nbytes.split(" * ")) for each in function.touches]
        begins = [f"a[{words[each.pointer]}]" for each in function.touches]
        conditions.append(f"xp_apart({begins[0]}, {sizes[0]}, {begins[1]}, {sizes[1]})")
    form["type"] = str(int(command_of(function.name)))
    conditions += reaches  # the most expensive conditions come last
    return ", ".join(f".{name} = {value}" for name, value in sorted(form.items())), " &&\n           ".join(conditions)


def _use(words: dict[str, int], touched: Touched) -> str:
    """Return the initialiser of an element of `uses` in an `xp_command_form`: where the command uses memory."""
    nbytes, *times = touched.nbytes.split(" * ")
    fields = {"at": touched.pointer, "nbytes": nbytes} | ({"times": times[0]} if times else {})
    return f"{{{', '.join(f'.{name} = {words[each]}' for name, each in fields.items())}}}"


def _does(function: Function, words: dict[str, int]) -> dict[str, str]:
    """Return the fields of the `xp_command_form` that describe how a queue on the host runs the command: its operation,
    such as a copy, and the words that contain its addresses and sizes.
    """
    [does] = [how for name, how in _DOES.items() if name in (*(each.name for each in function.operations), "")][:1]
    if does == "XP_NOTHING":
        return {}
    found = {"does": does}
    for each in function.touches:
        way = "to" if each.use == "writes" else "from"
        pitch, *rows = each.nbytes.split(" * ")
        found |= {way: str(words[each.pointer]), f"{way}_pitch": str(words[pitch])}
        if rows:
            found["rows"] = str(words[rows[0]])
        found["width"] = str(words["width" if rows else pitch])
    return found


def takes_memory(function: Function) -> str:
    """Return the name of the argument with the address of the memory that the function takes away, for instance by
    freeing it. Return an empty string if the function takes none away.

    Commands never use a mapped range without Python, which refuses to unmap what a command still uses.
    """
    return next((arg.name for arg in function.args if function.ends and arg.base_kind == "pointer"), "")


def follows_queue(function: Function) -> bool:
    """Return whether the function comes after the earlier commands of the queue that is its argument: it enqueues a
    command, waits for the commands, or returns the driver's queue. Other functions of a queue depend on no command.
    """
    does = function.operations or not function.returns.startswith(("None", "info:"))
    return bool(does) and any(arg.base_kind == "handle:queue" for arg in function.args)


def _order(function: Function) -> str:
    """Return the initialiser of an `xp_order`, which says which earlier commands must finish before Python handles this
    call. Apart from the commands of its own queue and events, these are the commands that use memory which the function
    takes away.
    """
    words = words_of(function.name)
    passed = {parameter.name: parameter.passed for parameter in parameters(function.name)}
    found: list[str] = []
    for arg in function.args:
        at = words[arg.name]
        if arg.base_kind == "handle:queue" and follows_queue(function):
            found.append(f".queue = {at + 1}")
        elif arg.base_kind == "handle:event":
            found.append(f".{'given' if passed[arg.name] == 'ptr' else 'event'} = {at + 1}")
        elif arg.base_kind == "sequence:event":
            found.append(f".events = {at}")
        elif arg.name == takes_memory(function):
            found.append(f".memory = {at + 1}")
        elif arg.base_kind == "handle:device" and function.name == "urDeviceWaitExp":
            found.append(f".device = {at + 1}")
    return ", ".join(found)


def _commands() -> Iterator[str]:
    """Yield the source of the C tables about commands."""
    forms = {name: form for name in NUMBERED if (form := _form(FUNCTIONS[name]))}
    yield "/* Whether no rule refuses a command. */"
    for name, (_fields, condition) in forms.items():
        unused = "" if "backend" in condition else "    (void)backend;\n"
        unused += "" if "a[" in condition else "    (void)a;\n"
        yield f"static bool {name}_plain(const uint64_t *a, uint32_t backend)"
        yield f"{{\n{unused}    return {condition or 'true'};\n}}\n"
    yield "static const xp_command_form xp_command_forms[XP_FUNCTIONS] = {"
    for name, (fields, _condition) in forms.items():
        yield f"    [{NUMBERED.index(name)}] = {{.plain = {name}_plain, {fields}}},"
    yield "};\n"
    yield "static const xp_order xp_orders[XP_FUNCTIONS] = {"
    for number, name in enumerate(NUMBERED):
        if order := _order(FUNCTIONS[name]):
            yield f"    [{number}] = {{{order}}}, /* {name} */"
    yield "};\n"


def _numbers() -> Iterator[str]:
    """Yield the C definitions of constants that depend on the declarations."""
    yield "#ifndef XP_FUNCTIONS"
    yield f"#define XP_FUNCTIONS {len(NUMBERED)}"
    waits = [number for number, name in enumerate(NUMBERED) if (_native(FUNCTIONS[name]) or ("",))[0] == "XP_WAITS"]
    yield f"#define XP_EVENT_WAIT {waits[0]}"
    yield f"#define XP_EVENTS_WAIT {NUMBERED.index('urEnqueueEventsWait')}"
    yield f"#define XP_HOST_TRAIT {HOST}"
    yield f"#define XP_COUNTED_KINDS {len(COUNTED)}"
    yield from (f"#define XP_{kind.upper()}_KIND {KIND_NUMBERS[kind]}" for kind in ("queue", "event"))
    yield f"#define XP_QUEUE_CONTEXT {QueueInfo.CONTEXT:d}"
    yield f"#define XP_QUEUE_DEVICE {QueueInfo.DEVICE:d}"
    yield f"#define XP_QUEUE_EMPTY {QueueInfo.EMPTY:d}"
    yield "#endif"


def _fingerprint(names: list[str]) -> str:
    """Return the initialiser of an `xp_fingerprint`, which identifies a set of names that a loader contains: how many
    they are, and the sum of their 64-bit FNV-1a hashes. The library computes the same numbers.
    """
    total = 0
    for name in names:
        number = 0xCBF29CE484222325
        for byte in name.encode():
            number = (number ^ byte) * 0x100000001B3 % (1 << 64)
        total += number
    return f"{{{len(names)}, {total % (1 << 64):#x}ull}}"


def _entry(number: int, function: Function) -> str:
    """Return the C source of a function's entry point, which passes its arguments on as 64-bit words."""
    declared: list[str] = []
    words: list[str] = []
    for i, parameter in enumerate(parameters(function.name)):
        declared.append(f"{_C.get(parameter.passed, 'void *')} a{i}".replace("* ", "*"))
        if parameter.passed == "u64x3":
            words += [f"a{i}.{axis}" for axis in "xyz"]
        else:
            words.append(f"(uintptr_t)a{i}" if parameter.passed in ("handle", "ptr") else f"a{i}")
    return (
        f"static uint32_t {function.name}({', '.join(declared)})\n"
        f"{{\n    const uint64_t words[] = {{{', '.join(words)}}};\n"
        f"    return xp_answer({number}, words, {len(words)});\n}}\n"
    )


def tables() -> str:
    """Return the text of the C header `functions.h`."""
    lines = [HEAD, *_numbers(), "", "#ifdef XP_TABLE /* the entry points and tables, for one file */", ""]
    lines += [_entry(number, FUNCTIONS[name]) for number, name in enumerate(NUMBERED)]
    lines += ["/* Gives something back: answered as done where nothing can be asked any more. */"]
    lines += ["static const bool xp_ends[XP_FUNCTIONS] = {"]
    lines += [f"    [{number}] = true, /* {name} */" for number, name in enumerate(NUMBERED) if FUNCTIONS[name].ends]
    lines += ["};", ""]
    lines += ["/* What is answered without Python, and for which kind of handles. */"]
    lines += ["static const struct {", "    uint8_t how, kind;", "} xp_native_answers[XP_FUNCTIONS] = {"]
    for number, name in enumerate(NUMBERED):
        if native := _native(FUNCTIONS[name]):
            lines += [f"    [{number}] = {{{native[0]}, {KIND_NUMBERS[native[1]]}}}, /* {name} */"]
    lines += ["};", ""]
    lines += _commands()
    known: dict[tuple[str, str], str] = {}
    for getter, layouts in TABLES.items():
        for i, (builds, names) in enumerate(layouts.items()):
            known |= {(getter, build): f"{getter}_{i}" for build in builds.split()}
            slots = [f"XP_SLOT({name})" if name in FUNCTIONS else f"XP_NONE /* {name} */" for name in names.split()]
            lines += [f"static const xp_slot {getter}_{i}[] = {{", *(f"    {slot}," for slot in slots), "};"]
    getters = sorted(TABLES)
    lines += ["", *(f"#define XP_{getter} {i}" for i, getter in enumerate(getters)), ""]
    lines += [f"#define XP_TABLES {len(getters)}", "#define XP_GETTERS(G) \\"]
    lines += ["    " + " ".join(f"G({getter})" for getter in getters), ""]
    lines += ["static const xp_build xp_builds[] = {"]
    for build in BUILDS:
        order = ORDER[build].split()
        by_name = {
            getter: names for getter in order for builds, names in TABLES[getter].items() if build in builds.split()
        }
        named = [name for names in by_name.values() for name in names.split()]
        lines += [f'    {{"{build}", {_fingerprint(named)}, {_fingerprint(order)}, {{']
        lines += [f"        XP_TABLE(XP_{getter}, {known[getter, build]})," for getter in order]
        lines += ["    }},"]
    return "\n".join([*lines, "};", "", "#endif", ""])

"""Print shell completions for the commands and options of xpushare.

bash:  eval "$(xpushare completion bash)" in ~/.bashrc

zsh:   xpushare completion zsh > "${fpath[1]}/_xpushare"

fish:  xpushare completion fish > ~/.config/fish/completions/xpushare.fish
"""

from __future__ import annotations

import argparse
from typing import Any, Final, NamedTuple

__all__ = ["add_arguments", "run"]


class _Command(NamedTuple):
    name: str
    help: str
    options: dict[str, str]  # option -> its help
    choices: tuple[str, ...]  # the values of an argument that is not an option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(_SHELLS))


def _commands() -> list[_Command]:
    """Return the names, options and other arguments of all commands."""
    from xpushare.cli import parser

    (subparsers,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))  # pyright: ignore[reportPrivateUsage]
    helps = {each.dest: each.help or "" for each in subparsers._choices_actions}  # pyright: ignore[reportPrivateUsage]
    found: list[_Command] = []
    for name, command in subparsers.choices.items():
        actions: list[Any] = command._actions
        options = {option: each.help or "" for each in actions for option in each.option_strings}
        choices = [str(choice) for each in actions if not each.option_strings for choice in each.choices or ()]
        found.append(_Command(name, helps[name], options, tuple(choices)))
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _bash(commands: list[_Command]) -> str:
    cases = [f"        {each.name}) words={_quoted(' '.join([*each.options, *each.choices]))} ;;" for each in commands]
    names = _quoted(" ".join(each.name for each in commands))
    return "\n".join(
        [
            "_xpushare() {",
            f"    local words={names}",
            '    if [ "$COMP_CWORD" -gt 1 ]; then',
            '        case "${COMP_WORDS[1]}" in',
            *cases,
            "        *) words= ;;",
            "        esac",
            "    fi",
            '    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))',
            "}",
            "complete -o default -F _xpushare xpushare",
        ]
    )


def _zsh(commands: list[_Command]) -> str:
    def described(pairs: dict[str, str]) -> str:
        return " ".join(_quoted(f"{name}:{text}") for name, text in pairs.items())

    cases = [
        f"        {each.name}) found=({described(each.options | dict.fromkeys(each.choices, ''))}) ;;"
        for each in commands
    ]
    return "\n".join(
        [
            "#compdef xpushare",
            "_xpushare() {",
            "    local -a found",
            f"    found=({described({each.name: each.help for each in commands})})",
            "    if (( CURRENT > 2 )); then",
            "        case $words[2] in",
            *cases,
            "        *) found=() ;;",
            "        esac",
            "    fi",
            "    _describe xpushare found || _files",
            "}",
            '[ "$funcstack[1]" = _xpushare ] && _xpushare || compdef _xpushare xpushare',
        ]
    )


def _fish(commands: list[_Command]) -> str:
    lines: list[str] = []
    for each in commands:
        lines.append(f"complete -c xpushare -n __fish_use_subcommand -a {each.name} -d {_quoted(each.help)}")
        within = f"complete -c xpushare -n {_quoted(f'__fish_seen_subcommand_from {each.name}')}"
        for option, text in each.options.items():
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"{within} {kind} -d {_quoted(text)}")
        lines += [f"{within} -a {choice}" for choice in each.choices]
    return "\n".join(lines)


_SHELLS: Final = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def run(arguments: argparse.Namespace) -> int:
    """Print the completions. Always returns 0."""
    print(_SHELLS[arguments.shell](_commands()))
    return 0

"""Scripts that complete the command line in bash, zsh and fish, generated from its parsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping

from .experiments._errors import unknown

Commands = Mapping[str, tuple[str, list[argparse.Action]]]
"""for each command its help text and its arguments"""
Words = Mapping[str, Iterable[str]]
"""the values that may replace a word that the help shows in capitals"""
FILES = ("DIR", "FILE")
TOP = {"--help": "Show the commands.", "--version": "Show the version."}


def script(shell: str, commands: Commands, words: Words) -> str:
    """The script for a shell."""
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    return SHELLS[shell](commands, words)


def _bash(commands: Commands, words: Words) -> str:
    cases = []
    for name, (_, arguments) in commands.items():
        offered = [option for a in arguments for option in a.option_strings]
        offered += [word for a in arguments for word in _values(a, words)]
        files = "files=1; " if any(_is_file(a) for a in arguments if not a.option_strings) else ""
        cases.append(f'            {name}) {files}words="{" ".join(offered)}" ;;')
    options = [a for _, arguments in commands.values() for a in arguments if _takes_value(a)]
    paths = sorted({option for a in options if _is_file(a) for option in a.option_strings})
    others = sorted({option for a in options if not _is_file(a) for option in a.option_strings})
    lines = "\n".join(cases)
    return f"""\
# Completion of qkcore in bash. In ~/.bashrc: eval "$(qkcore completion bash)"
_qkcore() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} files= words=
    case ${{COMP_WORDS[COMP_CWORD-1]}} in
        {"|".join(paths)}) COMPREPLY=($(compgen -f -- "$current")); return ;;
        {"|".join(others)}) COMPREPLY=(); return ;;
    esac
    if ((COMP_CWORD == 1)); then
        words="{" ".join([*commands, *TOP])}"
    else
        case ${{COMP_WORDS[1]}} in
{lines}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if [[ $files ]]; then COMPREPLY+=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _qkcore qkcore"""


def _zsh(commands: Commands, words: Words) -> str:
    listed = " ".join(f"'{name}:{_plain(help)}'" for name, (help, _) in commands.items())
    options = " ".join(f"'{name}:{_plain(help)}'" for name, help in TOP.items())
    cases = []
    for name, (_, arguments) in commands.items():
        specs = []
        for a in arguments:
            values = " ".join(_values(a, words))
            action = "_files" if _is_file(a) else f"({values})" if values else ""
            message = f":{a.metavar}:{action}" if a.metavar else ""
            if a.option_strings:
                names = a.option_strings
                many = "*" if isinstance(a.default, list) else ""
                specs += [f"'{many}{option}[{_plain(a.help or '')}]{message}'" for option in names]
            else:
                specs.append(f"'{'*' if a.nargs == '*' else '1'}{message}'")
        cases.append(f"        {name}) _arguments {' '.join(specs)} ;;")
    lines = "\n".join(cases)
    return f"""\
#compdef qkcore
# Completion of qkcore in zsh. In ~/.zshrc, after compinit: eval "$(qkcore completion zsh)"
_qkcore() {{
    local -a commands=({listed}) options=({options})
    if (( CURRENT == 2 )); then
        _describe command commands
        _describe -o option options
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in
{lines}
    esac
}}
compdef _qkcore qkcore"""


def _fish(commands: Commands, words: Words) -> str:
    lines = [
        "# Completion of qkcore in fish: qkcore completion fish > ~/.config/fish/completions/qkcore.fish",
        "function __qkcore_is",
        "    set -l words (commandline -opc)",
        '    test (count $words) -gt 1; and test "$words[2]" = $argv[1]',
        "end",
        "complete -c qkcore -f",
    ]
    for option, help in TOP.items():
        lines.append(f"complete -c qkcore -n __fish_use_subcommand -l {option[2:]} -d '{help}'")
    for name, (help, arguments) in commands.items():
        lines.append(f"complete -c qkcore -n __fish_use_subcommand -a {name} -d '{_plain(help)}'")
        for a in arguments:
            start = f"complete -c qkcore -n '__qkcore_is {name}'"
            value = (" -r -F" if _is_file(a) else " -x") if _takes_value(a) else ""
            told = f" -d '{_plain(a.help or '')}'"
            for option in a.option_strings:
                kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                lines.append(f"{start} {kind}{value}{told}")
            if values := " ".join(_values(a, words)):
                lines.append(f"{start} -a '{values}'{told}")
            elif _is_file(a) and not a.option_strings:
                lines.append(f"{start} -F{told}")
    return "\n".join(lines)


SHELLS: dict[str, Callable[[Commands, Words], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _takes_value(a: argparse.Action) -> bool:
    return bool(a.option_strings) and a.nargs != 0


def _is_file(a: argparse.Action) -> bool:
    return a.metavar in FILES


def _values(a: argparse.Action, words: Words) -> list[str]:
    return [] if a.option_strings else list(words.get(str(a.metavar), ()))


def _plain(text: str) -> str:
    """The text without characters that mean something to a shell, such as quotes, brackets and colons.

    >>> _plain("settings that differ (default: 'none')")
    'settings that differ (default none)'
    """
    return "".join(c for c in text if c not in "'\"[]:\\`$").rstrip(".")

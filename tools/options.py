"""Command-line options from the typed fields of a dataclass.

A verb is a module of ``onrig.tools.verbs``: its docstring is the description, the fields of its ``Options`` are the
arguments, their docstrings the help, and ``main(options)`` returns the exit code. Fields before ``_: KW_ONLY`` are
positional arguments, and those after it are options: ``dry_run: bool = False`` becomes ``--dry-run``, an option with a
tuple type may be repeated, and a field without a default is required. A verb imports its implementation in ``main``, so
that its help appears immediately.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import shutil
import textwrap
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from onrig.tools.terminal import VerbParser


class Value(NamedTuple):
    """Value of an argument: placeholder, default help, and kind of shell completion."""

    metavar: str
    help: str = ""
    complete: str = ""
    """Kind of shell completion: ``config``, ``experiment``, ``plant``, ``run``, ``file``, ``folder`` or ``port``; empty
    for none.
    """
    implied_value: str | float | None = None
    """Value of an option that is given without one; None if the option requires a value."""


Config = Annotated[str, Value("CONFIG", "Path or shipped name of a configuration.", "config")]
RunFolder = Annotated[Path, Value("RUN", "Run folder.", "run")]
File = Annotated[Path, Value("FILE", complete="file")]
Folder = Annotated[Path, Value("DIR", complete="folder")]
Port = Annotated[str, Value("PORT", "Serial port of a real device, or of a twin that runs elsewhere.", "port")]
Count = Annotated[int, Value("N")]
Web = Annotated[str, Value("PORT", implied_value="")]
Experiment = Annotated[str, Value("SPEC", complete="experiment")]
Seconds = Annotated[float, Value("S")]
Trust = Annotated[bool, Value("", "Trust the Python files that a configuration names, even if another user owns them.")]
Seed = Annotated[int, Value("N", "Random seed.")]
Overrides = Annotated[
    tuple[str, ...], Value("a.b=c", "Override a value of the configuration; may be repeated (see onrig settings).")
]
Json = Annotated[str, Value("FILE", "Write JSON to FILE; without FILE, print it instead of the text.", "file", "-")]


class UsageError(Exception):
    """Missing or contradictory arguments; the message is one line for the user."""


class Argument(NamedTuple):
    """One argument of a verb."""

    name: str
    type: type
    value: Value
    choices: tuple[str, ...]
    positional: bool
    required: bool
    is_repeatable: bool
    default: object
    help: str

    @property
    def flag(self) -> str:
        """Option on the command line: ``--dry-run``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def usage(self) -> str:
        """Notation in a usage line: ``[--web [PORT]]``, ``RUN``, ``[--set a.b=c]...``."""
        value = "" if self.type is bool else self.value.metavar
        text = value if self.value.implied_value is None else f"[{value}]"
        if not self.positional:
            text = f"{self.flag} {text}".strip()
        if not self.required:
            text = f"[{text}]"
        return text + "..." * self.is_repeatable


def arguments_of(options: type) -> list[Argument]:
    """Return the arguments described by the fields of a dataclass."""
    hints, docs = get_type_hints(options, include_extras=True), field_docs(options)
    return [_argument(f.name, hints[f.name], f.default, bool(f.kw_only), docs.get(f.name, "")) for f in fields(options)]


def _argument(name: str, hint: Any, default: object, kw_only: bool, doc: str) -> Argument:
    value, is_repeatable, choices = Value(name.upper()), False, ()
    while get_origin(hint) is not None:
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Annotated:
            hint, value = inner[0], inner[1]
        elif origin is tuple:
            hint, is_repeatable = inner[0], True
        elif origin in (Union, types.UnionType):
            (hint,) = (choice_type for choice_type in inner if choice_type is not type(None))
        elif origin is Literal:
            hint, choices, value = str, inner, Value("|".join(inner))
        else:
            raise TypeError(f"{name}: no command-line argument has the type {hint}")
    return Argument(
        name,
        hint,
        value,
        choices,
        not kw_only,
        default is MISSING,
        is_repeatable,
        default,
        _help_text(doc or value.help, default),
    )


def _help_text(doc: str, default: object) -> str:
    text = plain(doc).removesuffix(".")
    complete = default in (MISSING, None, False, (), "") or "default" in text
    return text if complete else f"{text} (default: {f'{default:g}' if isinstance(default, float) else default})"


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings of a class's attributes, including inherited ones, each as one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__annotations__" not in base.__dict__:
            continue
        (class_definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(class_definition, ast.ClassDef)
        for statement, following in zip(class_definition.body, class_definition.body[1:], strict=False):
            match statement, following:
                case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc)))):
                    docs[name] = one_line(doc)
    return docs


def one_line(doc: str) -> str:
    """Format a docstring as one line, with Markdown code marks."""
    return " ".join(doc.replace("``", "`").split())


def plain(doc: str) -> str:
    """Remove the backticks from a docstring, for display in a terminal."""
    return doc.replace("`", "")


def verb_module(verb: str) -> types.ModuleType:
    """Import the module of a verb: ``run``, or ``policy check`` of a group."""
    return import_module(f"onrig.tools.verbs.{verb.replace(' ', '.').replace('-', '_')}")


def parser_of(verb: str, module: types.ModuleType) -> VerbParser:
    """Return the argument parser of a verb's module."""
    arguments = arguments_of(module.Options)
    parser = VerbParser(
        prog=f"onrig {verb}",
        usage=_wrap_usage(usage(verb, arguments)),
        description=description(module.__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    for argument in arguments:
        _add_argument(parser, argument)
    parser.add_argument("-h", "--help", action="help", help="Show this help")
    return parser


def usage(verb: str, arguments: Sequence[Argument]) -> str:
    """Return the usage line: ``onrig watch [RUN] [--once] [--plain]``."""
    return " ".join([f"onrig {verb}", *(a.usage for a in sorted(arguments, key=lambda a: not a.positional))])


def _wrap_usage(line: str) -> str:
    columns = min(shutil.get_terminal_size().columns, 120)
    parts = line.replace(" [", "\n[").replace(" --", "\n--").split("\n")  # keeps an option and its value on one line
    rows, width = [parts[0]], len("usage: ")
    for part in parts[1:]:
        if len(rows[-1]) + len(part) + 1 + width > columns:
            rows.append(" " * width + "    " + part)
        else:
            rows[-1] += f" {part}"
    return "\n".join(rows)


def _add_argument(parser: argparse.ArgumentParser, a: Argument) -> None:
    names = [a.name] if a.positional else [a.flag]
    help_ = a.help.replace("%", "%%")
    if a.type is bool:
        parser.add_argument(*names, action="store_true", help=help_)
        return
    keywords: dict[str, Any] = {"metavar": a.value.metavar, "type": _value_parser(a), "help": help_}
    if a.positional and (a.is_repeatable or not a.required):
        keywords["nargs"] = ("+" if a.required else "*") if a.is_repeatable else "?"
    elif a.is_repeatable:
        keywords["action"] = "append"
    if a.value.implied_value is not None:
        keywords |= {"nargs": "?", "const": a.value.implied_value}
    if not a.positional:
        keywords["required"] = a.required
    parser.add_argument(*names, default=None if a.default is MISSING or a.is_repeatable else a.default, **keywords)


def _value_parser(a: Argument) -> Callable[[str], object]:
    """Return the function that converts a word into the argument's value; its errors are messages to the user."""

    def parse(text: str) -> object:
        if a.choices and text not in a.choices:
            from onrig.runtime.config.problem import hint

            raise argparse.ArgumentTypeError(f"expected {' or '.join(a.choices)}, got '{text}'{hint(text, a.choices)}")
        try:
            value: object = a.type(text)
        except ValueError:
            expected = "a whole number" if a.type is int else "a number"
            raise argparse.ArgumentTypeError(f"expected {expected}, got '{text}'") from None
        return value

    return parse


def description(doc: str) -> str:
    """Format a docstring's paragraphs for the terminal."""
    columns = min(shutil.get_terminal_size().columns, 120)
    return "\n\n".join(textwrap.fill(plain(one_line(paragraph)), columns) for paragraph in doc.strip().split("\n\n"))


def run_verb(verb: str, arguments: list[str]) -> int:
    """Parse the arguments, run the verb, and return the exit code."""
    module = verb_module(verb)
    parser = parser_of(verb, module)
    values = vars(parser.parse_args(arguments))
    repeatable_names = {argument.name for argument in arguments_of(module.Options) if argument.is_repeatable}
    options = module.Options(**{name: tuple(v or ()) if name in repeatable_names else v for name, v in values.items()})
    if getattr(options, "trust", False):
        from onrig.runtime.python_files import trust_everything

        trust_everything()
    try:
        code: int = module.main(options)
    except UsageError as wrong:
        parser.error(str(wrong))
    return code

"""Reference of all settings, with values, defaults and meanings, for a terminal and as a page."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from onrig.runtime.config.problem import ConfigError, hint
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_loading import load_run
from onrig.tools.fields import REQUIRED, Field, Section, first_sentence, sections_of_run
from onrig.tools.load import print_problems
from onrig.tools.load import sections as owned_sections
from onrig.tools.terminal import complain

_INDENT: Final = "    "
_HEAD: Final = """# Settings

All settings of a run's configuration, as printed by `onrig settings --markdown`; `onrig settings limits` shows one
section in a terminal. [configs/README.md](../configs/README.md) explains how they work together; `onrig check RUN
--explain` shows the values of a run. Quantities are in SI units. A setting without a default is optional unless it is
*required*.
"""


def show(paths: Sequence[str], config: str | None, *, markdown: bool) -> int:
    """Print the settings at the given paths (or, without paths, the list of sections), and return the exit code.

    ``config`` is a configuration whose plugin files are included.
    """
    try:
        if config is not None:
            load_run(config)
    except ConfigError as error:
        return print_problems(error)
    sections = sections_of_run(owned_sections())
    if markdown:
        print(markdown_page(sections), end="")
        return ExitCode.OK
    if not paths:
        print("\n".join(overview(sections)))
        return ExitCode.OK
    for path in paths:
        matching_sections = sections_below(sections, path)
        if not matching_sections:
            names = [s.path for s in sections] + [
                f"{s.path}.{f.name}".removeprefix(".") for s in sections for f in s.fields
            ]
            return complain(
                "settings", f"unknown setting '{path}'{hint(path, names)}; `onrig settings` lists the sections"
            )
        print(
            "\n".join(
                line
                for section in matching_sections
                for line in section_lines(section, shutil.get_terminal_size().columns)
            )
        )
    return ExitCode.OK


def sections_below(sections: Sequence[Section], path: str) -> list[Section]:
    """Return the sections at and below a path; for a single setting, its section with only this setting."""
    path_parts = path.split(".")
    sections_with_depth = [
        (section, len(section.path_parts) - len(path_parts))
        for section in sections
        if _path_matches(section.path_parts, path_parts)
    ]
    if subsections := [section for section, depth in sections_with_depth if depth >= 0]:
        return subsections
    parents = [
        section._replace(fields=tuple(field for field in section.fields if field.name == path_parts[-1]))
        for section, depth in sections_with_depth
        if depth == -1
    ]
    return [section for section in parents if section.fields or section.variant.startswith(f"{path_parts[-1]}: ")]


def _path_matches(section_parts: Sequence[str], path_parts: Sequence[str]) -> bool:
    """Return whether the path of a section and a given path agree over their common length; list marks are optional."""
    pairs = zip(section_parts, path_parts, strict=False)
    return all(name in ("NAME", part) or part in name.replace("[]", "").split(" | ") for name, part in pairs)


def overview(sections: Sequence[Section]) -> Iterator[str]:
    """Yield one line for each section."""
    titles = [_title(section) or "(top level)" for section in sections]
    width = max(map(len, titles))
    for title, section in zip(titles, sections, strict=True):
        yield f"{title.ljust(width)}  {_plain(first_sentence(section.meaning)).removesuffix('.')}".rstrip()


def section_lines(section: Section, columns: int) -> Iterator[str]:
    """Yield the lines of a section for a terminal."""
    yield _title(section) or "(top level)"
    yield from textwrap.wrap(_plain(section.meaning), columns, initial_indent=_INDENT, subsequent_indent=_INDENT)
    for field in section.fields:
        default = field.default if field.default in ("", REQUIRED) else f"default {field.default}"
        yield f"  {field.name}: {field.values}{', ' if default else ''}{default}"
        yield from textwrap.wrap(_plain(field.meaning), columns, initial_indent=_INDENT, subsequent_indent=_INDENT)
    yield ""


def markdown_page(sections: Sequence[Section]) -> str:
    """Return all sections as Markdown."""
    parts = [_HEAD]
    for section in sections:
        heading_mark = "##" if section.path.count(".") == 0 and not section.variant else "###"
        parts.append(f"{heading_mark} {f'`{_title(section)}`' if _title(section) else 'Top level'}\n")
        if section.meaning:
            parts.append(f"{section.meaning}\n")
        if section.fields:
            rows = [_row(field) for field in section.fields]
            parts.append("\n".join(["| setting | values | default | meaning |", "|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _row(field: Field) -> str:
    default = f"*{REQUIRED}*" if field.default == REQUIRED else f"`{field.default}`" if field.default else ""
    cells = (f"`{field.name}`", field.values, default, field.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _title(section: Section) -> str:
    return f"{section.path} ({section.variant})" if section.variant else section.path


def _plain(meaning: str) -> str:
    return meaning.replace("`", "")

"""Loading of a run configuration by name or path, with named rigs and tasks, overrides and cross checks.

All problems of all sections are reported together, each with file, line and column, before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.hw.rig import Rig
from onrig.runtime.config.conversion import Conversion, read, read_by_section, read_sections
from onrig.runtime.config.document import (
    Document,
    find_config,
    load_document,
    override,
    override_origin,
    parse_content,
    problem_at,
)
from onrig.runtime.config.identified import KEY, check_identified_channels, identified_file, with_identified
from onrig.runtime.config.pieces import KEY as PYTHON
from onrig.runtime.config.pieces import holds_results, with_copies, with_files, with_plugins
from onrig.runtime.config.problem import START, ConfigError, Finding, NodePath, Problem
from onrig.runtime.config.recipe import KEY as RECIPE
from onrig.runtime.config.recipe import with_recipe
from onrig.runtime.config.tables import with_tables
from onrig.runtime.config.yaml_nodes import Data, dump_yaml, value_at
from onrig.runtime.config_kinds import RIG, TASK, explain_kind, kind_of, shipped_kind
from onrig.runtime.run_checks import findings
from onrig.runtime.run_config import Device, RunConfig, to_plain_data
from onrig.runtime.task import Task

_NAMED_PARTS: Final[dict[str, tuple[str, type[Rig] | type[Task]]]] = {RIG: ("rigs", Rig), TASK: ("tasks", Task)}

SectionTypes = Callable[[], Mapping[NodePath, type]]
"""Function that returns the types of the sections defined by other packages, keyed by path; it is called once the
configuration's plugins are registered."""
Checks = Callable[[RunConfig], Iterable[Finding]]


class LoadingRules(NamedTuple):
    """Checks and adjustments that the caller adds when it loads a configuration."""

    refusal_checks: Checks = lambda config: ()
    """Checks whose findings make the configuration invalid."""
    warning_checks: Checks = lambda config: ()
    """Checks whose findings are only warnings."""
    on_warning: Callable[[Problem], None] = lambda problem: None
    """Callback that receives each warning about a valid configuration."""
    adjust: Callable[[RunConfig], RunConfig] = lambda config: config
    """Adjustment made before the checks, such as one requested by a command-line option (``--device``)."""
    common_checks: Checks = findings
    """Checks applied to every configuration."""


def load_run(
    name: str, overrides: Sequence[str] = (), sections: SectionTypes | None = None, rules: LoadingRules | None = None
) -> RunConfig:
    """Load, override and check a run's configuration.

    ``sections``: types of the sections defined by other packages (``("device", "twin")``); ``rules``: additional
    checks. Raises ConfigError with every problem found.
    """
    try:
        path = find_config(name)
    except FileNotFoundError as error:
        kind = shipped_kind(name)
        raise ConfigError([Problem(name, START, explain_kind(kind, name) if kind else str(error))]) from None
    document = load_document(path)
    if kind := kind_of(document.data):
        raise ConfigError([Problem(str(path), START, explain_kind(kind, name, path))])
    # Overrides within a named rig or task need its mapping, so the names are overridden and resolved first.
    part_overrides = [o for o in overrides if o.split("=", 1)[0].strip() in (*_NAMED_PARTS, KEY, RECIPE)]
    for assignment in part_overrides:
        document = override(document, assignment)
    parts: dict[str, Document] = {}
    problems: list[Problem] = []
    for key, (folder, _) in _NAMED_PARTS.items():
        try:
            part = _named_part(document, key, folder, path.parent)
        except ConfigError as error:
            problems += error.problems
        else:
            if part is not None:
                parts[key] = part
    try:
        document = with_recipe(document, path.parent)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    try:
        document, identification = with_identified(document, path.parent, _rig_name(document, parts))
    except ConfigError as error:
        problems += error.problems
    for assignment in overrides:
        if assignment in part_overrides:
            continue
        try:
            document, parts = _apply_override(document, parts, assignment)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    if TASK in parts:
        parts[TASK] = with_tables(parts[TASK], (), Path(parts[TASK].file).parent)
    else:
        document = with_tables(document, (TASK,), path.parent)
    data = holds_results(path)
    document = with_files(with_plugins(document, None if data else path.parent), path.parent)
    if data:
        document = with_copies(document, path.parent)
    config = _check_config(document, parts, sections or dict, rules or LoadingRules())
    check_identified_channels(identification, config.rig, document)
    return config


def find_identification(name: str, overrides: Sequence[str] = ()) -> Path | None:
    """Return the result of `onrig identify` that a configuration names, or None if it names none; raises ConfigError.

    Expects a configuration that `load_run` accepts.
    """
    path = find_config(name)
    document = load_document(path)
    for assignment in overrides:
        if assignment.split("=", 1)[0].strip() == KEY:
            document = override(document, assignment)
    return identified_file(document, path.parent)


def load_resolved(path: Path, sections: SectionTypes | None = None) -> RunConfig:
    """Load the resolved configuration of a run folder; raises ConfigError."""
    return _check_config(_read_resolved_document(path), {}, sections or dict, LoadingRules())


def load_started(path: Path) -> RunConfig:
    """Load the configuration of a run in progress, in one of its processes; raises ConfigError.

    Checks only types and bounds: the supervisor has done all checks, some of which take a tenth of a second.
    """
    return _check_config(_read_resolved_document(path), {}, dict, LoadingRules(common_checks=lambda config: ()))


def _read_resolved_document(path: Path) -> Document:
    return with_copies(with_plugins(load_document(path), None), path.parent)


def read_resolved(
    text: bytes, file: str, sections: SectionTypes | None = None, *, folder: Path | None = None
) -> RunConfig:
    """Read the resolved configuration of a run from its text; ``file`` is its name in messages.  Raises ConfigError.

    ``folder``: the run's folder, whose copies replace files that are missing or have changed.
    """
    document = with_plugins(parse_content(text, file), None)
    return _check_config(
        document if folder is None else with_copies(document, folder), {}, sections or dict, LoadingRules()
    )


def save_resolved(config: RunConfig, path: Path) -> None:
    """Write a configuration with its named parts expanded."""
    path.write_text(resolved_text(config), encoding="utf-8")


def resolved_text(config: RunConfig) -> str:
    """Return a configuration as YAML with its named parts expanded."""
    return dump_yaml(to_plain_data(config))


def _named_part(document: Document, key: str, folder: str, base: Path) -> Document | None:
    """Load the file named by ``rig: NAME`` or ``task: NAME``; return None if the mapping is inline or missing."""
    if not isinstance(document.data, dict) or not isinstance(document.data.get(key), str):
        return None
    name = str(document.data[key])
    try:
        part = load_document(find_config(name, folder, base))
    except FileNotFoundError as error:
        raise ConfigError([problem_at(document, (key,), f"{error} at {key}")]) from None
    kind = kind_of(part.data)
    if kind not in (None, key):
        raise ConfigError([problem_at(document, (key,), f"'{name}' is a {kind}, not a {key}, at {key}")])
    return part


def _rig_name(document: Document, parts: Mapping[str, Document]) -> object:
    inline = document.data.get("rig") if isinstance(document.data, dict) else None
    rig = parts["rig"].data if "rig" in parts else inline
    return rig.get("name") if isinstance(rig, dict) else None


def _apply_override(
    document: Document, parts: dict[str, Document], assignment: str
) -> tuple[Document, dict[str, Document]]:
    head, _, remainder = assignment.partition(".")
    if head.strip() in parts and "=" not in head:
        part = override(parts[head.strip()], remainder, origin=override_origin(assignment))
        return document, {**parts, head.strip(): part}
    return override(document, assignment), parts


def _check_config(
    document: Document, parts: Mapping[str, Document], sections: SectionTypes, rules: LoadingRules
) -> RunConfig:
    problems: list[Problem] = []
    repaired_paths: list[NodePath] = []
    section_values: dict[str, object] = {}
    for key, part in parts.items():
        part_read = read_by_section(part, _NAMED_PARTS[key][1])
        section_values[key] = part_read.value
        problems += part_read.problems
        repaired_paths += ((key, *node_path) for node_path in part_read.repaired_paths)
    fields = msgspec.structs.fields(RunConfig)
    types = {f.encode_name: str if f.encode_name in parts else f.type for f in fields}
    inline = read_sections(document, types, optional={f.encode_name for f in fields if not f.required})
    section_values = {**(inline.value or {}), **section_values}
    problems += inline.problems
    repaired_paths += inline.repaired_paths
    try:
        external_types = sections()
    except ValueError as error:
        raise ConfigError([problem_at(document, (PYTHON,), str(error))]) from None
    for node_path, type_ in external_types.items():
        if _has_section(document, node_path):
            section: Conversion[object] = read(document, node_path, type_)
            # The round trip through JSON turns tuples into lists, as when the resolved file is read.
            section_values = _with_section(
                section_values, node_path, msgspec.json.decode(msgspec.json.encode(section.value))
            )
            problems += section.problems
            repaired_paths += section.repaired_paths
    if len(repaired_paths) < len(problems):  # some problems are not out-of-bounds numbers
        raise ConfigError(problems)
    config = rules.adjust(RunConfig(**section_values))  # type: ignore[arg-type]
    # Out-of-bounds numbers were replaced by valid ones so that the rest can be checked; findings about them are
    # dropped.
    independent_findings = [
        f
        for f in (*rules.common_checks(config), *rules.refusal_checks(config))
        if not any(_is_under(f[0], node_path) for node_path in repaired_paths)
    ]
    problems = _sort_problems(document, (*problems, *_to_problems(document, parts, independent_findings)))
    if problems:
        raise ConfigError(problems)
    for problem in _sort_problems(document, _to_problems(document, parts, rules.warning_checks(config))):
        rules.on_warning(problem._replace(message=f"warning: {problem.message}"))
    return config


def _is_under(path: NodePath, node_path: NodePath) -> bool:
    return path[: len(node_path)] == node_path


def _to_problems(document: Document, parts: Mapping[str, Document], findings: Iterable[Finding]) -> Iterator[Problem]:
    """Convert findings to problems with positions in their files."""
    for node_path, message in findings:
        key = str(node_path[0]) if node_path else ""
        part, remainder = (parts[key], node_path[1:]) if key in parts else (document, node_path)
        yield problem_at(part, remainder, message)


def _sort_problems(document: Document, problems: Iterable[Problem]) -> list[Problem]:
    """Sort problems by file and position."""
    return sorted(problems, key=lambda p: (p.file != document.file, p.file, p.mark))


def _has_section(document: Document, node_path: NodePath) -> bool:
    """Return whether a section is present; an empty learner section counts as absent, because resolved files contain
    one."""
    try:
        value = value_at(document.data, node_path)
        return value is not None and not (node_path == ("learner",) and value == {})
    except (KeyError, TypeError, IndexError):
        return False


def _with_section(sections: dict[str, object], node_path: NodePath, value: Data) -> dict[str, object]:
    """Replace a section defined by another package with its checked values, defaults included."""
    if len(node_path) == 1:
        return {**sections, str(node_path[0]): value}
    device = sections.get("device")
    if node_path == ("device", "twin") and isinstance(device, Device):
        return {**sections, "device": msgspec.structs.replace(device, twin=value)}
    return sections

"""Sections selected by kind: within unions, lists and mappings, and the places of their mistakes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from onrig.runtime import registry
from onrig.runtime.config.conversion import read
from onrig.runtime.config.document import parse_content
from onrig.runtime.config.registered import WithRegistered, registered
from onrig.sim.plants import Magman, Pendulum

AnyPlant = Annotated[Any, registered(registry.PLANTS)]


class Section(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: AnyPlant | None = None
    row: tuple[AnyPlant, ...] = ()
    by_name: dict[str, AnyPlant] = {}
    later: AnyPlant | msgspec.UnsetType = msgspec.UNSET


class Document(msgspec.Struct, frozen=True):
    shelf: Section


def messages(text: str) -> list[str]:
    return [str(problem) for problem in read(parse_content(text.encode(), "house.yaml"), (), Document).problems]


def test_registered_names_are_built_wherever_they_occur() -> None:
    shelf = msgspec.convert(
        {"first": {"kind": "pendulum"}, "row": [{"kind": "magman"}], "by_name": {"a": {"kind": "pendulum"}}}, Section
    )
    assert shelf == Section(Pendulum(), (Magman(),), {"a": Pendulum()})
    assert msgspec.json.decode(msgspec.json.encode(shelf), type=Section) == shelf
    assert msgspec.structs.replace(shelf, row=()).first is shelf.first
    assert Section().first is None


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("first: {kind: pendulm}", "invalid value 'pendulm' at shelf.first.kind (did you mean 'pendulum'?)"),
        ("first: {mass: 1}", "missing required field 'kind' at shelf.first"),
        ("first: 3", "expected settings in braces, such as {kind: magman}, or null, got 3 at shelf.first"),
        ("row: [{kind: pendulum, mas: 1}]", "unknown field 'mas' at shelf.row[0] (did you mean 'mass'?)"),
        ("row: [{kind: pendulum, mass: 0}]", "expected at least 1e-18, got 0 at shelf.row[0].mass"),
        (
            "by_name: {a: {kind: pendulum, mass: heavy}}",
            "expected a number, such as 0.5, got 'heavy' at shelf.by_name.",
        ),
    ],
)
def test_a_mistake_is_reported_at_its_place(section: str, message: str) -> None:
    (problem_message,) = messages(f"shelf:\n  {section}\n")
    assert problem_message.startswith("house.yaml:2:")
    assert message in problem_message


def test_a_number_out_of_bounds_hides_no_other_mistake() -> None:
    assert len(messages("shelf:\n  first: {kind: pendulum, mass: 0, lenght: 1}\n  row: 4\n")) == 3

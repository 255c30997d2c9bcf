"""Functions and constructors of comprehensible size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("runtime", "hw", "sim", "learner", "configs", "tools")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES = 60
MOST_PARAMETERS = 8


def faults(source: str) -> Iterator[str]:
    """Maximum number of lines of a function, and of parameters of a constructor."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > MOST_LINES:
            yield f"line {node.lineno}: {node.name} has {lines} lines"
        parameters = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1
        if node.name == "__init__" and parameters > MOST_PARAMETERS:
            yield f"line {node.lineno}: __init__ takes {parameters} parameters"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_is_too_long_and_no_constructor_has_too_many_parameters(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}, {fault}"
        for path in SOURCES
        if path.is_relative_to(ROOT / package)
        for fault in faults(path.read_text())
    ]
    assert found == [], "split it into parts with a purpose"


def test_overlong_functions_are_found() -> None:
    body = "".join(f"    x{n} = {n}\n" for n in range(MOST_LINES))
    names = ", ".join(f"a{n}" for n in range(MOST_PARAMETERS + 1))
    assert list(faults(f"def long():\n{body}")) == ["line 1: long has 61 lines"]
    assert list(faults(f"def __init__(self, {names}): ...")) == ["line 1: __init__ takes 9 parameters"]

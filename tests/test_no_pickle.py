"""Loading a pickle executes code: no module may load one, or make a library load one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("runtime", "hw", "sim", "learner", "configs", "tools")
FORBIDDEN = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def offences(source: str) -> Iterator[str]:
    """Code in this source that loads pickles."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            yield from _call_offences(node)
            continue
        else:
            continue
        yield from (f"imports {name}" for name in names if name.split(".")[0] in FORBIDDEN)


def _call_offences(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    given = {k.arg: ast.unparse(k.value) for k in call.keywords}
    if given.get("allow_pickle", "False") != "False":
        yield f"{name}(allow_pickle={given['allow_pickle']})"
    if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
        yield f"{name} without allow_pickle=False"
    if name == "torch.load" and given.get("weights_only") != "True":
        yield f"{name} without weights_only=True"
    if name.split(".")[-1] in ("recv_pyobj", "send_pyobj", "read_pickle"):
        yield name


def test_the_search_covers_many_modules() -> None:
    assert len(SOURCES) > 80


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_loads_pickles(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): list(offences(path.read_text(encoding="utf-8")))
        for path in SOURCES
        if path.is_relative_to(ROOT / package)
    }
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import os, dill as d",
        "import multiprocessing, joblib.memory",
        "np.load(path, allow_pickle=True)",
        "np.load(path)",
        "np.save(path, x, allow_pickle=flag)",
        "torch.load(path)",
        "socket.recv_pyobj()",
    ],
)
def test_every_form_of_loading_pickles_is_found(source: str) -> None:
    assert list(offences(source))


def test_harmless_code_is_not_reported() -> None:
    harmless = "import unpickled\nnp.load(p, allow_pickle=False)\ntorch.load(p, weights_only=True)\n# import pickle\n"
    assert list(offences(harmless)) == []

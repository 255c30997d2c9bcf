"""Code that needs no real time can be imported and works without the modules that only Unix has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.tools.replaying.runs import LoggedRun

_HIDE: Final = """
import sys

HIDDEN = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in HIDDEN:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hide())
"""
"""Start of a program in which these modules do not exist."""
_MODULES: Final = (
    *("check", "settings", "report", "reports.run.report", "reports.experiment", "policy", "run"),
    *("experiments.experiment", "experiments.runner", "identification.identify", "api.run_data"),
)


def without_unix(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _HIDE + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", _MODULES)
def test_the_package_can_be_imported(module: str) -> None:
    done = without_unix(f"import onrig.tools.{module}")
    assert done.returncode == 0, done.stderr


def test_configurations_and_runs_are_loaded(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1").run()
    done = without_unix(
        "import onrig\n"
        "from onrig.tools import cli\n"
        "assert cli.main(['check', 'pendulum', '--explain']) == 0\n"
        "assert cli.main(['settings', 'selection']) == 0\n"
        f"assert onrig.open_run({str(run.folder)!r}).records.rows == {len(run.records)}\n"
    )
    assert done.returncode == 0, done.stderr

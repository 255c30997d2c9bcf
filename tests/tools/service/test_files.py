"""How the files get to their places."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from onrig.tools.service import files
from onrig.tools.service.files import InTheWay, artifacts, standing, write
from onrig.tools.service.texts import MARK, Artifact
from tests.tools.service.test_texts import SERVICE


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_files_of_a_service_go_where_the_system_looks(tmp_path: Path) -> None:
    paths = [str(a.path.relative_to(tmp_path)) for a in artifacts(SERVICE, Path("/home/pi"), tmp_path)]
    assert paths == [
        "etc/systemd/system/onrig-pendulum.service",
        "etc/udev/rules.d/90-onrig-pendulum.rules",
        "etc/security/limits.d/90-onrig-pendulum.conf",
    ]
    (own,) = artifacts(SERVICE._replace(for_user=True), Path("/home/pi"), tmp_path)
    assert own.path == tmp_path / "home/pi/.config/systemd/user/onrig-pendulum.service"


def test_files_are_readable_for_all_and_written_again_without_harm(tmp_path: Path) -> None:
    listed = artifacts(SERVICE, Path("/home/pi"), tmp_path)
    assert [standing(a) for a in listed] == ["new"] * 3
    write(listed)
    first = content(tmp_path)
    assert all(stat.S_IMODE(a.path.stat().st_mode) == 0o644 for a in listed)
    assert [standing(a) for a in listed] == ["unchanged"] * 3
    changed = artifacts(SERVICE._replace(user="lab"), Path("/home/pi"), tmp_path)
    assert [standing(a) for a in changed] == ["replaced", "unchanged", "replaced"]
    write(changed)
    assert set(content(tmp_path)) == set(first)
    assert "User=lab" in listed[0].path.read_text()


def test_a_file_of_somebody_else_is_never_replaced_and_nothing_is_written(tmp_path: Path) -> None:
    listed = artifacts(SERVICE, Path("/home/pi"), tmp_path)
    listed[2].path.parent.mkdir(parents=True)
    listed[2].path.write_text("@audio - rtprio 95\n")
    before = content(tmp_path)
    with pytest.raises(InTheWay, match="is not Onrig's"):
        write(listed)
    assert content(tmp_path) == before


def test_a_failure_on_the_way_takes_everything_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Artifact(tmp_path / "b", f"{MARK}\nold\n")
    write([old])
    real = files._replace

    def fail_at_c(path: Path, content: bytes) -> None:
        if path.name == "c":
            raise OSError(28, "No space left on device", str(path))
        real(path, content)

    monkeypatch.setattr(files, "_replace", fail_at_c)
    with pytest.raises(OSError, match="No space left"):
        write(
            [Artifact(tmp_path / "new" / "a", "x"), old._replace(text=f"{MARK}\nnew\n"), Artifact(tmp_path / "c", "x")]
        )
    assert content(tmp_path) == {"b": f"{MARK}\nold\n"}
    assert not (tmp_path / "new").exists()

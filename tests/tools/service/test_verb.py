"""``onrig service``: shows first, writes on demand, refuses what would not work."""

from __future__ import annotations

import os
import pty
import pwd
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.cli import main
from onrig.tools.service import installation as install_service
from onrig.tools.service.installation import PathOccupied, file_state, service_files, write_files
from onrig.tools.service.texts import HEADER_LINE, ServiceFile
from tests.docs import outside
from tests.tools.service.test_texts import SERVICE

RIG = """
rig: pendulum
task: swingup
device: {{port: {{path: {port}, baud: 921600}}}}
rate_hz: 200
episodes: 200
local_learner: false
learner: {{updates_per_episode: 100}}
limits:
  envelope: {{velocity: {{low: -15, high: 15}}}}
  fallback: {{kind: damp, actuator: voltage, observation: velocity, full_at: 2.0}}
"""


@pytest.fixture
def port() -> Iterator[str]:
    """A terminal that does not belong to the rig."""
    master, slave = pty.openpty()
    yield os.ttyname(slave)
    os.close(slave)
    os.close(master)


@pytest.fixture
def config(tmp_path: Path, port: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "lab.yaml"
    path.write_text(RIG.format(port=port))
    return path


def files(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_without_write_everything_is_shown_and_nothing_written(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    assert main(["service", str(config), "--root", str(root)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert f"--- {root}/etc/systemd/system/onrig-lab.service (new)" in out
    assert f"ExecStart={sys.executable} -m onrig.tools.cli run {config}" in out
    assert f"WorkingDirectory={tmp_path}" in out
    assert "rtprio 99" in out
    assert "nothing was written" in out
    assert not root.exists()


def test_with_write_the_three_files_are_written_and_the_next_commands_shown(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    assert main(["service", str(config), "--write", "--root", str(root)]) == ExitCode.OK
    assert files(root) == [
        "etc/security/limits.d/90-onrig-lab.conf",
        "etc/systemd/system/onrig-lab.service",
        "etc/udev/rules.d/90-onrig-lab.rules",
    ]
    out = capsys.readouterr().out
    for command in ("udevadm control --reload", "daemon-reload", "enable-linger", "enable --now onrig-lab.service"):
        assert command in out


def test_a_user_service_is_only_its_unit(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    assert main(["service", str(config), "--user", "--write", "--root", str(root)]) == ExitCode.OK
    (written_file,) = files(root)
    assert written_file.endswith(".config/systemd/user/onrig-lab.service")
    assert "systemctl --user enable --now" in capsys.readouterr().out


def test_a_user_service_is_not_written_as_root(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUDO_USER", "pi")
    assert main(["service", str(config), "--user"]) == ExitCode.CONFIGURATION
    assert "run this command without sudo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["pendulum"], ExitCode.CONFIGURATION, "uses a twin"),
        (["pendulum", "--device", "{port}"], ExitCode.CONFIGURATION, "device.pace=realtime"),
        (["{config}", "--device", "{place}/gone"], ExitCode.HARDWARE, "no such port"),
        (["{config}", "--device", "{config}"], ExitCode.CONFIGURATION, "not a serial port"),
        (
            ["{config}", "--set", "link={listen: 'tcp://*:5555', keys: K}"],
            ExitCode.PREFLIGHT,
            "link.keys: K: No such file or directory",
        ),
        (["{place}/none.yaml"], ExitCode.CONFIGURATION, "no file"),
    ],
)
def test_missing_requirements_are_reported_in_one_line_and_nothing_is_written(
    arguments: list[str],
    code: int,
    message: str,
    config: Path,
    port: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file_names = [
        a.replace("{port}", port).replace("{config}", str(config)).replace("{place}", str(tmp_path)) for a in arguments
    ]
    assert main(["service", *file_names, "--write", "--root", str(tmp_path / "root")]) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "root").exists()


def test_an_unwritable_place_is_reported_in_one_line(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "root").write_text("a file")
    assert main(["service", str(config), "--write", "--root", str(tmp_path / "root")]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err.count("\n") == 1


def test_keys_are_read_as_the_user_of_the_service_from_whose_home_they_may_come(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with sudo: the process belongs to another user, and its home is another one."""
    own_uid, current_uid = os.geteuid(), [os.geteuid() + 1]
    account = pwd.getpwuid(own_uid)
    account_with_home = pwd.struct_passwd((*account[:5], str(tmp_path / "home"), account[6]))
    monkeypatch.setenv("SUDO_USER", account.pw_name)
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: account_with_home)
    monkeypatch.setattr(os, "geteuid", lambda: current_uid[-1])
    monkeypatch.setattr(os, "seteuid", current_uid.append)
    keys = tmp_path / "home/K"
    keys.parent.mkdir()
    key_arguments = ["--set", "link={listen: 'tcp://*:5555', keys: ~/K}", "--root", str(tmp_path / "image")]
    assert main(["service", str(config), *key_arguments]) == ExitCode.PREFLIGHT
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: own_uid)
        assert main(["keys", str(keys)]) == ExitCode.OK
    assert main(["service", str(config), *key_arguments]) == ExitCode.OK
    assert current_uid[-2:] == [own_uid, own_uid + 1], "the process has its own user id again"


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_files_of_a_service_are_where_the_system_looks(tmp_path: Path) -> None:
    paths = [str(a.path.relative_to(tmp_path)) for a in service_files(SERVICE, Path("/home/pi"), tmp_path)]
    assert paths == [
        "etc/systemd/system/onrig-pendulum.service",
        "etc/udev/rules.d/90-onrig-pendulum.rules",
        "etc/security/limits.d/90-onrig-pendulum.conf",
    ]
    (user_file,) = service_files(SERVICE._replace(for_user=True), Path("/home/pi"), tmp_path)
    assert user_file.path == tmp_path / "home/pi/.config/systemd/user/onrig-pendulum.service"


def test_files_are_readable_by_all_and_rewritten_harmlessly(tmp_path: Path) -> None:
    service_file_list = service_files(SERVICE, Path("/home/pi"), tmp_path)
    assert [file_state(a) for a in service_file_list] == ["new"] * 3
    write_files(service_file_list)
    first_content = content(tmp_path)
    assert all(stat.S_IMODE(a.path.stat().st_mode) == 0o644 for a in service_file_list)
    assert [file_state(a) for a in service_file_list] == ["unchanged"] * 3
    changed_files = service_files(SERVICE._replace(user="lab"), Path("/home/pi"), tmp_path)
    assert [file_state(a) for a in changed_files] == ["replaced", "unchanged", "replaced"]
    write_files(changed_files)
    assert set(content(tmp_path)) == set(first_content)
    assert "User=lab" in service_file_list[0].path.read_text()


def test_a_file_of_another_user_is_never_replaced_and_nothing_is_written(tmp_path: Path) -> None:
    service_file_list = service_files(SERVICE, Path("/home/pi"), tmp_path)
    service_file_list[2].path.parent.mkdir(parents=True)
    service_file_list[2].path.write_text("@audio - rtprio 95\n")
    content_before = content(tmp_path)
    with pytest.raises(PathOccupied, match="was not written by Onrig"):
        write_files(service_file_list)
    assert content(tmp_path) == content_before


def test_a_failure_midway_is_undone_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_file = ServiceFile(tmp_path / "b", f"{HEADER_LINE}\nold\n")
    write_files([old_file])
    original_replace = install_service._replace

    def fail_on_third(path: Path, content: bytes) -> None:
        if path.name == "c":
            raise OSError(28, "No space left on device", str(path))
        original_replace(path, content)

    monkeypatch.setattr(install_service, "_replace", fail_on_third)
    with pytest.raises(OSError, match="No space left"):
        write_files(
            [
                ServiceFile(tmp_path / "new" / "a", "x"),
                old_file._replace(text=f"{HEADER_LINE}\nnew\n"),
                ServiceFile(tmp_path / "c", "x"),
            ]
        )
    assert content(tmp_path) == {"b": f"{HEADER_LINE}\nold\n"}
    assert not (tmp_path / "new").exists()


def test_a_device_on_another_line_needs_no_rule(
    config: Path, port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside.write_files(tmp_path)
    line = "{transport: {kind: my_tcp, host: 127.0.0.1, port: 9}, pace: realtime}"
    text = RIG.format(port=port).replace(f"{{port: {{path: {port}, baud: 921600}}}}", line)
    config.write_text(f"{text}python: {{transports: {{my_tcp: tcp_line.py:MyTcp}}}}\n")
    assert main(["service", str(config), "--write", "--root", str(tmp_path / "root")]) == 0
    assert "udevadm" not in capsys.readouterr().out
    assert [Path(name).parts[1] for name in files(tmp_path / "root")] == ["security", "systemd"]

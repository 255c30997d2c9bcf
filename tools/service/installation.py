"""Display and installation of a rig's service files: systemd unit, udev rule and limits."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onrig.hw.line import Serial
from onrig.hw.transport import DEFAULT_BAUD_RATE
from onrig.runtime.config.document import MAX_BYTES, find_config
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.files import read_file
from onrig.runtime.lease import describe_lease
from onrig.runtime.run_config import RunConfig
from onrig.tools.load import load_for_rig, print_problems
from onrig.tools.machine import Machine
from onrig.tools.ports import PortFacts, list_ports, read_port
from onrig.tools.service.texts import (
    HEADER_LINE,
    Service,
    ServiceFile,
    limits_text,
    service_name,
    udev_rule_text,
    unit_text,
)
from onrig.tools.terminal import complain


class PathOccupied(Exception):
    """Raised if the path of a service file is occupied by a file that Onrig did not write; the message is one line."""


def service_files(s: Service, home: Path, root: Path = Path("/")) -> list[ServiceFile]:
    """Return the files of a service under ``root``.

    A user service has only the unit, since the other files require root.
    """
    if s.for_user:
        folder = home / ".config/systemd/user"
        return [ServiceFile(root / folder.relative_to("/") / s.unit, unit_text(s))]
    rule = (
        [ServiceFile(root / f"etc/udev/rules.d/90-onrig-{s.name}.rules", udev_rule_text(s))]
        if s.port is not None
        else []
    )
    return [
        ServiceFile(root / "etc/systemd/system" / s.unit, unit_text(s)),
        *rule,
        ServiceFile(root / f"etc/security/limits.d/90-onrig-{s.name}.conf", limits_text(s)),
    ]


def file_state(file: ServiceFile) -> str:
    """Return the state of a file: ``new``, ``unchanged`` or ``replaced``. Raises PathOccupied."""
    try:
        text = read_file(file.path, MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return "new"
    if text == file.text:
        return "unchanged"
    if not text.startswith(HEADER_LINE):
        raise PathOccupied(
            f"{file.path}: this file was not written by Onrig; move it, or merge the printed text by hand"
        )
    return "replaced"


def write_files(files: Sequence[ServiceFile]) -> None:
    """Write all files (mode 0644).

    Raises PathOccupied before any file is written, and OSError after restoring the previous files.
    """
    previous: list[tuple[Path, bytes | None]] = []
    created_folders: list[Path] = []
    for file in files:
        file_state(file)
    try:
        for file in files:
            folder = file.path.parent
            missing_folders = [f for f in (folder, *folder.parents) if not f.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            created_folders += missing_folders
            previous.append((file.path, read_file(file.path, MAX_BYTES) if file.path.exists() else None))
            _replace(file.path, file.text.encode())
    except OSError:
        for path, content in previous:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True) if content is None else _replace(path, content)
        for folder in created_folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _replace(path: Path, content: bytes) -> None:
    fd, temporary_path = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(fd, 0o644)
        os.replace(temporary_path, path)
    except BaseException:
        Path(temporary_path).unlink(missing_ok=True)
        raise


_DEFAULT_GROUP: Final = "dialout"


class NotInstallable(Exception):
    """Raised if the service would not work; the message is one line, and ``code`` is the exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.CONFIGURATION) -> None:
        super().__init__(message)
        self.code = code


def install(
    name: str,
    overrides: Sequence[str],
    device: str | None,
    root: Path,
    *,
    for_user: bool,
    writes: bool,
    trusted: bool = False,
    machine: Machine | None = None,
) -> int:
    """Show the files under ``root``, write them if ``writes`` is set, and return the exit code."""
    try:
        config = load_for_rig(name, overrides, port=device)
    except ConfigError as error:
        return print_problems(error)
    if for_user and "SUDO_USER" in os.environ:
        return complain("service", "--user: run this command without sudo, which would write the files as root")
    user = os.environ.get("SUDO_USER") or getpass.getuser()
    try:
        service = describe_service(config, name, overrides, device, user, for_user, trusted, machine or Machine())
        home = Path(pwd.getpwnam(user).pw_dir)
        files = service_files(service, home, root)
        states = [file_state(file) for file in files]
    except NotInstallable as refusal:
        return complain("service", str(refusal), refusal.code)
    except KeyError:
        return complain("service", f"no such user on this machine: '{user}'")
    except (PathOccupied, OSError) as error:
        return complain("service", str(error))
    for file, state in zip(files, states, strict=True):
        print(f"--- {file.path} ({state})\n{file.text}")
    if not writes:
        print("nothing was written; add --write to write the files" + ("" if for_user else " (with sudo)"))
        return ExitCode.OK
    try:
        write_files(files)
    except (PathOccupied, OSError) as error:
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        return complain(
            "service", f"nothing was written: {reason}" + ("" if for_user else "; use sudo if you lack the permission")
        )
    print("written; then:")
    for line in activation_commands(service, user):
        print(f"  {line}")
    return ExitCode.OK


def describe_service(
    config: RunConfig,
    name: str,
    overrides: Sequence[str],
    device: str | None,
    user: str,
    for_user: bool,
    trusted: bool,
    machine: Machine,
) -> Service:
    """Return the parameters of the service. Raises NotInstallable if the service would not work."""
    line = config.device.line
    port = device or (line.path if isinstance(line, Serial) else None)
    if port is None and config.device.twin is not None:
        raise NotInstallable(
            f"{name} uses a twin, but a service needs hardware: give the port (device.port, or --device PORT)"
        )
    if config.device.attended is True:
        raise NotInstallable(
            f"{name}: a service runs unattended, but this rig is {describe_lease(config)} (device.attended)"
        )
    if config.lockstep:
        raise NotInstallable(f"{name}: a rig runs in real time; set device.pace=realtime")
    facts = None if port is None else _port_facts(port, machine)
    if config.link.keys is not None:
        _check_keys(config.link.keys, user)
    return Service(
        name=service_name(find_config(name).absolute()),
        rig=config.rig.name,
        user=user,
        group=facts.group if facts is not None and facts.group != "root" else _DEFAULT_GROUP,
        python=sys.executable,
        config=find_config(name).absolute(),
        overrides=tuple(overrides),
        trusted=trusted,
        folder=Path.cwd(),
        port=port,
        port_given=device is not None,
        baud=line.baud if isinstance(line, Serial) else DEFAULT_BAUD_RATE,
        device=facts.device if facts is not None else "",
        usb=facts.usb if facts is not None else None,
        fade_s=config.supervision.fade_s,
        for_user=for_user,
    )


def _port_facts(port: str, machine: Machine) -> PortFacts:
    """Return the facts about a serial port. Raises NotInstallable if it is missing or not a serial port."""
    facts = read_port(machine, port)
    if not facts.device:
        hint = "plug the device in: the udev rule needs its USB identity"
        raise NotInstallable(f"{port}: no such port; {hint}; {list_ports(machine)}", ExitCode.HARDWARE)
    if not facts.is_terminal:
        raise NotInstallable(f"{port}: not a serial port; give the path of the port")
    return facts


def _check_keys(keys: str, user: str) -> None:
    """Check that the service will be able to read the rig's keys with the user's permissions.

    Raises NotInstallable if it will not.
    """
    from onrig.runtime.link.keys import KeyFileError, load_rig_keys

    account, effective_uid = pwd.getpwnam(user), os.geteuid()
    path = Path(account.pw_dir, keys[2:]) if keys.startswith("~/") else Path(keys).expanduser()
    try:
        if account.pw_uid != effective_uid:
            os.seteuid(account.pw_uid)
        load_rig_keys(path)
    except (KeyFileError, PermissionError) as fault:
        raise NotInstallable(f"link.keys: {fault}", ExitCode.PREFLIGHT) from None
    finally:
        os.seteuid(effective_uid)


def activation_commands(service: Service, user: str) -> list[str]:
    """Return the commands that activate the files."""
    # `onrig stop` needs the user's shared memory, which logind removes at the last logout unless the user lingers.
    linger_command = f"sudo loginctl enable-linger {user}"
    if service.for_user:
        return [
            "systemctl --user daemon-reload",
            linger_command,
            f"systemctl --user enable --now {service.unit}",
            f"systemctl --user status {service.unit}",
        ]
    rule = "sudo udevadm control --reload && sudo udevadm trigger --subsystem-match=tty --subsystem-match=usb-serial"
    return [
        *([rule] if service.port is not None else []),
        "sudo systemctl daemon-reload",
        linger_command,
        f"sudo systemctl enable --now {service.unit}",
        f"systemctl status {service.unit}",
    ]

"""A mount namespace with small disks, in which programs can be started."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

_GRACE_S: Final = 5.0


def can_mount() -> bool:
    """Whether this user may mount in a private namespace (some kernels and containers forbid it)."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return False
    return subprocess.run([*_unshare(), "true"], capture_output=True, check=False).returncode == 0


def _unshare() -> list[str]:
    return ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount"]


class MountNamespace:
    """Context manager of a mount namespace with tmpfs of given sizes over given folders, in which programs can be
    started.

    The contents are lost at the end.  Raises OSError if it cannot be built.
    """

    def __init__(self, sizes: dict[Path, int]) -> None:
        mounts = [f"mount -t tmpfs -o size={size},mode=1777 tmpfs '{folder}'" for folder, size in sizes.items()]
        script = " && ".join([*mounts, "echo built", "read -r _"])
        self._holder = subprocess.Popen(
            [*_unshare(), "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._in, self._out = self._holder.stdin, self._holder.stdout
        if self._out.readline() != b"built\n":
            self.close()
            raise OSError("cannot build a namespace with small disks: mounting is not allowed")
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        # Set the working directory again: inside the namespace, the same path is another folder.
        where = f"--wd={Path.cwd()}"
        self.entrance: Final = ["nsenter", f"--target={self._holder.pid}", *user, "--mount", where, "--"]
        """Prefix of commands to run in it."""

    def path(self, inside: str | Path) -> Path:
        """Outside path of a path in it."""
        return Path(f"/proc/{self._holder.pid}/root{inside}")

    def fill(self, folder: Path) -> Path:
        """Fill the disk of a folder; returns the file to unlink afterwards."""
        ballast = self.path(folder) / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for piece in (1 << 20, 1 << 12, 1):
                try:
                    while file.write(bytes(piece)) == piece:
                        pass
                except OSError:
                    continue
        return ballast

    def __enter__(self) -> MountNamespace:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release it; it exists until the last process in it ends."""
        self._in.close()
        try:
            self._holder.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        self._out.close()

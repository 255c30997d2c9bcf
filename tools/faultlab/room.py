"""A room for a run: a mount namespace in which its folder and ``/dev/shm`` are small and can be filled from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final

_GRACE_S: Final = 5.0


def can_be_built() -> bool:
    """Whether this user may mount in a namespace of its own here (some kernels and containers do not allow it)."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return False
    return subprocess.run([*_unshare(), "true"], capture_output=True, check=False).returncode == 0


def _unshare() -> list[str]:
    return ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount"]


class Room:
    """Mounts a tmpfs of so many bytes over each of the given folders; a context in which programs can be started.

    Everything in it is gone with it.  Raises OSError where it cannot be built.
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
            raise OSError("no room with small disks can be built here: mounting is not allowed")
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        # The folder in which a command is started is given anew: in the room it is another one.
        where = f"--wd={Path.cwd()}"
        self.entrance: Final = ["nsenter", f"--target={self._holder.pid}", *user, "--mount", where, "--"]
        """What a command begins with that is to run in it."""

    def path(self, inside: str | Path) -> Path:
        """Where something in it is to be found from outside."""
        return Path(f"/proc/{self._holder.pid}/root{inside}")

    def fill(self, folder: Path) -> Path:
        """Take all the room that is left on a folder's disk; the file that takes it, to be unlinked."""
        ballast = self.path(folder) / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for piece in (1 << 20, 1 << 12, 1):
                try:
                    while file.write(bytes(piece)) == piece:
                        pass
                except OSError:
                    continue
        return ballast

    def __enter__(self) -> Room:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let it go; whoever is still in it keeps it until they leave."""
        self._in.close()
        try:
            self._holder.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        self._out.close()

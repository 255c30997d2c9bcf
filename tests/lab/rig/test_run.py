from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest

from tests.lab.rig.room import MountNamespace, can_mount

SIZE = 1 << 20


def test_a_full_disk_is_limited_to_the_namespace_and_can_be_freed(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("this user may not mount here, not even in a namespace of its own")
    with MountNamespace({tmp_path: SIZE}) as room:
        subprocess.run([*room.entrance, "sh", "-c", f"echo x > {tmp_path}/mine"], check=True)
        assert room.path(tmp_path / "mine").read_text() == "x\n"
        assert list(tmp_path.iterdir()) == []
        ballast = room.fill(tmp_path)
        with pytest.raises(OSError, match="No space") as full:
            (room.path(tmp_path) / "more").write_bytes(b"x")
        assert full.value.errno == errno.ENOSPC
        ballast.unlink()
        (room.path(tmp_path) / "more").write_bytes(bytes(SIZE // 2))

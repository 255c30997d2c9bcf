from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.doctor import memory
from onrig.tools.doctor.finding import Needs
from onrig.tools.doctor.memory import DiskFacts, MemoryFacts, find_mount
from tests.tools.doctor.boards import GENERAL_NEEDS, RIG, checks_by_name, make_board, verdicts

AMPLE_MEMORY = MemoryFacts(8 << 30, {}, 4 << 30, 4 << 30, True)
DISK = DiskFacts(Path("/home/pi/runs"), "/", "ext4", False, True, 100 << 30, 200 << 30)
MOUNTS = "\n".join(
    [
        "/dev/root / ext4 rw,noatime 0 0",
        "tmpfs /tmp tmpfs rw,nosuid 0 0",
        "/dev/sda1 /mnt/my\\040disk vfat ro,relatime 0 0",
        "nas:/x /home/pi nfs4 rw 0 0",
        "nas:/y /mnt/Messö\\040x nfs4 ro 0 0",
        "broken",
    ]
)


def test_sufficient_room_passes() -> None:
    assert set(verdicts(memory.check_memory(AMPLE_MEMORY, RIG)).values()) == {"PASS"}
    assert set(verdicts(memory.check_disk(DISK, RIG)).values()) == {"PASS"}


@pytest.mark.parametrize(
    ("facts", "name", "verdict"),
    [
        (AMPLE_MEMORY._replace(available_bytes=1 << 20), "memory", "WARN"),
        (AMPLE_MEMORY._replace(available_bytes=None), "memory", "PASS"),
        (AMPLE_MEMORY._replace(swap_used_bytes={"/var/swap": 0}), "swap", "PASS"),
        (AMPLE_MEMORY._replace(swap_used_bytes={"/var/swap": 1 << 20}), "swap", "WARN"),
        (AMPLE_MEMORY._replace(shm_free_bytes=1 << 20), "shared-memory", "FAIL"),
        (AMPLE_MEMORY._replace(is_shm_writable=False), "shared-memory", "FAIL"),
        (AMPLE_MEMORY._replace(shm_free_bytes=None), "shared-memory", "FAIL"),
    ],
)
def test_too_little_memory_is_reported(facts: MemoryFacts, name: str, verdict: str) -> None:
    assert verdicts(memory.check_memory(facts, RIG))[name] == verdict


def test_swap_matters_from_the_start_if_nothing_is_locked() -> None:
    facts = AMPLE_MEMORY._replace(swap_used_bytes={"/var/swap": 0})
    assert verdicts(memory.check_memory(facts, RIG._replace(lock_memory=False)))["swap"] == "WARN"


def test_memory_is_read_from_proc_and_compressed_swap_does_not_count(tmp_path: Path) -> None:
    machine = make_board(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 8000 kB\nMemAvailable:    4000 kB\n",
            "proc/swaps": "Filename Type Size Used Priority\n/var/swap file 9 7 -2\n/dev/zram0 partition 9 5 100\n",
            "dev/shm/x": "",
        },
    )
    facts = memory.read_memory(machine)
    assert (facts.available_bytes, facts.swap_used_bytes, facts.is_shm_writable) == (
        4000 << 10,
        {"/var/swap": 7 << 10},
        True,
    )
    assert facts.shm_free_bytes is not None
    assert memory.read_memory(make_board(tmp_path / "bare", {"proc/x": ""})).shm_free_bytes is None


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (DISK._replace(is_read_only=True), "FAIL"),
        (DISK._replace(is_writable=False), "FAIL"),
        (DISK._replace(free_bytes=1 << 30), "FAIL"),
        (DISK._replace(free_bytes=3 << 30), "WARN"),
        (DISK._replace(kind="tmpfs"), "WARN"),
        (DISK._replace(kind="nfs4"), "WARN"),
        (DISK._replace(kind="overlay"), "PASS"),
    ],
)
def test_a_disk_without_room_or_of_the_wrong_kind_is_reported(facts: DiskFacts, verdict: str) -> None:
    assert verdicts(memory.check_disk(facts, RIG._replace(disk_bytes=2 << 30))) == {"disk": verdict}


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/var/runs", ("/", "ext4", False)),
        ("/tmp", ("/tmp", "tmpfs", False)),
        ("/tmpfiles", ("/", "ext4", False)),
        ("/mnt/my disk/runs", ("/mnt/my disk", "vfat", True)),
        ("/home/pi/runs", ("/home/pi", "nfs4", False)),
        ("/mnt/Messö x/runs", ("/mnt/Messö x", "nfs4", True)),
    ],
)
def test_the_mount_that_holds_a_path_is_found(path: str, mount: tuple[str, str, bool]) -> None:
    assert find_mount(MOUNTS, Path(path)) == mount


def test_a_missing_folder_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    machine = make_board(tmp_path, {"proc/mounts": f"x {tmp_path} tmpfs rw 0 0\n"})
    facts = memory.read_disk(machine, GENERAL_NEEDS._replace(folder=tmp_path / "a" / "b"))
    assert (facts.folder, facts.kind, facts.is_writable) == (tmp_path / "a" / "b", "tmpfs", True)
    assert facts.free_bytes > 0


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    needs = GENERAL_NEEDS._replace(folder=tmp_path / "a" / "b")
    (check,) = memory.check_disk(memory.read_disk(make_board(tmp_path, {}), needs), needs)
    assert check.finding == f"{tmp_path / 'a' / 'b'} cannot be created: {tmp_path / 'a'} is a file"


@pytest.mark.parametrize("needs", [GENERAL_NEEDS, RIG])
def test_every_remedy_is_one_line(needs: Needs) -> None:
    assert checks_by_name(memory.check_disk(DISK._replace(free_bytes=0), needs))["disk"].remedy.startswith(
        "remove old runs"
    )

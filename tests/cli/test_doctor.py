"""Command `doctor`: its findings on a real machine, its judgement of others, and no change."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.net
from tests.support.bench import small
from tests.support.command_line import Answer, CommandLine, Terminal
from timerstore.cli.doctor.file_system import Mount, kind_findings, mount_of, space_findings
from timerstore.cli.doctor.file_system import sync_findings as sync_findings_of
from timerstore.cli.doctor.finding import Finding, Severity
from timerstore.cli.doctor.machine import USES, clock_findings, extra_finding, limit_findings
from timerstore.cli.exits import Exit
from timerstore.types.config import StoreConfig

SUBJECTS = {
    "python", "limits", "clock", "file system", "sync", "space", "inodes", "lock", "permissions",
    "settings", "store", *(f"extra {name}" for name in USES),
}  # fmt: skip


def rows_of(answer: Answer, about: str) -> list[dict[str, Any]]:
    return [row for row in answer.rows if row["about"] == about]


def levels(findings: Any) -> list[Severity]:
    return [one.level for one in findings]


def state_of(folder: Path) -> dict[Path, Any]:
    """Return the bytes and the times of all below a folder."""
    found: dict[Path, Any] = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else None
        found[path] = data, status.st_mtime_ns, status.st_ctime_ns, status.st_mode
    return found


# --- a real machine -------------------------------------------------------------------------------


def test_each_finding_says_what_why_and_what_to_type(ts: CommandLine) -> None:
    path = ts.init()
    answer = ts("doctor", path, "--json")
    rows = answer.rows
    assert {row["about"] for row in rows} >= SUBJECTS - {"sync"}  # none in memory
    for row in rows:
        assert row["level"] in list(Severity)
        assert row["level"] == "ok" or (row["why"] and row.get("do", "-")), row
        assert row["level"] != "change" or row["do"], row
    must = [row for row in rows if row["level"] == "change"]
    assert answer.code == (Exit.NOT_SO if must else 0)
    text = ts("doctor", path)
    assert text.code == answer.code
    assert len([line for line in text.out.splitlines() if line.startswith("change  ")]) == len(must)


def test_doctor_without_a_path_examines_the_machine(ts: CommandLine) -> None:
    about = {row["about"] for row in ts("doctor", "--json").rows}
    assert about == {"python", "limits", "clock", *(f"extra {name}" for name in USES)}


@pytest.mark.parametrize("kind", ["store", "shards", "backup", "a folder"])
def test_doctor_changes_nothing(ts: CommandLine, kind: str) -> None:
    path = ts.folder / "given"
    if kind in ("store", "backup"):
        ts.fine("put", ts.init(), "orders", "x", "--in", "1h")
        ts.store.rename(path) if kind == "store" else ts.fine("backup", ts.store, path)
    elif kind == "shards":
        ts.fine("init", path, "--shards", "2")
    else:
        path.mkdir()
        (path / "a file").write_text("x")
    before = state_of(ts.folder)
    first = [row for row in ts("doctor", path, "--json").rows if row["about"] != "space"]
    assert state_of(ts.folder) == before
    assert first


def test_doctor_runs_while_the_store_is_open_and_changes_nothing(ts: CommandLine) -> None:
    path = ts.folder / "open.store"
    with timerstore.open(path, small(), threads=False) as store:
        store.put("orders", b"x", delay=3600)
        store.flush()
        before = state_of(path)
        answer = ts("doctor", path, "--json")
        assert state_of(path) == before
        [lock] = rows_of(answer, "lock")
        assert lock["what"].startswith(f"held by process {os.getpid()} of user ")
        assert " since 20" in lock["what"]
        store.put("orders", b"y", delay=3600)
    assert (
        "no process holds it; nothing is delivered"
        in rows_of(ts("doctor", path, "--json"), "lock")[0]["what"]
    )


OWNER = """
import sys, timerstore
store = timerstore.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_doctor_names_an_owner_that_is_stopped_or_was_killed(ts: CommandLine) -> None:
    path = ts.init()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"open\n"
            rows = ts("doctor", path, "--json")
            [lock] = rows_of(rows, "lock")
            assert f"held by process {owner.pid} of user " in lock["what"]
            assert f"({sys.executable[:40]}" in lock["what"]
            used = [row["what"] for row in rows_of(rows, "limits")]
            assert sum(one.startswith(f"process {owner.pid} has ") for one in used) == 2
            owner.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, owner.pid, os.WSTOPPED)
            stopped = ts("doctor", path, "--json")
            [lock] = rows_of(stopped, "lock")
            assert (lock["level"], lock["do"]) == ("change", f"kill -CONT {owner.pid}")
            assert stopped.code == Exit.NOT_SO
        finally:
            owner.kill()
    [lock] = rows_of(ts("doctor", path, "--json"), "lock")
    assert (lock["level"], "did not close the store" in lock["what"]) == ("ok", True)


def test_doctor_names_the_sockets_of_a_server(ts: CommandLine) -> None:
    path, socket = ts.folder / "served.store", ts.folder / "s"
    with timerstore.open(path, small()) as store:
        with timerstore.net.serve(store, socket=socket):
            [row] = rows_of(ts("doctor", path, "--json"), "sockets")
            assert f"process {os.getpid()} listens on {socket}, mode 600, user " in row["what"]
            assert f"unix://{socket}" in row["what"]
        with timerstore.net.serve(store, tcp="127.0.0.1:0", insecure=True) as server:
            [row] = rows_of(ts("doctor", path, "--json"), "sockets")
            port = server.urls[0].rpartition(":")[2]
            assert row["what"] == f"process {os.getpid()} listens on TCP port {port}"


def test_doctor_finds_a_file_of_another_user(ts: CommandLine) -> None:
    if os.geteuid():
        pytest.skip("NOT RUN: needs root")
    path = ts.init()
    os.chown(path / "timerwheel", 65534, 65534)
    path.chmod(0o777)
    rows = rows_of(ts("doctor", path, "--json"), "permissions")
    assert [row["level"] for row in rows] == ["ok", "note", "change"]
    assert rows[1]["what"].startswith("1 file of other users than ")
    assert rows[2]["do"] == f"chmod o-w {path}"


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("precision_ms=50", "precision_ms is 50, but the store has 100"),
        ("histogram_bytes_max=68719476736", "histogram_bytes_max and the wheel may take 64 GiB"),
        ("retention_disk_percent=1", "retention_disk_percent is 1, and "),
    ],
)
def test_doctor_judges_settings_of_the_program(ts: CommandLine, setting: str, what: str) -> None:
    path = ts.init()
    answer = ts("doctor", path, "-c", setting, "--json")
    assert answer.code == Exit.NOT_SO
    [row] = [one for one in rows_of(answer, "settings") if one["level"] == "change"]
    assert row["what"].startswith(what)


def test_doctor_names_what_is_not_finished_or_of_the_future(ts: CommandLine) -> None:
    path = ts.init()
    (path / "unfinished-init").write_text("")
    later = 2_000_000_000 + 10**10
    os.utime(path / "timerstore" / "watermark", (later, later))
    answer = ts("doctor", path, "--json")
    assert any("has not finished" in row["what"] for row in rows_of(answer, "store"))
    assert any("in the future" in row["what"] for row in rows_of(answer, "clock"))


def test_doctor_only_notes_damage_that_an_opening_mends(ts: CommandLine) -> None:
    ts.fine("put", ts.init(), "orders", "x", "--in", "1h")
    (ts.store / "timerstore" / "counts").unlink()
    found = rows_of(ts("doctor", ts.store, "--json"), "store")
    assert [row["level"] for row in found] == ["ok", "note"]
    ts.fine("count", ts.store, "--from", "now")
    found = rows_of(ts("doctor", ts.store, "--json"), "store")
    assert [row["level"] for row in found] == ["ok", "ok"]


@pytest.mark.parametrize("columns", [40, 80])
def test_doctor_fits_a_terminal(ts: CommandLine, columns: int) -> None:
    path = ts.init()
    shown = Terminal("doctor", path, columns=columns, lines=200, NO_COLOR="1")
    assert shown.end() in (0, Exit.NOT_SO)
    text = shown.raw.decode().replace("\r", "")
    assert max(map(len, text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= columns


# --- judgement of other machines ------------------------------------------------------------------

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard
28 27 8:2 / /srv rw - ext4 /dev/sda2 rw
29 27 0:44 / /srv/with\040blank rw - tmpfs none rw
30 28 8:3 / /srv ro,relatime - xfs /dev/sda3 rw,nobarrier
a line that is none
"""


def test_mount_is_the_nearest_and_the_last_one() -> None:
    found = {
        name: mount_of(Path(name), MOUNTS)
        for name in ("/a", "/srv/x", "/srv/with blank/x", "/srvx")
    }
    assert {name: one and one.device for name, one in found.items()} == {
        "/a": "8:1", "/srv/x": "8:3", "/srv/with blank/x": "0:44", "/srvx": "8:1",
    }  # fmt: skip
    assert mount_of(Path("/a"), "") is None


def mounted(kind: str, options: str = "rw") -> Mount:
    return Mount("/m", "0:0", kind, "none", frozenset(options.split(",")))


@pytest.mark.parametrize(
    ("mount", "preloaded", "kind", "sync"),
    [
        (mounted("ext4"), "", ["ok"], ["ok"]),
        (mounted("tmpfs"), "", ["change"], []),
        (mounted("nfs4"), "", ["note"], ["ok"]),
        (mounted("fuse.sshfs"), "", ["note"], ["ok"]),
        (mounted("overlay"), "", ["note"], ["ok"]),
        (mounted("overlay", "rw,volatile"), "", ["note"], ["change"]),
        (mounted("ext4", "ro"), "", ["ok", "change"], ["ok"]),
        (mounted("ext4", "rw,nobarrier"), "", ["ok"], ["change"]),
        (mounted("ext4", "rw,barrier=0"), "", ["ok"], ["change"]),
        (mounted("ext4"), "/usr/lib/libeatmydata.so.1", ["ok"], ["change"]),
    ],
)
def test_file_system_is_judged(
    mount: Mount, preloaded: str, kind: list[str], sync: list[str]
) -> None:
    assert levels(kind_findings(mount)) == kind
    assert levels(sync_findings_of(mount, preloaded)) == sync


def statvfs(free: int, total: int, names: tuple[int, int]) -> os.statvfs_result:
    return os.statvfs_result((1, 1, total, free, free, names[1], names[0], names[0], 0, 255))


@pytest.mark.parametrize(
    ("free", "names", "wanted"),
    [
        (1 << 40, (10**6, 10**7), ["ok", "ok"]),
        (1 << 40, (0, 0), ["ok"]),  # a file system without a table of inodes
        (1 << 40, (10, 10**7), ["ok", "change"]),
        (200 << 20, (10**6, 10**7), ["note", "ok"]),
        (10 << 20, (10**6, 10**7), ["change", "ok"]),
        (0, (10**6, 10**7), ["change", "ok"]),
    ],
)
def test_space_is_judged(free: int, names: tuple[int, int], wanted: list[str]) -> None:
    assert levels(space_findings(statvfs(free, 1 << 41, names), StoreConfig())) == wanted


def test_extras_are_judged() -> None:
    def judged(*needed: str) -> Finding:
        return extra_finding("one", "a use", [f'{line}; extra == "one"' for line in needed])

    assert judged("click>=1").level == "ok"
    absent = judged("click>=1", "no-such-package[x]>=4,<5")
    assert (absent.level, absent.what) == ("note", "not installed: no-such-package")
    assert absent.do == "pip install '.[one]' in a checkout"
    for bounds in (">=9999", ">=8.1,<8.1.0", "<1"):
        assert judged(f"click{bounds}").level == "change"
        assert bounds in judged(f"click{bounds}").what
    assert extra_finding("two", "", ['click>=1; extra == "one"', "numpy"]).what == ""


@pytest.mark.parametrize("step_s", [0.0, 0.5, -0.5, 0.0001])
def test_clock_that_jumps_is_found(step_s: float) -> None:
    times = [1000.0 + (step_s if n > 10 else 0) for n in range(21)]
    found = list(clock_findings(lambda: times.pop(0), lambda: 0.0, lambda _: None))
    jumps = [one for one in found if one.level is Severity.CHANGE]
    assert [one.what for one in jumps] == (
        ["it jumped by 500.0 ms within 0.2 s"] if abs(step_s) > 0.1 else []
    )


def test_limits_of_the_process_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: 256, resource.RLIMIT_FSIZE: 1 << 20, resource.RLIMIT_AS: 1}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], -1))
    found = {one.what: one.level for one in limit_findings(StoreConfig()) if one.why}
    assert found == {
        "256 open files": "note",
        "size of a file: 1 MiB": "change",
        "address space: 1 B": "note",
    }
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    assert not [one for one in limit_findings(StoreConfig()) if one.why]

"""The comparison of two revisions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks import (
    compare,
    lines,
)
from tests.support.benchmark_results import line


def test_compare_pairs_rounds_and_counts_better_ones() -> None:
    pairs = [(line("a", 0, 100.0), line("a", 0, 150.0)), (line("a", 1, 100.0), line("a", 1, 50.0))]
    ((_, _, before, after, ratio, spread, better),) = compare.rows(pairs)
    assert (before, after, ratio, spread, better) == (
        "100", "100", "1.000", "0.500 to 1.500", "1 of 2",
    )  # fmt: skip
    late = [(line("a", 0, 1.0, name="lateness"), line("a", 0, 9.0, name="lateness", p99=1.0))]
    assert compare.rows(late)[0][4:] == ("0.500", "0.500 to 0.500", "1 of 1")


def test_compare_exits_1_when_comparison_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, list[lines.Line]] = {}
    monkeypatch.setattr(compare, "check_out", lambda _revision: tmp_path)
    monkeypatch.setattr(compare.Tree, "run", lambda tree, *_given: found[tree.name])
    words = ["main", "--only", "put", "--rounds", "2", "--json", str(tmp_path / "pairs")]

    def status(base: list[lines.Line], new: list[lines.Line]) -> int:
        found.update(base=base, new=new)
        return compare.main(words)

    good, other = line("a", 0, 100.0), line("a", 0, 100.0, work="x")
    assert status([good], [good]) == 0
    assert len((tmp_path / "pairs").read_text().splitlines()) == 2
    assert status([good], []) == 1  # the run of the working tree failed
    assert status([], [good]) == 1  # nothing was compared
    assert capsys.readouterr().err.count("!!!") == 0
    assert status([good], [other]) == 1
    assert "only one tree did this work" in capsys.readouterr().err


def test_check_out_restores_base_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        given = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *words)
        return subprocess.run(given, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "build.py").write_text("")
    (tmp_path / "code").write_text("base")
    (tmp_path / ".gitignore").write_text("/build/")
    git("add", ".")
    git("commit", "-q", "-m", "base")
    monkeypatch.setattr(compare, "TREE", tmp_path)
    real = compare.run_git
    monkeypatch.setattr(compare, "run_git", lambda *words, tree=tmp_path: real(*words, tree=tree))
    (tmp_path / "code").write_text("changed here")
    path = compare.check_out("HEAD")
    for spoil in (
        lambda: (path / "code").write_text("changed there"),
        lambda: (path / "more").write_text("new there"),
        lambda: (path / "code").unlink(),
        lambda: (path / ".git").unlink(),
        lambda: shutil.rmtree(path),
        lambda: git("worktree", "remove", "--force", str(path)),
        lambda: None,
    ):
        spoil()
        assert compare.check_out("HEAD") == path
        assert (path / "code").read_text() == "base"
        assert not (path / "more").exists()
        assert (tmp_path / "code").read_text() == "changed here"
    (path / "native" / "build.py").write_text("raise SystemExit(1)")
    (tmp_path / "native" / "build.py").write_text("import sys; sys.exit('no compiler')")
    git("commit", "-qam", "does not build")
    assert compare.main(["HEAD"]) == 2


def test_check_out_unpacks_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "TREE", tmp_path)
    wheel = tmp_path / "timerstore-0.1.0-cp311-cp311-linux_x86_64.whl"
    for text in ("first", "second"):
        with ZipFile(wheel, "w") as packed:
            packed.writestr("timerstore/__init__.py", text)
        path = compare.check_out(str(wheel))
        assert (path / "timerstore" / "__init__.py").read_text() == text
    assert compare.main([str(tmp_path / "missing.whl")]) == 2

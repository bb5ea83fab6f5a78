"""Small files that are read whole."""

from pathlib import Path

import pytest

from tests.support.inside import Disk


def test_small_file_removed_during_a_read_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    assert Disk().read_small(path) == b"x"

    def exists(_disk: Disk, one: Path) -> bool:
        there = one.exists()
        one.unlink(missing_ok=True)
        return there

    monkeypatch.setattr(Disk, "exists", exists)
    assert Disk().read_small(path) is None

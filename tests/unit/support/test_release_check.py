"""The table of `make release-check` shows what failed, was left out or could not be done."""

from pathlib import Path

from tests.support import release_check


def test_table_names_failed_and_omitted_steps(tmp_path: Path) -> None:
    steps = {
        "check": ("sh", "-c", "echo 'NOT RUN: no browser'"),
        "docs": ("sh", "-c", "echo first; echo the last; exit 3"),
    }
    found = release_check.run(steps, tmp_path, tmp_path)
    table = release_check.table(found, tmp_path)
    assert "\n              the last\n" in table
    assert "first" not in table.replace("first-message", "")
    rows = {row.split()[0]: row for row in table.splitlines()}
    assert "passed" in rows["check"]
    assert "1 times what it could not do" in rows["check"]
    assert "FAILED" in rows["docs"]
    assert "NOT RUN" in rows["test-wheel"]
    assert "release.yml" in rows["approval,"]


def test_every_step_is_a_target_of_the_makefile() -> None:
    text = (release_check.ROOT / "Makefile").read_text()
    for make, *targets in release_check.STEPS.values():
        assert make == "make"
        named = [one for one in targets if "=" not in one]
        assert named
        assert all(f"\n{target}:" in text for target in named)

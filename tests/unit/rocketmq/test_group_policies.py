"""The file of group policies."""

from pathlib import Path

import pytest

from timerstore.errors import ConfigError
from timerstore.rocketmq.group_policies import GroupPolicies, GroupPolicy, read_policies


def test_group_without_a_table_has_the_default(tmp_path: Path) -> None:
    path = tmp_path / "groups.toml"
    path.write_text(
        "[default]\npoll_s = 5\n[groups.billing]\nmax_attempts = 3\nbackoff_s = [1, 5]\n"
        "fifo = true\n"
    )
    found = read_policies(path)
    assert found.of("other") == GroupPolicy(poll_s=5)
    assert found.of("billing") == GroupPolicy(poll_s=5, max_attempts=3, backoff_s=(1, 5), fifo=True)
    assert GroupPolicies().of("any") == GroupPolicy()


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "groups.toml"
    path.write_text(
        "other = 1\n[default]\nmax_attempts = 0\nfifo = 1\n"
        '[groups."a b"]\nbackoff_s = [1.5, 0]\n[groups.c]\nbackoff_s = []\npoll_s = "1"\n'
    )
    with pytest.raises(ConfigError) as found:
        read_policies(path)
    assert [one.split(":")[1].strip() for one in found.value.problems] == [
        "other", "default.max_attempts", "default.fifo", "group",
        'groups."a b".backoff_s[0]', 'groups."a b".backoff_s[1]', 'groups."c".backoff_s',
        'groups."c".poll_s',
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["[", "groups = 1\n", "default = 1\n"])
def test_file_of_another_form_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "groups.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="groups_file"):
        read_policies(path)

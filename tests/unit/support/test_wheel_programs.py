"""The programs that install and emulate wheels say loudly what they cannot do."""

from pathlib import Path

import pytest

from tests.support import emulated, installed_wheel


def test_tests_of_aarch64_say_that_they_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert emulated.main([]) == 1
    said = capfd.readouterr().err
    assert said.startswith("!!! NOT RUN: the tests of the wheels for aarch64: qemu-aarch64 is not")
    assert "apt install qemu-user" in said


def test_first_message_names_the_target_that_builds_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installed_wheel, "DIST", tmp_path)
    assert installed_wheel.main([]) == 1
    assert "`make wheels` builds one" in capfd.readouterr().err

"""The programs of the page run as they stand there, with the address of the test's server."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.fetch import BUILT, HERE, class_path
from tests.clients.served_store import ServedStore

pytestmark = [pytest.mark.more, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "timerstore/docs/rocketmq-clients.md"
FENCES = {"java": "java", "python": "python no-run", "node": "js", "rust": "rust"}


def program(client: str, address: str) -> str:
    """Return the program of the page for a client."""
    fence = FENCES[client.partition("-")[0]]
    found = [
        text
        for text in re.findall(rf"```{fence}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
        if "reminders" in text
    ]
    assert len(found) == 1
    assert "127.0.0.1:8081" in found[0]
    return found[0].replace("127.0.0.1:8081", address)


def command(client: str, text: str, folder: Path) -> list[str | Path]:
    """Write a program, and return the command that runs it."""
    if client.startswith("java"):
        path = folder / "Reminders.java"
        path.write_text(text)
        return ["java", "-cp", class_path(client), path]
    if client == "python":
        path = folder / "reminders.py"
        path.write_text(text)
        return [BUILT / "python/bin/python", path]
    if client == "node":
        path = BUILT / "node" / "reminders.js"  # next to its modules
        path.write_text(text)
        return ["node", path]
    shutil.copytree(HERE / "rust", folder / "rust")
    path = folder / "rust"
    (path / "src/driver.rs").write_text(text)
    manifest = path / "Cargo.toml"
    manifest.write_text(manifest.read_text().replace('name = "driver"', 'name = "reminders"'))
    # The crates that the driver was built with are not built again.
    return ["cargo", "run", "--quiet", "--release", "--manifest-path", manifest,
            "--target-dir", BUILT / "rust"]  # fmt: skip


def test_program_of_the_page_runs(client: str, served: ServedStore) -> None:
    if client == "java-5.0.7":
        pytest.skip("java-5.0.7 has no recall")
    words = command(client, program(client, served.address), served.folder)
    done = subprocess.run(
        [str(one) for one in words], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [one for one in lines if one.startswith("call ")] == ["call Bob"], done.stdout

"""Django's own tests of its tasks, from the source distribution of the Django that is installed.

    python -m tests.support.django_suite

They are fetched, not copied: build/django-suite/VERSION/tasks.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[2] / "build" / "django-suite"


def folder() -> Path:
    """Return the folder above `tasks`; it need not be there yet."""
    return _FOLDER / version("django")


def fetch() -> Path:
    """Fetch the tests unless they are there, and return the folder above `tasks`."""
    if not (folder() / "tasks").is_dir():
        with tempfile.TemporaryDirectory() as downloads:
            wanted = f"django=={version('django')}"
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
            only = ["--no-deps", "--no-binary", ":all:", "--dest", downloads]
            subprocess.run([*pip, "download", *only, wanted], check=True)
            [archive] = Path(downloads).glob("*.tar.gz")
            with tarfile.open(archive) as files:
                for member in files.getmembers():
                    _, _, name = member.name.partition("/tests/")
                    if member.isfile() and name.startswith("tasks/"):
                        member.name = name
                        files.extract(member, folder(), filter="data")
    return folder()


if __name__ == "__main__":
    print(fetch())

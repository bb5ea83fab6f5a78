"""Run the tests of timerstore.contrib.django on each Python that Django 6 has and that is found.

    python -m tests.support.django_pythons [pytest arguments]

Django's own tests are fetched first. Exit status 1 if a version fails, or if none is found.
"""

import os
import subprocess
import sys

from tests.support import pythons

VERSIONS = ("3.12", "3.13")


def main() -> int:
    passed = []
    for version in VERSIONS:
        python = pythons.find(version)
        print(f"--- CPython {version}: {python or 'NOT FOUND, NOT TESTED'}", flush=True)
        if python is None:
            continue
        mine = pythons.prepare(version, python)
        environment = os.environ | {"PYTHONPATH": str(pythons.ROOT)}
        commands = (
            [mine, "-m", "tests.support.django_suite"],
            [mine, "-m", "pytest", "-q", "tests/contrib/django", *sys.argv[1:]],
        )
        passed.append(
            all(
                subprocess.run(one, check=False, cwd=pythons.ROOT, env=environment).returncode == 0
                for one in commands
            )
        )
    return not passed or not all(passed)


if __name__ == "__main__":
    sys.exit(main())

"""The texts of the project are plain English (tests/support/language.py has the rules)."""

from pathlib import Path

import pytest

from tests.support.language import findings, findings_in

ALLOWED = Path(__file__).parent / "language_allowed.txt"
ALLOWED_MAX = 40


def _allowed() -> list[tuple[str, str]]:
    """Read `path: part of the line  # reason`; several findings may share an entry."""
    rows = []
    for line in ALLOWED.read_text().splitlines():
        if line and not line.startswith("#"):
            entry, mark, reason = line.partition("  # ")
            path, colon, part = entry.partition(": ")
            assert all((mark, reason, colon, part)), line
            rows.append((path, part))
    return rows


@pytest.mark.more  # `make check` runs it
def test_texts_are_plain_english() -> None:
    allowed = _allowed()
    assert len(allowed) <= ALLOWED_MAX
    found = findings([])
    used = {
        (path, part)
        for path, part in allowed
        for one in found
        if one.path == path and part in str(one)
    }
    left = [
        str(one)
        for one in found
        if not any(one.path == p and part in str(one) for p, part in allowed)
    ]
    assert left == []
    assert set(allowed) == used, "an allowed line is gone: remove its entry"


@pytest.mark.parametrize(
    "text",
    [
        "Who waits is woken.",
        "It reads what is due.",
        "Nobody has the store open.",
        "The file stays beside the log.",
        "Rebuilt anew, amid a put.",
        "The caller is told the offset.",
        "He comes back later.",
        "A message is parked in its lane.",
        "This is none of the store's files.",
        " ".join(["word"] * 36) + ".",
    ],
)
def test_idiom_is_found_in_documents(text: str) -> None:
    assert list(findings_in("page.md", text))


@pytest.mark.parametrize(
    "source",
    [
        '"""Give what is due."""\n',
        "x = 1  # whoever comes first\n",
        'raise ValueError("nobody has it open")\n',
    ],
)
def test_idiom_is_found_in_python(source: str) -> None:
    assert list(findings_in("timerstore/module.py", source))


@pytest.mark.parametrize("name", ["test_what_is_due_comes", "test_nobody_waits", "test_a_he_b"])
def test_idiom_is_found_in_names_of_tests(name: str) -> None:
    assert list(findings_in("tests/test_module.py", f"def {name}(): ...\n"))


@pytest.mark.parametrize(
    "text",
    [
        "The error names what was lost.",
        "What is lost at a power cut?",
        "`what is due` is an example in code.",
        "The value is null if there is none.",
        "A topic whose queues are empty has no unit.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert not list(findings_in("page.md", text))

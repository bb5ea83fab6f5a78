"""Find private idiom in documents, docstrings, comments, error texts and test names.

`python -m tests.support.language [PATH ...]` prints each finding; `make check` runs it on the tree.
The rules are those of plain technical English: see Conventions in the contributing page.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SENTENCE_WORDS_MAX = 35

_CLAUSE = (
    "is|was|are|were|has|had|waits|wait|came|comes|lies|stands|goes|went|gets|got|cannot|must|may|"
    "might|follows|remains|counts|belongs|fits|nobody|somebody|others"
)
_ASKS = re.compile(
    r"\b(says?|said|tells?|shows?|names?|lists?|explains?|decides?|knows?|sees?|reports?|describes?|"
    r"defines?|states?|compares?|checks?|determines?)\W*$",
    re.IGNORECASE,
)
"""An indirect question is plain English: `The report names what was lost`."""

_WHAT = "a clause as a noun"
_WORDS = {
    "a person as a noun": r"\b(who|whoever|whom)\b",
    _WHAT: rf"\bwhat (?:{_CLAUSE})\b(?![^.!]*\?)",
    "a negated indefinite": r"\b(nobody|somebody|anybody)\b",
    "an old adverb": r"\b(amid|anew|beside|meanwhile|thereof|hitherto)\b",
    "telling without an agent": r"\b(?:is|are|was|were|be) (?:told|said|rung)\b",
    "a person for a thread": r"\b(he|him|his|himself)\b",
    "a private term": r"\b(lanes?|crowds?|parked|misfits?|rung)\b",
}
IDIOM = {rule: re.compile(words, re.IGNORECASE) for rule, words in _WORDS.items()}
IDIOM["a negation as a noun"] = re.compile(r"(?<!there )\bis none\b")
NAME_IDIOM = re.compile(
    r"_(who|whoever|whom|whose|nobody|somebody|anybody|amid|anew|beside|meanwhile|he|his|him|"
    r"lanes?|crowds?|parked|misfits?|told)(_|$)|^test_(what|who|how|that|where|why)_"
)


class Finding(NamedTuple):
    """One line that a rule objects to."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text.strip()[:140]}"


def _match(path: str, line: int, text: str) -> Iterator[Finding]:
    for rule, pattern in IDIOM.items():
        found = pattern.search(text)
        if found and not (rule == _WHAT and _ASKS.search(text[: found.start()])):
            yield Finding(path, line, rule, text)


def _without_code(line: str) -> str:
    """Remove inline code, addresses and quoted examples, which may use any word."""
    line = re.sub(r"`[^`]*`", "`", line)
    return re.sub(r"\]\([^)]*\)|https?://\S+", "]", line)


def _markdown(path: str, text: str) -> Iterator[Finding]:
    is_code = False
    paragraph: list[str] = []
    begin = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
            line = ""  # noqa: PLW2901 - a fence ends a paragraph
        elif is_code or line.startswith("    "):
            continue
        plain = _without_code(line)
        yield from _match(path, number, plain)
        is_new = not plain.strip() or re.match(r"\s*([-*|#>]|\d+\.)", plain) is not None
        if is_new:
            yield from _long_sentences(path, begin, " ".join(paragraph))
            paragraph, begin = [], number
        if plain.strip() and not plain.lstrip().startswith(("|", "#")):
            paragraph.append(plain)


def _long_sentences(path: str, line: int, paragraph: str) -> Iterator[Finding]:
    for sentence in re.split(r"(?<=[.!?:;])\s", paragraph):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > SENTENCE_WORDS_MAX:
            yield Finding(path, line, f"a sentence of {len(words)} words", sentence)


def _is_idiom(name: str) -> bool:
    return name.startswith("test_") and NAME_IDIOM.search(name) is not None


_STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_LAYOUT = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_IGNORED = {tokenize.NL, tokenize.COMMENT}


def _python(path: str, text: str) -> Iterator[Finding]:
    """Read comments, strings and names of tests. In tests, only docstrings count as strings."""
    is_test = path.startswith("tests/")
    before = tokenize.NEWLINE, ""
    for kind, string, (line, _), _, _ in tokenize.generate_tokens(io.StringIO(text).readline):
        if kind == tokenize.COMMENT:
            yield from _match(path, line, _without_code(string))
        elif kind in _STRINGS and " " in string and (before[0] in _LAYOUT or not is_test):
            for number, part in enumerate(string.splitlines()):
                yield from _match(path, line + number, _without_code(part))
        elif is_test and before[1] == "def" and _is_idiom(string):
            yield Finding(path, line, "the name of a test", string)
        if kind not in _IGNORED:
            before = kind, string


def _c(path: str, text: str) -> Iterator[Finding]:
    for found in re.finditer(r"/\*.*?\*/|//[^\n]*", text, re.DOTALL):
        begin = text.count("\n", 0, found.start()) + 1
        for number, line in enumerate(found.group().splitlines()):
            yield from _match(path, begin + number, _without_code(line))


_READERS = {".md": _markdown, ".py": _python, ".c": _c, ".h": _c, ".js": _c}


def findings_in(path: str, text: str) -> Iterator[Finding]:
    """Read one text by the rules for the suffix of its path."""
    yield from _READERS[Path(path).suffix](path, text)


def findings(paths: list[str]) -> list[Finding]:
    """Read files that git knows below `paths`, relative to the root; all without any."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = []
    for path in listed.stdout.splitlines():
        if Path(path).suffix in _READERS and (ROOT / path).exists():
            found += findings_in(path, (ROOT / path).read_text())
    return found


if __name__ == "__main__":
    everything = findings(sys.argv[1:])
    print(*everything, f"{len(everything)} findings", sep="\n")
    sys.exit(bool(everything))

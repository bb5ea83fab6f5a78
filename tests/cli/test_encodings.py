"""Output in encodings that lack a character, and input that is not UTF-8 or too deeply nested."""

import io
import json
import os
import re
import sys

import pytest

from tests.support.command_line import SMALL, CommandLine
from timerstore.cli import main
from timerstore.cli.exits import Exit


class EncodedCommandLine:
    """The command line with strict streams of another encoding."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
        self._monkeypatch = monkeypatch
        self._encoding = encoding

    def __call__(self, *words: object, given: bytes = b"") -> tuple[int, bytes, bytes]:
        raw = [io.BytesIO(given), io.BytesIO(), io.BytesIO()]
        with self._monkeypatch.context() as patch:
            for name, one in zip(("stdin", "stdout", "stderr"), raw, strict=True):
                patch.setattr(sys, name, io.TextIOWrapper(one, self._encoding, "strict"))
            code = main([os.fspath(word) for word in words])  # type: ignore[call-overload]
            sys.stdout.flush()
            sys.stderr.flush()
            return code, raw[1].getvalue(), raw[2].getvalue()


def test_output_escapes_characters_that_its_encoding_lacks(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ts.init()
    ts.fine("put", path, "t", "5 € 🙂 é")
    ts.fine("put", path, "t", "x", "--in", "1h")
    latin = EncodedCommandLine(monkeypatch, "iso-8859-1")
    for words in (["get", path, "t"], ["histogram", path], ["top", path, "--once"], ["ls", path]):
        assert latin(*words)[0] == 0
    assert latin("get", path, "t")[1].endswith(b"  5 \\u20ac \\U0001f642 \xe9\n")
    for encoding in ("iso-8859-1", "ascii", "utf-8"):
        for words in (["dump", path, "-n", "1"], ["get", path, "t", "--json"]):
            code, out, _ = EncodedCommandLine(monkeypatch, encoding)(*words)
            assert code == 0
            assert json.loads(out.decode(encoding))["body"] == "5 € 🙂 é", "JSON stays JSON"


def test_paths_that_are_not_utf8_are_accepted(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = EncodedCommandLine(monkeypatch, "utf-8")
    path = f"{ts.folder}/bad\udcffdir"
    code, out, err = strict("init", path, *SMALL)
    assert (code, err) == (0, b"")
    assert b"bad\\udcffdir" in out
    code, out, _ = strict("verify", path, "--json")
    assert (code, json.loads(out)["path"]) == (0, path)
    code, _, err = strict("explain", path, "\udcff", "--topic", "t")
    assert code == Exit.ERROR
    assert b"half a surrogate pair" in err
    rows = f"{path}.parquet"
    ts.fine("put", path, "t", "x", "--in", "1h")
    assert strict("export", path, rows)[0] == 0
    assert b"put 1 row" in strict("import", path, rows, "--topic", "t")[1]
    code, _, err = strict("dump", path, "--topic", "\udcff")
    assert code == Exit.ERROR
    assert b"--topic: half a surrogate pair" in err
    code, _, err = strict("put", path, "\udcff", "x")
    assert code == Exit.ERROR
    assert err.startswith(b"error: topic")


@pytest.mark.parametrize("command", ["ack", "nack", "bury", "extend", "cancel"])
def test_input_that_is_not_utf8_is_an_invalid_line(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    strict = EncodedCommandLine(monkeypatch, "utf-8")
    code, out, err = strict(command, ts.init(), "-", given=b"\xff\xfe\n")
    assert (code, out) == (Exit.ERROR, b"")
    assert re.search(rb"do +give the (receipt|handle) that", err)


def test_deeply_nested_input_is_an_invalid_line(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict, path, deep = EncodedCommandLine(monkeypatch, "utf-8"), ts.init(), b"[" * 200_000
    code, _, err = strict("ack", path, "-", given=b'\n{"receipt":' + deep + b"\n")
    assert code == Exit.ERROR
    assert b"where  line 2 of standard input" in err
    code, _, err = strict("import", path, "-", given=b"\n\n" + deep + b"\n")
    assert code == Exit.ERROR
    assert b"where  - line 3" in err

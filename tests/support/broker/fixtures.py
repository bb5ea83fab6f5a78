"""Unpack a store of tests/fixtures/broker, and read the listings that its broker wrote.

Each folder tests/fixtures/broker/<name>/ was written by RocketMQ itself; the README there describes
its files.

Invariants: imports nothing of timerstore; it accesses a Message by the names of its fields.
"""

import gzip
import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "broker"

Line = dict[str, Any]

# Fields in which a listing and a Message must agree, in addition to body and properties.
COMPARED = (
    "topic",
    "queue_id",
    "queue_offset",
    "log_offset",
    "flag",
    "sys_flag",
    "born_ms",
    "store_ms",
    "born_host",
    "store_host",
    "body_crc",
    "reconsume_times",
)


class MessageLike(Protocol):
    """The attributes that `differences` reads in addition to the fields in COMPARED."""

    @property
    def body(self) -> bytes | bytearray | memoryview: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


def names() -> list[str]:
    """Return the names of all stores, sorted."""
    return sorted(path.name for path in FOLDER.iterdir() if (path / "store.tar.xz").exists())


def about(name: str) -> Line:
    """about.json: `broker`, `store_config`, `property_crc`, `seconds_the_copy_ran`."""
    found = json.loads((FOLDER / name / "about.json").read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def precision_ms(name: str) -> int:
    """Return the slot width of a store."""
    return int(about(name)["store_config"]["precision_ms"])


@cache
def _archive(name: str) -> bytes:
    """Return the bytes of a store's archive; decompression takes most of the time."""
    return lzma.decompress((FOLDER / name / "store.tar.xz").read_bytes())


def unpack(name: str, target: Path) -> Path:
    """Unpack a store into a new folder of `target`, keep holes, and return its root."""
    root = target / name
    root.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(_archive(name))) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(root, filter="data")
        else:  # Python 3.11 before 3.11.4
            archive.extractall(root)
    return root


def lines(name: str, file: str) -> list[Line]:
    """Return the lines of one .jsonl.gz, or an empty list without the file."""
    path = FOLDER / name / f"{file}.jsonl.gz"
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as text:
        return [json.loads(line) for line in text]


def sent(name: str) -> list[Line]:
    """Return the acknowledged sends, in order."""
    return lines(name, "sent")


def opened(name: str) -> tuple[list[Line], list[Line], Line]:
    """Return (messages, slots, end) that the broker found after load and recovery."""
    return _split(lines(name, "open"))


def delivered(name: str) -> tuple[list[Line], list[Line], Line]:
    """Return (messages, slots, end) after a copy ran, all empty if no copy ran."""
    return _split(lines(name, "delivered"))


def _split(found: list[Line]) -> tuple[list[Line], list[Line], Line]:
    messages = [line for line in found if "body_sha256" in line]
    slots = [line for line in found if "slot_ms" in line]
    return messages, slots, found[-1] if found else {}


def differences(line: Line, message: MessageLike, *, store_size: int | None = None) -> list[str]:
    """Return the differences between a message and its listing.

    A field that the message does not have counts as a difference. The size is compared with
    `store_size`, or with the message's `store_bytes`. The listing's `born_host` has no port; the
    message's may have one. Properties with an empty value are left out, as in the listing.
    A broker that inflates a body takes bit 0 off the SYSFLAG it shows, so that bit is not compared.
    """
    found: list[str] = []

    def compare(what: str, wanted: object, got: object) -> None:
        if wanted != got:
            found.append(f"{what}: wanted {wanted!r}, got {got!r}")

    for name in COMPARED:
        got = getattr(message, name, "no such field")
        if name == "born_host" and isinstance(got, str):
            got = _without_port(got)
        if name == "sys_flag" and isinstance(got, int):
            compare(name, line[name] & ~1, got & ~1)
        else:
            compare(name, line[name], got)
    size = getattr(message, "store_bytes", None) if store_size is None else store_size
    compare("store_size", line["store_size"], size)
    properties = {key: value for key, value in message.properties.items() if value}
    wanted = line["properties"]
    for key in sorted(wanted.keys() | properties.keys()):
        compare(f"property {key}", wanted.get(key), properties.get(key))
    body = bytes(message.body)
    compare("body_bytes", line["body_bytes"], len(body))
    compare("body_sha256", line["body_sha256"], hashlib.sha256(body).hexdigest())
    return found


def _without_port(host: str) -> str:
    """`ip` of `ip:port`, `[ip]:port` or `ip`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host

"""The messages, enums and methods of the protocol, from the compiled definitions of this folder.

They live in a descriptor pool of their own. So a process may also load the official client, which
registers the same names in the default pool.
"""

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

COMPILED = Path(__file__).parent / "definitions.binpb"
MESSAGING = "apache.rocketmq.v2.MessagingService"
HEALTH = "grpc.health.v1.Health"


class Method(NamedTuple):
    """A method of a service."""

    name: str
    path: str
    request: Any
    response: Any
    is_client_streaming: bool
    is_server_streaming: bool


def _loaded() -> tuple[Any, dict[str, Any]]:
    """Return the pool, and the classes of messages by full name."""
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes())
    for one in files.file:
        pool.AddSerializedFile(one.SerializeToString())
    return pool, message_factory.GetMessageClassesForFiles([one.name for one in files.file], pool)


_pool, _classes = _loaded()


def _enum(name: str) -> Any:
    found = _pool.FindEnumTypeByName(f"apache.rocketmq.v2.{name}")
    return IntEnum(name, {one.name: one.number for one in found.values})


messages: Any = SimpleNamespace(
    **{name.rpartition(".")[2]: found for name, found in _classes.items()}
)
"""The classes of all messages, by name: `messages.Status`."""

AddressScheme = _enum("AddressScheme")
ClientType = _enum("ClientType")
Code = _enum("Code")
DigestType = _enum("DigestType")
Encoding = _enum("Encoding")
FilterType = _enum("FilterType")
MessageType = _enum("MessageType")
Permission = _enum("Permission")
TransactionResolution = _enum("TransactionResolution")


def methods(service: str) -> Iterator[Method]:
    """Yield the methods of a service, named in full."""
    for one in _pool.FindServiceByName(service).methods:
        yield Method(
            one.name,
            f"/{service}/{one.name}",
            _classes[one.input_type.full_name],
            _classes[one.output_type.full_name],
            one.client_streaming,
            one.server_streaming,
        )

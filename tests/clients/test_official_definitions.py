"""Our definitions are those of the official client: each name, number, type and label of ours."""

import subprocess
from collections.abc import Iterator

import pytest
from google.protobuf import descriptor_pb2

from tests.clients.conftest import need_fetched
from tests.clients.fetch import BUILT
from timerstore.rocketmq.definitions import COMPILED

pytestmark = pytest.mark.more

PROGRAM = """
import sys
from google.protobuf import descriptor_pb2
from rocketmq.grpc_protocol import definition_pb2, service_pb2
found = descriptor_pb2.FileDescriptorSet()
for one in (definition_pb2, service_pb2):
    one.DESCRIPTOR.CopyToProto(found.file.add())
sys.stdout.buffer.write(found.SerializeToString())
"""

TOGETHER = """
import importlib.util, sys
import rocketmq.grpc_protocol as theirs
spec = importlib.util.spec_from_file_location("ours", sys.argv[1] + "/__init__.py")
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
assert ours.messages.Status is not theirs.Status
"""


def facts(raw: bytes) -> set[tuple[object, ...]]:
    """Return each message, field, enum value and method as a tuple."""
    found: set[tuple[object, ...]] = set()
    for file in descriptor_pb2.FileDescriptorSet.FromString(raw).file:
        if file.package != "apache.rocketmq.v2":
            continue
        for message in file.message_type:
            found.update(facts_of_message("", message))
        for enum in file.enum_type:
            found.update(("value", enum.name, one.name, one.number) for one in enum.value)
        for service in file.service:
            found.update(
                ("method", service.name, one.name, one.input_type, one.output_type,
                 one.client_streaming, one.server_streaming)
                for one in service.method
            )  # fmt: skip
    return found


def facts_of_message(
    prefix: str, one: descriptor_pb2.DescriptorProto
) -> Iterator[tuple[object, ...]]:
    name = f"{prefix}{one.name}"
    yield "message", name
    for field in one.field:
        oneof = one.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        yield ("field", name, field.name, field.number, field.type, field.type_name, field.label,
               field.proto3_optional, oneof)  # fmt: skip
    for nested in one.nested_type:
        yield from facts_of_message(f"{name}.", nested)


def test_definitions_are_those_of_the_official_client() -> None:
    need_fetched("python")
    done = subprocess.run(
        [BUILT / "python/bin/python", "-c", PROGRAM], capture_output=True, check=True
    )
    ours, theirs = facts(COMPILED.read_bytes()), facts(done.stdout)
    assert len(ours) > 200
    assert ours - theirs == set()


def test_definitions_and_the_official_client_live_in_one_process() -> None:
    need_fetched("python")
    subprocess.run([BUILT / "python/bin/python", "-c", TOGETHER, COMPILED.parent], check=True)

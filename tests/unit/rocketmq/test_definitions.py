"""The messages of the protocol: compiled from our own file, in a pool of their own."""

from google.protobuf import descriptor_pb2, descriptor_pool

from tests.support.rocketmq_definitions import compiled
from timerstore.rocketmq.definitions import COMPILED, HEALTH, MESSAGING, Code, messages, methods


def files(raw: bytes) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    return {one.name: one for one in descriptor_pb2.FileDescriptorSet.FromString(raw).file}


def test_descriptors_in_git_are_those_of_the_definitions() -> None:
    wanted, found = files(compiled()), files(COMPILED.read_bytes())
    assert found.keys() == wanted.keys()
    for name in ("messaging.proto", "health.proto"):  # those of Google change with their release
        assert found[name] == wanted[name], "run `make definitions`"


def test_definitions_are_not_in_the_default_pool() -> None:
    try:
        descriptor_pool.Default().FindMessageTypeByName("apache.rocketmq.v2.Status")
    except KeyError:
        return
    raise AssertionError("another package of this process must be free to register these names")


def test_messages_and_methods_are_usable() -> None:
    one = messages.Status.FromString(messages.Status(code=Code.NOT_FOUND).SerializeToString())
    assert one.code == Code.NOT_FOUND == 40400
    assert [one.name for one in methods(HEALTH)] == ["Check", "Watch"]
    streams = {one.name for one in methods(MESSAGING) if one.is_server_streaming}
    assert streams == {"ReceiveMessage", "Telemetry"}

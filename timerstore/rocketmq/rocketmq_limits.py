"""The limits of a server for clients of RocketMQ: on everything that a client can make grow."""

from dataclasses import dataclass

from timerstore.net.server_limits import check_limits

CLIENT_ID_CHARACTERS_MAX = 256
ATTEMPT_ID_CHARACTERS_MAX = 128
PRODUCER_TOPICS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketmqLimits:
    """Limits of `timerstore.rocketmq.serve`. Each is 1 or more.

    At a limit the answer is 42900 (TOO_MANY_REQUESTS), which ends the client's immediate retries,
    unless the limit names another one.
    """

    connections_max: int = 4096
    """Open connections. Another one is closed at once."""
    clients_max: int = 4096
    """Clients with a Telemetry stream. As many that were disconnected keep their leases for 30 s;
    above it those of the first end at once."""
    topics_max: int = 10_000
    """Topics of the store. Above it, no client makes another one."""
    groups_max: int = 10_000
    """Pairs of topic and group that clients of this server have read with."""
    polls_max: int = 16_384
    """ReceiveMessage calls that wait, of all clients."""
    client_polls_max: int = 4096
    """The same, of one client."""
    sending_bytes_max: int = 128 << 20
    """Bytes of requests, and of their bodies as they are stored, until their calls have ended. A
    byte of a request other than SendMessage counts as 32, which it may take when it is decoded."""
    unsent_bytes_max: int = 128 << 20
    """Bytes of messages, until the ReceiveMessage or the check that leased them has been sent. One
    that takes more alone is sent if there is no other. One answer has at most a quarter of the
    bytes that are left, shared by the polls that wait, but 64 KiB or its first message in any
    case. A check above it waits."""
    entries_max: int = 1024
    """Messages of one SendMessage, entries of one AckMessage (40000 above it), and messages of one
    ReceiveMessage, which never returns more."""
    renewed_leases_max: int = 100_000
    """Leases of push consumers that the server ends when their client leaves. Further ones last
    for the group's consume timeout."""
    replays_max: int = 1024
    """Answers with an attempt id that are kept for a repeated call. The oldest is forgotten."""
    replay_bytes_max: int = 64 << 20
    """Bytes of these answers."""

    def __post_init__(self) -> None:
        check_limits(self)

"""What a connected store does not have, with reasons and alternatives.

Invariants: every public name of TimerStore is a name of RemoteStore and of AsyncRemoteStore, or is
listed here; a test compares them. `begin_pull` and `begin_receive` are missing for asyncio only.
"""

from collections.abc import Mapping
from types import MappingProxyType

from timerstore.errors import MessageError

NOT_REMOTE: Mapping[str, str] = MappingProxyType(
    {
        "begin_pull": "an asyncio client awaits `pull(wait=...)`",
        "begin_pull_batch": "its waiting is done by the server: `pull_batch(wait=...)`",
        "begin_receive": "an asyncio client awaits `receive(wait=...)`",
        "ingest": "it reads rows lazily in the process of the store; `put_many(message_ids=...)`",
        "ingested": "as `ingest`",
        "services": "they run in the process of the store",
        "clock": "time is that of the process of the store",
        "config": "settings belong to the process of the store; `stats` shows what they lead to",
        "path": "the store may be on another machine; see `url`",
    }
)
"""By name: the reason, and the alternative."""


def not_remote(name: str) -> MessageError:
    """Return the error for a call that a connected store does not have."""
    return MessageError(f"{name}: a connected store does not have it: {NOT_REMOTE[name]}")


def missing_name(kind: str, name: str) -> str:
    """Return the text of the AttributeError for a name that a connected store does not have."""
    why = NOT_REMOTE.get(name)
    return f"a {kind} has no {name!r}" + (f": {why}" if why else "")

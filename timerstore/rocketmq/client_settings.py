"""The settings that a client gets for its own: Telemetry.

Client and server exchange settings on a stream that is open as long as the client lives. Each
client stops, or rejects each message, if a field that it needs is missing.
"""

from typing import Any

from timerstore.rocketmq.client_names import resource_name
from timerstore.rocketmq.codes import status
from timerstore.rocketmq.definitions import messages
from timerstore.rocketmq.group_policies import GroupPolicies
from timerstore.rocketmq.message_views import duration

_SEND_ATTEMPTS = 3
_SEND_BACKOFF_MS = 10
_SEND_BACKOFF_MS_MAX = 1000
_SEND_BACKOFF_FACTOR = 2.0
_RECEIVE_COUNT = 32


def answer(command: Any, policies: GroupPolicies, body_bytes_max: int) -> Any | None:
    """Return the command that answers one of a client; None if it needs no answer."""
    if command.WhichOneof("command") != "settings":
        return None
    settings = messages.Settings()
    settings.CopyFrom(command.settings)  # also the fields that this server does not know
    if settings.HasField("subscription"):
        _subscribe(settings, policies)
    else:
        _publish(settings, body_bytes_max)
    settings.metric.on = False
    return messages.TelemetryCommand(status=status(), settings=settings)


def _publish(settings: Any, body_bytes_max: int) -> None:
    settings.publishing.max_body_size = body_bytes_max
    settings.publishing.validate_message_type = True
    settings.backoff_policy.Clear()
    settings.backoff_policy.max_attempts = _SEND_ATTEMPTS
    settings.backoff_policy.exponential_backoff.CopyFrom(
        messages.ExponentialBackoff(
            initial=duration(_SEND_BACKOFF_MS),
            max=duration(_SEND_BACKOFF_MS_MAX),
            multiplier=_SEND_BACKOFF_FACTOR,
        )
    )


def _subscribe(settings: Any, policies: GroupPolicies) -> None:
    policy = policies.of(resource_name(settings.subscription.group))
    settings.subscription.fifo = policy.fifo
    settings.subscription.receive_batch_size = _RECEIVE_COUNT
    settings.subscription.long_polling_timeout.CopyFrom(duration(policy.poll_s * 1000))
    settings.backoff_policy.Clear()
    settings.backoff_policy.max_attempts = policy.max_attempts
    settings.backoff_policy.customized_backoff.next.extend(
        duration(one * 1000) for one in policy.backoff_s
    )

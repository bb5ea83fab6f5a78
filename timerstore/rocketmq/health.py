"""The health service of gRPC: SERVING while the server takes calls.

It needs no signature, as load balancers have no key.
"""

import asyncio
from typing import Any

import grpc

from timerstore._engine.base.owner import NotCopyable
from timerstore.rocketmq.definitions import HEALTH, MESSAGING, messages, methods

_STATUS = messages.HealthCheckResponse.ServingStatus

_WATCHES_MAX = 1024


class Health(NotCopyable):
    """Answers Check and Watch."""

    def __init__(self) -> None:
        self._closing = asyncio.Event()
        self._watch_count = 0

    def handler(self) -> Any:
        """Return the handler of both methods, for a server of grpc.aio."""
        made = {}
        for method in methods(HEALTH):
            options = {
                "request_deserializer": method.request.FromString,
                "response_serializer": method.response.SerializeToString,
            }
            if method.is_server_streaming:
                made[method.name] = grpc.unary_stream_rpc_method_handler(self._watch, **options)
            else:
                made[method.name] = grpc.unary_unary_rpc_method_handler(self._check, **options)
        return grpc.method_handlers_generic_handler(HEALTH, made)

    async def _check(self, request: Any, context: Any) -> Any:
        if request.service not in ("", MESSAGING):
            await context.abort(grpc.StatusCode.NOT_FOUND, "wanted the name of a service")
        return self._now(request)

    async def _watch(self, request: Any, context: Any) -> None:
        if self._watch_count >= _WATCHES_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"wanted at most {_WATCHES_MAX} watches"
            )
        self._watch_count += 1
        try:
            await context.write(self._now(request))
            await self._closing.wait()
            await context.write(self._now(request))
        finally:
            self._watch_count -= 1

    def _now(self, request: Any) -> Any:
        if request.service not in ("", MESSAGING):
            return messages.HealthCheckResponse(status=_STATUS.SERVICE_UNKNOWN)
        is_closing = self._closing.is_set()
        found = _STATUS.NOT_SERVING if is_closing else _STATUS.SERVING
        return messages.HealthCheckResponse(status=found)

    def close(self) -> None:
        """Answer NOT_SERVING from now on, and end the watches."""
        self._closing.set()

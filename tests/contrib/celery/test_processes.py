"""Connections of kombu in one process and in its forked children."""

import logging
import os
import signal
import time
from typing import Any

import kombu
import pytest

import timerstore
from tests.contrib.celery.kombu_bench import PATIENCE_S, KombuBench, Received, drain
from timerstore.contrib.celery import broker as broker_module
from timerstore.contrib.celery import held_leases

WORK = kombu.Queue("work", routing_key="work")


def _put(connection: kombu.Connection, body: Any) -> None:
    connection.Producer().publish(body, routing_key=WORK.name)


def test_connections_of_a_process_share_a_store_that_the_last_one_closes(
    kombu_bench: KombuBench,
) -> None:
    first, second = kombu_bench.connect(), kombu_bench.connect()
    first.connect()
    second.connect()
    broker = first.transport.broker
    assert second.transport.broker is broker
    first.release()
    _put(second, 1)
    second.release()
    with pytest.raises(timerstore.ClosedError):
        broker.store.topics()


def test_forked_child_publishes_and_does_not_return_the_leases_of_its_parent(
    kombu_bench: KombuBench,
) -> None:
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
        pid = os.fork()
        if not pid:
            try:
                connection.release()
                with kombu.Connection(kombu_bench.url) as own:
                    _put(own, 2)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        drain(connection, received, 2)
        received.messages[0].ack()
    assert received.bodies == [1, 2]
    assert kombu_bench.store.backlog("work", "celery").ready == 0


def test_forked_child_renews_the_leases_that_it_gets_by_an_inherited_connection(
    kombu_bench: KombuBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_leases, "_RENEW_S", 0.02)
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
    _put(connection, 2)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            broker = connection.transport.broker
            renew = broker.store.renew

            def note(receipt: str, *, lease: float) -> None:
                renew(receipt, lease=lease)
                os.write(writer, f"{receipt}\n".encode())

            broker.store.renew = note
            connection.default_channel.basic_get("work")
            time.sleep(PATIENCE_S)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as renewed:
        receipts = {renewed.readline().strip() for _ in range(3)}
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(receipts - {"", received.messages[0].delivery_tag}) == len(receipts) == 1


def test_broker_that_was_closed_is_opened_again_for_a_late_settlement(
    kombu_bench: KombuBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
    connection.release()  # the lease is returned
    received.messages[0].channel.qos.ack(received.messages[0].delivery_tag)
    assert "it may run a second time" in caplog.text
    assert not [key for key in broker_module._open if str(kombu_bench.socket) in str(key)]

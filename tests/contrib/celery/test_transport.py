"""The transport, through kombu, with a server of its own."""

import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery.exceptions import ImproperlyConfigured
from kombu.asynchronous.hub import Hub
from kombu.exceptions import ChannelError, OperationalError

import timerstore
import timerstore.net
from tests.contrib.celery.kombu_bench import KombuBench, Received, assert_no_more, drain
from tests.support.bench import small
from tests.support.certificates import TOKEN, make_secrets
from timerstore.contrib.celery import broker as broker_module
from timerstore.contrib.celery import transport as transport_module
from timerstore.contrib.celery.bindings import Binding, Bindings
from timerstore.contrib.celery.wire import BINDINGS_TOPIC
from timerstore.errors import ConfigError, MessageError, UnavailableError

WORK = kombu.Queue("work", routing_key="work")


def _put(
    connection: kombu.Connection, *bodies: Any, queue: kombu.Queue = WORK, **more: Any
) -> None:
    """Publish as Celery does: the queue by name, through the exchange without one."""
    for body in bodies:
        connection.Producer().publish(body, routing_key=queue.name, **more)


# --- tasks ---


def test_each_message_is_consumed_once_and_acknowledged(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(), Received()
    _put(connection, 1, 2, 3)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 3)
        assert_no_more(connection)
    assert received.bodies == [1, 2, 3]
    assert kombu_bench.store.backlog("work", "celery").leased == 0


def test_task_waits_in_the_store_until_its_eta(kombu_bench: KombuBench) -> None:
    connection = kombu_bench.connect()
    eta = datetime.now(UTC) + timedelta(hours=1)
    _put(connection, "x", headers={"id": "4711", "task": "t", "eta": eta.isoformat()})
    [timer] = kombu_bench.store.pending()
    assert 0 <= timer.due_ms - eta.timestamp() * 1000 <= 1
    [found] = kombu_bench.store.query("work", "4711")
    assert found.waits


@pytest.mark.parametrize(
    ("eta", "text"),
    [("soon", "eta: wanted a time in ISO 8601"), ("2999-01-01T00:00:00+00:00", "deliver_ms: ")],
)
def test_invalid_or_too_distant_eta_is_an_error_of_the_caller(
    kombu_bench: KombuBench, eta: str, text: str
) -> None:
    with pytest.raises(MessageError, match=text):
        _put(kombu_bench.connect(), "x", retry=True, headers={"id": "4711", "eta": eta})
    assert list(kombu_bench.store.pending()) == []


def test_higher_priorities_come_first(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(), Received()
    for priority in (0, 9, 4):
        _put(connection, priority, priority=priority)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 3)
    assert received.bodies == [9, 4, 0]


def test_names_of_any_characters_are_queues(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(), Received()
    queues = [kombu.Queue(name, routing_key=name) for name in ("a.b", "a%2Eb", "x@host", "ä")]
    for one in queues:
        _put(connection, one.name, queue=one)
    with connection.Consumer(queues, callbacks=[received]):
        drain(connection, received, 4)
    assert {one.delivery_info["routing_key"] for one in received.messages} == set(received.bodies)


def test_too_long_queue_name_is_an_error(kombu_bench: KombuBench) -> None:
    with pytest.raises(MessageError, match="queue: wanted a name of 1 to 113 characters"):
        _put(kombu_bench.connect(), 1, queue=kombu.Queue("x" * 114))


def test_longest_queue_name_can_be_consumed(kombu_bench: KombuBench) -> None:
    """Its leases are a topic, whose name has that of the group in addition."""
    connection, queue = kombu_bench.connect(), kombu.Queue("x" * 113)
    _put(connection, 1, queue=queue)
    assert queue(connection.default_channel).get().payload == 1


def test_name_of_a_broadcast_queue_can_be_longer(kombu_bench: KombuBench) -> None:
    """It is no topic: the name of a worker is in it."""
    connection = kombu_bench.connect()
    news = kombu.Exchange("news", "fanout")
    queue = kombu.Queue("worker@host." * 20, news, auto_delete=True)(connection.default_channel)
    queue.declare()
    connection.Producer(exchange=news).publish(1)
    while (found := queue.get()) is None:
        pass
    assert found.payload == 1


# --- settling ---


def test_requeued_message_comes_again_at_once(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
        received.messages[0].requeue()
        drain(connection, received, 2)
        received.messages[1].ack()
    assert [one.delivery_info["redelivered"] for one in received.messages] == [False, True]


def test_rejected_message_is_a_dead_letter(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
        received.messages[0].reject()
        assert_no_more(connection)
    [letter] = kombu_bench.store.dead_letters("celery")
    assert (letter.topic, letter.error) == ("work", "rejected by its consumer")


def test_message_of_another_program_is_a_dead_letter(
    kombu_bench: KombuBench, caplog: pytest.LogCaptureFixture
) -> None:
    connection, received = kombu_bench.connect(), Received()
    kombu_bench.store.put("work", b"no json")
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
    assert received.bodies == [1]
    [letter] = kombu_bench.store.dead_letters("celery")
    assert (letter.error or "").startswith("not a message of kombu")
    assert "a message is now a dead letter" in caplog.text


def test_message_is_a_dead_letter_after_max_attempts(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(max_attempts=2), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        for count in (1, 2):
            drain(connection, received, count)
            received.messages[-1].requeue()
        assert_no_more(connection)
    assert len(list(kombu_bench.store.dead_letters("celery"))) == 1


def test_error_of_a_consumer_returns_the_messages_behind_it(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(), Received()
    other = kombu_bench.connect()
    _put(connection, 1, 2, 3)

    def fail(_body: object, _message: object) -> None:
        raise ZeroDivisionError

    with connection.Consumer([WORK], callbacks=[fail]), pytest.raises(ZeroDivisionError):
        connection.drain_events(timeout=20)
    with other.Consumer([WORK], callbacks=[received]):
        drain(other, received, 2)
    assert set(received.bodies) <= {1, 2, 3}
    assert {2, 3} <= set(received.bodies)


def test_closed_channel_returns_what_was_not_settled(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1, 2)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 2)
    connection.release()
    other, again = kombu_bench.connect(), Received()
    with other.Consumer([WORK], callbacks=[again]):
        drain(other, again, 2)
    assert again.bodies == [1, 2]


def test_consumer_takes_no_more_than_its_prefetch_count(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, *range(5))
    with connection.Consumer([WORK], callbacks=[received], prefetch_count=2):
        drain(connection, received, 2)
        assert_no_more(connection)
        assert kombu_bench.store.backlog("work", "celery").ready == 3
        received.messages[0].ack()
        drain(connection, received, 3)


def test_leases_are_renewed_until_they_are_settled(
    kombu_bench: KombuBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerstore.contrib.celery.held_leases._RENEW_S", 0.0)
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
        leases, store = connection.transport.broker.leases, connection.transport.broker.store
        renewed: list[str] = []
        renew = store.renew
        monkeypatch.setattr(
            store,
            "renew",
            lambda receipt, **more: renewed.append(receipt) or renew(receipt, **more),
        )
        leases.step()
        received.messages[0].ack()
        leases.step()
    assert renewed[0] == received.messages[0].delivery_tag
    assert set(renewed) == {renewed[0]}


def test_lost_lease_is_logged_by_its_acknowledgement(
    kombu_bench: KombuBench, caplog: pytest.LogCaptureFixture
) -> None:
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
        kombu_bench.store.nack(received.messages[0].delivery_tag, delay=0)
        received.messages[0].ack()
    assert "it may run a second time" in caplog.text


# --- servers that end ---


def test_late_acknowledgement_counts_after_a_restart_of_the_server(
    kombu_bench: KombuBench,
) -> None:
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
        kombu_bench.restart()
        received.messages[0].ack()
        _put(connection, 2)
        drain(connection, received, 2)  # the wait of before has begun again
        received.messages[1].ack()
    assert received.bodies == [1, 2]
    assert kombu_bench.store.backlog("work", "celery").ready == 0


def test_acknowledgement_without_a_server_is_repeated(
    kombu_bench: KombuBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("timerstore.contrib.celery.address._RETRY_FOR_S", 0.05)
    connection, received = kombu_bench.connect(), Received(settles=False)
    _put(connection, 1)
    with connection.Consumer([WORK], callbacks=[received]):
        drain(connection, received, 1)
        leases = connection.transport.broker.leases
        kombu_bench.stop()
        with pytest.raises(connection.connection_errors):
            received.messages[0].ack()
    connection.release()  # as Celery does after the error
    assert leases.has_late
    kombu_bench.open()
    while leases.has_late:
        pass
    assert "a task was settled after a lost connection (ACKED)" in caplog.text
    assert kombu_bench.store.backlog("work", "celery").leased == 0


def test_absent_server_is_a_connection_error_that_names_the_address(
    kombu_bench: KombuBench,
) -> None:
    kombu_bench.stop()
    connection = kombu_bench.connect()
    said: list[str] = []
    with pytest.raises(OperationalError, match=r"no server was found in 0.*x\.sock"):
        connection.ensure_connection(
            lambda error, _pause_s: said.append(str(error)), max_retries=2, interval_start=0,
            interval_step=0,
        )  # fmt: skip
    assert said
    assert all(str(kombu_bench.socket) in one for one in said)
    kombu_bench.open()
    assert connection.connect()


def test_new_connection_of_an_open_store_asks_for_its_server(
    kombu_bench: KombuBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerstore.contrib.celery.address._RETRY_FOR_S", 0.05)
    others = set(broker_module._open)  # of earlier tests
    kombu_bench.connect().connect()
    kombu_bench.stop()
    with pytest.raises(UnavailableError):
        kombu_bench.connect().connect()
    mine = [one for key, one in broker_module._open.items() if key not in others]
    assert [one._user_count for one in mine] == [1]
    kombu_bench.open()


def test_failed_channel_leaves_no_channel_id(kombu_bench: KombuBench) -> None:
    kombu_bench.stop()
    connection = kombu_bench.connect()
    with pytest.raises(UnavailableError):
        connection.connect()
    assert len(connection.transport._used_channel_ids) == 0
    kombu_bench.open()


# --- exchanges ---


def _topic_queue(name: str, key: str) -> kombu.Queue:
    return kombu.Queue(name, kombu.Exchange("events", "topic"), routing_key=key)


def test_binding_of_another_process_routes_messages(kombu_bench: KombuBench) -> None:
    connection, received = kombu_bench.connect(), Received()
    with timerstore.connect(kombu_bench.server.urls[0]) as store:  # as of another process
        bindings = Bindings(store)
        connection.Producer().publish("lost", exchange="events", routing_key="a.b")
        bindings.add(Binding("events", "topic", "a.*", "first"))
        bindings.add(Binding("events", "topic", "#", "all"))
        bindings.add(Binding("events", "topic", "#", "all"))
    connection.Producer().publish("x", exchange="events", routing_key="a.b")
    connection.Producer().publish("y", exchange="events", routing_key="c")
    queues = [kombu.Queue("first"), kombu.Queue("all")]
    with connection.Consumer(queues, callbacks=[received], auto_declare=False):
        drain(connection, received, 3)
    assert sorted(received.bodies) == ["x", "x", "y"]
    assert len(kombu_bench.store.pull(BINDINGS_TOPIC, 0, 0).messages) == 2


def test_removed_binding_routes_no_more(kombu_bench: KombuBench) -> None:
    connection = kombu_bench.connect()
    channel = connection.default_channel
    queue = _topic_queue("first", "a.*")(channel)
    queue.declare()
    queue.unbind_from(queue.exchange, routing_key="a.*")
    connection.Producer().publish("x", exchange="events", routing_key="a.b")
    assert "first" not in kombu_bench.store.topics()


def test_deleted_queue_has_neither_messages_nor_bindings(kombu_bench: KombuBench) -> None:
    connection = kombu_bench.connect()
    queue = _topic_queue("first", "a.*")(connection.default_channel)
    queue.declare()
    eta = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    publish = connection.Producer().publish
    publish("now", exchange="events", routing_key="a.b")
    publish("later", exchange="events", routing_key="a.b", headers={"eta": eta})
    assert queue.queue_declare(passive=True).message_count == 1
    assert queue.purge() == 2
    queue.delete()
    publish("x", exchange="events", routing_key="a.b")
    assert list(kombu_bench.store.pending()) == []
    assert kombu_bench.store.backlog("first", "celery").ready == 0
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        kombu.Queue("other")(connection.default_channel).queue_declare(passive=True)


def test_headers_exchange_is_refused_with_the_reason(kombu_bench: KombuBench) -> None:
    exchange = kombu.Exchange("h", "headers")
    with pytest.raises(ChannelError, match="not offered: Celery does not use them"):
        exchange(kombu_bench.connect().default_channel).declare()


# --- broadcast queues ---


def _own_queue(name: str, kind: str, key: str = "") -> kombu.Queue:
    exchange = kombu.Exchange(f"control-{kind}", kind)
    return kombu.Queue(name, exchange, routing_key=key, auto_delete=True, durable=False)


def test_each_consumer_gets_what_is_sent_after_it_came(kombu_bench: KombuBench) -> None:
    sender, first, second = (kombu_bench.connect() for _ in range(3))
    got, late = Received(), Received()
    with first.Consumer([_own_queue("one", "fanout")], callbacks=[got]):
        sender.Producer().publish("a", exchange="control-fanout")
        drain(first, got, 1)
        with second.Consumer([_own_queue("two", "fanout")], callbacks=[late]):
            sender.Producer().publish("b", exchange="control-fanout")
            drain(first, got, 2)
            drain(second, late, 1)
    assert (got.bodies, late.bodies) == (["a", "b"], ["b"])


def test_topic_and_direct_exchanges_select_for_broadcast_queues(kombu_bench: KombuBench) -> None:
    connection = kombu_bench.connect()
    topics, replies = Received(), Received()
    with (
        connection.Consumer([_own_queue("t", "topic", "task.*")], callbacks=[topics]),
        connection.Consumer([_own_queue("r", "direct", "id-1")], callbacks=[replies]),
    ):
        publish = connection.Producer().publish
        for key in ("worker.online", "task.sent", "task"):
            publish(key, exchange="control-topic", routing_key=key)
        for key in ("id-2", "id-1", "id"):
            publish(key, exchange="control-direct", routing_key=key)
        while not (topics.messages and replies.messages):
            connection.drain_events(timeout=20)
        assert_no_more(connection)
    assert (topics.bodies, replies.bodies) == (["task.sent"], ["id-1"])


def test_message_that_came_before_consuming_is_there(kombu_bench: KombuBench) -> None:
    """A caller declares its queue, sends a command, and then waits for the replies."""
    connection = kombu_bench.connect()
    queue = _own_queue("r", "direct", "id-1")(connection.default_channel)
    queue.declare()
    connection.Producer().publish("x", exchange="control-direct", routing_key="id-1")
    while (message := queue.get(no_ack=True)) is None:
        pass  # it is visible when it is durable
    assert message.payload == "x"
    assert queue.get() is None


def test_no_topic_is_made_for_a_worker_or_a_caller(kombu_bench: KombuBench) -> None:
    with kombu_bench.connect() as connection:
        _own_queue("one", "fanout")(connection.default_channel).declare()
        connection.Producer().publish("x", exchange="control-fanout")
    before = kombu_bench.store.topics()
    bindings = len(kombu_bench.store.pull(BINDINGS_TOPIC, 0, 0).messages)
    for k in range(5):
        with kombu_bench.connect() as connection:
            received = Received()
            with connection.Consumer([_own_queue(f"q{k}", "fanout")], callbacks=[received]):
                connection.Producer().publish("x", exchange="control-fanout")
                drain(connection, received, 1)
    assert kombu_bench.store.topics() == before
    assert len(kombu_bench.store.pull(BINDINGS_TOPIC, 0, 0).messages) == bindings == 1


# --- the event loop ---


def _own_threads() -> list[str]:
    """Return the threads of the client; the server of the test has others."""
    return [one.name for one in threading.enumerate() if "celery" in one.name]


def test_worker_waits_in_its_event_loop_without_threads(kombu_bench: KombuBench) -> None:
    connection, received, hub = kombu_bench.connect(), Received(), Hub()
    with connection.Consumer([WORK, kombu.Queue("other")], callbacks=[received], prefetch_count=1):
        connection.register_with_event_loop(hub)
        hub.run_once()
        assert (len(hub.readers), _own_threads()) == (1, [])
        _put(connection, 1, 2)
        while len(received.messages) < 2:
            hub.run_once()
        assert _own_threads() == ["timerstore-celery-leases"]
    connection.release()
    assert not hub.readers
    assert not hub.on_tick
    hub.close()


def test_event_loop_goes_on_after_a_restart_of_the_server(kombu_bench: KombuBench) -> None:
    connection, received, hub = kombu_bench.connect(), Received(), Hub()
    with connection.Consumer([WORK], callbacks=[received]):
        connection.register_with_event_loop(hub)
        hub.run_once()
        kombu_bench.restart()
        kombu_bench.store.put("work", b'{"body":"MQ==","headers":{},"properties":'
                              b'{"body_encoding":"base64"},"content-type":"application/json",'
                              b'"content-encoding":"utf-8"}')  # fmt: skip
        while not received.messages:
            hub.run_once()
    assert received.bodies == [1]
    connection.release()
    hub.close()


# --- addresses ---


def test_shared_store_needs_no_server(tmp_path: Path) -> None:
    with kombu.Connection(f"timerstore+shared://{tmp_path}/s") as connection:
        _put(connection, 1)
        assert WORK(connection.default_channel).get(no_ack=True).payload == 1
        assert connection.as_uri() == f"timerstore+shared://{tmp_path}/s"


def test_server_on_tls_needs_the_token_file(tmp_path: Path) -> None:
    cert, key, token = make_secrets(tmp_path)
    with (
        timerstore.open(tmp_path / "s", small()) as store,
        timerstore.net.serve(store, tcp="127.0.0.1:0", tls=(cert, key), token_file=token) as server,
    ):
        url = f"timerstore+{server.urls[0]}"
        options = {"ssl": {"ca_certs": str(cert)}, "transport_options": {"token_file": str(token)}}
        with kombu.Connection(url, **options) as connection:
            _put(connection, 1)
            assert TOKEN not in connection.as_uri()
        with pytest.raises(ConfigError, match="token_file: wanted the path of the server's token"):
            kombu.Connection(url).connect()
        assert store.topics()["work"] == 1


@pytest.mark.parametrize("url", ["timerstore://", "timerstore://x.sock", "timerstore+http://h:1"])
def test_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"wanted timerstore:///PATH.sock.* got {re.escape(url)}$"
    ):
        kombu.Connection(url).connect()


def test_error_of_an_url_has_no_password() -> None:
    with pytest.raises(ConfigError, match=r"got timerstore://h:1$"):
        kombu.Connection("timerstore://me:secret@h:1").connect()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("token_file", None, "token_file: it cannot be read .*No such file"),
        ("token_file", b"\xff", "token_file: wanted a text, got other bytes; at "),
        ("ca_certs", None, r"ca_certs: wanted the path of .*bad' \(.*No such file"),
        ("ca_certs", b"x", r"ca_certs: wanted the path of .*bad' \("),
    ],
)
def test_unusable_file_of_tls_is_an_error_with_its_name(
    tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    files = {"token_file": tmp_path / "token", "ca_certs": None, name: tmp_path / "bad"}
    (tmp_path / "token").write_text("a token")
    if content is not None:
        (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        kombu.Connection(
            "timerstore+tls://localhost:1",
            ssl={"ca_certs": files["ca_certs"] and str(files["ca_certs"])},
            transport_options={"token_file": str(files["token_file"])},
        ).connect()


def test_gevent_is_refused_at_the_start(
    kombu_bench: KombuBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "detect_environment", lambda: "gevent")
    with pytest.raises(
        ImproperlyConfigured, match=r"does not work with gevent .* prefork, threads"
    ):
        kombu_bench.connect().connect()

"""Make the calls of client_driver.py with the official client for Python."""

import sys
import threading
import time

from rocketmq.grpc_protocol import TransactionResolution
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import PushConsumer, SimpleConsumer
from rocketmq.v5.consumer.push.message_listener import ConsumeResult, MessageListener
from rocketmq.v5.exception import ClientException
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer, TransactionChecker

_lock = threading.Lock()


def say(verb, **fields):
    shown = [f"{name}={' '.join(str(value).split())}" for name, value in fields.items()]
    with _lock:
        print("\t".join([verb, *shown]), flush=True)


def show(verb, n, one):
    say(
        verb,
        n=n,
        id=one.message_id,
        body=one.body.decode(),
        tag=one.tag or "",
        keys=",".join(one.keys),
        properties=",".join(f"{k}:{v}" for k, v in one.properties.items()),
        attempt=one.delivery_attempt,
        at_ms=int(time.time() * 1000),
        due_ms=0,
    )


class Listener(MessageListener):
    def __init__(self, failures, handling_ms):
        self.failures = failures
        self.handling_ms = handling_ms

    def consume(self, message):
        show("pushed", -1, message)
        time.sleep(self.handling_ms / 1000)
        is_failed = message.delivery_attempt <= self.failures
        return ConsumeResult.FAILURE if is_failed else ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    """Commits messages whose body begins with "keep", and rolls back others."""

    def check(self, message):
        show("checked", -1, message)
        is_kept = message.body.startswith(b"keep")
        return TransactionResolution.COMMIT if is_kept else TransactionResolution.ROLLBACK


class Driver:
    def __init__(self):
        self.producers, self.consumers, self.pushes, self.views = {}, {}, [], []

    def configure(self, address, tls="0", key=None, secret=None):
        credentials = Credentials(key, secret) if key else Credentials()
        self.configuration = ClientConfiguration(address, credentials, request_timeout=5)
        self.tls = tls == "1"
        say("ok")

    def producer(self, topic):
        if topic not in self.producers:
            made = Producer(self.configuration, (topic,), Checker(), tls_enable=self.tls)
            made.startup()
            self.producers[topic] = made
        return self.producers[topic]

    def send(self, topic, body, delay_ms=None, tag=None, keys=None, properties="", group=None,
             priority=None):  # fmt: skip
        message = Message()
        message.topic, message.body = topic, body.encode()
        if delay_ms:  # whole seconds: the client's documentation says ms
            message.delivery_timestamp = -int(-(time.time() + int(delay_ms) / 1000) // 1)
        if tag:
            message.tag = tag
        if keys:
            type(message).keys.fset(message, *keys.split(","))  # its setter takes one key
        if group:
            message.message_group = group
        if priority:
            message.priority = int(priority)
        for pair in filter(None, properties.split(",")):
            message.add_property(*pair.split(":"))
        receipt = self.producer(topic).send(message)
        say("ok", id=receipt.message_id, handle=receipt.recall_handle or "")

    def check(self, topic):
        self.producer(topic)
        say("ok")

    def transact(self, topic, body, end):
        transaction = self.producer(topic).begin_transaction()
        message = Message()
        message.topic, message.body = topic, body.encode()
        self.producer(topic).send(message, transaction)
        if end != "none":
            getattr(transaction, end)()
        say("ok")

    def recall(self, topic, handle):
        self.producer(topic).recall_message(topic, handle)
        say("ok")

    def receive(self, topic, group, count, lease_ms, wait_ms, tag="*"):
        name = topic, group, wait_ms
        if name not in self.consumers:
            made = SimpleConsumer(
                self.configuration, group, {topic: FilterExpression(tag)},
                await_duration=max(int(wait_ms) // 1000, 1), tls_enable=self.tls,
            )  # fmt: skip
            made.startup()
            time.sleep(0.5)  # Apache's proxy fails a receive that overtakes the settings
            self.consumers[name] = made
        found = self.consumers[name].receive(int(count), int(lease_ms) // 1000) or []
        for one in found:
            self.views.append((self.consumers[name], one))
            show("message", len(self.views) - 1, one)
        say("ok", count=len(found))

    def ack(self, n):
        consumer, view = self.views[int(n)]
        consumer.ack(view)
        say("ok")

    def change(self, n, lease_ms):
        consumer, view = self.views[int(n)]
        consumer.change_invisible_duration(view, int(lease_ms) // 1000)
        say("ok")

    def push(self, topic, group, failures="0", handling_ms="0", tag="*"):
        made = PushConsumer(
            self.configuration, group, Listener(int(failures), int(handling_ms)),
            {topic: FilterExpression(tag)}, tls_enable=self.tls,
        )  # fmt: skip
        made.startup()
        self.pushes.append(made)
        say("ok")

    def close(self):
        for one in (*self.pushes, *self.consumers.values(), *self.producers.values()):
            one.shutdown()
        say("ok")


driver = Driver()
for line in sys.stdin:
    verb, *words = line.rstrip("\n").split("\t")
    try:
        getattr(driver, verb)(**dict(word.split("=", 1) for word in words))
    except Exception as error:  # noqa: BLE001 - shown to the test
        code = error.code if isinstance(error, ClientException) else None
        say("error", code=code or 0, text=error)

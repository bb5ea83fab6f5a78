"""Keys and signatures, files of TLS, and addresses that need them."""

import hashlib
import hmac
from pathlib import Path

import pytest

import timerstore.rocketmq
from tests.support.bench import Bench
from tests.support.rocketmq_bench import RocketmqBench
from timerstore.errors import ConfigError
from timerstore.rocketmq.access_keys import read_keys
from timerstore.rocketmq.definitions import Code

DATE = "20261128T040000Z"
SECRET = "a secret of these tests".replace(" ", "-")


def signed(key: str = "shop", secret: str = SECRET, date: str = DATE) -> dict[str, str]:
    found = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={found}"
    return {"authorization": text, "x-mq-date-time": date}


def keys_file(folder: Path, text: str = f"# keys\n\nshop {SECRET}\n", mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_call_needs_the_signature_of_a_key(tmp_path: Path) -> None:
    served = RocketmqBench(Bench(tmp_path / "store"), keys_file=keys_file(tmp_path))

    def code(headers: dict[str, str]) -> int:
        return int(served.caller(**headers).call("Heartbeat").status.code)

    upper = signed()
    head, _, signature = upper["authorization"].rpartition("=")
    assert code(signed()) == Code.OK
    assert code(upper | {"authorization": f"{head}={signature.upper()}"}) == Code.OK  # as Java
    assert code({}) == Code.UNAUTHORIZED
    assert code(signed(secret="another secret")) == Code.UNAUTHORIZED
    assert code(signed(key="other")) == Code.UNAUTHORIZED
    assert code(signed(key="", secret="")) == Code.UNAUTHORIZED  # Python without credentials
    assert code(signed() | {"x-mq-date-time": "20261128T040001Z"}) == Code.UNAUTHORIZED
    assert served.caller().call("Check").status == 1  # the health needs none
    stream = served.caller().telemetry(iter([]))
    assert [one.status.code for one in stream] == [Code.UNAUTHORIZED]
    served.close()


def test_server_without_keys_accepts_any_header(tmp_path: Path) -> None:
    served = RocketmqBench(Bench(tmp_path / "store"))
    assert served.caller(**signed(key="", secret="")).call("Heartbeat").status.code == Code.OK
    served.close()


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("shop secret-text\n", 0o644, "chmod 600"),
        ("", 0o600, "wanted one access key or more"),
        ("shop\n", 0o600, "line 1"),
        ("a/b secret-text\n", 0o600, "line 1"),
        ("shop short\n", 0o600, "8 characters"),
        (f"shop {SECRET}\nshop {SECRET}\n", 0o600, "each key once"),
    ],
)
def test_file_of_keys_is_checked(tmp_path: Path, text: str, mode: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as found:
        read_keys(keys_file(tmp_path, text, mode))
    assert str(tmp_path / "keys") in str(found.value)
    assert "secret-text" not in str(found.value)


def test_address_that_is_not_loopback_needs_tls_and_keys(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    with pytest.raises(ConfigError) as found:
        timerstore.rocketmq.serve(bench.store, address="0.0.0.0:0")
    assert {one.partition(":")[0] for one in found.value.problems} == {
        "tls", "keys_file", "insecure",
    }  # fmt: skip
    timerstore.rocketmq.serve(bench.store, address="0.0.0.0:0", insecure=True).close()
    bench.close()


def test_files_of_tls_are_checked(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    for one in files:
        one.write_text("no certificate")
    with pytest.raises(ConfigError, match="tls_cert, tls_key: cannot be used"):
        timerstore.rocketmq.serve(bench.store, address="127.0.0.1:0", tls=files)
    bench.close()

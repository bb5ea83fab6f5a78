"""Apache's name server, broker and proxy, in a process that a test may kill."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

from tests.clients.fetch import APACHE, class_path
from tests.support.certificates import make_authority
from timerstore.rocketmq.group_policies import GroupPolicies, read_policies

TYPES = ("normal", "delay", "fifo", "transaction")
GROUPS = ("g", "undertaker")
_STARTS_S = 60
_JAVA = (
    "-Xmx1g",
    # It would refuse to write, or delete, on a disk that is rather full.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class ApacheProxy:
    """A proxy with a broker in its process, with topics by the type of their messages."""

    def __init__(self, folder: Path, **broker: object) -> None:
        self.folder = folder
        port, names = _free_port(), f"127.0.0.1:{_free_port()}"
        broker_port = _free_port()
        self._broker = f"127.0.0.1:{broker_port}"
        self.address = f"127.0.0.1:{port}"
        self._files = [folder / name for name in ("names.conf", "broker.conf", "proxy.json")]
        self._files[0].write_text(f"listenPort={names.partition(':')[2]}\n")
        given = {"brokerClusterName": "c", "brokerName": "b", "brokerIP1": "127.0.0.1",
                 "listenPort": broker_port, "haListenPort": _free_port(), "namesrvAddr": names,
                 "storePathRootDir": folder / "store", "mappedFileSizeCommitLog": 64 << 20,
                 "recallMessageEnable": "true", **broker}  # fmt: skip
        self._files[1].write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        self._proxy: dict[str, object] = {
            "rocketMQClusterName": "c", "namesrvAddr": names, "localServeAddr": "127.0.0.1",
            "grpcServerPort": port, "remotingListenPort": _free_port(),
        }  # fmt: skip
        self._of_groups(GroupPolicies())
        self._process: subprocess.Popen[bytes] | None = None

    def _of_groups(self, policies: GroupPolicies) -> None:
        table = {
            name: {
                "groupName": name,
                "retryMaxTimes": policy.max_attempts - 1,
                "consumeMessageOrderly": policy.fifo,
                "groupRetryPolicy": {
                    "type": "CUSTOMIZED",
                    "customizedRetryPolicy": {"next": [1000 * one for one in policy.backoff_s]},
                },
            }
            for name, policy in ((name, policies.of(name)) for name in GROUPS)
        }
        path = self.folder / "store/config/subscriptionGroup.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"subscriptionGroupTable": table}))

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def groups(self, text: str) -> None:
        """Use policies of groups, in the form of our server, from the next start on."""
        path = self.folder / "groups.toml"
        path.write_text(text)
        self._of_groups(read_policies(path))

    def secure(self, key: str, secret: str) -> Path:
        """Use TLS and keys from the next start on; return the certificate of the authority."""
        authority = make_authority(self.folder)
        in_broker = "auth.authentication.provider.LocalAuthenticationMetadataProvider"
        in_proxy = "proxy.auth.ProxyAuthenticationMetadataProvider"
        with self._files[1].open("a") as broker:
            user = json.dumps({"username": key, "password": secret})
            broker.write(f"authConfigPath={self.folder / 'auth'}\ninitAuthenticationUser={user}\n")
            broker.write(f"authenticationMetadataProvider=org.apache.rocketmq.{in_broker}\n")
        self._proxy |= {
            "tlsTestModeEnable": False,
            "tlsKeyPath": str(self.folder / "key.pem"),
            "tlsCertPath": str(self.folder / "cert.pem"),
            "authenticationEnabled": True,
            "authenticationMetadataProvider": f"org.apache.rocketmq.{in_proxy}",
        }
        return authority

    def start(self) -> None:
        self._files[2].write_text(json.dumps(self._proxy))
        log = self.folder / "out.log"  # of this start
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                ["java", *_JAVA, f"-Duser.home={self.folder}", "-cp", class_path(APACHE),
                 "Apache", *map(str, self._files), self._broker, *TYPES],
                stdout=out, stderr=out, env={**os.environ, "ROCKETMQ_HOME": str(self.folder)},
            )  # fmt: skip
        end = time.monotonic() + _STARTS_S
        while b"ready\n" not in log.read_bytes():
            assert self._process.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < end, log.read_text("utf-8")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the process as a supervisor does: about twelve seconds."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

"""Requests are checked for token, host and origin; every response has security headers."""

from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.paged import BEARER, HOST, ORIGIN, TOKEN, Paged
from timerstore.dashboard import request_guard
from timerstore.dashboard.request_guard import BODY_BYTES_MAX, HEAD, host_check, is_loopback

PATHS = (
    *("/", "/page.css", "/page.js", "/events", "/api/search?message=x", "/nothing-there"),
    *("/api/rows?begin_ms=0&end_ms=1", "/api/cancel", "//", "/%2e%2e/page.js", "/?token="),
)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("path", PATHS)
def test_request_without_token_gets_an_empty_401(still: Paged, method: str, path: str) -> None:
    answer = still.client.request(method, path, headers={"Origin": ORIGIN})
    assert (answer.status_code, answer.content) == (401, b"")
    assert {name: answer.headers.get(name) for name in HEAD} == HEAD


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN.upper()}"},
        {"Authorization": "Bearer \xff\xfe"},
        {"Cookie": f"token={TOKEN}"},
    ],
)
def test_wrong_token_in_header_is_rejected(still: Paged, headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    assert still.client.get("/page.css", headers=raw).status_code == 401


@pytest.mark.parametrize(
    "query",
    [
        *(f"token={TOKEN}x", f"token={TOKEN}&token={TOKEN}", "token", "token=%ff"),
        *(f"Token={TOKEN}", f"x=1;token={TOKEN}"),
    ],
)
def test_wrong_token_in_query_is_rejected(still: Paged, query: str) -> None:
    assert still.client.get(f"/page.css?{query}").status_code == 401


@pytest.mark.parametrize("query", ["&".join(["a=1"] * count) for count in (16, 17, 1000)])
def test_query_with_many_fields_and_no_token_is_rejected(still: Paged, query: str) -> None:
    answer = still.client.get(f"/page.css?{query}")
    assert (answer.status_code, answer.content) == (401, b"")
    assert still.client.get(f"/page.css?{query}", headers=BEARER).status_code == 200


def test_wrong_header_is_rejected_when_the_query_has_the_token(still: Paged) -> None:
    answer = still.client.get(f"/page.css?token={TOKEN}", headers={"Authorization": "Bearer x"})
    assert answer.status_code == 401


def test_tokens_are_compared_in_constant_time(
    paged: Paged, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(
        request_guard.hmac, "compare_digest", lambda *two: bool(compared.append(two))
    )
    assert paged.client.get("/", headers=BEARER).status_code == 401
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js"])
def test_page_is_served_with_the_token(still: Paged, path: str) -> None:
    for answer in (
        still.client.get(path, headers=BEARER),
        still.client.get(path, params={"token": TOKEN}),
    ):
        assert answer.status_code == 200
        assert answer.content
        assert {name: answer.headers.get(name) for name in HEAD} == HEAD


def test_every_response_has_security_headers(paged: Paged, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(type(paged.source), "search", broken)
    for path, code in (("/nowhere", 404), ("/api/search?message=x", 500), ("/api/cancel", 405)):
        answer = paged.client.get(path, headers=BEARER)
        assert answer.status_code == code
        assert {name: answer.headers.get(name) for name in HEAD} == HEAD
        assert "nobody foresaw" not in answer.text
        assert "server" not in answer.headers


def test_policy_forbids_external_content() -> None:
    policy = dict(one.split(" ", 1) for one in HEAD["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    for name in ("script-src", "style-src", "connect-src"):
        assert policy[name] == "'self'"
    assert "unsafe" not in HEAD["content-security-policy"]
    assert ":" not in HEAD["content-security-policy"].replace("data:", "")
    assert HEAD["referrer-policy"] == "no-referrer"
    assert HEAD["cache-control"] == "no-store"


# --- host -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [HOST, "localhost", "localhost:9000", "127.0.0.1", "127.8.9.1:1",
                                  "[::1]:8000", "[::1]", "LOCALHOST:1"])  # fmt: skip
def test_loopback_host_is_accepted(still: Paged, host: str) -> None:
    answer = still.client.get("/page.css", headers={**BEARER, "Host": host})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("192.168.1.5:8000", "", "127.0.0.1@evil", "[::1].evil.example", "8000", "[::2]:80"),
    ],
)
def test_other_host_is_rejected(still: Paged, host: str) -> None:
    answer = still.client.get("/page.css", headers={**BEARER, "Host": host})
    assert (answer.status_code, answer.content) == (421, b"")


def test_public_bind_accepts_only_known_names_and_addresses() -> None:
    check = host_check("0.0.0.0", ["Box.lan"])
    assert all(map(check, ["192.168.1.5:80", "box.lan:80", "localhost", "[fe80::1]:80", "BOX.LAN"]))
    assert not any(map(check, ["evil.example", "box.lan.evil.example", "lan"]))
    assert host_check("ts.lan")("ts.lan:80")


@pytest.mark.parametrize(
    ("host", "so"),
    [
        *((one, True) for one in ("localhost", "127.0.0.1", "::1", "127.9.9.9")),
        *((one, False) for one in ("0.0.0.0", "::", "10.0.0.1", "box", "")),
    ],
)
def test_is_loopback(host: str, so: bool) -> None:
    assert is_loopback(host) is so


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"https://{HOST}"}, 403),
        ({"Origin": "http://127.0.0.1:8001"}, 403),
        ({"Origin": ORIGIN}, 200),
    ],
)
def test_write_is_rejected_when_origin_differs(
    bench: Bench, paged: Paged, headers: dict[str, str], code: int
) -> None:
    receipt = bench.store.put("t", b"x", delay=60)
    body = {"handle": receipt.handle, "confirm": receipt.message_id}
    answer = paged.client.post("/api/cancel", json=body, headers={**BEARER, **headers})
    assert answer.status_code == code
    assert bench.store.stats()["pending_messages"] == (code != 200)


def test_write_is_rejected_when_the_token_is_in_the_query(bench: Bench, paged: Paged) -> None:
    receipt = bench.store.put("t", b"x", delay=60)
    body = {"handle": receipt.handle, "confirm": receipt.message_id}
    url = f"/api/cancel?token={TOKEN}"
    assert paged.client.post(url, json=body, headers={"Origin": ORIGIN}).status_code == 401
    assert bench.store.stats()["pending_messages"] == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
def test_cancel_rejects_other_methods(bench: Bench, paged: Paged, method: str) -> None:
    bench.store.put("t", b"x", delay=60)
    headers = {**BEARER, "Origin": ORIGIN, "Content-Length": "0"}
    assert paged.client.request(method, "/api/cancel", headers=headers).status_code == 405
    assert bench.store.stats()["pending_messages"] == 1


def test_long_body_is_rejected_unread(still: Paged) -> None:
    def post(**body: Any) -> int:
        headers = {**BEARER, "Origin": ORIGIN, "Content-Type": "application/json"}
        return still.client.post("/api/cancel", headers=headers, **body).status_code

    assert post(content=b" " * BODY_BYTES_MAX) == 400
    assert post(content=b" " * (BODY_BYTES_MAX + 1)) == 413
    assert post(parts=[b"{", b"}"]) == 413, "one that does not say how long it is"

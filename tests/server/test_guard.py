"""Attacks: keys, hosts, origins, sizes, paths, slow clients; and what the log does not have."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.commands import strop
from helpers.strop_server import KEYS, READ_KEY, WRITE_KEY, RunningServer, serving

from strop.server.settings import LIMITS, level_of, parse_keys

SECRET_TEXT = "a text that no log may keep"
READS = [("GET", "/info"), ("GET", "/metrics"), ("GET", "/documents/x"), ("POST", "/search"),
         ("POST", "/v1/embeddings"), ("POST", "/mcp"), ("GET", "/nowhere")]  # fmt: skip
WRITES = [("PUT", "/documents/x"), ("DELETE", "/documents/x"), ("POST", "/documents"),
          ("POST", "/documents/delete")]  # fmt: skip


@pytest.fixture(scope="module")
def keyed(_built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server on all interfaces: every request needs a key."""
    index = shutil.copytree(_built, tmp_path_factory.mktemp("keyed") / "docs.index")
    options = ("--host", "0.0.0.0", "--allow-host", "search.example.org",
               "--allow-origin", "https://friend.example.org")  # fmt: skip
    with serving(index, *options, keys=KEYS) as server:
        yield server


def _status(server: RunningServer, method: str, path: str, **headers: str) -> int:
    with server.client() as client:
        body = None if method in ("GET", "DELETE") else {"query": "x"}
        return client.request(method, path, headers=headers, json=body).status_code


@pytest.mark.parametrize(("method", "path"), [*READS, *WRITES])
def test_requests_without_a_valid_key_are_refused(
    keyed: RunningServer, method: str, path: str
) -> None:
    assert _status(keyed, method, path) == 401
    for wrong in ("x", "x" * 30, READ_KEY[:-1], READ_KEY + "x", READ_KEY.upper()):
        assert _status(keyed, method, path, authorization=f"Bearer {wrong}") == 401
        assert _status(keyed, method, path, **{"x-api-key": wrong}) == 401
    assert _status(keyed, method, path, authorization=f"Basic {READ_KEY}") == 401


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_a_read_key_cannot_write(keyed: RunningServer, method: str, path: str) -> None:
    assert _status(keyed, method, path, authorization=f"Bearer {READ_KEY}") == 403


def test_valid_keys_are_accepted(keyed: RunningServer) -> None:
    for key in (READ_KEY, WRITE_KEY):
        assert _status(keyed, "GET", "/info", authorization=f"bearer {key}") == 200
        assert _status(keyed, "POST", "/search", **{"x-api-key": key}) == 200
    assert _status(keyed, "DELETE", "/documents/x", **{"x-api-key": WRITE_KEY}) == 404


def test_pages_and_health_need_no_key(keyed: RunningServer) -> None:
    for path in ("/", "/docs", "/health", "/ready", "/openapi.json"):
        assert _status(keyed, "GET", path) == 200


@pytest.mark.parametrize(
    "options", [("--host", "0.0.0.0"), ("--host", "::"), ("--allow-host", "example.org")]
)
def test_a_public_server_does_not_start_without_keys(
    index: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STROP_API_KEYS", raising=False)
    result = strop("serve", index, *options)
    assert result.code == 1
    assert "STROP_API_KEYS" in result.stderr


def test_a_port_in_use_is_reported_with_the_remedy(index: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = strop("serve", index, "--port", str(taken.getsockname()[1]))
    assert result.code == 1
    assert "--port" in result.stderr
    assert f"{os.strerror(errno.EADDRINUSE)}. Choose" in result.stderr
    assert "(page)" not in result.stderr + result.stdout


@pytest.mark.parametrize("text", ["abc", "read:short", "admin:0123456789abcdef", "read:a space"])
def test_invalid_keys_are_not_printed(text: str) -> None:
    from strop.errors import BadInput

    with pytest.raises(BadInput) as caught:
        parse_keys(text)
    assert text.partition(":")[2] not in str(caught.value) or ":" not in text


def test_keys_of_any_characters_can_be_compared() -> None:
    keys = parse_keys(KEYS)
    assert [level_of(key, keys) for key in ("ü", "\ud800", "", READ_KEY, WRITE_KEY)] == [
        "open", "open", "open", "read", "write",
    ]  # fmt: skip


@pytest.mark.parametrize("order", [("read", "write"), ("write", "read")])
def test_a_key_for_read_and_write_is_required_to_read(index: Path, order: tuple[str, str]) -> None:
    with serving(index, keys=",".join(f"{level}:{WRITE_KEY}" for level in order)) as server:
        assert _status(server, "GET", "/info") == 401
        assert _status(server, "GET", "/info", **{"x-api-key": WRITE_KEY}) == 200
        assert _status(server, "DELETE", "/documents/x", **{"x-api-key": WRITE_KEY}) == 404


# -- hosts and origins ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:9", 200),
        ("10.0.0.7:8765", 200), ("search.example.org", 200), ("SEARCH.example.org:443", 200),
        ("evil.example.org", 421), ("localhost.evil.example.org", 421), ("127.0.0.1.evil.org", 421),
        ("user@localhost", 200), ("localhost@evil.org", 421), ("[::1", 421), ("", 421),
    ],
)  # fmt: skip
def test_unknown_hosts_are_refused(keyed: RunningServer, host: str, status: int) -> None:
    assert _status(keyed, "GET", "/info", host=host, authorization=f"Bearer {READ_KEY}") == status


def test_two_host_headers_are_refused(keyed: RunningServer) -> None:
    head = b"GET / HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\nHost: evil.org\r\n\r\n"
    assert b" 421 " in _raw(keyed, head).split(b"\r\n")[0]


def test_other_origins_are_refused(keyed: RunningServer, running: RunningServer) -> None:
    for origin in ("https://evil.example.org", "null", "file://", f"{running.url}.evil.org",
                   f"ftp://127.0.0.1:{running.port}"):  # fmt: skip
        assert _status(running, "POST", "/search", origin=origin) == 403
        assert _status(running, "GET", "/health", origin=origin) == 403
    assert _status(running, "POST", "/search", origin=running.url) == 200
    with keyed.client(READ_KEY) as client:
        friend = client.get("/info", headers={"origin": "https://friend.example.org"})
        stranger = client.get("/info", headers={"origin": "https://evil.example.org"})
    assert friend.headers["access-control-allow-origin"] == "https://friend.example.org"
    assert stranger.status_code == 403
    assert "access-control-allow-origin" not in stranger.headers


def test_html_forms_of_other_sites_cannot_post(running: RunningServer) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        with running.client(WRITE_KEY) as client:
            reply = client.post(
                "/documents", content=b'{"documents": []}', headers={"content-type": kind}
            )
        assert reply.status_code == 415


def test_every_reply_has_security_headers(running: RunningServer) -> None:
    with running.client() as client:
        for path in ("/", "/docs", "/info", "/nowhere", "/documents/nobody", "/page/nothing"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "server" not in headers


# -- sizes, paths, slowness -----------------------------------------------------------------------


def test_too_large_bodies_are_refused(running: RunningServer) -> None:
    large = {"query": "x" * LIMITS.body}

    def in_parts() -> Iterator[bytes]:  # without a length
        yield b'{"query": "'
        for _ in range(LIMITS.body // 100_000 + 1):
            yield b"x" * 100_000

    with running.client() as client:
        assert client.post("/search", json=large).status_code == 413
        try:
            reply = client.post(
                "/search", content=in_parts(), headers={"content-type": "application/json"}
            )
            assert reply.status_code == 413
        except httpx.WriteError:  # closed before everything was sent
            pass


@pytest.mark.parametrize(
    "path",
    [
        "/page/../guard.py", "/page/%2e%2e/guard.py", "/page/..%2fguard.py", "/page/....//guard.py",
        "/page//etc/passwd", "/page/%2fetc/passwd", "/page/..%5cguard.py", "/page/%00",
        "/../../etc/passwd", "//etc/passwd", "/page/%c0%ae%c0%ae/guard.py", "/page/", "/page",
    ],
)  # fmt: skip
def test_paths_outside_the_page_folder_are_refused(running: RunningServer, path: str) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reply = _raw(running, head.encode())
    assert int(reply.split(b" ")[1]) in (307, 400, 404), reply[:200]
    assert b"root:" not in reply
    assert b"class Guard" not in reply


def test_document_ids_are_not_paths(running: RunningServer) -> None:
    for path in ("/documents/../../etc/passwd", "/documents/..%2f..%2fetc%2fpasswd"):
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        body = _raw(running, head.encode()).partition(b"\r\n\r\n")[2]
        assert json.loads(body)["text"] == "A document whose id looks like a path."
    for path in ("/documents/%ff", "/documents/a%00b"):
        with running.client() as client:
            assert client.get(path).status_code == 400


def test_malformed_requests_do_not_stop_the_server(running: RunningServer) -> None:
    for junk in (b"\0" * 1000, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n",
                 b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
                 b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000):  # fmt: skip
        _raw(running, junk, end=True)
    assert _status(running, "GET", "/health") == 200


def test_slow_clients_do_not_block_others(running: RunningServer) -> None:
    """Each slow client holds a connection with half a request; others are still answered."""
    half = [b"GET /health HTTP/1.1\r\nHost: local", b"POST /search HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"]  # fmt: skip
    connections = []
    try:
        for at in range(100):
            connections.append(socket.create_connection(("127.0.0.1", running.port), 30))
            connections[-1].sendall(half[at % 2])
        assert _status(running, "POST", "/search") == 200
        connections[0].settimeout(60)  # its headers never arrive: the server closes the connection
        assert connections[0].recv(1000) == b""
    finally:
        for connection in connections:
            connection.close()


def _raw(server: RunningServer, data: bytes, end: bool = False) -> bytes:
    """Send bytes; return everything received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.settimeout(60)
        received = b""
        try:
            connection.sendall(data)
            if end:  # tell the server that nothing follows
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                received += part
        except OSError:
            pass
        return received


# -- stopping and logging -------------------------------------------------------------------------


def test_the_log_has_no_texts_ids_or_keys(keyed: RunningServer) -> None:
    with keyed.client(WRITE_KEY) as client:
        client.put("/documents/secret-id", json={"text": SECRET_TEXT, "title": SECRET_TEXT})
        client.post("/search", json={"query": SECRET_TEXT, "where": {"secret-field": 1}})
        client.post("/search", json={"query": SECRET_TEXT, "method": "secret-method"})
        client.get("/documents/secret-id?secret-query=1")
        client.delete("/documents/secret-id")
        client.get("/health")
    keyed.wait_for('"DELETE".*\n.*"/health"')  # a thread reads the log
    text = "".join(keyed.log)
    assert "secret" not in text
    assert SECRET_TEXT not in text
    assert READ_KEY not in text
    assert WRITE_KEY not in text
    assert {"method", "route", "status", "ms"} <= keyed.requests()[-1].keys()
    routes = [line["route"] for line in keyed.requests()]
    assert "/documents/{id:path}" in routes


def test_without_keys_loopback_can_read_and_stopping_completes_requests(index: Path) -> None:
    """A stopping server completes requests that have begun."""
    with serving(index) as server:
        assert _status(server, "GET", "/info") == 200
        assert _status(server, "GET", "/info", authorization="Bearer none") == 200
        for method, path in WRITES:
            assert _status(server, method, path) == 403
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            body = json.dumps({"queries": ["copy a folder"] * 200, "k": 50}).encode()
            head = (
                "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
            )
            connection.sendall(head.encode())
            assert b" 100 " in connection.recv(1000)  # the request has begun
            connection.sendall(body[:-1])
            server.process.terminate()
            time.sleep(0.2)
            connection.sendall(body[-1:])
            connection.settimeout(60)
            assert b" 200 " in connection.recv(1000).split(b"\r\n")[0]
        assert server.stop()

"""`kvgate check URL --against URL` as a person types it, when one of the two is no such server: one line, exit 2."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from attached_kit import answering, servers

from kvgate.cli.main import main

KEY = "sk-s3cret-0123456789"


@contextmanager
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{s.getsockname()[1]}"


@contextmanager
def hanging_up() -> Iterator[str]:
    """A server that closes each connection without a word."""
    import threading

    with socket.create_server(("127.0.0.1", 0)) as s:
        s.settimeout(0.05)
        end = threading.Event()

        def serve() -> None:
            while not end.is_set():
                try:
                    s.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{s.getsockname()[1]}"
        finally:
            end.set()
            thread.join()


@contextmanager
def fake(**script: Any) -> Iterator[str]:
    with servers(script) as ((url, _),):
        yield url


MODELS = json.dumps({"data": [{"id": "fake-model"}]}).encode()
CASES: list[tuple[str, Any, tuple[str, ...]]] = [
    ("not there", nobody, ("/v1/models", "start the server")),
    ("hangs up", hanging_up, ("/v1/models", "start the server")),
    ("HTML", lambda: answering(200, b"<html>welcome</html>"), ("not JSON: <html>welcome</html>", "give the address")),
    ("nothing", lambda: answering(200, b""), ("empty body", "give the address")),
    ("a key", lambda: answering(401, b'{"error": {"message": "no key"}}'), ("HTTP 401: no key", "set KVGATE_API_KEY")),
    ("another key", lambda: answering(403, KEY.encode()), ("HTTP 403: [key]", "set KVGATE_API_KEY to its key")),
    ("loads", lambda: answering(503, b'{"error": {"message": "Loading model"}}'), ("503: Loading model", "wait until")),
    ("busy", lambda: answering(429, b"slow down", {"Retry-After": "0"}), ("HTTP 429: slow down", "wait until")),
    (
        "moved",
        lambda: answering(302, b"", {"Location": "http://x.example/v1?k=1"}),
        ("http://x.example/v1", "final ad"),
    ),
    ("gzip", lambda: answering(200, MODELS, {"Content-Encoding": "gzip"}), ("gzip was not asked for", "give the ad")),
    ("an error", lambda: answering(200, b'{"error": {"message": "boom"}}'), ("HTTP 200: boom", "give the address")),
    ("lies", lambda: fake(answers_as="other"), ("'fake-model', answered by 'other'", "--same-model")),
    ("another model", lambda: fake(listed_as="other"), ("they serve 'other' and 'fake-model'", "--same-model")),
]


@pytest.mark.parametrize(("server", "said"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_bad_server_is_one_line_and_nothing_is_started(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    server: Any,
    said: tuple[str, ...],
) -> None:
    """What is wrong with which server and what to do about it; no key, no store, no traceback."""
    with ExitStack() as stack:
        ((good, good_key),) = stack.enter_context(servers({}))
        # The fake servers of this table take the key that the person has.
        monkeypatch.setattr("secrets.token_urlsafe", lambda n=0: KEY)
        url = stack.enter_context(server())
        monkeypatch.setenv("KVGATE_BASE_API_KEY", good_key)
        monkeypatch.setenv("KVGATE_API_KEY", KEY)
        code = main(["check", url, "--against", good, "--kv", "q8_0", "--store", str(tmp_path / "k.db")])
    out, err = capsys.readouterr()

    assert (code, out) == (2, ""), err
    assert len(err.strip().splitlines()) == 1 and "Traceback" not in err and KEY not in err
    assert f"candidate {url}" in err or "the servers say" in err
    assert all(word in err for word in said), err
    assert not (tmp_path / "k.db").exists()


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ({"truncate_rate": 1.0, "nonsense_rate": 1.0, "nonsense": "chunk_cut"}, 4, "shorter than announced"),
        ({"nonsense_rate": 1.0, "nonsense": "error"}, 4, "the engine core is gone"),
    ],
)
def test_a_server_that_never_answers_is_invalid_never_a_number(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    script: Any,
    code: int,
    said: str,
) -> None:
    """It lists its model well and gives nothing that is an answer: INVALID with its own words, and counts of none."""
    argv = ["--kv", "q8_0", "--policy", "smoke", "--suite", "golden", "--json", "--store", str(tmp_path / "k.db")]
    with servers({}, script) as ((base, base_key), (url, key)):
        monkeypatch.setenv("KVGATE_BASE_API_KEY", base_key)
        monkeypatch.setenv("KVGATE_API_KEY", key)
        got = main(["check", url, "--against", base, *argv])
    document = json.loads(capsys.readouterr().out)
    verdict = document["verdicts"][0]

    assert (got, verdict["decision"]) == (code, "INVALID")
    assert said in json.dumps(verdict)
    found = document["results"]["q8_0"]["golden"].values()
    assert {m["n"] for m in found} == {0} and not any(m.get("value") for m in found)

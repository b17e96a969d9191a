"""`kvgate probe` as a person types it, against servers that answer well, badly, and not at all."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engines import probe_kit as kit
from kvgate.cli.main import main
from kvgate.core.deployment import Deployment
from kvgate.core.engine import Lane
from kvgate.engines import _retry

#: status, content type, body; a function gets the request's headers.
Answer = tuple[int, str, bytes]
Route = Answer | Callable[[Any], Answer]
JSON, TEXT, HTML = "application/json", "text/plain", "text/html"


def page(value: Any, status: int = 200) -> Answer:
    return (status, TEXT, value.encode()) if isinstance(value, str) else (status, JSON, json.dumps(value).encode())


@contextmanager
def serving(
    routes: dict[str, Route], default: Answer = (404, JSON, b'{"error": "not found"}')
) -> Iterator[tuple[str, list[str]]]:
    """A server on loopback with these paths; yields its address and the requests that came."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(f"{self.command} {self.path}")
            route = routes.get(self.path, default)
            status, content_type, body = route(self.headers) if callable(route) else route
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # who has read enough hangs up
                self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def routes_of(pages: dict[str, Any]) -> dict[str, Route]:
    return {path: page(value) for path, value in pages.items()}


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["probe", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], pages: dict[str, Any], *more: str, code: int = 0) -> dict[str, Any]:
    with serving(routes_of(pages)) as (url, _):
        got, out, err = run(capsys, url, "--json", *more)
    assert got == code, err or out
    return dict(json.loads(out))


FP8_LOG = str(kit.LOGS / "vllm_0.32.0_cpu_fp8_e4m3.log")
SCHEME_LOG = str(kit.LOGS / "vllm_0.32.0_cpu_auto_kv_scheme.log")
AUTO_LOG = str(kit.LOGS / "vllm_0.32.0_cpu_auto.log")


@pytest.fixture
def fp8_log(tmp_path: Path) -> str:
    """The start log of the server whose pages the kit has."""
    path = tmp_path / "fp8.log"
    path.write_text(Path(FP8_LOG).read_text().replace("served_model_name=smollm2-hf", "served_model_name=smollm2"))
    return str(path)


def test_the_document_is_a_deployment_with_requested_and_observed(
    capsys: pytest.CaptureFixture[str], fp8_log: str
) -> None:
    """Versioned JSON; metrics, words, unknowns and pages apart; a log that is this server's counts."""
    got = document(capsys, kit.vllm_pages(), "--no-lanes", "--log", fp8_log)

    assert got["schema"] == "kvgate.probe/1"
    assert Deployment.model_validate({name: got[name] for name in Deployment.model_fields})
    assert got["requested"]["kv_dtype"] == "fp8_e4m3"
    seen = got["observed"]
    assert (seen["engine"], seen["version"], seen["k"], seen["v"]) == ("vllm", "0.32.0", "fp8_e4m3", "fp8_e4m3")
    assert (seen["kv_how"], seen["tokens"], seen["block_tokens"]) == ("printed", 93_184, 128)
    assert (seen["prefix_cache"], seen["chunked_prefill"], seen["speculation"]) == (True, True, "none")
    assert (got["contradictions"], got["exit_code"], got["lanes"]) == ([], 0, None)
    assert {m["field"] for m in got["metrics"]}.isdisjoint({c["field"] for c in got["claims"]} - {"model"})
    assert {"k_scale", "accumulation", "probability_dtype"} <= {u["field"] for u in got["unknowns"]}
    assert all(u["why"] and u["tells"] for u in got["unknowns"])
    assert got["pages"]["/metrics"] == "read"
    assert got["pages"]["/props"] == "HTTP 404"


def test_without_a_log_the_gauge_is_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM's gauge says the type; nothing says a backend, and that is unknown, not guessed."""
    got = document(capsys, kit.vllm_pages(), "--no-lanes")

    assert (got["observed"]["k"], got["observed"]["kv_how"], got["observed"]["backend"]) == (
        "fp8_e4m3",
        "metrics",
        None,
    )
    assert "backend" in {u["field"] for u in got["unknowns"]}


@pytest.mark.parametrize(
    ("pages", "log", "id_"),
    [
        (kit.vllm_pages("auto"), FP8_LOG, "dtype-differs"),
        (kit.llama_pages(), FP8_LOG, "log-of-another-engine"),
        (kit.vllm_pages(version="0.31.2"), FP8_LOG, "log-of-another-version"),
    ],
)
def test_a_contradiction_is_named_and_exit_4(
    capsys: pytest.CaptureFixture[str], pages: dict[str, Any], log: str, id_: str
) -> None:
    """Both sides with their places, and exit 4."""
    got = document(capsys, pages, "--no-lanes", "--log", log, code=4)

    assert id_ in {c["id"] for c in got["contradictions"]}
    assert got["exit_code"] == 4
    if id_.startswith("log-of"):
        assert got["log"]["used"] is False
        assert got["observed"]["tokens"] in (None, 93_184)


def test_room_that_is_not_its_types(capsys: pytest.CaptureFixture[str], fp8_log: str, tmp_path: Path) -> None:
    """FP8 holds twice its baseline's tokens in the same bytes; a log with as many as the baseline is named."""
    pages = kit.vllm_pages()
    same = tmp_path / "same.log"
    same.write_text(Path(fp8_log).read_text().replace("93,184 tokens", "46,592 tokens").replace("11.38x", "5.69x"))
    half = kit.vllm_pages(tokens=46_592)

    assert not document(capsys, pages, "--no-lanes", "--log", fp8_log, "--base-log", AUTO_LOG)["contradictions"]
    got = document(capsys, half, "--no-lanes", "--log", str(same), "--base-log", AUTO_LOG, code=4)
    assert [c["id"] for c in got["contradictions"]] == ["capacity-not-as-type"]
    assert "2.00 times" in got["contradictions"][0]["says"]
    assert "1.00 times" in got["contradictions"][0]["says"]


@pytest.mark.parametrize(
    ("log", "base_log", "named"),
    [
        (FP8_LOG, AUTO_LOG, False),
        (SCHEME_LOG, AUTO_LOG, True),  # says auto, stores FP8: a checkpoint's own scheme
        (FP8_LOG, SCHEME_LOG, True),  # its baseline is FP8 itself: room is not twice
        (AUTO_LOG, AUTO_LOG, False),
    ],
)
def test_room_of_recorded_starts(capsys: pytest.CaptureFixture[str], log: str, base_log: str, named: bool) -> None:
    """A baseline that `auto` started in FP8 shows by its room alone."""
    with serving(routes_of({"/v1/models": {"data": []}})) as (url, _):
        code, out, err = run(capsys, url, "--no-lanes", "--json", "--log", log, "--base-log", base_log)

    assert code == (4 if named else 0), err
    assert [c["id"] for c in json.loads(out)["contradictions"]] == (["capacity-not-as-type"] if named else [])


@pytest.mark.parametrize("columns", ["40", "80"])
@pytest.mark.parametrize("pages", [kit.vllm_pages("auto"), kit.sglang_pages(), kit.llama_pages()])
def test_the_table_keeps_to_its_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, pages: dict[str, Any]
) -> None:
    """No line is longer than the terminal, and contradictions stand first."""
    monkeypatch.setenv("COLUMNS", columns)
    with serving(routes_of(pages)) as (url, _):
        code, out, _ = run(capsys, url, "--no-lanes", "--log", FP8_LOG)

    assert code == 4
    assert max(map(len, out.splitlines())) <= int(columns)
    assert out.splitlines()[0] == "Contradictions"
    assert all(word in out for word in ("KV cache", "Attention", "Unknown"))


def test_no_lanes_sends_no_generation(capsys: pytest.CaptureFixture[str]) -> None:
    """With --no-lanes only pages are asked for."""
    with serving(routes_of(kit.vllm_pages())) as (url, asked):
        run(capsys, url, "--no-lanes")

    assert asked
    assert all(line.startswith("GET ") for line in asked)


def chat(model: str) -> Answer:
    message = {"role": "assistant", "content": "hi"}
    return page({"model": model, "choices": [{"index": 0, "message": message, "finish_reason": "length"}]})


@pytest.mark.parametrize(("model", "code"), [("smollm2", 0), ("another-model", 4)])
def test_lanes_and_a_server_that_answers_as_another_model(
    capsys: pytest.CaptureFixture[str], model: str, code: int
) -> None:
    """Each lane is available or says why not; an answer in another model's name is a contradiction."""
    with serving(routes_of(kit.vllm_pages()) | {"/v1/chat/completions": chat(model)}) as (url, _):
        got, out, _ = run(capsys, url, "--json")

    found = json.loads(out)
    assert got == code
    assert set(found["lanes"]) == {lane.value for lane in Lane}
    assert found["lanes"]["chat"]["available"] is (code == 0)
    assert found["lanes"]["complete"]["available"] is False
    assert all(lane["available"] or lane["reason"] for lane in found["lanes"].values())
    assert [c["id"] for c in found["contradictions"]] == (["answers-of-another"] if code else [])


# -- bad input ------------------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """One line on stderr, nothing on stdout, exit 2."""
    code, out, err = run(capsys, *argv)
    assert code == 2, out + err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    return err


@pytest.mark.parametrize(
    ("routes", "default", "words"),
    [
        ({}, (200, HTML, b"<!doctype html><title>Sign in</title>"), ("HTML", "no inference server", "/v1/models")),
        ({}, (404, HTML, b"<html>nginx</html>"), ("no page of an inference server", "/v1/models")),
        ({}, (404, JSON, b"{}"), ("no page of an inference server", "/v1/models")),
        ({}, (401, JSON, b'{"error": "Unauthorized"}'), ("wants a key", "export KVGATE_API_KEY=KEY")),
        ({}, (429, JSON, b'{"error": "slow down"}'), ("429", "slow down", "3 times", "wait")),
        ({}, (503, JSON, b'{"error": {"message": "Loading model"}}'), ("503", "Loading model", "wait")),
        ({}, (500, TEXT, b"oops"), ("500", "oops")),
        ({}, (200, JSON, b" " * (9 << 20)), ("over 8388608 bytes", "/v1/models")),
        ({}, (200, JSON, b"{\x00"), ("no page of an inference server", "binary")),
        ({}, (200, JSON, b'{"data": ['), ("no page of an inference server", "not JSON")),
    ],
)
def test_a_server_that_is_none(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    routes: dict[str, Route],
    default: Answer,
    words: tuple[str, ...],
) -> None:
    """What it is, and what to do, in one line; never a number."""
    monkeypatch.setattr(_retry, "FIRST_CONTACT", _retry.Backoff(tries=3, first_s=0.0))
    monkeypatch.delenv("KVGATE_API_KEY", raising=False)
    with serving(routes, default) as (url, _):
        err = refused(capsys, url)

    assert all(word in err for word in words), err


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """An address without a server, and words that are no address."""
    with serving({}) as (url, _):
        pass

    assert "nobody answers" in refused(capsys, url)
    assert "start the server" in refused(capsys, url)
    assert "not a web address" in refused(capsys, "ftp://host")


def test_a_server_that_is_busy_is_asked_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two refusals, then an answer: no error."""
    monkeypatch.setattr(_retry, "FIRST_CONTACT", _retry.Backoff(tries=3, first_s=0.0))
    pages = kit.vllm_pages()
    answers = iter([(503, JSON, b"{}"), (429, JSON, b"{}")])
    routes = routes_of(pages) | {"/v1/models": lambda _: next(answers, page(pages["/v1/models"]))}
    with serving(routes) as (url, _):
        code, _, err = run(capsys, url, "--no-lanes", "--json")

    assert code == 0, err


def test_a_key_by_the_name_of_its_variable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is named in the fix; a key is sent, and never shown."""
    monkeypatch.delenv("KVGATE_API_KEY", raising=False)

    def wants(headers: Any) -> Answer:
        right = headers.get("Authorization") == "Bearer s3cret-key"
        return page(kit.vllm_pages()["/v1/models"]) if right else (401, JSON, b"{}")

    with serving(routes_of(kit.vllm_pages()) | {"/v1/models": wants}) as (url, _):
        assert "environment variable 'PROD_KEY' holds no key" in refused(capsys, url, "--api-key-env", "PROD_KEY")
        monkeypatch.setenv("PROD_KEY", "wrong-one")
        err = refused(capsys, url, "--api-key-env", "PROD_KEY")
        assert "refuses the key in PROD_KEY" in err
        assert "--api-key-env PROD_KEY" in err
        assert "wrong-one" not in err
        monkeypatch.setenv("PROD_KEY", "s3cret-key")
        code, out, err = run(capsys, url, "--api-key-env", "PROD_KEY", "--no-lanes", "--json")

    assert code == 0, err
    assert "s3cret-key" not in out + err


def test_a_page_that_hangs_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    """The first page decides: one that does not come in time is said, and the others are not waited for."""
    gate = threading.Event()

    def late(_: Any) -> Answer:
        gate.wait(20)
        return page({})

    with serving({"/v1/models": late}) as (url, asked):
        try:
            err = refused(capsys, url, "--timeout", "0.3")
        finally:
            gate.set()

    assert "no whole answer within 0.3 s" in err
    assert asked == ["GET /v1/models"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(b"INFO vLLM API server version 0.9\n"), ("packed", "gunzip -c")),
        (b"\x7fELF\0\0\0", ("binary data",)),
        (b"", ("no line of a known engine's start",)),
        (b"hello\nworld\n", ("no line of a known engine's start", "vLLM")),
    ],
)
def test_a_log_that_is_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, words: tuple[str, ...]
) -> None:
    """It is refused before the server is asked anything."""
    path = tmp_path / "x.log"
    path.write_bytes(data)
    with serving(routes_of(kit.vllm_pages())) as (url, asked):
        err = refused(capsys, url, "--log", str(path))

    assert asked == []
    assert all(word in err for word in words), err
    assert str(path) in err


def test_a_log_that_was_cut_short(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It gives no number, and the note says why."""
    path = tmp_path / "cut.log"
    path.write_text("\n".join(Path(FP8_LOG).read_text().splitlines()[:7]))

    got = document(capsys, kit.vllm_pages("auto", kv_cache_size_tokens="None"), "--no-lanes", "--log", str(path))

    assert (got["observed"]["tokens"], got["observed"]["k"]) == (None, None)
    assert any("neither the KV type nor the room" in note for note in got["notes"])


def test_hostile_words_do_not_act(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, overrides and markup in names are printed without what acts."""
    evil = "\x1b]0;owned\x07[bold red]m\u202eodel\r\nsecond"
    pages = kit.vllm_pages() | {
        "/v1/models": {"data": [{"id": evil, "owned_by": "vllm", "root": evil}]},
        "/version": {"version": evil},
    }
    with serving(routes_of(pages)) as (url, _):
        _, out, err = run(capsys, url, "--no-lanes")
        _, as_json, _ = run(capsys, url, "--no-lanes", "--json")

    assert not any(c in out + err + as_json for c in "\x1b\x07\u202e\r")
    assert "[bold red]" in out
    assert not [text for text in words_of(json.loads(as_json)) if any(c in text for c in "\x1b\x07\u202e\r\n")]


def words_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    for inner in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from words_of(inner)

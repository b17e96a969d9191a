"""The process of one panel: one model, one llama.cpp context per arm, through the C interface of xllamacpp's library.

Runs in any interpreter that has xllamacpp and cffi; imports nothing else of ours. Messages both ways are JSON behind a
4-byte little-endian length; rows of logits go into the shared block whose descriptor comes with `load`.

The structs that hold parameters are opaque here: their sizes and the offsets of the fields we set come from a table
that is verified per wheel version, and nothing is called by value before the version is known.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PARENT_LOOK_S = 0.5
ROTATION_DISABLE = "LLAMA_ATTN_ROT_DISABLE"
FLASH_ATTENTION_ON = 1
#: Pieces of log kept after the load.
LOG_PIECES = 200

#: What is called, with the parameter structs left to `declarations`.
CALLS = """
struct llama_batch {
    int32_t n_tokens; int32_t *token; float *embd; int32_t *pos; int32_t *n_seq_id; int32_t **seq_id; int8_t *logits;
};
typedef void (*kvgate_log)(int level, const char *text, void *data);
void llama_log_set(kvgate_log call, void *data);
void llama_backend_init(void);
struct llama_model_params llama_model_default_params(void);
struct llama_context_params llama_context_default_params(void);
void *llama_model_load_from_file(const char *path, struct llama_model_params params);
void *llama_init_from_model(void *model, struct llama_context_params params);
const void *llama_model_get_vocab(const void *model);
int32_t llama_vocab_n_tokens(const void *vocab);
int32_t llama_tokenize(const void *vocab, const char *text, int32_t text_len, int32_t *tokens, int32_t n_tokens_max,
                       bool add_special, bool parse_special);
void *llama_get_memory(const void *context);
void llama_memory_clear(void *memory, bool data);
struct llama_batch llama_batch_init(int32_t n_tokens, int32_t embd, int32_t n_seq_max);
int32_t llama_decode(void *context, struct llama_batch batch);
float *llama_get_logits(void *context);
int32_t llama_n_threads(void *context);
int32_t llama_n_threads_batch(void *context);
"""

#: Struct formats of the fields we read or set; all others are 32-bit integers.
BYTE_FIELDS = ("use_extra_bufts", "swa_full", "kv_unified")


class Failed(Exception):
    """The panel cannot be had; `kind` is "layout" (the wheel is not what the table says) or "load"."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why


def declarations(sizes: dict[str, int]) -> str:
    """C declarations with each parameter struct as so many words: passed in memory, like the real one."""

    def opaque(name: str) -> str:
        words = " ".join(f"uint64_t w{i};" for i in range(sizes[name] // 8))
        return f"struct {name} {{ {words} }};"

    return opaque("llama_model_params") + opaque("llama_context_params") + CALLS


class Fields:
    """Named fields of an opaque struct, by the table's offsets."""

    def __init__(self, ffi: Any, value: Any, offsets: dict[str, int]) -> None:
        self.value = value
        self._bytes = ffi.buffer(ffi.addressof(value))
        self._offsets = offsets

    def get(self, name: str) -> int:
        kind = "<b" if name in BYTE_FIELDS else "<i"
        return int(struct.unpack_from(kind, self._bytes, self._offsets[name])[0])

    def set(self, name: str, number: int) -> None:
        struct.pack_into("<b" if name in BYTE_FIELDS else "<i", self._bytes, self._offsets[name], number)


class Library:
    """xllamacpp's shared object, its log, and the verified layout."""

    def __init__(self, path: str, layout: dict[str, Any]) -> None:
        import cffi

        self.layout = layout
        self.ffi = cffi.FFI()
        self.ffi.cdef(declarations(layout["sizes"]))
        self.c = self.ffi.dlopen(path, self.ffi.RTLD_NOW | self.ffi.RTLD_GLOBAL)
        batch = self.ffi.sizeof("struct llama_batch")
        if batch != layout["sizes"]["llama_batch"]:
            raise Failed("layout", f"llama_batch has {batch} bytes, the table says {layout['sizes']['llama_batch']}")
        self._log: list[str] = []
        #: Set once nobody will ask for a slice of the log any more; from then on only its end is kept.
        self.loaded = False
        # The library keeps the pointer: the callback must live as long as it.
        self._on_log = self.ffi.callback("void(int, const char *, void *)", self._take)
        self.c.llama_log_set(self._on_log, self.ffi.NULL)
        self.c.llama_backend_init()

    def _take(self, level: int, text: Any, data: Any) -> None:
        self._log.append(self.ffi.string(text).decode("utf-8", "replace"))
        if self.loaded and len(self._log) > LOG_PIECES:
            del self._log[:-LOG_PIECES]

    def log_lines(self, start: int = 0) -> list[str]:
        """Lines since mark `start`, at most the last 2000."""
        return "".join(self._log[start:]).splitlines()[-2000:]

    def mark(self) -> int:
        return len(self._log)

    def defaults(self, struct_name: str) -> Fields:
        """A struct of parameters as the library fills it; refused if it does not read as the table says."""
        call = getattr(self.c, struct_name.replace("_params", "_default_params"))
        fields = Fields(self.ffi, call(), self.layout["offsets"][struct_name])
        for name, want in self.layout["defaults"].get(struct_name, {}).items():
            got = fields.get(name)
            if got != want:
                raise Failed("layout", f"{struct_name}.{name} reads {got} where this wheel's default is {want}")
        return fields


class Arm:
    """One context."""

    def __init__(self, library: Library, model: Any, want: dict[str, Any], rows: int) -> None:
        mark = library.mark()
        params = library.defaults("llama_context_params")
        for field, key in (
            ("n_ctx", "n_ctx"),
            ("n_batch", "n_batch"),
            ("n_ubatch", "n_ubatch"),
            ("n_seq_max", "n_parallel"),
            ("n_threads", "n_threads"),
            ("n_threads_batch", "n_threads"),
            ("type_k", "type_k"),
            ("type_v", "type_v"),
        ):
            params.set(field, want[key])
        params.set("n_outputs_max", rows)
        params.set("flash_attn_type", FLASH_ATTENTION_ON)
        params.set("swa_full", 0)  # the C interface's own default is 1, the server's is 0
        params.set("kv_unified", 0)
        with environment(want["env"]):
            self.context = library.c.llama_init_from_model(model, params.value)
        self.log = library.log_lines(mark)
        if self.context == library.ffi.NULL:
            raise Failed("load", "a context could not be made")
        self.memory = library.c.llama_get_memory(self.context)
        self.numbers = {
            "threads": library.c.llama_n_threads(self.context),
            "batch_threads": library.c.llama_n_threads_batch(self.context),
        }


class environment:  # noqa: N801 - reads as a statement
    """Variables set while a context is made: the engine reads them then, per context."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self._wanted = {ROTATION_DISABLE: None, **wanted}
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._wanted}
        self._put(self._wanted)

    def __exit__(self, *exc: object) -> None:
        self._put(self._before)

    @staticmethod
    def _put(values: dict[str, Any]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Panel:
    """The model, its contexts and the shared block."""

    def __init__(self, library: Library, want: dict[str, Any]) -> None:
        self.library, ffi, c = library, library.ffi, library.c
        self.rows, self.n_vocab = want["max_rows"], want["n_vocab"]
        params = library.defaults("llama_model_params")
        model = c.llama_model_load_from_file(want["model"].encode(), params.value)
        if model == ffi.NULL:
            raise Failed("load", "the model could not be loaded")
        self.vocab = c.llama_model_get_vocab(model)
        if c.llama_vocab_n_tokens(self.vocab) != self.n_vocab:
            n = c.llama_vocab_n_tokens(self.vocab)
            raise Failed("load", f"the model's vocabulary has {n} tokens, its file says {self.n_vocab}")
        self.model_log = library.log_lines()
        self.arms = [Arm(library, model, arm, self.rows) for arm in want["arms"]]
        library.loaded = True
        self.batch = c.llama_batch_init(self.rows, 0, 1)
        self._arm_bytes = self.rows * self.n_vocab * 4
        self._block = mmap.mmap(want["memory_fd"], self._arm_bytes * len(self.arms))
        self._base = ffi.cast("char *", ffi.from_buffer(self._block))
        self._ids: list[int] = []
        self._at = 0

    def begin(self, ids: list[int]) -> dict[str, Any]:
        for arm in self.arms:
            self.library.c.llama_memory_clear(arm.memory, True)
        self._ids, self._at = ids, 0
        return {}

    def step(self, n: int, rows: bool) -> dict[str, Any]:
        """Feed the next n tokens to every arm; rows, where they are wanted, go to the shared block, arm after arm."""
        ffi, c, batch = self.library.ffi, self.library.c, self.batch
        batch.n_tokens = n
        for i in range(n):
            batch.token[i] = self._ids[self._at + i]
            batch.pos[i] = self._at + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, int(rows)
        for number, arm in enumerate(self.arms):
            status = c.llama_decode(arm.context, batch)
            if status != 0:
                said = " ".join(self.library.log_lines()[-1:])
                return {"error": f"llama_decode gave {status} on arm {number}: {said}"}
            if rows:
                ffi.memmove(
                    self._base + number * self._arm_bytes, c.llama_get_logits(arm.context), n * self.n_vocab * 4
                )
        self._at += n
        return {}

    def tokenize(self, text: str, add_special: bool) -> dict[str, Any]:
        ffi, raw = self.library.ffi, text.encode("utf-8", "surrogatepass")
        room = len(raw) + 16
        ids = ffi.new("int32_t[]", room)
        n = self.library.c.llama_tokenize(self.vocab, raw, len(raw), ids, room, add_special, True)
        return {"error": "llama_tokenize found no room"} if n < 0 else {"ids": list(ids[0:n])}


def die_with_parent(parent: int, by_signal: bool) -> None:
    """Ask the kernel for a KILL when the parent's thread ends, and look ourselves: a long call must not keep us."""
    if by_signal and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_LOOK_S)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def whereabouts() -> dict[str, Any]:
    """What is here: versions, platform, the library's path; `missing` names a package that is not there."""
    from importlib import metadata, util

    here: dict[str, Any] = {"platform": sys.platform, "python": sys.version.split()[0], "words": struct.calcsize("P")}
    found = {}
    for package in ("xllamacpp", "cffi"):
        found[package] = util.find_spec(package)
        if found[package] is None:
            return here | {"missing": package}
    try:
        here["version"] = metadata.version("xllamacpp")
    except metadata.PackageNotFoundError:
        here["version"] = None
    spec = found["xllamacpp"]
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path("/nowhere")
    here["libraries"] = sorted(str(p) for p in folder.glob("*.so"))
    return here


def receive() -> Any:
    """The next message; the end of the input ends us."""
    head = _exactly(4)
    return json.loads(_exactly(struct.unpack("<I", head)[0]))


def _exactly(n: int) -> bytes:
    data = b""
    while len(data) < n:
        piece = os.read(0, n - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def load(want: dict[str, Any]) -> tuple[Panel | None, dict[str, Any]]:
    library = None
    try:
        library = Library(want["library"], want["layout"])
        panel = Panel(library, want)
    except Failed as e:
        return None, {"failed": e.kind, "why": e.why, "log": library.log_lines() if library else []}
    except (OSError, AttributeError) as e:
        # The library cannot be opened, or lacks a function.
        return None, {"failed": "layout", "why": str(e), "log": []}
    arms = [{"log": arm.log, "numbers": arm.numbers} for arm in panel.arms]
    return panel, {"arms": arms, "log": panel.model_log}


def answer(panel: Panel | None, message: dict[str, Any]) -> tuple[Panel | None, dict[str, Any]]:
    if message["op"] == "load":
        return load(message)
    if panel is None:
        return None, {"error": "nothing is loaded"}
    if message["op"] == "begin":
        return panel, panel.begin(message["ids"])
    if message["op"] == "step":
        return panel, panel.step(message["n"], message.get("rows", True))
    return panel, panel.tokenize(message["text"], message["add_special"])


def main() -> None:
    for interrupt in (signal.SIGINT, signal.SIGQUIT):  # the parent decides what an interrupt means
        signal.signal(interrupt, signal.SIG_IGN)
    out = os.dup(1)
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        data = struct.pack("<I", len(data)) + data
        while data:
            data = data[os.write(out, data) :]

    start = receive()
    die_with_parent(start["parent"], start["die_by_signal"])
    send(whereabouts())
    panel = None
    while True:
        panel, said = answer(panel, receive())
        send(said)


if __name__ == "__main__":
    main()

"""Writes small GGUF files for tests, byte by byte; independent of the reader and of the gguf package.

Keeps the offset of each field, so that a test can cut or change the file at every one of them.
"""

import struct
from dataclasses import dataclass, field

NUMBER_FORMS = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "B"),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}
F32, Q4_1 = (0, 1, 4), (3, 32, 20)


@dataclass
class TinyGguf:
    """Entries: (key, type, value), type "str", a number, or ("array", element type). Tensors: (name, shape, type)."""

    entries: list = field(default_factory=list)
    tensors: list = field(default_factory=list)
    version: int = 3
    order: str = "<"
    align: int = 32
    offsets: list = field(default_factory=list)

    def build(self) -> bytes:
        self._out, self.offsets = bytearray(), []
        self._raw(b"GGUF")
        self._number("I", self.version)
        self._number("Q", len(self.tensors))
        self._number("Q", len(self.entries))
        for key, kind, value in self.entries:
            self._text(key)
            self._entry(kind, value)
        data_bytes = 0
        for name, shape, (type_id, block, block_bytes) in self.tensors:
            self._text(name)
            self._number("I", len(shape))
            elements = 1
            for d in shape:
                self._number("Q", d)
                elements *= d
            self._number("I", type_id)
            self._number("Q", data_bytes)
            data_bytes += -(-(elements // block * block_bytes) // self.align) * self.align
        self._raw(b"\0" * (-len(self._out) % self.align))
        self._raw(b"\x55" * data_bytes)
        return bytes(self._out)

    def _entry(self, kind, value):
        if kind == "str":
            self._number("I", 8)
            self._text(value)
        elif isinstance(kind, tuple):
            element = kind[1]
            self._number("I", 9)
            self._number("I", 8 if element == "str" else 9 if isinstance(element, tuple) else NUMBER_FORMS[element][0])
            self._number("Q", len(value))
            for v in value:
                if element == "str":
                    self._text(v)
                elif isinstance(element, tuple):
                    raise ValueError("write nested arrays by hand")
                else:
                    self._number(NUMBER_FORMS[element][1], v)
        else:
            type_id, form = NUMBER_FORMS[kind]
            self._number("I", type_id)
            self._number(form, value)

    def _text(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        self._number("Q", len(data))
        self._raw(data)

    def _number(self, form, value):
        self._raw(struct.pack(self.order + form, value))

    def _raw(self, data):
        self.offsets.append(len(self._out))
        self._out += data


def model_entries(architecture="llama", **keys):
    """Entries of a small model; `keys` replace or add architecture keys (a list becomes an i32 array, bool a flag)."""
    base = {
        "block_count": 2,
        "context_length": 4096,
        "embedding_length": 256,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    base.update({k.replace("__", "."): v for k, v in keys.items()})
    entries = [("general.architecture", "str", architecture), ("general.name", "str", "Tiny")]
    for key, value in base.items():
        if value is None:
            continue
        if isinstance(value, bool):
            entries.append((f"{architecture}.{key}", "bool", int(value)))
        elif isinstance(value, list):
            entries.append((f"{architecture}.{key}", ("array", "i32"), value))
        elif isinstance(value, float):
            entries.append((f"{architecture}.{key}", "f32", value))
        else:
            entries.append((f"{architecture}.{key}", "u32", value))
    entries.append(("tokenizer.ggml.tokens", ("array", "str"), ["a", "b", "<eos>"]))
    return entries


def tiny_model(architecture="llama", *, extra=(), **keys):
    """Bytes of a GGUF file of a small model with two tensors."""
    return TinyGguf(
        [*model_entries(architecture, **keys), *extra],
        [("token_embd.weight", (64, 3), Q4_1), ("output_norm.weight", (64,), F32)],
    ).build()

"""One command with all that rules may ask: facts, version, device, model, log; what is not known is None."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kvgate.enginefacts.facts import EngineFacts
from kvgate.enginefacts.versions import Holds, Key, holds, version_of
from kvgate.formats.spec import codecs
from kvgate.hardware.device import Device
from kvgate.lint.command import Command, Place
from kvgate.lint.judged import Judged
from kvgate.lint.log_view import LogView
from kvgate.lint.model_view import ModelView

Known = Literal["known", "unknown", "unstated"]


@dataclass(frozen=True)
class Subject:
    """What is linted.

    Attributes:
        version: numbers of the engine's version; None where nobody said.
        known: whether that version is inside what has been read.
        others: names of models that other commands of the same text start. judged: verdicts of a store, oldest first.
    """

    command: Command
    facts: EngineFacts | None = None
    version_text: str = ""
    version: Key | None = None
    known: Known = "unstated"
    device: Device | None = None
    model: ModelView | None = None
    log: LogView | None = None
    others: tuple[str, ...] = ()
    judged: tuple[Judged, ...] | None = None

    @property
    def engine(self) -> str:
        return self.command.engine

    def get(self, key: str) -> str | None:
        return self.command.get(key)

    def given(self, key: str) -> bool:
        return self.command.given(key)

    def place(self, *keys: str) -> Place:
        """Where the first of these options stands, else the command."""
        return next((self.command.place_of(k) for k in keys if self.given(k)), self.command.place)

    def number(self, key: str) -> float | None:
        """A setting as a number; None where it is none."""
        text = self.get(key)
        try:
            return None if text is None else float(text)
        except ValueError:
            return None

    def holds(self, since: str, until: str) -> Holds:
        """Whether a range holds; without a version as for the newest that was read."""
        version = self.version
        if version is None and self.facts is not None and self.facts.newest:
            version = version_of(self.facts.newest, self.engine)
        return holds(version, since, until, self.engine)

    @property
    def is_newest(self) -> bool:
        """Whether the version is the one that was read in full, or nobody said."""
        if self.version is None or self.facts is None:
            return True
        return holds(self.version, self.facts.newest, "", self.engine) is Holds.YES

    # The KV cache that is asked for.

    @cached_property
    def k_word(self) -> str | None:
        """The word of the option for K; the default where nothing is said; None where it cannot be read."""
        return self._word("k_dtype" if self._two_sided else "kv_dtype")

    @cached_property
    def v_word(self) -> str | None:
        return self._word("v_dtype" if self._two_sided else "kv_dtype")

    @property
    def _two_sided(self) -> bool:
        return self.engine in ("llama_cpp", "ollama")

    def _word(self, key: str) -> str | None:
        if self.given(key):
            found = self.get(key)
            return None if found is None else found.strip().lower()
        return "f16" if self._two_sided else "auto"

    @property
    def dtype_place(self) -> Place:
        return self.place("kv_dtype", "k_dtype", "v_dtype")

    def codec(self, word: str | None) -> str:
        """Codec id behind a word of this engine; "" for none."""
        if word is None or self.facts is None:
            return ""
        return next((d.codec for d in self.facts.dtype if word in (d.spelling, *d.aliases)), "")

    @cached_property
    def effective_words(self) -> tuple[str | None, str | None]:
        """K's and V's words once `auto` has followed the checkpoint."""
        if self.k_word == "auto" and self.model is not None:
            own = self.checkpoint_word
            if own:
                return own, own
        return self.k_word, self.v_word

    @property
    def checkpoint_word(self) -> str:
        """What this engine's `auto` becomes by the checkpoint's own scheme; "" where it has none."""
        if self.model is None:
            return ""
        algorithm = self.model.kv_algorithm
        if self.engine == "sglang":
            return "fp8_e4m3" if algorithm == "FP8" else ""
        if self.engine == "trtllm":
            return {"FP8": "fp8", "NVFP4": "nvfp4"}.get(algorithm, "")
        if self.engine != "vllm":
            return ""
        if algorithm in ("FP8", "NVFP4"):
            return {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}[algorithm]
        return "fp8" if self.model.kv_scheme is not None else ""

    @property
    def is_quantized(self) -> bool:
        return any(w not in (None, "auto", "bfloat16", "float16", "bf16", "f16", "f32") for w in self.effective_words)

    @property
    def is_fp8(self) -> bool:
        return any((w or "").startswith("fp8") for w in self.effective_words)

    # The device.

    @property
    def vendor(self) -> str:
        return self.device.vendor if self.device is not None else self.command.vendor

    @property
    def capability(self) -> str:
        """ "9.0", "gfx942"; "" where it is not known."""
        return self.device.compute_capability if self.device is not None else ""

    def on_capability(self, wanted: tuple[str, ...]) -> bool:
        """Whether the device is known to be one of these: "9" is all of 9.x."""
        if not self.capability or self.vendor != "nvidia":
            return False
        return any(self.capability == w or self.capability.split(".")[0] == w for w in wanted)

    # The rest.

    @property
    def backend(self) -> str | None:
        """The attention backend that is named, in the engine's case; None where none is."""
        for key in ("backend", "attention_config.backend"):
            found = self.get(key)
            if found:
                return found.strip().upper() if self.engine == "vllm" else found.strip().lower()
        return None

    @property
    def context_tokens(self) -> int | None:
        """The context that is asked for, else the model's own."""
        found = self.number("context_tokens")
        if found is None and self.engine == "vllm":
            found = _vllm_count(self.get("context_tokens") or "")
        if found is not None and 0 < found < math.inf:
            return int(found)
        return (self.model.context_tokens or None) if self.model is not None else None


def _vllm_count(text: str) -> float | None:
    """A count as vLLM's parser reads it: 1k is 1,000 and 1K is 1,024 (vllm 0.32 utils/argparse_utils.py)."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([kKmM])", text.strip())
    if match is None:
        return None
    return float(match[1]) * {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}[match[2]]


def all_codec_words() -> frozenset[str]:
    """Every word that any engine has for any codec."""
    return frozenset(w for c in codecs() for words in c.spellings.values() for w in words)

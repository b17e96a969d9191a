"""What SGLang's own page says of it (`/server_info`, in older versions `/get_server_info`), read by `pages/sglang.py`.

The page holds all arguments after the engine has decided what was left open, the API key among them; nothing but the
fields that the rows name, and those below, is ever read. The KV type there is an argument, and no proof of what is
stored: on AMD both FP8 words store the platform's E4M3 (srt/mem_cache/kv_cache_dtype.py).
Source: sglang 0.5.23 srt/entrypoints/http_server.py server_info, srt/managers/scheduler_components/memory_usage.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvgate.engines.pages.sglang import PAGES

PATH: Final = "/server_info"
#: Newest first.
PATHS: Final = (PATH, "/get_server_info")
#: What a folder or a command line holds is nobody's business.
_PRIVATE: Final = ("model", "model_path", "metrics_model")
_MAX_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the page says; a field that is not there is unknown.

    Attributes:
        told: field of `enginefacts.page_facts.FIELDS` -> value. device: as torch says it.
        chunk_tokens: of one prefill step. deterministic: `--enable-deterministic-inference`. lines: all as evidence.
    """

    told: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    chunk_tokens: int | None = None
    deterministic: bool = False
    lines: tuple[str, ...] = ()

    def word(self, name: str) -> str | None:
        value = self.told.get(name)
        return value if isinstance(value, str) else None

    def whole(self, name: str) -> int | None:
        value = self.told.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, name: str) -> bool | None:
        value = self.told.get(name)
        return value if isinstance(value, bool) else None


def info_of(page: Any) -> ServerInfo:
    """The page's JSON value -> what is known; anything of another shape is unknown."""
    if not isinstance(page, Mapping):
        return ServerInfo()
    told: dict[str, Any] = {}
    for claim in PAGES.claims({PATH: page}):
        told.setdefault(claim.field, claim.value)
    device, chunk = page.get("device"), page.get("chunked_prefill_size")
    deterministic = page.get("enable_deterministic_inference") is True
    shown = [f"{name}={str(value)[:_MAX_CHARS]}" for name, value in sorted(told.items()) if name not in _PRIVATE]
    shown += ["deterministic inference"] if deterministic else []
    return ServerInfo(
        told=told,
        device=device[:_MAX_CHARS] if isinstance(device, str) and device else None,
        chunk_tokens=chunk if isinstance(chunk, int) and not isinstance(chunk, bool) and chunk > 0 else None,
        deterministic=deterministic,
        lines=(f"{PATH}: " + ", ".join(shown),) if shown else (),
    )

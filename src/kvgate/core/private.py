"""Settings whose values are secrets, by their names: what is stored or shown of them.

A token in an engine's environment is a setting like any other, so arms that have different ones must still be seen to
differ. What stands for it therefore ends in 12 bits of its digest: enough to tell two values apart, and too few to
tell a guess of a password from 1 in 4096 wrong ones.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

#: TOKENS and TOKENIZERS are counts and switches, not secrets.
_PRIVATE = re.compile(r"TOKEN(?!S|IZER)|KEY|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|BEARER", re.IGNORECASE)
_KEPT_OUT = re.compile(r"\(not kept #[0-9a-f]{3}\)")
# `env.NAME=value` of --arm, and `--name=value` of an engine's own command line.
_SETTING = re.compile(r"(?P<name>env\.[A-Za-z0-9_]+|^--[A-Za-z0-9_.-]+)=(?P<value>[^,]*)")


def is_private(name: str) -> bool:
    """Whether the name of a setting says that its value is a secret."""
    return _PRIVATE.search(name) is not None


def kept_out(value: str) -> str:
    """What stands for a secret; what already does stays as it is."""
    if _KEPT_OUT.fullmatch(value):
        return value
    return f"(not kept #{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:3]})"


def public_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables, without the values of those that are secret."""
    return {k: kept_out(v) if is_private(k) else v for k, v in env.items()}


def public_words(words: str) -> str:
    """The same for an option as a person types it: `NAME:env.HF_TOKEN=...` or `--api-key=...`.

    The value is replaced by three dots: the line can be shown, and typed again once they are filled in.
    """
    return _SETTING.sub(lambda m: f"{m['name']}=..." if is_private(m["name"]) else m[0], words)

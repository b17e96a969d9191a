"""Settings and the person's own arguments, for engines that are a family of processes behind one command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kvgate.core.engine import Request, Settings
from kvgate.core.errors import UserError

#: Variables of every such engine: it asks no hub, tells nobody, and its log comes at once.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
_ARGUMENT = re.compile(r"--?[a-z][a-z0-9._-]*(?:=.*)?", re.DOTALL)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_request(want: Request, engine: str, *, secrets: Sequence[str] = ()) -> None:
    """Refuse what such an engine cannot be started with.

    Args:
        secrets: variables by which the engine would take a key; ours goes another way.

    Raises:
        UserError: no folder, a setting that is none, or a context longer than the model was trained for.
    """
    geometry, settings = want.model.geometry, want.settings
    if not want.model.path.is_dir():
        raise UserError(
            f"{engine} loads a Hugging Face folder, and {want.model.name} is a file",
            fix="give the folder with config.json, tokenizer and safetensors files",
        )
    for name in ("context_tokens", "batch_tokens", "ubatch_tokens", "slots", "threads"):
        if getattr(settings, name) < 1:
            raise UserError(f"{name} is {getattr(settings, name)}", fix="give a positive number")
    if settings.checkpoints:
        raise UserError(f"{engine} keeps no context checkpoints", fix="leave checkpoints out")
    if geometry.context_tokens and settings.context_tokens > geometry.context_tokens:
        raise UserError(
            f"a context of {settings.context_tokens} tokens is longer than {geometry.name} was trained for "
            f"({geometry.context_tokens})",
            fix=f"give at most --context {geometry.context_tokens}",
        )
    for name, value in settings.env.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value or name in secrets:
            raise UserError(f"environment variable {name!r} cannot be set", fix="write NAME=VALUE of another variable")


def own_arguments(settings: Settings, ours: Sequence[str]) -> tuple[str, ...]:
    """The person's own arguments, one word each.

    Args:
        ours: flags that kvgate sets, equal on all arms; a name that ends in "-" stands for all that begin so.

    Raises:
        UserError: not of the form --name or --name=value, or one of `ours`.
    """
    for text in settings.arguments:
        if not _ARGUMENT.fullmatch(text) or "\0" in text:
            raise UserError(f"engine argument {text[:80]!r} is not one word", fix="write --name=value")
        if _is_one_of(flag_name(text), ours):
            raise UserError(
                f"engine argument {text[:80]!r}: kvgate sets this itself, equal on all arms",
                fix="use kvgate's own options (--kv, --context), or leave it out",
            )
    return tuple(settings.arguments)


def _is_one_of(name: str, ours: Sequence[str]) -> bool:
    """Whether a flag is one of ours, also by its beginning: argparse takes any unambiguous one for the flag."""
    return any(
        name == own or (own.endswith("-") and name.startswith(own)) or (name.startswith("--") and own.startswith(name))
        for own in ours
    )


def flag_name(text: str) -> str:
    """The flag of an argument, spelled with hyphens; of `--speculative-config.model`, which vLLM takes, the first."""
    return text.partition("=")[0].partition(".")[0].replace("_", "-")


def has_flag(own: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the person gave one of these flags."""
    return any(flag_name(text) in names for text in own)


def worker() -> Path:
    """The keeper, which runs in the engine's own interpreter."""
    return Path(__file__).parent / "workers" / "family_server.py"

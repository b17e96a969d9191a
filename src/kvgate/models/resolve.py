"""What a person typed for MODEL -> files on disk. Order: URL, existing path, catalogue name, hub id."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelFiles
from kvgate.models.geometry_from_gguf import geometry_from_gguf, template_digest, tokenizer_digest, weights_dtype
from kvgate.models.hub import is_hub_id
from kvgate.models.plan_model import PlanModel, plan_model_of_hub, plan_model_of_path
from kvgate.models.read_gguf import read_gguf

if TYPE_CHECKING:
    from kvgate.models.fetch import Progress

_MAX_CHARS = 4096
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PATH_LIKE = re.compile(r"[./~]|.*\.(gguf|safetensors|json|bin|pt|pth)$", re.IGNORECASE)

_PLAN_ALLOWED = ("a folder", "a config.json", "a .gguf file", "a hub id such as Qwen/Qwen3-32B")


def resolve_model(text: str, *, progress: Progress | None = None) -> ModelFiles:
    """Find, read and identify a model.

    Args:
        text: a path, a catalogue name, or something that gets an answer in words.
        progress: called with one sentence at each step of a download.

    Raises:
        UserError: there is no such model, or it is not a GGUF file that can be sized; one line with the way on.
    """
    given = text.strip()
    if not given or "\0" in given or len(given) > _MAX_CHARS:
        raise UserError(f"MODEL {given[:40]!r} is empty, or no name or path at all", allowed=_allowed())
    if _URL.match(given):
        raise UserError(
            f"MODEL {given!r} is a URL",
            fix="give a GGUF file; of running servers: kvgate check URL --against URL, or kvgate probe URL",
        )
    path = _existing(given)
    if path is not None:
        return model_files(path)
    if given in _catalogue_names():
        return model_files(_fetched(given, progress), name=given)
    if _PATH_LIKE.match(given):
        raise UserError(f"there is no file {given!r}", allowed=_allowed())
    if is_hub_id(given):
        raise UserError(
            f"{given!r} looks like a hub id, and kvgate does not download from model hubs",
            fix="download a GGUF file of it yourself, then: kvgate check /path/model.gguf",
        )
    raise UserError(f"unknown model {given!r}", allowed=_allowed())


def resolve_plan_model(text: str, *, progress: Progress | None = None) -> PlanModel:
    """Find and size a model for a plan, from headers only.

    Args:
        text: a folder, a `config.json`, a GGUF file, a catalogue name or a hub id. progress: as in `resolve_model`.

    Raises:
        UserError: there is no such model, or it cannot be sized; one line with the way on.
    """
    given = text.strip()
    if not given or "\0" in given or len(given) > _MAX_CHARS:
        raise UserError(f"MODEL {given[:40]!r} is empty, or no name or path at all", allowed=_PLAN_ALLOWED)
    if _URL.match(given):
        raise UserError(f"MODEL {given[:80]!r} is a URL", allowed=_PLAN_ALLOWED)
    path = _existing(given)
    if path is not None:
        return plan_model_of_path(path)
    if _PATH_LIKE.match(given) and not is_hub_id(given):
        raise UserError(f"there is no file or folder {given[:200]!r}", allowed=_PLAN_ALLOWED)
    if "/" in given or "\\" in given:
        # No catalogue name has a slash, so that their order holds without reading the catalogue.
        return plan_model_of_hub(given)
    if given in _catalogue_names():
        return plan_model_of_path(_fetched(given, progress), name=given)
    raise UserError(f"unknown model {given[:80]!r}", allowed=(*_catalogue_names(), *_PLAN_ALLOWED))


def model_files(path: Path, *, name: str = "") -> ModelFiles:
    """Read and identify one GGUF file.

    Args:
        name: what reports call it; by default the file's name without its ending.

    Raises:
        UserError: a folder, a file of another kind, or a GGUF file that cannot be read or sized.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder, and llama_cpp needs a GGUF file", fix="give the path of a .gguf file")
    if not path.is_file():
        raise UserError(f"{path} is not a regular file", fix="give the path of a .gguf file")
    if not _is_text(str(path.absolute())):
        raise UserError(
            f"the path of model {path.name!r} is not valid UTF-8, which neither the engine nor a report can name",
            fix="rename the file or folder",
        )
    modified_ns = path.stat().st_mtime_ns  # before anything is read: a later change is then seen
    header = read_gguf(path)
    return ModelFiles(
        name=name or path.stem,
        path=path.absolute(),
        geometry=geometry_from_gguf(header),
        digest=_digest(path),
        tokenizer_digest=tokenizer_digest(header),
        template_digest=template_digest(header),
        weights_dtype=weights_dtype(header),
        size_bytes=header.size_bytes,
        modified_ns=modified_ns,
    )


def _existing(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        if path.exists():
            return path
        dangling = path.is_symlink()
    except (OSError, RuntimeError):
        # A name too long for the file system, or ~somebody whom this machine does not know.
        return None
    if dangling:
        raise UserError(f"{text[:200]!r} is a link that leads nowhere", fix="make the link anew, or name its target")
    return None


def _is_text(path: str) -> bool:
    """False for a name with bytes that Python could only read as lone surrogates."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _allowed() -> tuple[str, ...]:
    return (*_catalogue_names(), "the path of a .gguf file")


# Imported when needed: a plan of a file starts without pydantic, pip and hashing.


def _catalogue_names() -> tuple[str, ...]:
    from kvgate.models.catalogue import catalogue

    return tuple(catalogue())


def _fetched(name: str, progress: Progress | None) -> Path:
    from kvgate.models.fetch import get_model

    return get_model(name, progress=progress)


def _digest(path: Path) -> str:
    from kvgate.models.file_digest import file_sha256

    return file_sha256(path)

"""A Hugging Face model folder -> files that an engine loads, with digests: for engines that take no GGUF file.

    model digest      configuration, generation settings and weights: name, size and sha256 of each file
    tokenizer digest  the files that a tokenizer is made of, without the chat template
    template digest   text of the chat template: `chat_template.jinja`, else the one inside `tokenizer_config.json`

Weights are safetensors only: pickled files run code when they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelFiles
from kvgate.core.source import Source
from kvgate.core.text import one_line
from kvgate.models.file_digest import file_sha256
from kvgate.models.geometry_from_config import geometry_from_config
from kvgate.models.hub import is_hub_id
from kvgate.models.read_config import CONFIG_NAME, QUANT_NAME, read_config
from kvgate.models.read_json import read_json_object
from kvgate.models.read_safetensors import read_safetensors
from kvgate.models.weights import INDEX_NAME, weights_files

_CONFIGS: Final = (CONFIG_NAME, "generation_config.json", QUANT_NAME, INDEX_NAME)
_TOKENIZER: Final = (
    *("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "merges.txt", "vocab.txt"),
    *("added_tokens.json", "special_tokens_map.json"),
)
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"
_TEMPLATE: Final = "chat_template.jinja"
_TEMPLATE_KEY: Final = "chat_template"
#: A tokenizer's configuration lists its added tokens; the largest seen is 10 MB.
_MAX_TOKENIZER_BYTES: Final = 64 << 20
_MAX_TEMPLATE_BYTES: Final = 4 << 20
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt")
_FIX: Final = "give the folder that holds config.json, the tokenizer and the safetensors files"


def model_folder(path: Path, *, name: str = "") -> ModelFiles:
    """Read and identify the folder of a model.

    Args:
        name: what reports call it; by default the folder's name.

    Raises:
        UserError: no folder, no configuration, tokenizer or safetensors weights in it, or one that cannot be sized.
    """
    if not path.is_dir():
        raise UserError(f"{path} is a file, and this engine loads a Hugging Face folder", fix=_FIX)
    where = path.absolute()
    try:
        str(where).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"the path of model {path.name!r} is not valid UTF-8, which neither the engine nor a report can name",
            fix="rename the folder",
        ) from None
    own = name or where.resolve().name
    geometry = geometry_from_config(read_config(where), own, Source("file", str(where / CONFIG_NAME)))
    weights = _weights(where)
    files = [*(n for n in _CONFIGS if (where / n).is_file()), *weights]
    return ModelFiles(
        name=own,
        path=where,
        geometry=geometry,
        digest=_digest(where, files),
        tokenizer_digest=_tokenizer_digest(where),
        template_digest=_template_digest(where),
        weights_dtype=_weights_dtype(where, weights),
        size_bytes=sum((where / n).stat().st_size for n in weights),
        modified_ns=time_stamp(where),
    )


def resolve_folder(text: str) -> ModelFiles:
    """What a person typed for MODEL of an engine that loads folders -> files on disk.

    Raises:
        UserError: there is no such folder, or it is no model that can be loaded; one line with the way on.
    """
    given = text.strip()
    try:
        path = Path(given).expanduser()
        there = bool(given) and "\0" not in given and path.exists()
    except (OSError, RuntimeError, ValueError):
        there = False
    if there:
        return model_folder(path)
    if is_hub_id(given) or "://" in given:
        raise UserError(
            f"{given[:200]!r} is no folder here, and kvgate does not download from model hubs",
            fix="download the model yourself, then give the folder that it lies in",
        )
    raise UserError(f"there is no folder {given[:200]!r}", fix=_FIX)


def time_stamp(folder: Path) -> int:
    """A number that another one takes the place of when a file that `model_folder` reads is written, added or removed.

    The sum of times of change (ns) and sizes; nothing is opened.

    Raises:
        UserError: the folder cannot be read.
    """
    try:
        files = [e.stat() for e in folder.iterdir() if e.is_file() and _counts(e.name)]
    except OSError as e:
        raise UserError(f"cannot read the folder {folder}: {e.strerror or e}") from None
    return sum(f.st_mtime_ns + f.st_size for f in files) % 2**62


def has_changed(model: ModelFiles) -> str:
    """Why the folder is not what it was when `model` was read; empty if it still is.

    A new time of change alone is no change: the content decides.
    """
    try:
        if model.modified_ns == time_stamp(model.path):
            return ""
        now = model_folder(model.path, name=model.name)
    except (UserError, OSError) as e:
        return f"the model folder {model.path} cannot be read any more: {e}"
    for what in ("digest", "tokenizer_digest", "template_digest"):
        if getattr(now, what) != getattr(model, what):
            return f"the model folder {model.path} has changed since this run has read it ({what})"
    return ""


def _counts(name: str) -> bool:
    known = (*_CONFIGS, *_TOKENIZER, _TOKENIZER_CONFIG, _TEMPLATE)
    return name in known or name.endswith(".safetensors")


def _weights(folder: Path) -> tuple[str, ...]:
    names = weights_files(folder)
    if names:
        return names
    pickled = sorted(e.name for e in folder.iterdir() if e.name.endswith(_PICKLES))
    if pickled:
        raise UserError(
            f"{folder} has its weights in {one_line(pickled[0], 80)}, a pickle, which runs code when it is read",
            fix="convert it to safetensors",
        )
    raise UserError(f"{folder} holds no safetensors files", fix=_FIX)


def _digest(folder: Path, names: Iterable[str]) -> str:
    """sha256 over name, size and sha256 of each file, in name order."""
    lines = [f"{n}\0{(folder / n).stat().st_size}\0{file_sha256(folder / n)}\n" for n in sorted(set(names))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _tokenizer_config(folder: Path) -> dict[str, object]:
    file = folder / _TOKENIZER_CONFIG
    return read_json_object(file, max_bytes=_MAX_TOKENIZER_BYTES) if file.is_file() else {}


def _tokenizer_digest(folder: Path) -> str:
    names = [n for n in _TOKENIZER if (folder / n).is_file()]
    if not names:
        raise UserError(f"{folder} holds no tokenizer", allowed=_TOKENIZER[:3], fix=_FIX)
    config = {k: v for k, v in _tokenizer_config(folder).items() if k != _TEMPLATE_KEY}
    rest = json.dumps(config, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(f"{_digest(folder, names)}\n{rest}".encode()).hexdigest()


def _template_digest(folder: Path) -> str | None:
    file = folder / _TEMPLATE
    if file.is_file():
        if file.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise UserError(f"{file} has more than {_MAX_TEMPLATE_BYTES:,} bytes, too many for a chat template")
        return hashlib.sha256(file.read_bytes()).hexdigest()
    template = _tokenizer_config(folder).get(_TEMPLATE_KEY)
    if template is None:
        return None
    # One text, or a list of named ones.
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _weights_dtype(folder: Path, names: Iterable[str]) -> str:
    """Types that hold at least a hundredth of the bytes, most first: "BF16", "F8_E4M3+BF16"."""
    held: Counter[str] = Counter()
    for name in names:
        for tensor in read_safetensors(folder / name).tensors:
            held[tensor.dtype] += tensor.n_bytes
    total = held.total()
    return "+".join(dtype for dtype, n in held.most_common() if n * 100 >= total) or "none"

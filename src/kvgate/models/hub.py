"""Models by hub id: from the Hugging Face hub where there is a network, else from the shipped catalogue.

`huggingface_hub` is imported only when a hub id is given, and only if it is installed. Nothing is downloaded but
`config.json` and the headers of the weights.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.core.text import one_line
from kvgate.models.hub_catalogue import CatalogueConfig, hub_config, hub_config_names
from kvgate.models.read_config import CONFIG_NAME, read_config
from kvgate.models.weights import Weights

#: As the hub has it: letters, digits, ".", "_" and "-"; at most 96 characters a part; no "..", no "--".
_PART: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB_ID: Final = re.compile(rf"{_PART}/{_PART}")
_OFFLINE_VARIABLES: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "KVGATE_OFFLINE")
_TIMEOUT_S: Final = 5.0
_REACH_S: Final = 2.0
_ENDPOINT: Final = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A configuration and where it came from.

    Attributes:
        weights: bytes of the weights, None where nobody says. origin: words for a person, with the reason for the
            catalogue. notes: what else to know.
    """

    name: str
    config: Mapping[str, object]
    source: Source
    origin: str
    weights: Weights | None = None
    notes: tuple[str, ...] = ()


class _NoAnswer(Exception):
    """The hub was not asked, or did not answer; the message is the reason."""


def is_hub_id(text: str) -> bool:
    """Whether `text` is a hub id; path characters, "..", "--" and ".git" are not in one."""
    return bool(_HUB_ID.fullmatch(text)) and ".." not in text and "--" not in text and not text.endswith(".git")


def hub_model(hub_id: str) -> HubModel:
    """The configuration of a hub model.

    Raises:
        UserError: no hub id; or neither the hub nor the catalogue has it, with the reason.
    """
    if not is_hub_id(hub_id):
        raise UserError(
            f"{one_line(hub_id, 80)!r} is no hub id",
            allowed=("ORGANISATION/MODEL in letters, digits, '.', '_' and '-'",),
        )
    try:
        return _online(hub_id)
    except _NoAnswer as e:
        reason = str(e)
    shipped = hub_config(hub_id)
    if shipped is None:
        near = get_close_matches(hub_id, hub_config_names(), n=4, cutoff=0.6)
        also = f" (it has {', '.join(near)})" if near else ""
        raise UserError(
            f"{hub_id} is not in the catalogue{also}, and the hub cannot be asked: {reason}",
            fix="give the model's folder, its config.json or a GGUF file",
        )
    return from_catalogue(shipped, reason)


def from_catalogue(shipped: CatalogueConfig, reason: str) -> HubModel:
    """A shipped configuration as a model; `reason` says why the hub was not used."""
    weights = None
    if shipped.weights_bytes is not None:
        weights = Weights(shipped.weights_bytes, shipped.weights_source, Source("spec", shipped.name))
    notes = () if shipped.verified else ("some values are defaults of the model's code, not read from its own file",)
    source = Source("spec", f"catalogue: {shipped.source}", shipped.version)
    return HubModel(shipped.name, shipped.config, source, f"shipped catalogue ({reason})", weights, notes)


def _online(hub_id: str) -> HubModel:
    """The configuration from the hub.

    Raises:
        _NoAnswer: not installed, switched off, no network.
        UserError: the hub answered and the file is no usable configuration, or is not for everybody.
    """
    for name in _OFFLINE_VARIABLES:
        if os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on"):
            raise _NoAnswer(f"{name} is set")
    try:
        if importlib.util.find_spec("huggingface_hub") is None:
            raise _NoAnswer("huggingface_hub is not installed")
    except ValueError:
        # A module that another one has put in place by hand has no spec.
        pass
    if not _reachable():
        raise _NoAnswer("no network")
    import huggingface_hub

    try:
        path = huggingface_hub.hf_hub_download(hub_id, CONFIG_NAME, etag_timeout=_TIMEOUT_S)
    except Exception as e:
        raise _NoAnswer(_reason(e)) from None
    config = read_config(Path(path))
    weights, notes = _weights(huggingface_hub, hub_id)
    return HubModel(
        hub_id, config, Source("file", f"{CONFIG_NAME} of {hub_id} on the hub"), "Hugging Face hub", weights, notes
    )


def _reachable() -> bool:
    """Whether the hub, or the proxy on the way to it, takes a connection within two seconds.

    Asked first because the hub's own client tries for half a minute before it gives up. The name is looked up in a
    thread: a resolver that does not answer has no time limit of its own.
    """
    places = (os.environ.get(name, "") for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    place = urlsplit(next((p for p in places if p), os.environ.get("HF_ENDPOINT", "") or _ENDPOINT))
    found: list[bool] = []

    def ask() -> None:
        try:
            address = (place.hostname or "", place.port or (80 if place.scheme == "http" else 443))
            with socket.create_connection(address, timeout=_REACH_S):
                found.append(True)
        except (OSError, ValueError):
            return

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_REACH_S)
    return bool(found)


def _weights(hub: Any, hub_id: str) -> tuple[Weights | None, tuple[str, ...]]:
    """Bytes of the tensors, from the headers of the files on the hub; a note where that fails."""
    try:
        metadata = hub.get_safetensors_metadata(hub_id)
        total = 0
        for file in metadata.files_metadata.values():
            for tensor in file.tensors.values():
                start, end = tensor.data_offsets
                total += end - start
        count = len(metadata.weight_map)
    except Exception as e:
        return None, (f"the headers of the weights could not be read from the hub: {_reason(e)}",)
    if total <= 0:
        return None, ("the hub's headers of the weights are empty",)
    how = f"{count:,} tensors in the headers of {len(metadata.files_metadata)} safetensors files on the hub"
    return Weights(total, how, Source("file", f"safetensors headers of {hub_id} on the hub")), ()


def _reason(error: Exception) -> str:
    """One line for a failed request; never a URL with a token."""
    kind = type(error).__name__
    known = {
        "RepositoryNotFoundError": "the hub knows no such model, or it is private",
        "GatedRepoError": "the model is gated: accept its licence and log in",
        "EntryNotFoundError": f"the model has no {CONFIG_NAME} on the hub",
        "RemoteEntryNotFoundError": f"the model has no {CONFIG_NAME} on the hub",
        "LocalEntryNotFoundError": "no network",
        "OfflineModeIsEnabled": "offline mode is on",
        "ConnectError": "no network",
        "ConnectionError": "no network",
        "ConnectTimeout": "no network",
        "NotASafetensorsRepoError": "the model has no safetensors files",
    }
    return known.get(kind, f"no network, or the hub failed ({kind})")

"""The KV recipe: what is stored for K and for V, and which tokens or layers are kept native.

    recipe = body {"/" option} ; body = "native" | side | "k=" side ",v=" side
    side = codec {":" param} ["@" origin] {"+" transform}
    param = "tensor" | "head" | "token_head" | "channel" | key "=" value
    origin = "unit" | "checkpoint" | "dynamic" | "calibrated#" 8hex
    option = "keep=" sel {"," sel} | "residual=" int | "sink=" int ; sel = kind | "L" int ["-" int]

`parse(str(r)) == r`. Input sugar: a blank for "/", `name(k=..,v=..)` for "+name" on both sides. Names of codecs and
transforms are not checked here but at `resolve()`, against the registry and the engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvgate.core.errors import UserError

_NAME = re.compile(r"[a-z0-9_]+")
_GRANULARITY = ("tensor", "head", "token_head", "channel")
_ORIGIN = re.compile(r"unit|checkpoint|dynamic|calibrated#[0-9a-f]{8}")
_PARAM = re.compile(r"[a-z0-9_]+=[A-Za-z0-9_.\-]+")
_LAYERS = re.compile(r"L(\d+)(?:-(\d+))?")
_SUGAR = re.compile(r"(?P<name>[a-z0-9_]+)\((?P<body>k=.*)\)")
_MAX_CHARS = 1024
_HOW = "write native, a codec such as q8_0, or k=CODEC,v=CODEC, then options such as /keep=sliding_window"


@dataclass(frozen=True, slots=True)
class Side:
    """What is stored for K or for V."""

    codec: str
    params: tuple[str, ...] = ()
    origin: str | None = None
    transforms: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            ":".join((self.codec, *self.params))
            + (f"@{self.origin}" if self.origin else "")
            + "".join(f"+{t}" for t in self.transforms)
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """A KV recipe; `k` and `v` are both None for `native`."""

    k: Side | None = None
    v: Side | None = None
    keep: tuple[str, ...] = ()
    residual_tokens: int | None = None
    sink_tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.k is None) != (self.v is None):
            raise ValueError("k and v are given together or not at all")

    @property
    def is_native(self) -> bool:
        return self.k is None

    def sides(self) -> tuple[tuple[str, Side], ...]:
        """(("k", side), ("v", side)); empty for native."""
        return () if self.k is None or self.v is None else (("k", self.k), ("v", self.v))

    def with_sides(self, k: Side, v: Side) -> Recipe:
        """The same options around other sides."""
        return replace(self, k=k, v=v)

    def __str__(self) -> str:
        if self.k is None:
            body = "native"
        else:
            body = str(self.k) if self.k == self.v else f"k={self.k},v={self.v}"
        options = []
        if self.keep:
            options.append("keep=" + ",".join(self.keep))
        if self.residual_tokens is not None:
            options.append(f"residual={self.residual_tokens}")
        if self.sink_tokens is not None:
            options.append(f"sink={self.sink_tokens}")
        return "/".join([body, *options])


def parse(text: str) -> Recipe:
    """Read a recipe.

    Raises:
        UserError: the text is not a recipe; the message names the part and the way to write it.
    """
    given = text.strip()
    if not given or len(given) > _MAX_CHARS:
        raise UserError(f"KV recipe {given[:40]!r} is empty or over {_MAX_CHARS} characters", fix=_HOW)
    body, *options = "/".join(given.split()).split("/")
    k, v = _body(body, given)
    recipe = Recipe(k, v)
    for option in options:
        recipe = _option(recipe, option, given)
    return recipe


def _body(body: str, given: str) -> tuple[Side | None, Side | None]:
    if body == "native":
        return None, None
    sugar = _SUGAR.fullmatch(body)
    if sugar:
        k, v = _body(sugar["body"], given)
        if k is None or v is None:
            raise UserError(f"KV recipe {given!r}: nothing to transform inside {sugar['name']}()", fix=_HOW)
        name = sugar["name"]
        return (
            replace(k, transforms=(*k.transforms, name)),
            replace(v, transforms=(*v.transforms, name)),
        )
    if body.startswith("k="):
        left, comma, right = body.partition(",v=")
        if not comma:
            raise UserError(f"KV recipe {given!r} gives k but not v", fix="write k=CODEC,v=CODEC")
        return _side(left[2:], given), _side(right, given)
    if body.startswith("v="):
        raise UserError(f"KV recipe {given!r} starts with v", fix="write k=CODEC,v=CODEC, k first")
    side = _side(body, given)
    return side, side


def _side(text: str, given: str) -> Side:
    head, *transforms = text.split("+")
    head, at, origin = head.partition("@")
    codec, *params = head.split(":")
    if not _NAME.fullmatch(codec) or codec == "native":
        raise UserError(f"KV recipe {given!r}: {codec!r} is not a codec name", fix=_HOW)
    for p in params:
        if p not in _GRANULARITY and not _PARAM.fullmatch(p):
            raise UserError(
                f"KV recipe {given!r}: {p!r} is not a parameter", allowed=(*_GRANULARITY, "key=value"), fix=_HOW
            )
    if at and not _ORIGIN.fullmatch(origin):
        raise UserError(
            f"KV recipe {given!r}: {origin!r} is not an origin of scales",
            allowed=("unit", "checkpoint", "dynamic", "calibrated#8hex"),
        )
    for t in transforms:
        if not _NAME.fullmatch(t):
            raise UserError(f"KV recipe {given!r}: {t!r} is not a transform name", fix=_HOW)
    return Side(codec, tuple(params), origin or None, tuple(transforms))


def _option(recipe: Recipe, text: str, given: str) -> Recipe:
    key, eq, value = text.partition("=")
    if key == "keep" and eq and not recipe.keep:
        sel = tuple(value.split(","))
        for s in sel:
            layers = _LAYERS.fullmatch(s)
            if layers and layers[2] is not None and int(layers[2]) < int(layers[1]):
                raise UserError(f"KV recipe {given!r}: layer range {s!r} runs backwards", fix="write L4-9")
            if not layers and not _NAME.fullmatch(s):
                raise UserError(f"KV recipe {given!r}: {s!r} is not a layer kind or L0-3", fix="write keep=L0-3,L9")
        return replace(recipe, keep=sel)
    if key in ("residual", "sink") and eq and re.fullmatch(r"\d{1,9}", value):
        if key == "residual" and recipe.residual_tokens is None:
            return replace(recipe, residual_tokens=int(value))
        if key == "sink" and recipe.sink_tokens is None:
            return replace(recipe, sink_tokens=int(value))
    raise UserError(
        f"KV recipe {given!r}: {text!r} is not an option, or is given twice",
        allowed=("keep=KIND|L0-3", "residual=TOKENS", "sink=TOKENS"),
    )

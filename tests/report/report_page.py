"""What makes a page harmless, read from its HTML: the check that both the real page and its mutants go through."""

from __future__ import annotations

from html.parser import HTMLParser

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LOADING = {"src", "srcset", "action", "formaction", "data", "poster", "background", "ping", "srcdoc", "xlink:href"}
FORBIDDEN = {"script", "iframe", "object", "embed", "form", "base", "img", "video", "audio", "foreignobject"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.offences: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.styles = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {k: v or "" for k, v in attrs}
        self.tags.append((tag, given))
        self.styles += tag == "style"
        if tag in FORBIDDEN:
            self.offences.append(f"<{tag}>")
        for name, value in given.items():
            if name.startswith("on") or name in LOADING or name == "style":
                self.offences.append(f"{tag} {name}={value[:40]!r}")
            if name == "href" and not (value.startswith("#") or value == "data:,"):
                self.offences.append(f"{tag} href={value[:40]!r}")


def offences(page: str) -> list[str]:
    """Everything in the page that could run, load or lead elsewhere; [] for a harmless page."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    bad = list(reader.offences)
    metas = [a for t, a in reader.tags if t == "meta" and a.get("http-equiv", "").lower() == "content-security-policy"]
    if len(metas) != 1 or not metas[0].get("content", "").startswith(POLICY):
        bad.append("no Content-Security-Policy")
    elif "script" in metas[0]["content"]:
        bad.append("the policy speaks of scripts")
    order = [t if a.get("http-equiv") is None else "policy" for t, a in reader.tags]
    if metas and order[:4] != ["html", "head", "meta", "policy"]:
        bad.append("something stands before the policy")
    if reader.styles != 1:
        bad.append(f"{reader.styles} style elements")
    return bad


def tags(page: str) -> list[tuple[str, dict[str, str]]]:
    """All start tags with their attributes, in order."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.tags

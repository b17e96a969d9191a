"""Plain values as a YAML file, quoted so that it reads back as what it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def yaml_text(values: Mapping[str, Any]) -> str:
    """The file's text, keys in the order given; words that YAML would take for something else are quoted."""
    import yaml  # only engines with a file need it

    class Dumper(yaml.SafeDumper):
        """Lists on one line: they are windows and names."""

    Dumper.add_representer(list, lambda d, v: d.represent_sequence("tag:yaml.org,2002:seq", v, flow_style=True))
    return str(yaml.dump(dict(values), Dumper=Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True))

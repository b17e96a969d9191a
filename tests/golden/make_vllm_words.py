"""Reads vLLM's own source, without importing it: options of its parser, KV words of its backends.

    python tests/golden/make_vllm_words.py SITE_PACKAGES > tests/golden/vllm_words.json

An option is a string literal that starts with "--" in a call of add_argument; a backend's words are the literal list
`supported_kv_cache_dtypes` of its class. What is computed is left out.
"""

import ast
import json
import sys
from pathlib import Path

ROOT = Path(sys.argv[1]) / "vllm"


def options():
    found = set()
    for path in [
        ROOT / "engine/arg_utils.py",
        *sorted((ROOT / "entrypoints").rglob("*.py")),
        ROOT / "utils/argparse_utils.py",
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                words = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                found |= {w for w in words if w.startswith("-")}
    return sorted(found)


def words_of_cache():
    for node in ast.parse((ROOT / "config/cache.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CacheDType":
            return [e.value for e in node.value.slice.elts]
    raise SystemExit("CacheDType not found")


def backends():
    found = {}
    for path in sorted((ROOT / "v1/attention/backends").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                name = words = None
                for part in node.body:
                    if (
                        isinstance(part, ast.AnnAssign)
                        and getattr(part.target, "id", "") == "supported_kv_cache_dtypes"
                    ) and isinstance(part.value, ast.List):
                        words = [e.value for e in part.value.elts if isinstance(e, ast.Constant)]
                    if isinstance(part, ast.FunctionDef) and part.name == "get_name":
                        last = part.body[-1]
                        if isinstance(last, ast.Return) and isinstance(last.value, ast.Constant):
                            name = last.value.value
                if name and words is not None:
                    # ROCm's own backend calls itself FLASH_ATTN too; the file's name tells them apart.
                    found[name if name.lower() in path.stem or name not in found else path.stem.upper()] = words
    return found


def registry():
    """Names of the enumeration that --attention-backend is looked up in."""
    for node in ast.parse((ROOT / "v1/attention/backends/registry.py").read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "AttentionBackendEnum":
            return [p.targets[0].id for p in node.body if isinstance(p, ast.Assign)]
    raise SystemExit("AttentionBackendEnum not found")


version = next(Path(sys.argv[1]).glob("vllm*.dist-info")).name.split("-")[1].removesuffix(".dist")
print(
    json.dumps(
        {
            "version": version,
            "options": options(),
            "kv_words": words_of_cache(),
            "registry": registry(),
            "backends": backends(),
        },
        indent=1,
    )
)

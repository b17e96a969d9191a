"""Capacity of real models by kvgate and by other planners: value over truth, refusals, cold start.

    python -m venv PEERS && PEERS/bin/pip install kvfit==0.3.0 hf-mem==0.5.6 vramscout==0.7.0
    python benchmarks/plan.py --peers PEERS/bin/python [--json] [--starts 7]

Truth: bytes of one sequence in BF16, states included, of the 40 models in `tests/models/data/*_vectors.json`, at
131,072 tokens or the longest length that the model has (DeepSeek-V4: what the second half of them adds); most were read
in the models' own configurations and checked against engines' logs. Each tool runs in a process of its interpreter, by
its own code, on the same sizing keys and the names that a model's own file has beside them; where it would ask the hub,
the answer is put in its place (`plan_peers/`). Ideal bytes are compared, not what an engine reserves: a tool that
prices windows as full attention on purpose (hf-mem) is far off here and says so itself.
Cold start: median wall time of a new process that plans one model, tools in turn, the shortest and the processor time
beside it; for kvgate the whole command line too. The other tools' processes do less than their own command lines.
Tools that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "models" / "data"
PEERS = ("kvfit", "hf-mem", "vramscout")
#: A GiB sum in floating point, against whole bytes.
SAME = 1e-9


@dataclass(frozen=True)
class Case:
    """One model: sizing keys, and the bytes that one sequence of `tokens` takes more than one of `less_tokens`."""

    model: str
    config: dict[str, Any]
    tokens: int
    less_tokens: int
    truth_bytes: int


#: `text_config.model_type` of the models' own files, which is no sizing key but decides some tools' way.
TEXT_TYPES = {
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """The sizing keys with names that every model's own file has, and that the vectors leave out."""
    whole = dict(config)
    kind = str(config.get("model_type", "model"))
    text = config.get("text_config")
    words = "".join(w.capitalize() for w in kind.split("_"))
    whole.setdefault("architectures", [f"{words}For{'ConditionalGeneration' if text else 'CausalLM'}"])
    if isinstance(text, dict):
        named: dict[str, Any] = {"model_type": TEXT_TYPES[kind]} if kind in TEXT_TYPES else {}
        if kind == "gemma4" and "layer_types" not in text:
            named["layer_types"] = gemma4_layer_types(text["num_hidden_layers"])
        whole["text_config"] = named | with_hidden_size(text)
    return with_hidden_size(whole)


def gemma4_layer_types(layers: int) -> list[str]:
    """What the files of Gemma 4 E2B (35 layers) and E4B (42) spell out: every fifth or sixth layer is full."""
    period = 5 if layers == 35 else 6
    return ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)]


def with_hidden_size(keys: dict[str, Any]) -> dict[str, Any]:
    """Some tools ask for `hidden_size` even where `head_dim` is there, and then do not use it."""
    heads, dim = keys.get("num_attention_heads"), keys.get("head_dim")
    return {"hidden_size": heads * dim, **keys} if heads and dim else keys


def cases() -> list[Case]:
    """The models of the test vectors, by name."""
    rows = json.loads((DATA / "config_vectors.json").read_text())["rows"]
    rows += json.loads((DATA / "hybrid_vectors.json").read_text())["handed"]
    made = []
    for row in rows:
        sizes = row.get("seq_bytes_bf16")
        if sizes:
            longest = max(sizes, key=int)
            made.append(Case(row["model"], filled(row["config"]), int(longest), 0, sizes[longest]))
        else:
            added = round(row["growth_bytes_per_token_bf16"] * 65_536)
            made.append(Case(row["model"], filled(row["config"]), 131_072, 65_536, added))
    return sorted(made, key=lambda c: c.model.lower())


def script(tool: str) -> Path:
    return HERE / "plan_peers" / f"{tool.replace('-', '_')}_peer.py"


def question(models: list[Case]) -> str:
    """What every tool gets on its standard input."""
    return json.dumps({"models": [[c.config, n] for c in models for n in lengths(c)]})


def lengths(case: Case) -> list[int]:
    return [case.tokens, case.less_tokens] if case.less_tokens else [case.tokens]


def answers(models: list[Case], got: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One answer a model: the difference where two lengths were asked for, the first refusal otherwise."""
    left = iter(got)
    made = []
    for case in models:
        own = [next(left) for _ in lengths(case)]
        refused = next((a["refused"] for a in own if a["refused"]), "")
        size = None if refused else own[0]["bytes"] - (own[1]["bytes"] if case.less_tokens else 0)
        made.append({"bytes": size, "refused": refused})
    return made


def ask(python: str, tool: str, models: list[Case]) -> dict[str, Any] | None:
    """All answers of one tool; None if it is not installed."""
    asked = question(models)
    done = subprocess.run([python, str(script(tool))], input=asked, capture_output=True, text=True, timeout=300)
    if done.returncode:
        if "ModuleNotFoundError" in done.stderr:
            return None
        sys.exit(f"{tool} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def command_line(case: Case, folder: Path) -> list[str]:
    """kvgate's whole command for one model."""
    path = folder / "config.json"
    path.write_text(json.dumps(case.config))
    return [sys.executable, "-m", "kvgate", "plan", str(path), "--kv", "bf16", "--context", str(case.tokens)]


def cold_starts(tools: dict[str, str], case: Case, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """(wall, processor) seconds of a new process for one model, tools in turn: a busy machine hits all alike."""
    asked = question([case])
    with tempfile.TemporaryDirectory() as folder:
        starts = {tool: ([python, str(script(tool))], asked) for tool, python in tools.items()}
        starts["kvgate plan"] = (command_line(case, Path(folder)), "")
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
        for i in range(repeats + 1):
            for name, (argv, given) in list(starts.items()):
                began, used = time.perf_counter(), children_cpu_s()
                done = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=120)
                # The first round fills the caches of files and bytecode.
                if done.returncode:
                    if name != "kvgate plan":
                        sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
                    print(f"left out: `kvgate plan` ends with {done.returncode}: {done.stderr[-200:]}", file=sys.stderr)
                    del starts[name], taken[name]
                elif i:
                    taken[name].append((time.perf_counter() - began, children_cpu_s() - used))
    return taken


def children_cpu_s() -> float:
    """Processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def judged(case: Case, answer: dict[str, Any]) -> float | str:
    """Value over truth, or the reason of a refusal."""
    return answer["refused"] or answer["bytes"] / case.truth_bytes


def counts(ratios: list[float | str]) -> dict[str, Any]:
    """How many are exact, off and refused, and how far off."""
    numbers = [r for r in ratios if not isinstance(r, str)]
    off = [r for r in numbers if abs(r - 1) > SAME]
    return {
        "exact": len(numbers) - len(off),
        "off": len(off),
        "refused": len(ratios) - len(numbers),
        "least": min(numbers, default=None),
        "most": max(numbers, default=None),
    }


def shown(ratio: float | str) -> str:
    if isinstance(ratio, str):
        return "refused"
    if abs(ratio - 1) <= SAME:
        return "1.00"
    return f"{ratio:.5f}" if abs(ratio - 1) < 0.005 else f"{ratio:.2f}"


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    tools = list(result["tools"])
    width = max(len(m) for m in result["models"]) + 2
    lines = ["".join([f"{'model':{width}}", *(f"{t + ' ' + result['tools'][t]['version']:>20}" for t in tools)])]
    for i, model in enumerate(result["models"]):
        lines.append(f"{model:{width}}" + "".join(f"{shown(result['tools'][t]['ratios'][i]):>20}" for t in tools))
    for name in ("exact", "off", "refused"):
        lines.append(f"{name:{width}}" + "".join(f"{result['tools'][t]['counts'][name]:>20}" for t in tools))
    lines.append("")
    for name, row in result["cold_start_s"].items():
        wall = f"median {row['median']:.3f} s, shortest {row['least']:.3f} s"
        lines.append(f"cold start {name:14}{wall}, processor {row['cpu_median']:.3f} s ({row['n']} starts)")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parse = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parse.add_argument("--peers", default="", help="interpreter of the environment with the peers")
    parse.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parse.add_argument("--starts", type=int, default=7, help="cold starts of each tool; 0 measures none")
    args = parse.parse_args()
    models = cases()
    pythons = {"kvgate": sys.executable} | (dict.fromkeys(PEERS, args.peers) if args.peers else {})
    found = {tool: got for tool, python in pythons.items() if (got := ask(python, tool, models)) is not None}
    for tool in PEERS:
        if tool not in found:
            print(f"left out: {tool} is not installed; see the head of {Path(__file__).name}", file=sys.stderr)
    result: dict[str, Any] = {
        "schema": "kvgate.benchmark.plan/1",
        "kv": "bf16",
        "models": [c.model for c in models],
        "context_tokens": [c.tokens for c in models],
        "truth_bytes": [c.truth_bytes for c in models],
        "tools": {},
        "cold_start_s": {},
    }
    for tool, got in found.items():
        ratios = [judged(c, a) for c, a in zip(models, answers(models, got["answers"]), strict=True)]
        result["tools"][tool] = {"version": got["version"], "ratios": ratios, "counts": counts(ratios)}
    if args.starts:
        plain = next(c for c in models if c.model == "Qwen/Qwen3-32B")
        taken = cold_starts({t: pythons[t] for t in found}, plain, args.starts)
        result["cold_start_s"] = {
            name: {
                "median": statistics.median(wall for wall, _ in s),
                "least": min(wall for wall, _ in s),
                "cpu_median": statistics.median(cpu for _, cpu in s),
                "n": len(s),
            }
            for name, s in taken.items()
        }
    print(json.dumps(result, indent=1) if args.json else table(result))


if __name__ == "__main__":
    main()

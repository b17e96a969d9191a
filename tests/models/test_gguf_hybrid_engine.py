"""The real llama.cpp loads small hybrids and says what it keeps: rows and states as the geometry has them."""

import re
import subprocess
import sys
import threading

import pytest
from tiny_hybrid import MODELS, tiny_hybrid

from kvgate.models.geometry_from_gguf import geometry_from_gguf
from kvgate.models.read_gguf import read_gguf

pytestmark = pytest.mark.engine

#: An odd number of sequences: a size printed with two decimals then differs for each wrong term.
SEQUENCES, CELLS, MIB = 5, 512, 2**20
LOADER = f"""
import sys
import xllamacpp as x
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel = sys.argv[1], {SEQUENCES * CELLS}, {SEQUENCES}
p.n_batch = p.n_ubatch = 64
p.cpuparams.n_threads = 1
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
p.cache_ram_mib, p.fit_params, p.verbosity, p.warmup = 0, False, 4, False
server = x.Server(p)
# The parent ends this process when it has read enough: the engine's logger is a thread and lags behind.
sys.stdin.read()
"""
LOADED = "init: model loaded"
ROWS = re.compile(
    r"llama_kv_cache: size = +\S+ MiB \( *(\d+) cells, +(\d+) layers.*?K \(f16\): +(\S+) MiB, V \(f16\): +(\S+) MiB"
)
STATES = re.compile(
    r"llama_memory_recurrent: size = .*?\( *(\d+) cells, +\d+ layers.*?R \(f32\): +(\S+) MiB, S \(f32\): +(\S+) MiB"
)


def _log(tmp_path, architecture, **keys):
    """The engine's load log of a small model, and the geometry of the same file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_hybrid(architecture, **keys))
    return _read(path), geometry_from_gguf(read_gguf(path))


def _read(path):
    """Lines of the load, up to the one that ends it; the engine is killed then, or after a minute."""
    lines = []
    with subprocess.Popen(
        [sys.executable, "-c", LOADER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as child:
        limit = threading.Timer(60, child.kill)
        limit.start()
        for line in child.stderr:
            lines.append(line)
            if LOADED in line:
                break
        limit.cancel()
        child.kill()
    assert LOADED in lines[-1], "".join(lines[-20:])
    return "".join(lines)


def _mib(n_bytes):
    return f"{n_bytes / MIB:.2f}"


def _state_mib(layers, names):
    elements = sum(p.elements for x in layers for p in x.state if p.name in names)
    return _mib(elements * 4 * SEQUENCES)


def _hold(log, layers):
    """Every number that the log prints of both caches."""
    expected = []
    for windowed in (False, True):
        part = [x for x in layers if x.has_rows and bool(x.window_tokens) is windowed]
        cells = 256 if windowed else CELLS
        if part:
            k, v = (
                _mib(sum(x.kv_heads * dim(x) for x in part) * 2 * cells * SEQUENCES)
                for dim in (lambda x: x.k_dim, lambda x: x.v_dim)
            )
            expected.append((str(cells), str(len(part)), k, v))
    assert ROWS.findall(log) == expected
    states = [(str(SEQUENCES), _state_mib(layers, ("conv",)), _state_mib(layers, ("ssm",)))]
    assert STATES.findall(log) == (states if any(x.state for x in layers) else [])


@pytest.mark.parametrize("architecture", sorted(MODELS))
def test_the_engine_keeps_what_the_geometry_says(tmp_path, architecture):
    """Cells, layers with rows, K, V, R and S to the printed hundredth."""
    log, geometry = _log(tmp_path, architecture)

    _hold(log, geometry.layers)


@pytest.mark.parametrize(
    "keys",
    [
        {"full_attention_interval": 4},
        {"full_attention_interval": 2, "attention.recurrent_layers": [True] * 3 + [False]},
    ],
)
def test_flags_and_an_interval_of_a_gated_delta_net(tmp_path, keys):
    """Layer 3 attends by an interval, and by flags that contradict one: the engine would miss weights otherwise."""
    log, geometry = _log(tmp_path, "qwen35", **keys)

    _hold(log, geometry.layers)
    assert [x.index for x in geometry.layers if x.has_rows] == [3]


def test_the_check_would_see_a_wrong_term(tmp_path):
    """Without its groups, a convolution's size differs in the printed digits."""
    log, geometry = _log(tmp_path, "mamba2")
    ((_, conv_mib, _),) = STATES.findall(log)
    without_groups = 3 * 1024 * 4 * len(geometry.layers) * SEQUENCES

    assert conv_mib == _state_mib(geometry.layers, ("conv",)) != _mib(without_groups)

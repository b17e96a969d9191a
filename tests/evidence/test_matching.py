"""How far a claim carries: model, recipe, engine, version, lengths. Properties over all claims, and single rows."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.core.geometry import LayerGeometry, ModelGeometry, StatePart
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.evidence.claim import QUALITY, Topic
from kvgate.evidence.family import families, plain_name, size_of, subject_of
from kvgate.evidence.load import claims
from kvgate.evidence.match import Asked, Match, Model, Stored, is_tested, matches
from kvgate.evidence.quote import MOST_QUOTES, quotes_for

MODELS = sorted({p.claim.model for p in claims().values() if p.claim.model})
RECIPES = sorted({p.claim.recipe for p in claims().values() if p.claim.recipe not in ("", "native")})
NAMES = st.one_of(
    st.sampled_from(MODELS),
    st.sampled_from(["smollm2", "Qwen/Qwen3-32B", "google/gemma-3-27b-it", "acme/foo", "nvidia/DeepSeek-V3.1-NVFP4"]),
    st.from_regex(r"[a-z]{1,8}/[A-Za-z0-9.-]{1,20}", fullmatch=True),
)
ENGINES = st.sampled_from(["", "vllm", "sglang", "trtllm", "llama_cpp"])


def found(name: str, kv: str = "", engine: str = "", version: str = "", context: int | None = None) -> list[Match]:
    asked = Asked(subject_of(name), parse(kv) if kv else None, engine, version, context)
    return list(matches(asked, claims().values()))


@given(NAMES, st.sampled_from(RECIPES), ENGINES)
def test_no_claim_is_changed_or_merged(name: str, kv: str, engine: str) -> None:
    """Every match is one of the claims that ship, once; each says how far it carries."""
    all_claims = {p.claim.id: p.claim for p in claims().values()}

    seen = [m.claim.id for m in found(name, kv, engine)]

    assert len(set(seen)) == len(seen)
    for m in found(name, kv, engine):
        assert m.claim is all_claims[m.claim.id]
        assert m.carries


@given(NAMES, st.sampled_from(RECIPES))
def test_nearer_models_come_first(name: str, kv: str) -> None:
    """With claims of another recipe apart, no claim stands behind one of a farther model."""
    order = [m.model for m in found(name, kv) if m.stored is not Stored.OTHER]

    assert order == sorted(order)


@given(st.sampled_from(sorted(claims())))
def test_a_claim_is_first_class_for_its_own_question(id_: str) -> None:
    """Asked about exactly what it says, a claim matches as the same model and recipe."""
    claim = claims()[id_].claim
    if not claim.model or not claim.recipe or claim.recipe == "native":
        return

    mine = next(m for m in found(claim.model, claim.recipe, claim.engine) if m.claim.id == id_)

    assert (mine.model, mine.stored) == (Model.SAME, Stored.SAME)
    assert mine.carries[:2] == ("same model", "same recipe")


@given(st.sampled_from(MODELS), st.sampled_from(["-FP8", "-GGUF", "-AWQ", "-Q4_K_M.gguf", "-NVFP4", "-bf16"]))
def test_what_a_name_says_of_weights_does_not_hide_the_model(name: str, suffix: str) -> None:
    """A quantized upload of a model is that model: its KV cache is what claims are about."""
    assert plain_name(f"someone/{name}{suffix}") == plain_name(name)


@given(NAMES, st.sampled_from(RECIPES))
def test_tested_needs_a_test_of_answers_on_that_model(name: str, kv: str) -> None:
    """Speed, capacity and bugs never make a recipe tested; nor does another model."""
    rows = found(name, kv)
    of_answers = [m for m in rows if m.claim.topic in QUALITY and m.model is Model.SAME and m.stored <= Stored.CODECS]

    assert is_tested(rows) == bool(of_answers)
    assert not is_tested([m for m in rows if m.claim.topic in (Topic.SPEED, Topic.CAPACITY, Topic.BUG)])
    assert not is_tested([m for m in rows if m.model is not Model.SAME])


@given(NAMES, st.sampled_from(RECIPES), ENGINES)
def test_quotes_are_few_near_and_of_that_recipe(name: str, kv: str, engine: str) -> None:
    """Beside a verdict: at most three, of the family, with the same codecs, word for word."""
    quotes = quotes_for(subject_of(name), kv, engine)

    assert len(quotes) <= MOST_QUOTES
    for q in quotes:
        claim = claims()[q.id].claim
        assert claim.family == subject_of(name).family != ""
        assert q.statement == claim.statement
        assert q.caveats == claim.caveats
        assert {s.codec for _, s in parse(claim.recipe).sides()} == {s.codec for _, s in parse(kv).sides()}


@given(ENGINES, st.sampled_from(RECIPES))
def test_an_unknown_family_is_quoted_nothing(engine: str, kv: str) -> None:
    """A model of no family has no quote, however much is known of the recipe elsewhere."""
    assert quotes_for(subject_of("acme/foo"), kv, engine) == ()


@pytest.mark.parametrize(
    ("name", "family", "size"),
    [
        ("Qwen/Qwen3-30B-A3B", "qwen3_moe", "30b-a3b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3", "32b"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3_next", "80b-a3b"),
        ("Qwen/Qwen3.5-397B-A17B", "qwen3_5", "397b-a17b"),
        ("unsloth/gemma-4-E2B-it-GGUF", "gemma4", "e2b"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4", "17b"),
        ("meta-llama/Llama-3_3-70B", "llama3", "70b"),
        ("HuggingFaceTB/SmolLM2-135M", "smollm2", "135m"),
        ("openai/gpt-oss-20b", "gpt_oss", "20b"),
        ("moonshotai/Kimi-K2.5", "kimi_k2", ""),
        ("mistralai/Mixtral-8x7B-v0.1", "", "8x7b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "", "70b"),
        ("Qwen3-0.6B-Q8_0.gguf", "qwen3", "0.6b"),
    ],
)
def test_names_are_read(name: str, family: str, size: str) -> None:
    """Family and size of a name alone, with owners, spellings and weight formats around it."""
    subject = subject_of(name)

    assert (subject.family, subject.size) == (family, size)


def test_a_distilled_model_belongs_to_its_layers() -> None:
    """DeepSeek-R1-Distill-Qwen is a Qwen2 by its configuration, and no MLA."""
    geometry = model("qwen2", LayerGeometry(0, "full_attention", 4, 128, 128))

    subject = subject_of("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", geometry)

    assert (subject.family, subject.traits) == ("qwen2", ())


def model(architecture: str, *layers: LayerGeometry) -> ModelGeometry:
    return ModelGeometry("m", architecture, layers, 4096, 0, Source("assumed", "a test"))


def test_layers_that_were_read_win() -> None:
    """Kinds of layers come from the files where there are any: a window, a latent vector, a state."""
    window = LayerGeometry(0, "sliding_window", 1, 64, 64, window_tokens=512)
    latent = LayerGeometry(1, "mla", 1, 576, 0)
    state = LayerGeometry(2, "linear_attention", 0, 0, 0, state=(StatePart("ssm", 64),))

    assert set(subject_of("acme/foo", model("new", window, latent, state)).traits) == {"windows", "mla", "hybrid"}
    assert subject_of("google/gemma-3-x", model("gemma3", latent)).traits == ("mla",)
    assert subject_of("google/gemma-3-x", model("gemma3")).traits == ("windows",)


def carries(id_: str, rows: list[Match]) -> str:
    return "; ".join(next(m.carries for m in rows if m.claim.id == id_))


def test_how_far_is_said_in_words() -> None:
    """Other size, other training, other engine, other version, other scales, other lengths."""
    moe = found("Qwen/Qwen3-30B-A3B", "fp8_e4m3@checkpoint", "vllm", "0.32.0", 1_000_000)
    sglang = carries("sglang-qwen3-235b-a22b-fp8", moe)
    blog = carries("vllm-blog-qwen3-30b-instruct-mrcr-bf16-h100", moe)

    assert "same family, other size: 235B-A22B, not 30B-A3B" in sglang
    assert "other engine: sglang" in sglang
    assert "same family and size, other training: Qwen3-30B-A3B-Instruct-2507" in blog
    assert "other scales: unit, not checkpoint" in blog
    assert "other engine version: 0.19.1, not 0.32.0" in blog
    assert "other context lengths: up to 262,144, not 1,000,000 tokens" in blog
    assert "other engine version" not in carries(
        "vllm-blog-qwen3-30b-instruct-mrcr-bf16-h100", found("Qwen/Qwen3-30B-A3B", "fp8_e4m3", "vllm", "0.19.1", 1000)
    )


def test_builds_and_packages_of_llama_cpp_are_one_count() -> None:
    """The package 2026.10.11549 is build b11549, which lies past the range of a repaired fault."""
    rows = found("acme/foo", "q8_0+hadamard", "llama_cpp", "2026.10.11549")
    inside = found("acme/foo", "q8_0+hadamard", "llama_cpp", "b9320")

    assert "other engine version: b9310 to b9333, not 2026.10.11549" in carries("llama-23689-cuda-fwht", rows)
    assert "other engine version" not in carries("llama-23689-cuda-fwht", inside)


def test_kept_layers_and_rotation_are_other_recipes() -> None:
    """The same codec with layers kept native, or with the rotation, is told apart."""
    kept = found("openai/gpt-oss-20b", "fp8_e4m3", "vllm")
    turned = found("gpt-oss-20b", "q8_0+none", "llama_cpp")

    assert "with sliding_window kept native, not none" in carries("vllm-blog-gpt-oss-20b-itl-skip", kept)
    assert "other rotation: hadamard, not none" in carries("llama-21038-aime25-q8-0", turned)


def test_kinds_of_layers_reach_over_families() -> None:
    """A Gemma 3 is told what was seen on Gemma 4's windows, and a DeepSeek what was seen on Kimi's MLA."""
    windows = {m.claim.id: m for m in found("google/gemma-3-27b-it", "q4_0", "llama_cpp")}
    latent = {m.claim.id: m for m in found("deepseek-ai/DeepSeek-V3", "fp8_e4m3", "vllm")}

    assert windows["localbench-gemma4-26b-q4-0"].model is Model.LAYERS
    assert "same kind of layers (windows)" in windows["localbench-gemma4-26b-q4-0"].carries[0]
    assert latent["vllm-blog-kimi-k25-mrcr"].model is Model.LAYERS
    assert not any(m.model is Model.LAYERS for m in found("Qwen/Qwen3-32B", "fp8_e4m3"))


def test_k_and_v_apart_are_not_both() -> None:
    """A claim on one side alone says so; a claim in other codecs is for the same model only."""
    rows = {m.claim.id: m for m in found("meta-llama/Meta-Llama-3-8B", "k=q8_0,v=q4_0")}

    assert rows["llama-7412-llama3-8b-k-q8-0-v-f16"].stored is Stored.ONE_SIDE
    assert rows["llama-7412-llama3-8b-k-f16-v-q8-0"].stored is Stored.OTHER
    assert all(m.model <= Model.SAME_SIZE for m in rows.values() if m.stored is Stored.OTHER)


def test_families_patterns_are_lower_case_and_their_own() -> None:
    """Each family's patterns can be reached: no earlier family takes them all away."""
    for f in families().values():
        assert all(p == p.casefold() for p in f.names)
        sample = re.sub(r"[*?]", "7", f.names[0])
        assert subject_of(sample).family == f.id, f.id


def test_sizes_are_not_read_out_of_dates_and_versions() -> None:
    """2507 is a date and 3.5 a version."""
    assert size_of("Qwen3-Instruct-2507") == ""
    assert size_of("Qwen3.5-27B") == "27b"

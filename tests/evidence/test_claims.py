"""The claims that ship: their numbers are those that were read, their names match, their references hold."""

from __future__ import annotations

import csv
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.evidence.caveat import WORDS, Caveat
from kvgate.evidence.claim import Claim
from kvgate.evidence.family import families, family_of
from kvgate.evidence.load import Published, checked, claims, parse_claims

#: Copied from the pages that the numbers were read in, not from the claims.
TABLE = Path(__file__).parent / "published.csv"
CLAIMS = Path(str(files("kvgate.evidence") / "claims"))

Row = tuple[str, str, str, float | None, float, float | None]


def read_rows() -> set[Row]:
    with TABLE.open(newline="") as f:
        return {
            (
                r["claim"],
                r["task"],
                r["metric"],
                _float(r["baseline"]),
                float(r["candidate"]),
                _float(r["candidate_to"]),
            )
            for r in csv.DictReader(f)
        }


def _float(text: str) -> float | None:
    return float(text) if text else None


def claimed_rows(found: dict[str, Published]) -> set[Row]:
    return {
        (id_, n.task, n.metric, n.baseline, n.candidate, n.candidate_to)
        for id_, p in found.items()
        for n in p.claim.numbers
    }


def loaded(edit: tuple[str, str] = ("", ""), file: str = "") -> dict[str, Published]:
    """All claims, with one text replaced in one file."""
    found: list[Published] = []
    for path in sorted(CLAIMS.glob("*.toml")):
        text = path.read_text()
        if path.name == file:
            assert edit[0] in text
            text = text.replace(*edit, 1)
        found += parse_claims(text, path.name)
    return checked(found)


def test_every_number_is_the_one_that_was_read() -> None:
    """Claims and the table copied from their sources hold the same numbers, in both directions."""
    assert claimed_rows(dict(claims())) == read_rows()


def test_a_flipped_number_is_noticed() -> None:
    """The comparison fails for one digit, and for a baseline that changed places with its candidate."""
    digit = loaded(("candidate = 0.3533", "candidate = 0.3553"), "sglang_docs.toml")
    swapped = loaded(
        ("baseline = 0.7533, candidate = 0.3533", "baseline = 0.3533, candidate = 0.7533"), "sglang_docs.toml"
    )

    assert claimed_rows(digit) != read_rows()
    assert claimed_rows(swapped) != read_rows()


def test_numbers_in_a_statement_are_among_its_numbers_sources() -> None:
    """SGLang's drops in words are what its table gives, in whole points."""
    for model, points in (("qwen3-235b-a22b", 17), ("deepseek-r1-0528", 11), ("gpt-oss-120b", 40)):
        claim = claims()[f"sglang-{model}-fp4"].claim
        aime = next(n for n in claim.numbers if n.task == "aime25")
        assert aime.baseline is not None

        assert round(100 * (aime.baseline - aime.candidate)) == points
        assert f"by {points} points" in claim.statement


def noise_z(claim: Claim, items: dict[str, int]) -> float:
    """The largest difference in standard errors, as one run an item of each arm has them: independent, binomial."""
    worst = 0.0
    for n in claim.numbers:
        if n.task in items and n.baseline is not None:
            p = (n.baseline + n.candidate) / 2
            worst = max(worst, abs(n.candidate - n.baseline) / (2 * p * (1 - p) / items[n.task]) ** 0.5)
    return worst


@pytest.mark.parametrize("model", ["qwen3-235b-a22b", "deepseek-r1-0528", "gpt-oss-120b"])
@pytest.mark.parametrize("dtype", ["fp8", "fp4"])
def test_within_noise_is_arithmetic(model: str, dtype: str) -> None:
    """SGLang's table has the caveat exactly where no difference is over two standard errors of its set, run once."""
    claim = claims()[f"sglang-{model}-{dtype}"].claim

    z = noise_z(claim, {"aime25": 30, "gpqa_diamond": 198, "gsm8k": 1319})

    assert (Caveat.WITHIN_NOISE in claim.caveats) == (z < 2)


def test_names_belong_to_their_families() -> None:
    """What a claim says of its model's family is what the model's name says."""
    for id_, p in claims().items():
        if p.claim.family and p.claim.model not in ("Gemma 4", "", "Llama 3.3 70B"):
            found = family_of(p.claim.model)
            assert found is not None, id_
            assert found.id == p.claim.family, id_


def test_every_recipe_is_canonical_and_every_caveat_explained() -> None:
    """Recipes read back as they are written; no caveat is without its sentence."""
    for p in claims().values():
        assert not p.claim.recipe or str(parse(p.claim.recipe)) == p.claim.recipe
    assert set(WORDS) == set(Caveat)


def test_every_family_and_caveat_is_used() -> None:
    """Nothing is listed that no claim speaks of, but for families that only carry layers or names apart."""
    used = {p.claim.family for p in claims().values()}
    apart = {"qwen3_next", "llama4", "smollm2", "gemma3", "mistral", "falcon", "phi3"}

    assert set(families()) - used == apart
    assert {c for p in claims().values() for c in p.claim.caveats} == set(Caveat)


def test_vendors_own_numbers_say_so() -> None:
    """Everything told by an engine's or GPU's maker about its own product carries the caveat; losing it fails here."""
    makers = ("https://vllm.ai/", "https://developer.nvidia.com/", "https://docs.sglang.io/", "vllm-project.github.io")

    def bare(found: dict[str, Published]) -> list[str]:
        return [
            i
            for i, p in found.items()
            if p.claim.source.ref.startswith(makers)
            and (p.claim.numbers or p.claim.effect)
            and Caveat.VENDOR not in p.claim.caveats
        ]

    assert bare(dict(claims())) == []
    assert bare(loaded(('caveats = ["vendor", ', "caveats = ["), "vllm_fp8_2026_04.toml"))


def test_second_hand_is_marked() -> None:
    """A source that is known through another page carries `secondary` or `unverified`; losing both fails here."""

    def bare(found: dict[str, Published]) -> list[str]:
        told = [(i, p.claim) for i, p in found.items() if "as an article tells it" in str(p.claim.source.as_source())]
        assert len(told) >= 5
        return [i for i, c in told if not {Caveat.SECONDARY, Caveat.UNVERIFIED} & set(c.caveats)]

    assert bare(dict(claims())) == []
    lost = loaded(('"unverified", "secondary", "no_interval"]', '"no_interval"]'), "llama_cpp.toml")
    assert bare(lost) == ["llama-21038-aime25-q4-0"]


def test_uncalibrated_scales_are_said() -> None:
    """FP8 at scale 1.0 whose quality was measured says that this is the worst case."""
    for id_, p in claims().items():
        quality = p.claim.topic.value in ("accuracy", "divergence")
        if quality and "@unit" in p.claim.recipe:
            assert Caveat.UNCALIBRATED in p.claim.caveats, id_


GOOD = """
title = "A page"
[[claim]]
id = "one"
statement = "Something was measured."
topic = "accuracy"
recipe = "q8_0"
effect = "small"
source = { kind = "spec", ref = "a page" }
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title", "title =", "is not TOML"),
        ('title = "A page"', "", "title: Field required"),
        ('id = "one"', 'id = "One!"', "claim 1 (One!): id"),
        ('id = "one"', "", "claim 1 (no id): id: Field required"),
        ('recipe = "q8_0"', 'recipe = "q8_0 keep=L0"', "claim 1 (one): recipe: 'q8_0 keep=L0' is written"),
        ('recipe = "q8_0"', 'recipe = "q8_0/what=1"', "is not an option"),
        ('topic = "accuracy"', 'topic = "mood"', "claim 1 (one): topic"),
        ('effect = "small"', "", "needs numbers or effect"),
        ('effect = "small"', 'effects = "small"', "effects: Extra inputs"),
        ('effect = "small"', 'effect = "x"\ncaveats = ["huge"]', "caveats: 0"),
        ('effect = "small"', 'effect = "x"\ncaveats = ["vendor", "vendor"]', "stands twice"),
        ('effect = "small"', 'effect = "x"\ncaveats = ["contradicted"]', "given together"),
        ('effect = "small"', 'effect = "x"\ncontradicts = ["two"]', "contradicts names 'two', which is no claim"),
        ('effect = "small"', 'effect = "x"\nfamily = "nobody"', "family 'nobody' is not"),
        ('effect = "small"', 'effect = "x"\ntraits = ["odd"]', "trait 'odd' is none of"),
        ('kind = "spec"', 'kind = "rumour"', "source: kind"),
        ("[[claim]]", "[claim]", "claim"),
        ('effect = "small"', 'numbers = [{ task = "xx", metric = "yy" }]', "numbers: 0: candidate: Field required"),
    ],
)
def test_a_faulty_file_is_one_line(old: str, new: str, said: str) -> None:
    """A fault names the file, the claim and the field, in one line."""
    with pytest.raises(UserError) as e:
        checked(parse_claims(GOOD.replace(old, new, 1), "x.toml"))

    assert str(e.value).startswith("evidence file x.toml")
    assert said in str(e.value)
    assert "\n" not in str(e.value)


def test_the_good_file_is_read() -> None:
    """What the faults above are made of is itself in order."""
    assert list(checked(parse_claims(GOOD, "x.toml"))) == ["one"]


def test_contradictions_name_each_other() -> None:
    """One half of a contradiction is a fault, as is an id in two files."""
    half = GOOD.replace('effect = "small"', 'effect = "x"\ncaveats = ["contradicted"]\ncontradicted_by = ["two"]')
    other = GOOD.replace('id = "one"', 'id = "two"')

    with pytest.raises(UserError, match="does not name it back"):
        checked([*parse_claims(half, "x.toml"), *parse_claims(other, "y.toml")])
    whole = other.replace('effect = "small"', 'effect = "x"\ncontradicts = ["one"]')
    assert len(checked([*parse_claims(half, "x.toml"), *parse_claims(whole, "y.toml")])) == 2
    with pytest.raises(UserError, match="two claims have the id 'one'"):
        checked([*parse_claims(GOOD, "x.toml"), *parse_claims(GOOD, "y.toml")])


def test_every_file_of_the_folder_is_read() -> None:
    """A new file takes part without being named anywhere."""
    tables = sum(len(tomllib.loads(p.read_text())["claim"]) for p in CLAIMS.glob("*.toml"))

    assert tables == len(claims())

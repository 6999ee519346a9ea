"""Windows that a lens makes itself: they run beside the text, are checked, and are shown to those who asked."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from headscope.cli import main
from headscope.core import Headline, Site
from headscope.errors import CaptureError, UsageError
from headscope.lenses.lens import AS_IS, Batch, MadeWindows, Measurement, Needs, TextLens, TextSize
from headscope.model import model as models
from headscope.model.model import Model
from headscope.model.ordinary_tokens import first_token_id, ordinary_token_ids
from headscope.pipeline import measure
from tests.hostile.broken import save_llama, save_tokenizer
from tests.model.families import DISPATCHING, OUTSIDE, Family
from tests.model.opened_families import opened
from tests.model.test_fidelity import eager_maps
from tests.prefix_matching import LENS, Params, repeated
from tests.test_pipeline import SPEC, FakeModel, FakeSession
from tests.test_same_bytes import of_lens

TEXT = "In the beginning was the word, and the word was long. " * 30


@dataclass
class Witness(TextLens[Any, Any]):
    """A lens that notes what it is shown."""

    asks: Needs
    name: str = "witness"
    batches: list[Batch] = field(default_factory=list)
    sizes: list[TextSize] = field(default_factory=list)

    params = Params
    about = LENS.about

    def needs(self, params: Any) -> Needs:
        return self.asks

    def start(self, params: Any, model: Any, sites: Any, text: TextSize) -> int:
        self.sizes.append(text)
        return 0

    def update(self, state: int, batch: Batch) -> int:
        self.batches.append(batch)
        return state

    def merge(self, a: int, b: int) -> int:
        return a + b

    def finish(self, state: int, weights: Any) -> Measurement:
        return Measurement({"heads": pl.DataFrame({"value": [0.0]})})

    def definition(self, params: Any, weights: Any, batches: Any) -> dict[str, pl.DataFrame]:
        return {}

    def sentences(self, tables: Any) -> tuple[Headline, ...]:
        return (Headline("One number: 0.", "One number: 0.", 0.0),)


MADE = MadeWindows("made", 3, 8, repeated)
ALONE = Needs(captures=frozenset({"pattern"}), made=(MADE,), reads_text=False)
WITH_TEXT = replace(ALONE, reads_text=True)
TEXT_ALONE = Needs(captures=frozenset({"pattern"}))


class Letters:
    """A tokenizer: a first token, then a token per letter; it knows the letters from a to z."""

    all_special_ids = (1,)
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *map(ord, text)]}

    def get_vocab(self) -> dict[str, int]:
        return {"<s>": 1, **{chr(letter): letter for letter in range(ord("a"), ord("z") + 1)}}


class Wordless(Letters):
    """A tokenizer that makes no token of any text."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": []}


def fake(**changes: Any) -> FakeModel:
    return FakeModel(**{"tokenizer": Letters(), **changes})


def made_tokens(witness: Witness, name: str = "made") -> Tensor:
    return torch.cat([batch.tokens for batch in witness.batches if batch.made == name])


def test_prefix_matching_is_what_transformers_gives(tiny: Model) -> None:
    """The weights from the second copy of each token to what followed its first, in plain numpy."""
    witness = Witness(LENS.needs(Params()))
    run = measure(tiny, lenses=[LENS, witness])
    first_site = [batch for batch in witness.batches if tiny.sites[0] in batch.captures["pattern"]]
    tokens = torch.cat([batch.tokens for batch in first_site])
    assert tokens.shape == (6, 40)
    assert torch.equal(tokens[:, :20], tokens[:, 20:])
    assert len(tokens.unique()) > 20, "random tokens"
    rows = run["prefixes"].table.iter_rows(named=True)
    values = {(row["layer"], row["head"]): row["value"] for row in rows}
    for site, maps in eager_maps(tiny, {"input_ids": tokens}).items():
        weights = maps.numpy().astype(np.float64)
        for head in range(site.n_heads):
            after = [weights[window, head, 20 + i, i + 1] for window in range(6) for i in range(20)]
            assert values[site.layer, head] == pytest.approx(np.mean(after), rel=1e-5)


def test_the_same_bytes_alone_and_in_company(tiny: Model, tmp_path: Path) -> None:
    """With text beside it and without; and lenses of text cannot tell whether others make windows."""
    company, options = ["focus", "maps", "lowrank"], {"text": TEXT, "window": 48}
    for folder, lenses in {"alone": [LENS], "text": company, "all": [*company, LENS]}.items():
        measure(tiny, lenses=lenses, out=tmp_path / folder, **options)
    for name, folder in {"prefixes": "alone", **dict.fromkeys(company, "text")}.items():
        assert of_lens(tmp_path / "all", name) == of_lens(tmp_path / folder, name) != {}


def test_only_those_who_ask_see_them_and_sizes_speak_of_the_text() -> None:
    both, alone, text = (
        Witness(asks, name) for name, asks in {"both": WITH_TEXT, "alone": ALONE, "text": TEXT_ALONE}.items()
    )
    run = measure(fake(), text="x" * 390, lenses=[both, alone, text])
    assert {finding.status for finding in run.findings.values()} == {"ok"}
    assert [batch.made for batch in both.batches] == ["", "", "made"]
    assert [batch.made for batch in alone.batches] == ["made"]
    assert [batch.made for batch in text.batches] == ["", ""]
    size = TextSize(run.text.n_windows, run.text.window)
    assert (both.sizes, alone.sizes, text.sizes) == ([size], [TextSize(0, 0)], [size])
    assert torch.equal(made_tokens(both), made_tokens(alone))


def test_one_forward_per_batch_and_variant_for_equal_windows() -> None:
    """Two lenses ask for equal windows, a third one for others; 20 windows of 100 tokens are two batches."""
    many = MadeWindows("many", 20, 100, repeated)
    variants = (AS_IS, "initialised")
    asking = replace(ALONE, made=(many,), variants=variants, tokens=1)
    model = fake()
    lenses = [
        Witness(asking, "a"),
        Witness(replace(asking, made=(MADE, many)), "b"),
        Witness(replace(ALONE, made=(replace(many, count=2),)), "c"),
    ]
    measure(model, lenses=lenses)
    expected = {AS_IS: [(10, 100), (10, 100), (3, 8), (2, 100)], "initialised": [(10, 100), (10, 100), (3, 8)]}
    assert model.forwards == [(variant, shape) for variant, shapes in expected.items() for shape in shapes]
    assert torch.equal(made_tokens(lenses[0], "many"), made_tokens(lenses[1], "many"))
    assert [(batch.variant, len(batch.tokens)) for batch in lenses[2].batches] == [(AS_IS, 2)]


def test_they_run_in_a_form_only_where_the_family_allows_it() -> None:
    witness = Witness(replace(ALONE, variants=(AS_IS, "without skips")))
    model = fake(additive="it scales what it carries")
    assert measure(model, lenses=[witness])["witness"].status == "ok"
    told = [(batch.variant, batch.made, batch.refused) for batch in witness.batches]
    assert told == [(AS_IS, "made", ""), ("without skips", "", "it scales what it carries")]


def test_windows_follow_from_seed_and_name() -> None:
    def tokens(seed: int, made: MadeWindows = MADE, **changes: Any) -> Tensor:
        witness = Witness(replace(ALONE, made=(made,)))
        measure(fake(**changes), lenses=[witness], seed=seed)
        return made_tokens(witness, made.name)

    assert torch.equal(tokens(3), tokens(3))
    assert not torch.equal(tokens(3), tokens(4))
    assert not torch.equal(tokens(3), tokens(3, replace(MADE, name="another")))
    long = replace(MADE, length=10_000)
    assert tokens(3, long).shape == (3, 100), "the context of the model"
    assert tokens(3, long, spec=replace(SPEC, context=None)).shape == (3, 10_000)


def test_they_are_read_by_the_chosen_forms_alone() -> None:
    chosen = (replace(MADE, variants=(AS_IS,)), replace(MADE, name="other", variants=("initialised",)))
    witness = Witness(replace(ALONE, made=chosen, variants=(AS_IS, "initialised")))
    measure(fake(), lenses=[witness])
    assert [(batch.variant, batch.made) for batch in witness.batches] == [(AS_IS, "made"), ("initialised", "other")]


def test_they_begin_as_texts_do(tiny: Model) -> None:
    witness = Witness(replace(ALONE, made=(MADE, replace(MADE, name="text", begins=True))))
    measure(tiny, lenses=[witness])
    assert made_tokens(witness, "text")[:, 0].unique().tolist() == [tiny.tokenizer.bos_token_id]
    assert tiny.tokenizer.bos_token_id not in made_tokens(witness)
    assert first_token_id(None, 9) is None
    assert first_token_id(SimpleNamespace(bos_token_id=None, cls_token_id=3), 9) == 3
    assert first_token_id(SimpleNamespace(bos_token_id=12), 9) is None


# --- what they are made of


def test_ordinary_tokens_are_those_of_texts(tiny: Model) -> None:
    ids = ordinary_token_ids(tiny.tokenizer, tiny.spec.vocabulary)
    assert not set(ids.tolist()) & set(tiny.tokenizer.all_special_ids)
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert set(tiny.tokenizer("the word", add_special_tokens=False)["input_ids"]) <= set(ids.tolist())
    assert len(ids) > tiny.spec.vocabulary / 2


def test_special_unused_and_unembedded_ids_are_left_out() -> None:
    names = ("<s>", "a", "[unused3]", "<unused_4>", "<|reserved_special_token_5|>", "unused", "[b]", "<|im|>", "  ")
    tokenizer = SimpleNamespace(
        all_special_ids=(0,),
        added_tokens_decoder={7: SimpleNamespace(special=True), 8: SimpleNamespace(special=False)},
        get_vocab=lambda: {
            **{name: token for token, name in enumerate(names)},
            "madeupword01": 9,
            "last": 11,
            "far": 99,
        },
    )
    assert ordinary_token_ids(tokenizer, 12).tolist() == [1, 5, 6, 8, 11]
    assert ordinary_token_ids(None, 4).tolist() == [0, 1, 2, 3]


def test_a_model_without_a_tokenizer_is_measured() -> None:
    witness = Witness(replace(ALONE, made=(MadeWindows("made", 40, 8, repeated),), spelling=True))
    model = fake(tokenizer=None, reads_text=False)
    run = measure(model, lenses=[witness, Witness(WITH_TEXT, "both"), Witness(TEXT_ALONE, "text")])
    assert run["witness"].status == "ok", run["witness"].reason
    assert run.text is None
    assert witness.batches[0].spelling == ()
    assert len(made_tokens(witness).unique()) > 100, "of all 300 ids"
    assert {run[name].status for name in ("both", "text")} == {"not applicable"}
    assert "without a tokenizer" in run["both"].reason


def test_a_model_that_does_not_read_tokens_is_not_applicable() -> None:
    run = measure(fake(reads_text=False, reads_tokens=False), lenses=[Witness(ALONE)])
    assert run["witness"].status == "not applicable"
    assert "does not read tokens" in run["witness"].reason


def test_a_text_without_words_does_not_matter() -> None:
    model = fake(tokenizer=Wordless())
    assert measure(model, text="no word of this is known", lenses=[Witness(ALONE)])["witness"].status == "ok"
    with pytest.raises(UsageError, match="gives no tokens"):
        measure(model, text="no word of this is known", lenses=[Witness(WITH_TEXT)])


# --- what goes wrong


WRONG = {
    "shape": (
        lambda ids, generator, count, length: ids[:1].expand(count, length + 1),
        r"shape \(3, 9\).*3 windows of 8",
    ),
    "dtype": (lambda ids, generator, count, length: ids[:1].expand(count, length).int(), "int32.*int64"),
    "low": (lambda ids, generator, count, length: torch.full((count, length), -1), "token -1.*from 0 to 299"),
    "high": (lambda ids, generator, count, length: torch.full((count, length), 300), "token 300.*from 0 to 299"),
    "list": (lambda ids, generator, count, length: [[1] * length] * count, "are list, expected 3 windows"),
    "raises": (lambda ids, generator, count, length: ids[10**6], "IndexError"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_windows_are_refused_and_the_others_go_on(wrong: str) -> None:
    make, message = WRONG[wrong]
    broken = [Witness(replace(ALONE, made=(replace(MADE, make=make),)), name) for name in ("broken", "too")]
    model = fake()
    run = measure(model, text="x" * 90, lenses=[*broken, Witness(ALONE), Witness(TEXT_ALONE, "text")])
    assert [run[name].status for name in ("broken", "too", "witness", "text")] == ["failed", "failed", "ok", "ok"]
    assert re.search(message, run["broken"].reason), run["broken"].reason
    assert model.forwards == [(AS_IS, (1, 91)), (AS_IS, (3, 8))]
    assert not broken[0].batches


@pytest.mark.parametrize(
    ("asks", "message"),
    [
        (replace(ALONE, made=(replace(MADE, name=""),)), "needs its own name"),
        (replace(ALONE, made=(MADE, replace(MADE, count=9))), "2 times for made windows named 'made'"),
        (replace(ALONE, made=(replace(MADE, count=0),)), "0 windows of 8 tokens"),
        (replace(ALONE, made=(replace(MADE, length=0),)), "3 windows of 0 tokens"),
        (replace(ALONE, captures=frozenset()), "neither statistics nor captures"),
        (replace(ALONE, made=()), "nothing to run the model on"),
    ],
)
def test_requests_that_cannot_be_met_fail_alone(asks: Needs, message: str) -> None:
    run = measure(fake(), text="x" * 90, lenses=[Witness(asks, "broken"), Witness(ALONE)])
    assert (run["broken"].status, run["witness"].status) == ("failed", "ok")
    assert message in run["broken"].reason


class Breaking(FakeSession):
    """A session of a model that cannot read six tokens."""

    def run(self, tokens: Tensor, real: Any = None, *, head: bool = True, each: Any = None) -> None:
        if tokens.shape[1] == 6 and self.model.error is not None:
            raise self.model.error
        super().run(tokens, real)


@dataclass
class BreakingModel(FakeModel):
    error: Exception | None = None

    def session(self) -> FakeSession:
        return Breaking(self)


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("it breaks"), "failed"), (CaptureError("another form"), "not applicable")]
)
def test_a_model_that_breaks_on_them_still_reads_the_text(error: Exception, status: str) -> None:
    model = BreakingModel(tokenizer=Letters(), error=error)
    made = (replace(MADE, length=6),)
    both, alone = Witness(replace(WITH_TEXT, made=made), "both"), Witness(replace(ALONE, made=made))
    run = measure(model, text="x" * 90, lenses=[Witness(TEXT_ALONE, "text"), both, alone])
    assert [run[name].status for name in ("text", "both", "witness")] == ["ok", status, status]
    assert str(error) in run["both"].reason


# --- what is kept


def test_another_count_is_measured_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is no parameter of the lens: a lens of another package may change its code."""
    shelf: dict[str, FakeModel] = {}
    monkeypatch.setattr(sys.modules["headscope.pipeline.measure"], "check_name", lambda name, **_: shelf[name])
    monkeypatch.setattr(models, "open_model", lambda name, **_: shelf[name])

    def forwards(made: MadeWindows) -> int:
        shelf["fake"] = fake()
        measure("fake", lenses=[Witness(replace(ALONE, made=(made,)))], out=tmp_path)
        return len(shelf["fake"].forwards)

    assert [forwards(made) for made in (MADE, MADE)] == [1, 0]
    assert [forwards(made) for made in (replace(MADE, count=4), replace(MADE, length=9))] == [1, 1]


# --- real models


FAMILIES = [
    family
    for family in (*DISPATCHING, *OUTSIDE)
    if family.name in ("gpt2", "deepseek_v3", "albert", "bart", "t5", "bloom", "mpt")
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_forward_hands_over_whole_sites_one_after_another(family: Family) -> None:
    """Also where a site never shows a quantity: x without known projections, what leaves the stack but for the last."""
    model = opened(family)
    welcome = frozenset({"resid", "x", "z"})
    asks = replace(ALONE, captures=frozenset({"pattern", "final"}), welcome=welcome, pieces=True)
    pieces, whole = Witness(asks, "pieces"), Witness(replace(asks, pieces=False), "whole")
    run = measure(model, lenses=[pieces, whole])
    assert {finding.status for finding in run.findings.values()} == {"ok"}, [f.reason for f in run.findings.values()]
    (batch,) = whole.batches
    parts_of_pieces = [parts for piece in pieces.batches for parts in parts_by_site(piece).items()]
    assert len(parts_of_pieces) == len(model.sites), "each site once"
    assert dict(parts_of_pieces) == parts_by_site(batch)
    # The last site of a stack waits for what leaves the stack, and the cross-attention of its layer comes with it.
    stacks = len({site.stack for site in model.sites})
    assert len(pieces.batches) >= len(model.sites) - 2 * (stacks - 1)


def parts_by_site(batch: Batch) -> dict[Site, frozenset[str]]:
    sites = {site for by_site in batch.captures.values() for site in by_site}
    return {site: frozenset(name for name, by_site in batch.captures.items() if site in by_site) for site in sites}


ABOUT = """# Prefix matching

Do heads look at what followed?

## Definition

A mean of weights.

## How to read it

More is more.

## Reference

Nobody (never).
"""


@pytest.fixture
def prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The lens as a folder beside the others."""
    folder = tmp_path / "more_lenses" / "prefixes"
    folder.mkdir(parents=True)
    files = {"__init__.py": "", "about.md": ABOUT, "settings.py": "from tests.prefix_matching import Params"}
    for name, text in {**files, "lens.py": "from tests.prefix_matching import LENS"}.items():
        (folder / name).write_text(text)
    package = sys.modules["headscope.lenses"]
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder.parent)])
    yield
    for name in [name for name in sys.modules if name.startswith("headscope.lenses.prefixes")]:
        del sys.modules[name]
    vars(package).pop("prefixes", None)


@pytest.mark.usefixtures("prefixes")
@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_commands_measure_a_folder_with_or_without_a_tokenizer(
    has_tokenizer: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_llama(tmp_path / "model")
    if has_tokenizer:
        save_tokenizer(tmp_path / "model", 30)
    with pytest.raises(SystemExit) as ended:
        main(["lens", "prefixes", str(tmp_path / "model"), "--count", "3", "--format", "json"])
    assert not ended.value.code, capfd.readouterr().err
    assert '"value"' in capfd.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "model"), "--lens", "prefixes", "--out", str(tmp_path / "out")])
    assert not ended.value.code, capfd.readouterr().err
    assert "Do heads look at what followed?" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")

"""Tokens as strings, and patterns of one head against transformers' eager attention."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from headscope.core import Selection, Site
from headscope.errors import CaptureError, CheckpointError, UsageError
from headscope.model.capture_card import cache_card, capture_card
from headscope.model.model import Model, open_model
from headscope.model.token_spelling import spelled_tokens
from tests.html_page import Page
from tests.model.families import DECODERS, ENCODER_DECODERS, ENCODERS, OUTSIDE
from tests.model.opened_families import opened
from tests.model.test_fidelity import eager_maps
from tests.tolerances import MAP_AGREEMENT

TEXT = "the cat sat on the mat and the dog sat on it"
WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", *sorted(set(TEXT.split())))
FAMILIES = {family.name: family for family in (*DECODERS, *ENCODERS, *ENCODER_DECODERS, *OUTSIDE)}
# A decoder with grouped heads, one with a window, one outside the interface; encoders, one of them with shared layers;
# encoder–decoders with learned positions and with a relative bias.
CHECKED = ("llama_gqa", "mistral", "bloom", "bert", "albert", "bart", "t5")


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word, between [CLS] and [SEP]; the largest id is below the vocabulary of the tiny families."""
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.decoder = decoders.WordPiece()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


def reading(name: str) -> Model:
    """A tiny family that reads words."""
    return open_model(FAMILIES[name].build(), tokenizer=word_tokenizer())


def maps_of(model: Model, text: str) -> dict[Site, Tensor]:
    """What transformers itself returns as attentions for one text, by our sites."""
    ids = model.encode(text)[None]
    decoder = {"decoder_input_ids": ids} if model.spec.kind == "encoder-decoder" else {}
    return eager_maps(model, {"input_ids": ids, **decoder})


@pytest.mark.parametrize("name", CHECKED)
def test_the_pattern_of_every_head_is_that_of_eager_attention(name: str) -> None:
    model = reading(name)
    expected_maps = maps_of(model, TEXT)
    n_tokens = len(TEXT.split()) + 2
    for site, expected in expected_maps.items():
        for head in (0, site.n_heads - 1):
            token_map = model.pattern(TEXT, site.head_label(head))
            assert token_map.shape == (n_tokens, n_tokens)
            assert token_map.values.dtype == np.float32
            assert np.abs(token_map.values - expected[0, head].numpy()).max() <= MAP_AGREEMENT
            assert list(token_map.query_tokens) == list(token_map.key_tokens) == model.tokens(TEXT)
            assert token_map.title == f"attention pattern of {site.head_label(head)} of {model.spec.name}"


def test_heads_differ_so_that_a_wrong_one_would_be_noticed() -> None:
    model = reading("bart")
    maps = [model.pattern(TEXT, site.head_label(head)).values for site in model.sites for head in (0, site.n_heads - 1)]
    distances = [np.abs(a - b).max() for i, a in enumerate(maps) for b in maps[:i]]
    assert min(distances) > 0.01


def test_a_label_of_a_decoder_means_its_self_attention() -> None:
    model = reading("t5")
    own, cross = (model.pattern(TEXT, at).values for at in ("dec.L1.H2", "dec.L1.cross.H2"))
    assert np.array_equal(own, model.pattern(TEXT, Selection.parse("dec.L1.self.H2")).values)
    assert own[0, 1:].max() == 0  # causal
    assert cross[0, 1:].max() > 0.01


def test_numbers_in_half_precision_become_float32() -> None:
    model = open_model(FAMILIES["mpnet"].build().bfloat16(), tokenizer=word_tokenizer())
    assert model.pattern(TEXT, "L0.H0").values.dtype == np.float32


def test_one_token() -> None:
    model = open_model(FAMILIES["llama_mha"].build())
    model.tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"cat": 4}, unk_token="cat")))
    assert model.pattern("cat", "L0.H0").values.tolist() == [[1.0]]


def test_a_pattern_follows_an_edit_and_leaves_the_model_alone(tiny: Model) -> None:
    plain = tiny.pattern("In the beginning", "L1.H3").values
    with tiny.edit() as edit:
        edit.randomise()
        assert np.abs(tiny.pattern("In the beginning", "L1.H3").values - plain).max() > 0.01
    assert np.array_equal(tiny.pattern("In the beginning", "L1.H3").values, plain)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("L1", "'L1' selects 8 heads: L1.H0, L1.H1, L1.H2, L1.H3, L1.H4, L1.H5 and 2 more"),
        ("L1.H3,L2.H0", "selects 2 heads: L1.H3, L2.H0"),
        ("L9.H0", "matches no head of this model, which has L0.H0 … L3.H7"),
        ("L0.H8", "matches no head"),
        ("enc.L0.H0", "matches no head"),
        ("cross", "matches no head"),
        ("block 3", "cannot read 'block 3'"),
        ("", "cannot read ''"),
    ],
)
def test_a_selection_that_is_not_one_head(tiny: Model, at: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        tiny.pattern("In the beginning", at)
    assert message in str(refusal.value)


def test_a_head_of_several_stacks_is_not_guessed() -> None:
    with pytest.raises(UsageError, match=r"selects 3 heads: enc.L0.H1, dec.L0.H1, dec.L0.cross.H1"):
        reading("bart").pattern(TEXT, "L0.H1")


def test_a_text_that_is_too_long(tiny: Model) -> None:
    with pytest.raises(UsageError, match=r"the text has \d+ tokens, but tiny reads at most 1024"):
        tiny.pattern("word " * 3000, "L0.H0")


def test_a_model_that_reads_no_text(tiny: Model) -> None:
    with pytest.raises(UsageError, match="no tokenizer"):
        opened(FAMILIES["llama_gqa"]).pattern(TEXT, "L0.H0")
    with pytest.raises(UsageError, match="no tokenizer"):
        opened(FAMILIES["llama_gqa"]).tokens(TEXT)
    with pytest.raises(UsageError, match="does not read text alone"):
        open_model(FAMILIES["vit"].build(), tokenizer=tiny.tokenizer).pattern(TEXT, "L0.H0")
    with pytest.raises(UsageError, match="empty"):
        tiny.pattern(" ", "L0.H0")
    with pytest.raises(CheckpointError, match="embedding table"):
        open_model(FAMILIES["llama_gqa"].build(), tokenizer=tiny.tokenizer).pattern(TEXT, "L0.H0")


def test_a_map_whose_tokens_are_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = reading("llama_mha")
    monkeypatch.setattr("headscope.model.token_maps._spelled", lambda *_: ["a", "b"])
    with pytest.raises(CaptureError, match="has 14 queries and 14 keys, but the text has 2 tokens"):
        model.pattern(TEXT, "L0.H0")


def test_special_tokens_are_spelled_as_they_are() -> None:
    model = reading("bert")
    assert model.tokens("the cat, the mat")[:4] == ["[CLS]", "the", " cat", "[UNK]"]
    assert model.tokens("the")[-1] == "[SEP]"
    assert len(model.tokens(TEXT)) == len(model.encode(TEXT))


@pytest.mark.parametrize("text", ["The cat sat.", "  two  blanks ", "line\nbreak", "naïve 漢字", "<b>&amp;</b>"])
def test_tokens_join_to_the_text(tiny: Model, text: str) -> None:
    first, *tokens = tiny.tokens(text)
    assert first == "<s>"
    whole_characters = [token for token in tokens if token.isascii() or token in text]
    assert "".join(whole_characters) == text


def test_every_token_has_a_name(tiny: Model) -> None:
    tokens = tiny.tokens("a 😀")
    assert len(tokens) == len(tiny.encode("a 😀"))
    assert tokens[-1] == "😀"
    assert all(tokens)
    assert len(set(tokens[-4:])) == 4  # parts of a character are told apart


@pytest.mark.parametrize("text", ["In the beginning was the wörd. " * 40, "a" + "😀" * 150])
def test_a_long_text_is_spelled_as_a_short_one(tiny: Model, text: str) -> None:
    """Pieces of it end inside words and inside characters."""
    ids = tiny.encode(text).tolist()
    assert len(ids) > 2 * 256
    whole = spelled_tokens(tiny.tokenizer, ids[1:])
    pairs = zip(tiny.tokens(text)[1:], whole, strict=True)
    assert all(token == spelling or (not spelling and token) for token, spelling in pairs)


def test_tokens_of_a_hostile_text_are_drawn(tiny: Model) -> None:
    token_map = tiny.pattern('</style><script>alert("1")</script>', "L0.H0")
    page = Page(token_map._repr_html_())
    assert page.open == []
    assert not page.scripts


def test_a_model_shows_itself(tiny: Model) -> None:
    lines = repr(tiny).splitlines()
    assert lines[0].startswith("model tiny: LlamaForCausalLM, decoder-only, ")
    assert lines[2] == "  self-attention in layers 0–3: 8 heads on 4 key/value heads of size 16, causal"
    assert "4 key/value heads" in "".join(Page(tiny._repr_html_()).text)
    two_stacks = repr(opened(FAMILIES["bart"]))
    assert "encoder self-attention in layers 0–1: 4 heads of size 8, sees everything" in two_stacks
    assert "decoder cross-attention in layers 0–2" in two_stacks


def test_a_capture_shows_its_places_and_shapes(tiny: Model) -> None:
    axes = {"pattern": ("batch", "heads", "queries", "keys"), "z": ("batch", "heads", "queries", "d_value")}
    with tiny.session() as session:
        capture = session.capture(*axes, at="L0-2")
        tokens = tiny.encode("In the beginning")
        session.run(tokens[None])
        session.run(tokens[None, :2])
        forwards = capture.take_all()
    n = len(tokens)
    assert capture_card(axes, capture.at, forwards[:1]).text().splitlines() == [
        "capture of pattern, z: 24 heads at 3 sites",
        "  L0, L1, L2",
        f"  pattern  batch × heads × queries × keys; 1 × 8 × {n} × {n} (3 tensors)",
        f"  z        batch × heads × queries × d_value; 1 × 8 × {n} × 16 (3 tensors)",
        "  One forward has run: `take()` hands its tensors over.",
    ]
    both = capture_card(axes, capture.at, forwards).text()
    assert f"1 × 8 × {n} × {n} (3 tensors); 1 × 8 × 2 × 2 (3 tensors)" in both
    assert both.endswith("2 forwards have run: `take_all()` hands their tensors over.")
    cache = cache_card(axes, capture.at, forwards[0]).text().splitlines()
    assert cache[0] == "cache of pattern, z: 24 heads at 3 sites"
    assert cache[2].endswith(f"1 × 8 × {n} × {n} (3 tensors)")
    assert cache[-1] == '  0.0 MiB; `cache["L0", "pattern"]` is one of them.'
    assert cache_card({}, {}, {}).text().splitlines()[-1] == "  0.0 MiB."
    nothing = capture_card(axes, dict.fromkeys(tiny.sites, (0,)), [])
    assert nothing.text().splitlines()[1:3] == ["  L0 … L3", "  pattern  batch × heads × queries × keys"]
    assert "Nothing has run" in "".join(Page(nothing.html()).text)

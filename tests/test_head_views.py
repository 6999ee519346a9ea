"""`headscope.head` and `headscope.heads`: patterns, numbers and tokens of chosen heads, and what is refused."""

import json

import numpy as np
import pytest
import torch

import headscope
from headscope.core import HeadView, HeadViews, Selection, Site
from headscope.core.head_selection import chosen_heads, grid_words
from headscope.errors import CaptureError, UsageError
from headscope.model.model import Model, open_model
from headscope.model.transformers import linear_kernel
from headscope.pipeline import head_views as pipeline_head_views
from headscope.pipeline import measure
from headscope.pipeline.threads import fitting_threads
from tests.html_page import Page
from tests.model.families import DECODERS, ENCODER_DECODERS, ENCODERS
from tests.model.test_token_maps import CHECKED, FAMILIES, TEXT, maps_of, reading, word_tokenizer
from tests.tolerances import MAP_AGREEMENT, STREAMED_STATISTICS

N_TOKENS = len(TEXT.split()) + 2


@pytest.mark.parametrize("name", CHECKED)
def test_the_patterns_of_all_heads_are_those_of_eager_attention(name: str) -> None:
    model = reading(name)
    views = headscope.heads(model, "all", text=TEXT)
    assert len(views) == sum(site.n_heads for site in model.sites)
    expected_maps = maps_of(model, TEXT)
    for view in views:
        assert view.pattern.shape == (N_TOKENS, N_TOKENS)
        assert (view.pattern - expected_maps[view.site][0, view.head]).abs().max() <= MAP_AGREEMENT
        assert list(view.tokens) == list(view.key_tokens) == model.tokens(TEXT)


def test_one_head_is_the_pattern_of_the_model_bit_by_bit(tiny: Model) -> None:
    text = "In the beginning was the word"
    view = headscope.head(tiny, "L1.H3", text=text)
    with fitting_threads(tiny.spec):  # other numbers of threads round otherwise
        expected = tiny.pattern(text, "L1.H3").values
    assert np.array_equal(view.pattern.numpy(), expected)
    assert list(view.tokens) == tiny.tokens(text)
    assert (view.label, view.model) == ("L1.H3", "tiny")


@pytest.mark.parametrize("name", ["llama_gqa", "bert", "mistral"])
def test_the_numbers_are_those_of_the_pattern(name: str) -> None:
    """By their formulas, on the rows that see at least two keys."""
    for view in headscope.heads(reading(name), "all", text=TEXT):
        weights = view.pattern.double().numpy()
        places = np.arange(N_TOKENS)
        distances = np.abs(places[:, None] - places[None, :])
        window = view.site.window or N_TOKENS
        sees = (distances < window) & ((places[:, None] >= places[None, :]) | (not view.is_causal))
        rows = sees.sum(1) >= 2
        entropies = -np.sum(np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0), axis=1)
        expected = {
            "entropy_nats": entropies[rows].mean(),
            "entropy_share": (entropies[rows] / np.log(sees.sum(1)[rows])).mean(),
            "effective_keys": (1 / (weights**2).sum(1)[rows]).mean(),
            "distance": (weights * distances).sum(1)[rows].mean(),
            "diagonal": np.diag(weights)[rows].mean(),
            "first": weights[rows, 0].mean(),
            "band_1": (weights * (distances <= 1)).sum(1)[rows].mean(),
            "band_8": (weights * (distances <= 8)).sum(1)[rows].mean(),
        }
        assert view.quantities == pytest.approx(expected, abs=N_TOKENS * STREAMED_STATISTICS)
        assert view.nulls["entropy_share"] == pytest.approx(1.0)
        assert view.nulls["first"] == pytest.approx((1 / sees.sum(1)[rows] * sees[rows, 0]).mean())


def test_the_numbers_are_those_of_the_lens_on_the_same_window(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # A measurement multiplies by oneDNN where it can; the view shows what the model itself computes.
    monkeypatch.setattr(linear_kernel, "has_kernel", lambda: False)
    view = headscope.head(tiny, "L2.H5", tokens=128)
    run = measure(tiny, lenses=["focus"], window=128, first_tokens=127)  # the first token of a window is special
    rows = run["focus"].table.filter(layer=2, head=5)
    assert view.quantities == {name: rows.filter(quantity=name)["value"].item() for name in view.quantities}
    assert view.nulls == {name: rows.filter(quantity=name)["uniform"].item() for name in view.nulls}


def test_the_largest_weights_leave_the_first_token_out(tiny: Model) -> None:
    view = headscope.head(tiny, "L1.H3")
    weights = view.pattern.numpy()[:, 1:]
    largest = view.largest(5)
    assert [entry.weight for entry in largest] == np.sort(weights, axis=None)[::-1][:5].tolist()
    for entry in largest:
        assert entry.weight == view.pattern[entry.query, entry.key]
        assert (entry.query_token, entry.key_token) == (view.tokens[entry.query], view.tokens[entry.key])
    (single,) = (headscope.head(tiny, "L0.H0", text="a", tokens=2),)
    assert all(entry.key == 1 for entry in single.largest())


def test_a_window_of_one_token_has_a_pattern_and_no_numbers() -> None:
    model = open_model(FAMILIES["llama_mha"].build())
    model.tokenizer = word_tokenizer()
    model.tokenizer.backend_tokenizer.post_processor = None
    view = headscope.head(model, "L0.H0", text="cat", tokens=1)
    assert view.pattern.tolist() == [[1.0]]
    assert view.quantities == {}
    assert view.largest() == ()
    assert "1 token of" in repr(view)


@pytest.mark.parametrize(("name", "tokens"), [("bert", 7), ("llama_gqa", 5), ("t5", 6)])
def test_the_window_has_as_many_tokens_as_were_asked_for(name: str, tokens: int) -> None:
    view = headscope.head(reading(name), "L0.H1" if name != "t5" else "enc.L0.H1", text=TEXT, tokens=tokens)
    assert view.tokens[0] == "[CLS]"
    assert view.tokens[-1] == "[SEP]"
    assert view.pattern.shape == (tokens, tokens)


def test_heads_of_an_encoder_decoder() -> None:
    model = reading("t5")
    inner, cross, encoder = headscope.heads(model, "dec.L1.H2", "dec.L1.cross.H2", "enc.L0.H1", text=TEXT)
    assert [view.label for view in (inner, cross, encoder)] == ["dec.L1.H2", "dec.L1.cross.H2", "enc.L0.H1"]
    assert inner.pattern[0, 1:].max() == 0
    assert (inner.is_causal, cross.is_causal, encoder.is_causal) == (True, False, False)
    assert cross.pattern[0, 1:].max() > 0.01
    assert cross.quantities["distance"] is None  # queries and keys count different texts
    assert cross.quantities["entropy_nats"] is not None
    assert "mean distance" not in repr(cross)
    cross_views = headscope.heads(model, Selection.parse("dec.cross"), text=TEXT)
    assert {view.site.kind for view in cross_views} == {"cross"}


def test_a_label_means_that_head_alone() -> None:
    """As a selection, `dec.L1.H2` and `dec.L1` match the cross-attention of the layer too."""
    model = reading("t5")
    assert headscope.head(model, "dec.L1.H2", text=TEXT).site.kind == "self"
    assert {view.site.kind for view in headscope.heads(model, "dec.L1", text=TEXT)} == {"self"}
    assert len(headscope.heads(model, Selection.parse("dec.L1.H2"), text=TEXT)) == 2


def test_heads_come_once_in_the_order_of_their_names(tiny: Model) -> None:
    views = headscope.heads(tiny, "L2.H1,L0.H0", "L2.H1", "L0.H0-1", text="In the beginning")
    assert [view.label for view in views] == ["L2.H1", "L0.H0", "L0.H1"]
    assert views["L0.H1"] is views[2]
    assert isinstance(views[:2], HeadViews)
    with pytest.raises(UsageError, match=r"'L3.H3' is not among L2.H1, L0.H0, L0.H1"):
        views["L3.H3"]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("L9.H0", "tiny has no head L9.H0: it has 4 layers with 8 heads each, L0.H0 to L3.H7"),
        ("L0.H0,L0.H8", "tiny has no head L0.H8"),
        ("enc.L0.H0", "tiny has no head enc.L0.H0"),
        ("cross", "tiny has no head cross"),
        ("L1", "'L1' means 8 heads, expected one"),
        ("block 3", "cannot read 'block 3'"),
    ],
)
@pytest.mark.parametrize("is_open", [True, False])
def test_heads_that_are_not_there(tiny: Model, at: str, message: str, is_open: bool) -> None:
    with pytest.raises(UsageError) as refusal:
        headscope.head(tiny if is_open else "tiny", at, text="In the beginning")
    assert message in str(refusal.value)


def test_a_head_that_is_not_there_is_refused_before_the_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_head_views, "open_model", lambda *_, **__: pytest.fail("the model was opened"))
    with pytest.raises(UsageError, match="4 layers with 8 heads each"):
        headscope.head("tiny", "L4.H0")


def test_other_refusals(tiny: Model, tmp_path) -> None:
    with pytest.raises(UsageError, match="2000 tokens were asked for, and tiny reads at most 1024"):
        headscope.head(tiny, "L0.H0", tokens=2000)
    with pytest.raises(UsageError, match="first 0 tokens"):
        headscope.head(tiny, "L0.H0", tokens=0)
    with pytest.raises(UsageError, match="without a tokenizer"):
        headscope.head(open_model(FAMILIES["llama_gqa"].build()), "L0.H0")
    with pytest.raises(UsageError, match="no head was chosen"):
        headscope.heads(tiny)
    with pytest.raises(UsageError, match=r"unknown format '\.gif'"):
        headscope.head("no-such-model", "L0.H0", out=tmp_path / "head.gif")
    with pytest.raises(UsageError, match="expected one"):
        headscope.head(tiny, "L1", out=tmp_path / "head.html")
    assert not list(tmp_path.iterdir())


def test_patterns_that_would_fill_the_memory_are_refused(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_head_views, "MOST_BYTES", 2 * 64 * 64 * 4)
    assert len(headscope.heads(tiny, "L1.H0-1")) == 2
    with pytest.raises(UsageError, match="3 patterns of 64 × 64 weights take"):
        headscope.heads(tiny, "L1.H0-2")


def test_a_pattern_whose_tokens_are_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_head_views, "spelled_ids", lambda *_: ("a", "b"))
    with pytest.raises(CaptureError, match="has 14 queries and 14 keys, but the text has 2 tokens"):
        headscope.head(reading("llama_mha"), "L0.H0", text=TEXT)


def test_half_precision_becomes_float32() -> None:
    model = open_model(FAMILIES["llama_gqa"].build().bfloat16(), tokenizer=word_tokenizer())
    assert headscope.head(model, "L0.H0", text=TEXT).pattern.dtype == torch.float32


def test_a_head_shows_itself(tiny: Model) -> None:
    view = headscope.head(tiny, "L1.H3")
    lines = repr(view).splitlines()
    assert lines[0] == "L1.H3 of tiny, 64 tokens of plain English (shipped with headscope)"
    assert "largest weights" in lines[1]
    page = Page(view._repr_html_())
    assert page.open == []
    assert not page.scripts
    assert "mass on the first token" in "".join(page.text)
    titles = [title for title in page.all("title") if title.startswith("query 5 “ at”, key 1 “T”")]
    assert titles == [f"query 5 “ at”, key 1 “T”: {view.pattern[5, 1]:.3f}"]


def test_several_heads_show_themselves(tiny: Model) -> None:
    views = headscope.heads(tiny, "L1", tokens=16)
    assert repr(views).splitlines()[1].startswith("  L1.H0  entropy ")
    page = Page(views._repr_html_())
    assert page.open == []
    assert "L1.H7" in "".join(page.text)


def test_tokens_that_attack_a_notebook_are_text(tiny: Model) -> None:
    view = headscope.head(tiny, "L0.H0", text='</style><script>alert("1")</script>')
    assert not Page(view._repr_html_()).scripts


SITES = [Site("enc", "self", 0, 2, 2, 4, 4, False), Site("enc", "self", 1, 2, 2, 4, 4, False)]
UNEQUAL = [Site("dec", "self", 0, 4, 4, 4, 4, True), Site("dec", "self", 1, 6, 6, 4, 4, True)]


def test_the_heads_of_a_model_in_words() -> None:
    assert grid_words(SITES) == "2 layers with 2 heads each, enc.L0.H0 to enc.L1.H1"
    assert grid_words([*SITES[:1], *UNEQUAL]) == (
        "1 layer with 2 heads each, enc.L0.H0 to enc.L0.H1; 2 layers with 4 to 6 heads, dec.L0.H0 to dec.L1.H5"
    )
    assert grid_words([]) == "no attention"
    with pytest.raises(UsageError, match=r"m has no head L0\.H5: it has 2 layers with 2 heads each"):
        chosen_heads("m", SITES, ["L0.H5"])


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS, *ENCODER_DECODERS], ids=lambda family: family.name)
def test_what_a_configuration_states_is_what_the_model_has(family) -> None:
    """A stated grid refuses heads before the model is opened: it must never refuse one that is there."""
    from headscope.model.formats.stated_grid import stated_grid
    from tests.model.opened_families import opened

    model = opened(family)
    for is_short in (True, False):
        grid = stated_grid(json.loads(model.hf.config.to_json_string(use_diff=is_short)))
        if grid is None:
            continue
        assert {site.stack for site in model.sites} == {"only"}
        assert max(site.layer for site in model.sites) == grid.n_layers - 1
        assert {site.n_heads for site in model.sites} == {grid.n_heads}


@pytest.mark.parametrize(
    ("raw", "grid"),
    [
        ({"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16}, (4, 8)),
        ({"n_layer": 12, "n_head": 12, "is_encoder_decoder": False}, (12, 12)),
        ({"num_hidden_layers": 4, "num_attention_heads": 8, "is_encoder_decoder": True}, None),
        ({"num_hidden_layers": 4, "num_attention_heads": 8, "max_window_layers": 2}, None),
        ({"num_hidden_layers": 4, "num_attention_heads": 8, "local": {"num_attention_heads": 16}}, None),
        ({"num_hidden_layers": 4, "num_attention_heads": [8, 4, 8, 4]}, None),
        ({"model_type": "x"}, None),
    ],
)
def test_a_configuration_with_a_doubt_states_nothing(raw: dict, grid: tuple[int, int] | None) -> None:
    from headscope.model.formats.stated_grid import stated_grid

    assert stated_grid(raw) == grid


def test_what_is_returned(tiny: Model) -> None:
    assert isinstance(headscope.head(tiny, "L1.H3", text="In the beginning"), HeadView)

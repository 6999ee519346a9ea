"""Interventions: known answers on the embedded model, controls of the right size, nothing left behind."""

import json
import math

import polars as pl
import pytest
import torch
import transformers

import headscope
from headscope.cli import main
from headscope.core import Site
from headscope.corpora import shipped_text
from headscope.errors import UsageError
from headscope.experiments.intervene.change_spelling import Change, place_of
from headscope.experiments.intervene.changes import _RULES, along_random_directions, changed, controlled
from headscope.experiments.intervene.sentences import headlines, number
from headscope.experiments.intervene.writing import needed_tokens, runs_of, share_in_runs, share_repeated
from headscope.model.edit import HeadMatrix
from headscope.model.model import open_model
from headscope.model.predictions import predict
from headscope.model.tracing.projections import Rows

WORDS = "\n\n".join(shipped_text().documents)[:600]
SMALL = {"text": WORDS, "window": 40, "windows": 3, "new_tokens": 4, "prompts": ["In the beginning"]}
NAMED = HeadMatrix(
    Site("only", "self", 0, 1, 1, 8, 8, causal=True), "q", (0,), Rows("q", torch.zeros(1, 8).long(), torch.ones(1, 8))
)
EVERY = ("scale 2", "randomise init", "randomise v", "randomise u", "randomise permute", "rank 8", "remove spikes",
         "remove bulk")  # fmt: skip


@pytest.fixture(scope="module")
def every(tiny):
    """All changes on two layers of the embedded model, and its parameters before."""
    before = [parameter.detach().clone() for parameter in tiny.hf.parameters()]
    return headscope.intervene(tiny, *EVERY, at="L1-2", **SMALL)["intervene"], before


def scores(model, tokens):
    with model.session() as session:
        capture = session.capture("scores", at="L0")
        session.run(tokens)
        return capture.take()["scores"][model.sites[0]].double()


@pytest.mark.parametrize(("matrices", "power"), [("q", 1), ("qk", 2), ("v", 0)])
def test_scaling_w_q_scales_the_scores(tiny, matrices, power):
    tokens = tiny.encode("In the beginning was the word, and the word was long.")[None]
    before = scores(tiny, tokens)
    with changed(tiny, Change.of("scale 1/4"), place_of(matrices, "L0"), 0):
        after = scores(tiny, tokens)
    assert torch.allclose(after, before * 0.25**power, rtol=1e-5, atol=1e-6)


def test_full_rank_is_no_change(tiny):
    finding = headscope.intervene(tiny, "rank 64", "scale 1", matrices="k", **SMALL)["intervene"]
    effects = finding.tables["effects"].filter(pl.col("change") != "scale 1")
    assert effects["perplexity"].n_unique() == 1
    # The control is a mean of three draws, each exactly 1: sums of thirds round.
    assert effects["ratio"].drop_nulls().to_list() == pytest.approx([1.0, 1.0], abs=1e-15)
    assert effects["moved"].drop_nulls().to_list() == [0.0, 0.0]
    assert float(effects["kl"].drop_nulls().abs().max()) < 1e-9
    assert finding.tables["texts"]["text"].n_unique() == 1
    assert "rank 64 changes nothing: no matrix has a singular value to remove." in finding.warnings


def test_everything_is_undone(tiny, every):
    assert all(torch.equal(a, b) for a, b in zip(tiny.hf.parameters(), every[1], strict=True))
    assert not tiny.edited


def test_changes_of_layers_one_and_two_leave_the_maps_of_layer_zero(every):
    heads = every[0].tables["heads"].filter(pl.col("which") != "original")
    assert float(heads.filter(pl.col("layer") == 0)["moved"].max()) == 0.0
    assert float(heads.filter(pl.col("layer") == 3)["moved"].min()) > 0.0
    assert heads.filter(pl.col("is_changed"))["layer"].unique().sort().to_list() == [1, 2]


def test_the_control_has_the_singular_values_of_the_change():
    sigma = torch.tensor([5.0, 2.0, 0.5], dtype=torch.float64)
    drawn = along_random_directions(sigma, 7, 3, torch.Generator().manual_seed(0))
    assert torch.allclose(torch.linalg.svdvals(drawn), sigma)


def test_controls_are_as_large_as_their_changes(every):
    both = (
        every[0].tables["matrices"].pivot("which", index=["change", "layer", "matrix"], values=["change_norm", "kept"])
    )
    sized = both.filter(pl.col("change").str.contains("scale|randomise"))
    assert sized.height == 5 * 2 * 2
    assert sized["change_norm_control"].to_list() == pytest.approx(sized["change_norm_change"].to_list(), rel=1e-6)
    counted = both.filter(pl.col("change").str.contains("rank|remove"))
    assert counted["kept_control"].to_list() == counted["kept_change"].to_list()
    # The largest singular values carry the most: dropping as many others leaves more or less, never the same.
    assert counted["change_norm_control"].to_list() != pytest.approx(counted["change_norm_change"].to_list())


def test_numbers_beside_the_original(tiny, every):
    effects = every[0].tables["effects"].to_dicts()
    assert [row["which"] for row in effects] == ["original", *["change", "control"] * len(EVERY)]
    for row in effects[1:]:
        assert row["ratio"] == pytest.approx(row["perplexity"] / effects[0]["perplexity"])
        assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
        assert row["kl"] > 0
        assert 0 < row["moved"] <= 1


def test_kl_and_perplexity_by_their_definition(tiny):
    """One forward that reads other states equals two forwards with logits in float64."""
    words = "The ship went down to the sea and the sea was still. " * 8
    run = headscope.intervene(tiny, "scale 2", text=words, window=60, windows=1, new_tokens=2, prompts=[])
    row = run["intervene"].tables["effects"].row(1, named=True)
    tokens = tiny.encode(words)[:60]
    before = predict(tiny, tokens).logits.double().log_softmax(-1)[:-1]
    with tiny.edit() as edit:
        edit.scale_spectrum("qk", 2.0)
        after = predict(tiny, tokens).logits.double().log_softmax(-1)[:-1]
    nats = -after.gather(1, tokens[1:, None]).mean()
    assert row["kl"] == pytest.approx(float((before.exp() * (before - after)).sum(-1).mean()), rel=1e-4)
    assert row["perplexity"] == pytest.approx(math.exp(float(nats)), rel=1e-4)
    assert row["ratio_low"] is None
    assert any("single window" in warning for warning in run["intervene"].warnings)
    assert "texts" not in run["intervene"].tables


def test_planted_spikes_are_what_is_removed():
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(60, 40, generator=generator, dtype=torch.float64)
    spikes = along_random_directions(torch.tensor([90.0, 60.0], dtype=torch.float64), 60, 40, generator)
    w = noise + spikes
    cleaned = _RULES["remove"](Change.of("remove spikes"), NAMED, w, generator)
    only = _RULES["remove"](Change.of("remove bulk"), NAMED, w, generator)
    assert (cleaned.n_kept, only.n_kept) == (38, 2)
    assert torch.allclose(cleaned.matrix + only.matrix, w)
    assert float((only.matrix - spikes).norm() / spikes.norm()) < 0.3


@pytest.mark.parametrize(("value", "side"), [("v", "columns"), ("u", "rows")])
def test_randomising_a_side_keeps_spectrum_and_the_other_side(value, side):
    w = torch.randn(12, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    after = _RULES["randomise"](Change("randomise", value), NAMED, w, torch.Generator().manual_seed(1)).matrix
    assert torch.allclose(torch.linalg.svdvals(after), torch.linalg.svdvals(w))
    # x @ w: rows of w are inputs. wᵀw holds the output side (U of the documents), w wᵀ the input side (V).
    same, other = (after.T @ after, w.T @ w), (after @ after.T, w @ w.T)
    if side == "rows":
        same, other = other, same
    assert torch.allclose(*same)
    assert not torch.allclose(*other)


def test_shared_key_heads_are_told(tiny):
    place = place_of("k", "L1.H0")
    assert place.changed_heads(tiny.sites) == {tiny.sites[1]: (0, 1)}
    assert place_of("q", "L1.H0").changed_heads(tiny.sites) == {tiny.sites[1]: (0,)}
    finding = headscope.intervene(tiny, "scale 2", matrices="k", at="L1.H0", **SMALL)["intervene"]
    assert any("also changes 1 other heads (L1.H1)" in warning for warning in finding.warnings)


def test_controls_do_not_share_their_directions(tiny):
    """Every change has its own control, and every draw another one; they were one set of directions."""
    place, weights = place_of("q", "L0"), {}
    before = tiny.weights(tiny.sites[0]).w_q.double().clone()
    for label, draw in (("scale 2", 0), ("scale 2", 1), ("scale 1/2", 0)):
        change = Change.of(label)
        with changed(tiny, change, place, 0) as touched:
            pass
        with controlled(tiny, change, place, touched, 0, draw) as moved:
            weights[label, draw] = (tiny.weights(tiny.sites[0]).w_q.double() - before).flatten()
        assert {matrix.n_kept for matrix in moved} == {0}  # a random matrix was added: no direction stays
    pairs = [(a, b) for a in weights for b in weights if a < b]
    for a, b in pairs:
        cosine = float(torch.nn.functional.cosine_similarity(weights[a], weights[b], dim=0))
        assert abs(cosine) < 0.2, (a, b)


def test_controls_are_drawn_several_times(tiny):
    finding = headscope.intervene(tiny, "scale 4", **SMALL)["intervene"]
    control = finding.tables["effects"].filter(pl.col("which") == "control").row(0, named=True)
    assert control["draws"] == 3
    assert control["ratio_least"] < control["ratio"] < control["ratio_most"]
    assert (
        f"({number(control['perplexity_least'])} to {number(control['perplexity_most'])})" in finding.headlines[0].full
    )
    assert "mean of 3 draws" in finding.headlines[0].full
    assert all(len(headline.short.split()) <= 20 for headline in finding.headlines), finding.headlines
    (moved,) = finding.quantities
    heads = finding.tables["heads"].filter(*(pl.col(column) == value for column, value in moved.where.items()))
    assert heads.height == sum(site.n_heads for site in tiny.sites)
    assert heads[moved.column].null_count() == 0
    heads = finding.tables["heads"].filter(pl.col("which") == "change")
    assert heads.filter(pl.col("entropy_share_low") < pl.col("entropy_share")).height == heads.height
    assert heads.filter(pl.col("moved_high") > pl.col("moved")).height == heads.height
    with pytest.raises(UsageError, match="at least once"):
        headscope.intervene(tiny, "scale 4", draws=0, **SMALL)


def test_how_much_text_a_verdict_needs():
    ordinary, shuffled = (torch.tensor([x, x + 2.0] * 50, dtype=torch.float64) for x in (3.0, 7.0))
    spread = float(ordinary.std())
    assert needed_tokens(ordinary, shuffled) == max(8, math.ceil((2 * 1.96 * spread / 4) ** 2))
    assert needed_tokens(ordinary, ordinary + 0.5) == math.ceil((2 * 1.96 * spread / 0.5) ** 2)
    assert needed_tokens(shuffled, ordinary) > 10**9


def test_one_token_is_no_language():
    rows = [
        {"prompt": "p", "change": change, "which": which, "text": "t", "tokens": 1, "surprise": nats, "copied": None,
         "repeated": None, "ordinary": 4.0, "shuffled": 8.0, "needed": 12.0}
        for change, which, nats in (("original", "original", 1.0), ("scale 1/2", "change", 7.0))
    ]  # fmt: skip
    schema = {"copied": pl.Float64, "repeated": pl.Float64}
    texts = pl.DataFrame(rows, schema_overrides=schema)
    said = " ".join(map(str, headlines({**planted(0.7), "texts": texts}, "qk", 2)))
    assert "too short to judge, 1 of 12 tokens" in said
    assert "noise: that is what comes" not in said


def test_the_control_is_another_draw_for_another_seed(tiny):
    place, change = place_of("q", "L0"), Change.of("scale 2")
    weights = []
    for seed in (0, 0, 1):
        with changed(tiny, change, place, seed) as touched:
            pass
        with controlled(tiny, change, place, touched, seed):
            weights.append(tiny.weights(tiny.sites[0]).w_q.clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.fixture(scope="module")
def encoder(tiny):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=1536, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        initializer_range=0.2,
    )  # fmt: skip
    return open_model(transformers.BertModel(config).eval(), tokenizer=tiny.tokenizer)


def test_an_encoder_is_measured_by_its_embeddings(encoder):
    finding = headscope.intervene(encoder, "scale 4", "rank 32", text=WORDS, window=32, windows=2)["intervene"]
    effects = finding.tables["effects"]
    assert "perplexity" not in effects.columns
    assert "texts" not in finding.tables
    scaled, _, whole, _ = effects["cosine"].drop_nulls().to_list()
    assert scaled < 0.999
    assert whole == pytest.approx(1.0)
    assert effects["found"].drop_nulls().to_list()[2] == 1.0
    assert "cosine with the original" in finding.headlines[0].full
    with pytest.raises(UsageError, match="cannot generate text"):
        headscope.intervene(encoder, "scale 2", prompts=["Hello"])


@pytest.mark.real
def test_minilm():
    finding = headscope.intervene("minilm", "scale 2", "randomise init", window=64, windows=4)["intervene"]
    rows = finding.tables["effects"].to_dicts()
    assert 0 < rows[3]["cosine"] < rows[1]["cosine"] < 1


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        (["scale 0"], {}, "finite factor above 0, got 0"),
        (["scale -1"], {}, "finite factor above 0"),
        (["scale 1/0"], {}, "cannot read the factor"),
        (["scale two"], {}, "cannot read the factor"),
        (["rank 65"], {}, "rank 65 is larger than W_K of L0, which has 64 singular values"),
        (["rank 0"], {}, "at least 1"),
        (["remove all"], {}, "cannot remove 'all'"),
        (["swap heads"], {}, "cannot read the change"),
        (["scale 2"], {"matrices": "qx"}, "cannot change the matrices 'qx'"),
        (["scale 2"], {"at": "L9"}, "matches no head"),
        (["scale 2"], {"at": "L2-9"}, "has no layer 4, only 0 to 3"),
        (["scale 2"], {"at": "L0.H7-8"}, "has no head 8"),
        (["scale 2"], {"text": "  "}, "the text is empty"),
        (["scale 2"], {"prompts": [""]}, "empty"),
        (["scale 2"], {"window": 1}, "window ≥ 2"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(tiny, changes, options, message):
    with pytest.raises(UsageError, match=message):
        headscope.intervene(tiny, *changes, **{**SMALL, **options})
    assert not tiny.edited


def test_copied_and_repeated():
    assert share_in_runs([9, 1, 2, 3, 4, 9, 9, 9], runs_of([0, 1, 2, 3, 4])) == 0.5
    assert share_in_runs([1, 2, 3, 9, 1, 2, 3, 9], runs_of([1, 2, 3, 4])) == 0.0
    assert share_repeated([1, 2, 3, 4, 5, 6, 7, 8]) == 0.0
    assert share_repeated([1, 2, 3, 4, 1, 2, 3, 4]) == 0.5
    assert share_repeated([7] * 8) == 7 / 8


def planted(self_up, entropies=(0.9, 0.6, 0.2), first=0.1, half=0.01):
    """Effects as section 8.5 tells them, or not; `half` of each interval, None for one window."""
    common = {"self_uniform": 0.02, "keys": 5.0, "perplexity": 10.0, "ratio": 2.0, "kl": 0.1, "moved": 0.2}
    rows = [
        {"change": name, "which": which, "entropy_share": entropy, "self": own, "first": first, **common,
         **{f"{quantity}_{end}": None if half is None else value + sign * half
            for quantity, value in (("entropy_share", entropy), ("self", own))
            for end, sign in (("low", -1), ("high", 1))}}
        for name, which, entropy, own in (
            ("original", "original", entropies[1], 0.1),
            ("scale 1/2", "change", entropies[0], 0.05), ("scale 1/2", "control", entropies[1], 0.1),
            ("scale 2", "change", entropies[2], self_up), ("scale 2", "control", entropies[1], 0.1),
        )
    ]  # fmt: skip
    return {"effects": pl.DataFrame(rows)}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (planted(0.7), "attend to themselves: that holds here."),
        (planted(0.2, first=0.7), "that holds here only of what is not on the first token"),
        (planted(0.2), "that does not happen here"),
        (planted(0.7), "It falls all the way"),
        (planted(0.7, entropies=(0.5, 0.6, 0.2)), "It does not fall all the way"),
        (planted(0.7, half=0.2), "Whether it falls all the way"),
        (planted(0.7, half=None), "Whether it falls all the way"),
        (planted(0.52, half=0.05), "attend to themselves: this interval does not tell."),
        (planted(0.7), "60 % (95 % interval 59 % to 61 %) at α = 1"),
        (planted(0.7), "Over 2 windows, perplexity goes from"),
    ],
)
def test_sentences_follow_the_numbers(tables, said):
    assert said in " ".join(map(str, headlines(tables, "qk", 2)))
    about_scores = " ".join(map(str, headlines(tables, "v", 2)))
    assert said not in about_scores or said.startswith("Over 2 windows")


def test_short_headlines_state_the_planted_numbers():
    """Entropy from 90 % to 20 %, the token itself from 10 % to 70 %; where intervals meet nothing is ranked."""
    cost, sharpness, itself = headlines(planted(0.7), "qk", 2)
    assert cost.effect is None, "no interval"
    assert sharpness.short == "Scaled by 1/2 to 2, attention's entropy goes from 90 % to 20 % of the largest."
    assert sharpness.effect == pytest.approx((0.9 - 0.2) / 0.9)
    assert itself.short == "At α = 2 tokens pay 70 % of attention to themselves; in the original 10 %."
    assert itself.effect == pytest.approx((0.7 - 0.1) / 0.9)
    same = headlines(planted(0.1, entropies=(0.6, 0.6, 0.6)), "qk", 2)
    assert [headline.effect for headline in same[1:]] == [0, 0]
    assert all(headline.short.endswith("(not told apart).") for headline in same[1:])
    assert all(len(headline.short.split()) <= 20 for headline in same)
    alone = headlines(planted(0.7, half=None), "qk", 1)
    assert [headline.effect for headline in alone] == [None] * 3


def test_a_cost_is_compared_with_all_draws_of_its_control():
    """Twice the perplexity, 1.8 to 2.2: beyond a control of 1.0 to 1.2, not beyond one that reaches 1.9."""

    def cost(most):
        effects = planted(0.7)["effects"].with_columns(
            ratio=pl.when(pl.col("which") == "control").then(1.1).otherwise(2.0),
            ratio_low=pl.lit(1.8), ratio_high=pl.lit(2.2), ratio_least=pl.lit(1.0), ratio_most=pl.lit(most),
        )  # fmt: skip
        return headlines({"effects": effects}, "v", 2)[0]

    assert cost(1.2).effect == pytest.approx(1 - 1.1 / 2)
    assert cost(1.2).short.endswith("times as large under scale 1/2; in random directions 1.1 times.")
    assert cost(1.9).effect == 0
    assert cost(1.9).short.endswith("(not told apart).")


def test_text_sentences_follow_the_numbers():
    rows = [
        {"prompt": "p", "change": change, "which": which, "text": "t", "tokens": 9, "surprise": nats, "copied": copied,
         "repeated": 0.0, "ordinary": 4.0, "shuffled": 8.0}
        for change, which, nats, copied in (
            ("original", "original", 1.0, 0.1), ("scale 1/2", "change", 7.0, 0.0), ("scale 1/4", "change", 2.0, 0.0),
            ("scale 2", "change", 1.0, 0.8), ("scale 2", "control", 9.0, 0.0),
        )
    ]  # fmt: skip
    said = " ".join(map(str, headlines({**planted(0.7), "texts": pl.DataFrame(rows)}, "qk", 2)))
    assert "language that repeats the prompt: that is what comes at α = 2." in said
    assert "noise: that is what comes at α = 1/2 alone." in said


def test_the_command(tmp_path, capfd):
    (tmp_path / "words.txt").write_text(WORDS)
    words = [
        "intervene",
        "tiny",
        "--scale",
        "1/4",
        "2",
        "--rank",
        "4",
        "--windows",
        "2",
        "--window",
        "32",
        "--new-tokens",
    ]
    words += ["4", "--text", str(tmp_path / "words.txt")]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--prompt", "In the", "--out", str(tmp_path / "run"), "--format", "json"])
    out, err = capfd.readouterr()
    assert not ended.value.code
    said = json.loads(out)
    assert [row["change"] for row in said["tables"]["effects"]][1::2] == ["scale 1/4", "scale 2", "rank 4"]
    assert said["params"]["at"] == "all"
    assert err.startswith("opening tiny …\n")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Attention maps before and after" in page
    assert headscope.load(tmp_path / "run")["intervene"].tables["effects"].height == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny", "--scale", "0"], "finite factor above 0"),
        (["tiny", "--at", "L77"], "matches no head"),
        (["tiny", "--randomise", "w"], "randomise"),
    ],
)
def test_wrong_commands(capfd, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["intervene", *words])
    assert ended.value.code == 2
    assert message in capfd.readouterr().err


def test_a_site_of_two_stacks_is_named(tiny):
    site = Site("dec", "cross", 0, 4, 4, 8, 8, causal=False)
    assert place_of("o", "dec.cross").heads([site]) == {site: (0, 1, 2, 3)}

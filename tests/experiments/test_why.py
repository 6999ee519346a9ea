"""Why a head attends: terms that add up, the writer that a trained circuit has, causal checks, and refusals."""

import copy
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import headscope
from headscope.cli import main
from headscope.core import Finding, Flow, Site
from headscope.errors import HeadscopeError, UsageError, VariantRefused
from headscope.experiments.why.causal_checks import patched_run, side_sums
from headscope.experiments.why.experiment import EXPERIMENT
from headscope.experiments.why.repeated_tokens import repeated_tokens, strongest_induction
from headscope.experiments.why.score_terms import BIASES, POSITIONS, ScoreTerms, score_terms
from headscope.experiments.why.settings import Pairs, Params
from headscope.experiments.why.target_pairs import repeats, target_pairs
from headscope.experiments.why.trigram_checks import LEAST_QUERIES, frequent_pairs, head_scores, trigram_checks
from headscope.model.model import Model, open_model
from headscope.report.draw.figure_check import check_figure
from tests.model.families import DISPATCHING, OUTSIDE

FAMILIES = {family.name: family for family in DISPATCHING + OUTSIDE}
# Grouped and rotary, LayerNorm with biases, QK-norm per head and over all heads, partial rotary, parallel parts, a
# factor after the attention, sinks and windows, an encoder with two-sided windows, biases for positions.
SUMS = [
    "llama_gqa",
    "gpt2",
    "qwen3",
    "olmo2",
    "gpt_neox",
    "phi",
    "granite",
    "gpt_oss",
    "opt",
    "modernbert",
    "t5",
    "bloom",
]
ROUNDING = 1e-5  # float32
EXACT = 1e-10  # float64


def quiet(task: str, done: int, total: int) -> None:
    pass


def opened(name: str) -> Model:
    return open_model(FAMILIES[name].build())


def random_text(count: int = 14) -> Tensor:
    return torch.randint(3, 99, (count,), generator=torch.Generator().manual_seed(7))


def taken_apart(model: Model, tokens: Tensor, label: str) -> ScoreTerms:
    site, head = place(model, label)
    return score_terms(model, tokens, site, head, model.written(tokens[None], site.stack))


def place(model: Model, label: str) -> tuple[Site, int]:
    site = next(site for site in model.sites if label.rpartition(".")[0] == site.label)
    return site, int(label.rpartition("H")[2])


def run(model: Model, **settings: object) -> Finding:
    return EXPERIMENT.run(model, Params(**settings), quiet)[0]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def exact_tiny() -> Model:
    """The embedded model in float64; its norms too, which those of transformers are not."""
    hf = copy.deepcopy(open_model("tiny").hf).double()
    for name, module in list(hf.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            norm = torch.nn.RMSNorm(len(module.weight), eps=module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            hf.set_submodule(name, norm)
    return open_model(hf)


@pytest.fixture(scope="module")
def finding(tiny: Model) -> Finding:
    return run(tiny, head="L1.H3")


@pytest.mark.parametrize("name", SUMS)
def test_terms_add_up_to_the_score(name: str) -> None:
    model = opened(name)
    site = [site for site in model.sites if site.kind == "self"][-1]
    terms = taken_apart(model, random_text(), site.head_label(1))
    score_error, pattern_error = terms.errors()
    assert score_error <= ROUNDING
    assert pattern_error <= ROUNDING
    rows = torch.arange(len(terms.scores))
    by_key, by_query = terms.terms("key", rows).sum(0), terms.terms("query", rows).sum(0)
    assert torch.allclose(by_key, by_query, rtol=0, atol=EXACT)
    count = len(terms.writers)
    by_pair = sum((terms.pair_terms(u, list(range(count)), rows).sum(0) for u in range(count)), torch.zeros(()))
    added = 0 if terms.added is None else terms.added
    assert torch.allclose(by_pair + added, by_key, rtol=0, atol=EXACT)
    assert (POSITIONS in terms.names) == (name in ("t5", "bloom"))
    assert (BIASES in terms.names) == (name in ("gpt2", "gpt_neox", "phi", "opt", "bloom", "gpt_oss"))


def definition(model: Model, tokens: Tensor, layer: int, head: int, writer: Tensor, letter: str) -> Tensor:
    """What a writer gives to the queries or keys of a head of a Llama, token by token, as its formulas say."""
    hf = model.hf
    block = hf.model.layers[layer]
    stream = hf(tokens[None], output_hidden_states=True).hidden_states[layer][0]
    projection = block.self_attn.q_proj if letter == "q" else block.self_attn.k_proj
    width = block.self_attn.head_dim
    matrix = projection.weight[head * width : (head + 1) * width]
    cos, sin = hf.model.rotary_emb(stream[None], torch.arange(len(tokens))[None])
    rows = []
    for position, part in enumerate(writer):
        variance = stream[position].square().mean() + block.input_layernorm.eps
        normed = block.input_layernorm.weight * part / variance.sqrt()
        projected = (matrix @ normed)[None, None, None]
        turned, _ = apply_rotary_pos_emb(projected, projected, cos[:, position, None], sin[:, position, None])
        rows.append(turned[0, 0, 0])
    return torch.stack(rows)


@torch.no_grad()
def test_the_parts_are_those_of_the_definition(exact_tiny: Model) -> None:
    tokens = repeated_tokens(exact_tiny, 8, 0)[0]
    terms = taken_apart(exact_tiny, tokens, "L1.H3")
    stream = exact_tiny.written(tokens[None])
    for index, name in enumerate(terms.writers):
        queries = definition(exact_tiny, tokens, 1, 3, stream[name][0], "q")
        keys = definition(exact_tiny, tokens, 1, 1, stream[name][0], "k")
        assert torch.allclose(terms.queries[index], queries, rtol=0, atol=1e-9)
        assert torch.allclose(terms.keys[index], keys, rtol=0, atol=1e-9)


def test_sums_are_exact_in_float64(exact_tiny: Model) -> None:
    tokens = repeated_tokens(exact_tiny, 20, 0)[0]
    assert max(taken_apart(exact_tiny, tokens, "L3.H5").errors()) <= EXACT


def test_the_previous_token_head_is_named(finding: Finding) -> None:
    keys = finding.tables["keys"]
    assert keys["writer"][0] == "L0.H0"
    assert keys["share"][0] > 0.8
    assert keys["contrast"][0] > 3 * keys["null_high"][0]
    check = finding.tables["checks"].row(0, named=True)
    assert (check["side"], check["writer"]) == ("key", "L0.H0")
    assert check["mass"] > 0.55
    assert check["patched"] < 0.1
    assert check["without"] < 0.1
    assert check["alone"] > 0.5
    assert check["without_another"] > 0.55
    assert finding.headlines[0].full.startswith("Without what L0.H0 wrote in its keys, L1.H3 puts ")
    short, full = finding.headlines[0].short, finding.headlines[0].full
    assert short.endswith("on the token that followed the earlier copy.")
    assert full.startswith(f"{short} These are means over 40 queries; a random other key gets")
    assert re.search(r"On 4 other sequences: [\d.]+ % \(95 % interval .* to .*\) instead of \d+ %", full)
    chain = finding.tables["chain"]
    assert chain["quantity"].to_list()[-2:] == ["direct effect", "effect of removing the head"]
    assert chain["value"][-2] > 10 * abs(chain["null_high"][-2])


def test_contrasts_add_up(finding: Finding) -> None:
    keys, queries = finding.tables["keys"]["contrast"].sum(), finding.tables["queries"]["contrast"].sum()
    assert keys == pytest.approx(queries, abs=1e-9)
    assert finding.tables["pairs"]["contrast"].sum() == pytest.approx(keys, abs=1e-9)  # fewer than 20 writers


def test_the_null_is_that_of_random_keys(tiny: Model) -> None:
    """A random key exceeds the others by −c/(m−1) on average, where the key exceeds them by c."""
    tokens = repeated_tokens(tiny, 12, 0)[0]
    terms = taken_apart(tiny, tokens, "L1.H3")
    pairs = target_pairs(terms, tokens, Params(), needs_repeat=True)
    parts = terms.terms("key", pairs.queries)
    nulls = pairs.null_contrasts(parts, 4000, torch.Generator().manual_seed(0))
    expected = -(pairs.contrast(parts) / pairs.other_keys.sum(-1)).mean(-1)
    spread = nulls.std(0) / 4000**0.5
    assert bool(((nulls.mean(0) - expected).abs() <= 5 * spread + 1e-12).all())


@pytest.mark.parametrize("name", ["llama_gqa", "gpt2"])
def test_removal_in_the_arithmetic_is_a_patched_path_at_the_scale_of_the_text(name: str) -> None:
    model, tokens = opened(name), random_text()
    terms = taken_apart(model, tokens, "L1.H2")
    rows = torch.arange(len(tokens))
    for side, letter in (("key", "k"), ("query", "q")):
        parts = terms.terms(side, rows)  # type: ignore[arg-type]
        for writer in ("embed", "L0.H1", "L0.mlp"):
            with model.session() as session:
                session.patch_path(writer, ("L1.H2", letter), frozen=True)
                captured = session.capture("pattern", at="L1.H2")
                session.run(tokens)
                pattern = captured.take()["pattern"][terms.site][0, 0].double()
            rebuilt = terms.rebuilt_pattern(parts.sum(0) - parts[terms.names.index(writer)], rows)
            assert torch.allclose(rebuilt, pattern, rtol=0, atol=ROUNDING)


def test_another_gauge_gives_the_same_numbers(exact_tiny: Model) -> None:
    """Queries times 3 and keys over 3 are the same scores."""
    other = open_model(copy.deepcopy(exact_tiny.hf))
    with torch.no_grad():
        other.hf.model.layers[1].self_attn.q_proj.weight *= 3
        other.hf.model.layers[1].self_attn.k_proj.weight /= 3
    tokens = repeated_tokens(exact_tiny, 12, 0)[0]
    sums = []
    for model in (exact_tiny, other):
        terms = taken_apart(model, tokens, "L1.H3")
        pairs = target_pairs(terms, tokens, Params(), needs_repeat=True)
        sums.append(side_sums(terms, pairs, "key", 20, torch.Generator().manual_seed(0)))
    for name in ("contrast", "null_low", "null_high", "without", "alone"):
        assert torch.allclose(getattr(sums[0], name), getattr(sums[1], name), rtol=0, atol=1e-9)


def test_another_order_of_heads_gives_the_same_numbers(exact_tiny: Model) -> None:
    """The first two groups of heads of layer 0 change places: their writers change names, and nothing else."""
    other = open_model(copy.deepcopy(exact_tiny.hf))
    attention = other.hf.model.layers[0].self_attn
    with torch.no_grad():
        for projection, size in ((attention.q_proj, 32), (attention.k_proj, 16), (attention.v_proj, 16)):
            rows = projection.weight[: 2 * size].clone()
            projection.weight[: 2 * size] = torch.cat([rows[size:], rows[:size]])
        columns = attention.o_proj.weight[:, :64].clone()
        attention.o_proj.weight[:, :64] = torch.cat([columns[:, 32:], columns[:, :32]], dim=1)
    tokens = repeated_tokens(exact_tiny, 12, 0)[0]
    before, after = (taken_apart(model, tokens, "L1.H3") for model in (exact_tiny, other))
    for old, new in (("L0.H0", "L0.H2"), ("L0.H3", "L0.H1"), ("L0.mlp", "L0.mlp")):
        assert torch.allclose(
            before.keys[before.writers.index(old)], after.keys[after.writers.index(new)], rtol=0, atol=1e-9
        )


def test_repeats() -> None:
    visible = torch.ones(8, 8, dtype=torch.bool).tril()
    queries, keys = repeats(torch.tensor([0, 5, 6, 5, 5, 7, 6, 8]), visible)
    # The second of two equal neighbours looks back past its neighbour.
    assert queries.tolist() == [3, 4, 6]
    assert keys.tolist() == [2, 2, 3]
    assert len(repeats(torch.arange(8), visible)[0]) == 0


def test_a_named_pair(tiny: Model) -> None:
    finding = run(tiny, head="L1.H3", query=60, key=21)
    positions = finding.tables["positions"]
    assert positions.select("query", "key").rows() == [(60, 21)]
    assert finding.params["pairs"] == "named"
    assert "on key 21. This is query 60;" in finding.headlines[0].full
    assert finding.tables["sequences"].is_empty()


def test_a_head_that_does_something_else(tiny: Model) -> None:
    """The previous-token head is asked about the keys that it attends to."""
    finding = run(tiny, head="L0.H0")
    positions = finding.tables["positions"]
    assert finding.params["pairs"] == "attended"
    assert (positions["query"] - positions["key"] == 1).mean() > 0.9
    assert "the key that it attends to most" in finding.headlines[0].full
    assert 0 not in positions["key"].to_list()


def test_the_first_key_is_left_out_where_it_is_a_sink(tiny: Model) -> None:
    tokens = repeated_tokens(tiny, 20, 0)[0]
    terms = taken_apart(tiny, tokens, "L0.H1")  # which attends to the first token
    pairs = target_pairs(terms, tokens, Params(pairs=Pairs.REPEAT), needs_repeat=False)
    assert pairs.leaves_out_first
    assert not bool(pairs.other_keys[:, 0].any())
    assert bool(
        target_pairs(taken_apart(tiny, tokens, "L0.H0"), tokens, Params(), needs_repeat=True).other_keys[:, 0].all()
    )


def test_the_strongest_head_is_an_induction_head(tiny: Model) -> None:
    induction = strongest_induction(tiny, 40, 0)
    assert induction.site.head_label(induction.head) in ("L1.H0", "L1.H3", "L1.H6")
    assert induction.mass > 0.5 > 0.1 > induction.null


def test_the_model_is_unchanged(tiny: Model) -> None:
    before = {name: tensor.clone() for name, tensor in tiny.hf.state_dict().items()}
    tokens = random_text()[None]
    logits = tiny.run(tokens).logits
    run(tiny, head="L2.H1", random_tokens=8)
    assert torch.equal(tiny.run(tokens).logits, logits)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tiny.hf.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in tiny.hf.modules())


def test_biases_are_no_path(tiny: Model) -> None:
    tokens = repeated_tokens(tiny, 8, 0)[0]
    terms = taken_apart(tiny, tokens, "L1.H3")
    pairs = target_pairs(terms, tokens, Params(), needs_repeat=True)
    assert patched_run(tiny, tokens, terms, pairs, "key", BIASES) is None


def test_an_encoder_has_no_effect_on_the_next_token() -> None:
    model = opened("modernbert")
    finding = run(model, head="L1.H0", random_tokens=8)
    assert finding.tables["keys"].height == 1 + 4 + 1
    assert finding.status == "ok"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": "L9.H0"}, "matches no head"),
        ({"head": "L1.H99"}, "matches no head"),
        ({"head": "L1"}, "not the name of one head"),
        ({"head": "L1.H3", "query": 3}, "--key is not"),
        ({"head": "L1.H3", "key": 3}, "--query is not"),
        ({"head": "L1.H3", "query": 500, "key": 3}, "--query 500 is beyond the text, of which at most 81 tokens are"),
        ({"head": "L1.H3", "query": 5, "key": 81}, "--key 81 is beyond the text"),
        ({"head": "L1.H3", "sequences": -1}, "sequences=-1"),
        ({"head": "L1.H3", "query": 3, "key": 5}, "query 3 cannot see key 5"),
        ({"head": "L1.H3", "query": 0, "key": 0}, "sees no other key"),
        ({"head": "L1.H3", "query": 5, "key": 3, "pairs": Pairs.REPEAT}, "leave out one of the two"),
        ({"head": "L1.H3", "draws": 2}, "draws=2"),
    ],
)
def test_refused_settings(tiny: Model, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        run(tiny, **settings)
    assert message in str(error.value)


def test_a_text_without_a_repeat_is_refused_where_one_is_needed(tiny: Model) -> None:
    for settings in ({"head": "L1.H3", "pairs": "repeat"}, {}):
        with pytest.raises(UsageError, match=r"no token of the text comes twice(.|\n)*hint: give a text"):
            headscope.why(tiny, text="God made man", **settings)
    finding = headscope.why(tiny, "L1.H3", text="God made man")["why"]
    assert finding.params["pairs"] == "attended"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("bert", VariantRefused, "is not known as a sum of what its parts write"),
        ("deepseek_v3", VariantRefused, "not known as a sum over writers"),
        ("gemma2", VariantRefused, "softcap"),
    ],
)
def test_refused_families(name: str, error: type[HeadscopeError], message: str) -> None:
    model = opened(name)
    with pytest.raises(error, match=message):
        run(model, head="L1.H0", random_tokens=8)


def test_a_random_model_has_no_induction_head() -> None:
    with pytest.raises(UsageError, match="has no induction head"):
        run(opened("llama_gqa"), random_tokens=8)


def test_cross_attention_is_refused() -> None:
    with pytest.raises(UsageError, match="another stream"):
        run(opened("t5"), head="dec.L0.cross.H1", random_tokens=8)


def test_the_circuit_is_the_first_figure_and_that_of_the_first_sentence(finding: Finding) -> None:
    """Its bands are the numbers of the tables, and the bands into a box add up to those that leave it."""
    circuit = finding.figures[0]
    assert isinstance(circuit, Flow)
    assert finding.headlines[0].figure == circuit.name
    check_figure(circuit)
    for kind, side, table in ((1, "keys", "keys"), (2, "queries", "queries")):
        writers = finding.tables[table]
        bands = circuit.bands[circuit.bands[:, 2] == kind]
        assert circuit.boxes[int(bands[0, 0])].split()[0] == writers["writer"][0]
        assert bands[:3, 3].tolist() == writers["contrast"][:3].to_list()
        reader = circuit.boxes.index(f"{side} of L1.H3")
        into, out = (float(bands[bands[:, end] == reader, 3].sum()) for end in (1, 0))
        assert into == pytest.approx(out, abs=1e-9)
        assert out == pytest.approx(writers["contrast"].sum())
    assert circuit.notes[circuit.boxes.index("L1.H3")][1].endswith("without L0.H0")
    effects = finding.tables["chain"].filter(pl.col("quantity") == "direct effect")
    assert circuit.bands[-2:, 3].tolist() == [effects["value"][0], effects["null_low"][0]]


def test_the_circuit_ends_at_the_head_without_logits() -> None:
    circuit = run(opened("modernbert"), head="L1.H0", random_tokens=8).figures[0]
    assert isinstance(circuit, Flow)
    assert circuit.columns.max() == 2
    check_figure(circuit)


@pytest.mark.parametrize("head", ["L1.H3", "L0.H0"])
def test_further_sequences_are_runs_of_their_own(tiny: Model, head: str) -> None:
    """The masses of the table, from one run of the model for each sequence."""
    finding = run(tiny, head=head, random_tokens=12, sequences=3)
    rows = finding.tables["sequences"]
    assert rows["sequence"].to_list() == [0, 1, 2] * (rows.height // 3)
    site, _ = place(tiny, head)
    for row in rows.iter_rows(named=True):
        tokens = repeated_tokens(tiny, 12, 2, 3)[row["sequence"]]
        patterns = []
        for is_patched in (False, True):
            with tiny.session() as session:
                if is_patched:
                    session.patch_path(row["writer"], (head, row["side"][0]))
                captured = session.capture("pattern", at=head)
                session.run(tokens)
                patterns.append(captured.take()["pattern"][site][0, 0].double())
        if finding.params["pairs"] == "repeat":
            places = [(i, max(j for j in range(i - 1) if tokens[j] == tokens[i]) + 1) for i in range(13, 25)]
        else:
            places = [(i, int(patterns[0][i, 1:].argmax()) + 1) for i in range(2, 25)]
        for name, pattern in zip(("mass", "patched"), patterns, strict=True):
            mean = sum(float(pattern[i, j]) for i, j in places) / len(places)
            assert row[name] == pytest.approx(mean, abs=ROUNDING)


def test_a_text_has_no_further_sequences(tiny: Model) -> None:
    sentence = "God said unto Moses, and Moses said unto God"
    finding = headscope.why(tiny, "L1.H3", text=sentence)["why"]
    assert finding.tables["sequences"].is_empty()
    assert "have no interval" in finding.method
    assert "other sequences" not in finding.headlines[0].full


def test_the_strongest_trigrams_are_those_of_the_whole_matrices(tiny: Model) -> None:
    windows = torch.randint(3, 18, (2, 24), generator=torch.Generator().manual_seed(1))
    site, _ = place(tiny, "L0.H2")
    scores = head_scores(tiny.weight_source(), site, 2, windows)
    ids = scores.ids.tolist()
    assert ids == sorted(set(windows.flatten().tolist()))
    attended, moved = (
        ((matrix := (pair.left.double() @ pair.right.double().T)) - matrix.mean()) / matrix.std(correction=0)
        for pair in (scores.attended, scores.moved)
    )
    queries: Counter[tuple[int, int]] = Counter()
    for row in windows.tolist():
        for position, query in enumerate(row):
            queries.update({(source, query) for source in row[:position]})
    frequent = [pair for pair, count in queries.items() if count >= LEAST_QUERIES]
    assert frequent
    sources, places = frequent_pairs(windows, scores.ids)
    assert sorted(frequent) == sorted((ids[s], ids[q]) for s, q in zip(sources.tolist(), places.tolist(), strict=True))
    expected = {(s, q): float(attended[ids.index(s), ids.index(q)] + moved[ids.index(s)].max()) for s, q in frequent}
    strongest = scores.strongest_of(sources, places, 4)
    assert [pair.score for pair in strongest] == pytest.approx(sorted(expected.values(), reverse=True)[:4], abs=1e-4)
    for pair in strongest:
        assert pair.score == pytest.approx(expected[pair.source, pair.query], abs=1e-4)  # type: ignore[index]
        assert pair.target == ids[int(moved[ids.index(pair.source)].argmax())]
    sums = attended[:, :, None] + moved[:, None, :]
    assert scores.strongest(1)[0].score == pytest.approx(float(sums.max()), abs=1e-4)


@torch.no_grad()
def test_trigrams_are_checked_with_and_without_the_head(tiny: Model) -> None:
    """Against a loop over all queries, with the mean of the head put in by a hook of its output projection."""
    finding = run(tiny, head="L1.H3", random_tokens=8, trigrams=3)
    site, head = place(tiny, "L1.H3")
    trigrams = trigram_checks(tiny, site, head, Params(head="L1.H3", trigrams=3))
    assert trigrams is not None
    projection = tiny.hf.model.layers[1].self_attn.o_proj
    columns, inputs = slice(16 * head, 16 * head + 16), list[Tensor]()
    handle = projection.register_forward_pre_hook(lambda _, given: inputs.append(given[0][..., columns].clone()))
    before = [tiny.hf(window[None]).logits[0].double().log_softmax(-1) for window in trigrams.windows]
    handle.remove()
    mean = torch.cat(inputs).mean((0, 1))

    def replaced(_: object, given: tuple[Tensor]) -> tuple[Tensor]:
        changed = given[0].clone()
        changed[..., columns] = mean
        return (changed,)

    handle = projection.register_forward_pre_hook(replaced)
    after = [tiny.hf(window[None]).logits[0].double().log_softmax(-1) for window in trigrams.windows]
    handle.remove()
    for check in trigrams.checks:
        pair, rows = check.pair, {True: list[list[float]](), False: list[list[float]]()}
        for number, window in enumerate(trigrams.windows.tolist()):
            for position, token in enumerate(window):
                if token == pair.query:
                    states = [float(state[number][position, pair.target]) for state in (before, after)]
                    rows[pair.source in window[:position]].append(states)
        for is_seen, measured in ((True, check.after_source), (False, check.elsewhere)):
            assert measured.flatten().tolist() == pytest.approx(list(chain(*rows[is_seen])), abs=1e-4)
        if check.occurs:
            assert len(check.after_source) >= LEAST_QUERIES
    table = finding.tables["trigrams"]
    assert table["occurrences"].to_list() == [len(check.after_source) for check in trigrams.checks]
    assert table["effect"].to_list()[-1] == pytest.approx(trigrams.checks[-1].effect().mean)
    assert "skip trigrams of the text L1.H3 raises the target" in finding.headlines[-1].full


def test_trigrams_of_a_head_whose_scores_are_not_those_of_its_weights_are_refused(tiny: Model) -> None:
    model = opened("qwen3")
    site, _ = place(model, "L1.H0")
    with pytest.raises(VariantRefused, match=r"no skip trigrams: .* normalises queries and keys"):
        head_scores(model.weight_source(), site, 0, random_text()[None])
    with pytest.raises(UsageError, match="reads no text, and trigrams need one"):
        run(model, head="L1.H0", random_tokens=8, trigrams=2)
    with pytest.raises(UsageError, match="at most 20"):
        run(tiny, trigrams=21)


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return int(end.value.code or 0)


@pytest.mark.parametrize("words", [["L9.H9"], ["L1.H3", "--query", "99", "--key", "3"]])
def test_what_is_not_there_is_refused_before_torch_is_loaded(words: list[str]) -> None:
    code = f"import sys; sys.argv[1:] = {['why', 'tiny', *words]!r}\nfrom headscope.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout == "2 False\n"
    assert words[-1 if len(words) == 1 else 2] in finished.stderr
    assert "0 to 80" in finished.stderr or "L0.H0 to L3.H7" in finished.stderr


def test_a_page_is_written_and_opened_unless_data_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pages: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda page: not pages.append(page))
    words = ["why", "tiny", "L1.H3", "--random-tokens", "12"]
    assert ended(*words, "--format", "json") == ended(*words, "--table", "keys") == 0
    assert not list(tmp_path.iterdir())
    assert ended(*words, "--format", "json", "--open") == 2
    capsys.readouterr()
    for _ in range(2):  # the second run replaces the page of the first
        assert ended(*words, "--open") == 0
    page = tmp_path / "headscope-why" / "report.html"
    streams = capsys.readouterr()
    assert streams.out.startswith("• Without what L0.H0 wrote in its keys, L1.H3 puts ")
    assert str(page) in streams.err
    assert pages == [page.as_uri()] * 2
    assert 'class="wide flow"' in page.read_text()


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("why", "--random-tokens", "12", "--format", "json") == 0
    assert "Without what L0.H0 wrote in its keys" in capsys.readouterr().out
    sentence = "God said unto Moses, and Moses said unto God"
    assert ended("why", "tiny", "L1.H3", "--text", sentence, "--table", "keys") == 0
    assert "L0.H0" in capsys.readouterr().out
    assert ended("why", "tiny", "L1.H3", "--text", "nothing.txt") == 2
    assert "nothing.txt" in capsys.readouterr().err
    assert ended("why", "tiny", "L7.H3") == 2
    assert "L7.H3" in capsys.readouterr().err


def test_the_function(tiny: Model) -> None:
    table = headscope.why(tiny, "L1.H3", text="God said unto Moses, and Moses said unto God")["why"].table
    assert isinstance(table, pl.DataFrame)
    assert "Default: `tiny`" in str(headscope.why.__doc__)

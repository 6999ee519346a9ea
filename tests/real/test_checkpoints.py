"""The real checkpoints: what is known about them is found, and every fast path agrees with its definition there."""

import json
import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.statistics import Request, pattern_statistics
from headscope.core import Site
from headscope.corpora import shipped_text
from headscope.model.model import Model, open_model
from headscope.model.sources.names import resolve
from headscope.model.verify import verify
from tests.tolerances import STREAMED_STATISTICS

NAMES = ["tiny", pytest.param("minilm", marks=pytest.mark.real), pytest.param("smollm2", marks=pytest.mark.real)]


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> Model:
    return open_model(request.param)


def words() -> str:
    return "\n\n".join(shipped_text().documents)


def test_fast_definition_and_transformers_agree(model: Model) -> None:
    checks = verify(model, words())
    assert len(checks) >= 6
    assert [check for check in checks if not check.ok] == []


def test_streams_equal_the_stored_map_in_float64(model: Model) -> None:
    """At a length where peaked heads occur; the stored map is the float32 pattern the model really had."""
    tokens = model.encode(words())[None, :512]
    request = Request(bands=(1, 8, 64))
    with model.session() as session:
        rows, inputs = session.stream(request), session.capture("q", "k")
        session.run(tokens)
        measured, _ = rows.take()
        states = inputs.take()
    n = tokens.shape[1]
    for site in model.sites:
        call, stored = float64_map(site, states["q"][site], states["k"][site])
        want = pattern_statistics(stored, call, request)
        got = measured[site]
        assert float(got.entropy_nats.min()) >= 0.0
        ranges = {"entropy_nats": math.log(n), "participation": 1.0, "diagonal": 1.0, "first": 1.0}
        for name, scale in {**ranges, "distance": n, "distance_sd": n}.items():
            error = float((getattr(got, name) - getattr(want, name)).abs().max()) / scale
            assert error <= STREAMED_STATISTICS, (site.label, name, error)
        for width in request.bands:
            assert float((got.bands[width] - want.bands[width]).abs().max()) <= STREAMED_STATISTICS, (site.label, width)


def float64_map(site: Site, q: Tensor, k: Tensor) -> tuple[Call, Tensor]:
    """The map from the captured queries and keys, by hand in float64."""
    n = q.shape[2]
    positions = torch.arange(n)[None]
    call = Call(q, k, k, site.d_head**-0.5, positions, positions, right=0 if site.causal else None)
    scores = q.double() @ k.double().repeat_interleave(site.n_heads // site.n_kv_heads, 1).transpose(2, 3)
    scores = scores * site.d_head**-0.5
    if site.causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    return call, scores.softmax(-1)


def induction_scores(model: Model, length: int = 48, seed: int = 0) -> dict[str, float]:
    """Mean attention from the second copy of random tokens to what followed the first, by head."""
    generator = torch.Generator().manual_seed(seed)
    size = model.hf.config.vocab_size
    once = torch.randint(size // 10, size, (8, length), generator=generator)
    bos = torch.full((8, 1), model.tokenizer.bos_token_id or 0)
    with model.session() as session:
        maps = session.capture("pattern")
        session.run(torch.cat([bos, once, once], dim=1))
        patterns = maps.take()["pattern"]
    second = torch.arange(length + 1, 2 * length + 1)
    return {
        site.head_label(head): float(pattern[:, head, second, second - length + 1].mean())
        for site, pattern in patterns.items()
        for head in range(site.n_heads)
    }


def test_tiny_has_an_induction_head(tiny: Model) -> None:
    scores = induction_scores(tiny)
    assert max(scores.values()) >= 0.5


def test_an_untrained_model_has_none(tiny: Model) -> None:
    with tiny.edit() as edit:
        edit.initialise()
        assert max(induction_scores(tiny).values()) < 0.1


@pytest.mark.real
def test_the_known_induction_heads_of_smollm2() -> None:
    scores = induction_scores(open_model("smollm2"))
    assert max(scores, key=lambda head: scores[head]) == "L18.H6"
    assert scores["L18.H6"] > 0.85
    assert scores["L17.H3"] > 0.7


@pytest.mark.real
def test_smollm2_reads_english_and_not_shuffled_words() -> None:
    smollm2 = open_model("smollm2")
    text = words()[:4000]
    pieces = text.split()
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = " ".join(pieces[i] for i in order)
    assert smollm2.perplexity(shuffled).perplexity > 8 * smollm2.perplexity(text).perplexity


@pytest.mark.real
def test_smollm2_says_that_it_was_quantised() -> None:
    smollm2 = open_model("smollm2")
    assert "Q4_1" in smollm2.spec.dequantised
    assert "Q4_1" in smollm2.spec.weight_warning
    assert open_model("tiny").spec.weight_warning == ""


@pytest.mark.real
def test_minilm_knows_related_sentences() -> None:
    minilm = open_model("minilm")
    sentences = ("A cat sits on the mat.", "A kitten rests on a rug.", "Stocks fell.")
    cat, kitten, stocks = (embedding(minilm, sentence) for sentence in sentences)
    assert float(cat @ kitten) > 0.4 > 0.2 > float(cat @ stocks)


def embedding(model: Model, text: str) -> Tensor:
    with torch.no_grad():
        mean = model.hf(input_ids=model.encode(text)[None]).last_hidden_state[0].mean(dim=0)
    return mean / mean.norm()


def test_tiny_beats_a_bigram_model_on_held_out_text() -> None:
    """Both were measured on held-out text after the training; the numbers are in the folder of the weights."""
    measured = json.loads((resolve("tiny").folder / "training.json").read_text())
    assert measured["finished"]
    bigram = measured["baseline_nats_per_token"]["bigram"]
    assert all(nats < bigram for nats in measured["results"]["held_out_nats_per_token"].values())


def test_tiny_beats_a_bigram_model_of_this_very_text(tiny: Model) -> None:
    """Here and now, on text that tiny has not seen: a bigram model fitted to all documents but the one it reads."""
    documents = [tiny.encode(document).tolist() for document in shipped_text().documents]
    ours, theirs, n_tokens = 0.0, 0.0, 0
    for held_out, document in enumerate(shipped_text().documents):
        fitted = [tokens for index, tokens in enumerate(documents) if index != held_out]
        got = tiny.perplexity(document)
        ours += got.nats_per_token * got.n_tokens
        theirs += bigram_nats(fitted, documents[held_out], tiny.spec.vocabulary)
        n_tokens += got.n_tokens
    assert ours / n_tokens < theirs / n_tokens - 0.3


def bigram_nats(fitted: list[list[int]], tokens: list[int], size: int) -> float:
    """Total nats of `tokens` under an interpolated bigram model: λ c(ab)/c(a) + (1 − λ) (c(b) + 1)/(N + V)."""
    pairs = Counter(pair for each in fitted for pair in pairwise(each))
    first = Counter(token for each in fitted for token in each[:-1])
    single = Counter(token for each in fitted for token in each)
    total = sum(single.values())
    nats = 0.0
    for a, b in pairwise(tokens):
        direct = pairs[a, b] / first[a] if first[a] else 0.0
        nats -= math.log(0.5 * direct + 0.5 * (single[b] + 1) / (total + size))
    return nats

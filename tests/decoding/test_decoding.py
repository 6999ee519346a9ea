"""Decoding is that of the definition, of exhaustive search, and of transformers."""

import copy
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headscope.decoding import Beam, Greedy, Sampling, SpecialTokens, decode, special_tokens, token_choice
from headscope.decoding import definition as slow
from headscope.errors import NumericsError, UsageError
from tests.decoding.models import END, MODELS, PADDING, START, doubled, llama, marian, prompts

MOST = 7

# Log-probabilities of up to eight tokens from float32 logits of size 10 against float64; scores are these numbers times
# a power of the length.
LOG_PROBABILITY = 2e-5
SCORE = 4e-6


def assert_same(answer, expected):
    assert [part.tokens for part in answer] == [part.tokens for part in expected]
    assert [part.has_ended for part in answer] == [part.has_ended for part in expected]
    for part, other in zip(answer, expected, strict=True):
        assert part.log_probability == pytest.approx(other.log_probability, abs=LOG_PROBABILITY)
        assert part.score == pytest.approx(other.score, abs=LOG_PROBABILITY, rel=SCORE)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cache", [True, False])
def test_greedy_texts_are_those_of_the_definition(name, cache):
    model, texts = MODELS[name](scale=2.0), prompts(9)
    exact, special = doubled(model), special_tokens(model)
    answers = decode(model, texts, Greedy(), most_tokens=MOST, cache=cache, rows=4)
    for text, answer in zip(texts, answers, strict=True):
        assert_same(answer, [slow.greedy(slow.next_token(exact, text, special), special, MOST)])
    assert len({answer[0].tokens for answer in answers}) > 3


BEAMS = [
    Beam(width=1),
    Beam(width=4, n_best=4),
    Beam(width=3, n_best=2, length_penalty=0.0),
    Beam(width=4, n_best=4, length_penalty=1.7),
    Beam(width=3, n_best=3, length_penalty=-1),
    Beam(width=4, n_best=3, stopping="certain"),
    Beam(width=12, n_best=12, stopping="certain"),
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("beam", BEAMS, ids=str)
def test_beams_are_those_of_the_definition(name, beam):
    model, texts = MODELS[name](scale=2.0), prompts(6)
    exact, special = doubled(model), special_tokens(model)
    answers = decode(model, texts, beam, most_tokens=MOST, rows=4)
    for text, answer in zip(texts, answers, strict=True):
        assert_same(answer, slow.beam_search(slow.next_token(exact, text, special), special, beam, MOST))
        assert [part.score for part in answer] == sorted((part.score for part in answer), reverse=True)


@pytest.mark.parametrize("make", [marian, llama])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_a_wide_beam_is_exhaustive(make, length_penalty):
    """With five tokens and texts of up to four, a beam of 5⁴ holds every beginning."""
    model, texts = make(5, scale=1.5), prompts(3, 5)
    exact, special = doubled(model), special_tokens(model)
    beam = Beam(width=5**4, n_best=12, length_penalty=length_penalty, stopping="certain")
    for text, answer in zip(texts, decode(model, texts, beam, most_tokens=4), strict=True):
        every = list(slow.all_texts(slow.next_token(exact, text, special), special, beam, 4))
        assert len(every) == 1 + 4 + 16 + 64 * 5
        # Where nothing ended a text too early, all probabilities add up to 1.
        assert sum(torch.tensor([part.log_probability for part in every]).exp().tolist()) == pytest.approx(1.0)
        best = sorted(every, key=lambda part: -part.score)[:12]
        assert_same(answer, best)


def test_a_narrow_beam_misses_the_best_text():
    """The comparison with exhaustive search can fail: a beam of one is not enough."""
    misses = 0
    for seed in range(6):
        model = llama(5, seed=seed)
        exact, special, beam = doubled(model), special_tokens(model), Beam(width=1)
        every = slow.all_texts(slow.next_token(exact, [3, 4], special), special, beam, 4)
        best = max(every, key=lambda part: part.score)
        misses += decode(model, [[3, 4]], beam, most_tokens=4)[0][0].tokens != best.tokens
    assert misses > 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("beam", "early_stopping"),
    [
        (Beam(width=4, n_best=4), False),
        (Beam(width=3, n_best=3, length_penalty=0.5), False),
        (Beam(width=5, n_best=5, stopping="certain"), "never"),
        (Beam(width=2, n_best=1, length_penalty=0.0, stopping="certain"), "never"),
    ],
    ids=str,
)
def test_beams_are_those_of_transformers(seed, beam, early_stopping):
    model, texts = marian(30, seed=seed, scale=2.0), prompts(7, 30, seed)
    longest = max(map(len, texts))
    ids = torch.tensor([[*text, *[PADDING] * (longest - len(text))] for text in texts])
    output = model.generate(
        ids,
        attention_mask=(torch.arange(longest) < torch.tensor([[len(text)] for text in texts])).long(),
        num_beams=beam.width,
        num_return_sequences=beam.n_best,
        length_penalty=float(beam.length_penalty),
        early_stopping=early_stopping,
        max_new_tokens=MOST,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    answers = decode(model, texts, beam, most_tokens=MOST, rows=4)
    hypotheses = [part for answer in answers for part in answer]
    assert len(hypotheses) == len(output.sequences)
    scores = output.sequences_scores.tolist()
    for part, sequence, score in zip(hypotheses, output.sequences.tolist(), scores, strict=True):
        tokens = [START, *part.tokens, *([END] if part.has_ended else [])]
        assert sequence[: len(tokens)] == tokens
        assert set(sequence[len(tokens) :]) <= {PADDING}
        assert part.score == pytest.approx(score, abs=LOG_PROBABILITY)


@pytest.mark.parametrize("make", [marian, llama])
def test_greedy_texts_are_those_of_transformers(make):
    model, texts = make(30, scale=2.0), prompts(5, 30)
    for text, answer in zip(texts, decode(model, texts, Greedy(), most_tokens=MOST), strict=True):
        output = model.generate(torch.tensor([text]), max_new_tokens=MOST, do_sample=False, num_beams=1)[0].tolist()
        start = 1 if make is marian else len(text)
        assert output[start:] == [*answer[0].tokens, *([END] if answer[0].has_ended else [])]


SEARCHES = [Greedy(), Beam(width=4, n_best=2), Sampling(top_k=6, seed=3)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_the_cache_changes_nothing(name, search):
    model, texts = MODELS[name](scale=2.0), prompts(7)
    with_cache = decode(model, texts, search, most_tokens=MOST)
    without = decode(model, texts, search, most_tokens=MOST, cache=False)
    for answer, expected in zip(with_cache, without, strict=True):
        assert_same(answer, expected)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_prompts_do_not_depend_on_each_other(search):
    model, texts = marian(scale=2.0), prompts(7)
    together = decode(model, texts, search, most_tokens=MOST)
    apart = decode(model, texts, search, most_tokens=MOST, rows=1)
    for answer, expected in zip(together, apart, strict=True):
        assert_same(answer, expected)


def test_forbidden_tokens_are_never_written():
    model, texts = marian(scale=2.0), prompts(7)
    free = decode(model, texts, Greedy(), most_tokens=MOST)
    most_written = free[0][0].tokens[0]
    special = replace(special_tokens(model), forbidden=(most_written,))
    exact = doubled(model)
    for search in SEARCHES:
        answers = decode(model, texts, search, most_tokens=MOST, special=special)
        assert not any(most_written in part.tokens for answer in answers for part in answer)
    answer = decode(model, texts[:1], SEARCHES[1], most_tokens=MOST, special=special)[0]
    assert_same(answer, slow.beam_search(slow.next_token(exact, texts[0], special), special, SEARCHES[1], MOST))


def test_a_text_without_an_end_is_cut():
    model = marian(scale=2.0)
    special = SpecialTokens(ends=(), padding=PADDING, start=START)
    for search in SEARCHES:
        for answer in decode(model, prompts(3), search, most_tokens=5, special=special):
            assert all(len(part.tokens) == 5 and not part.has_ended for part in answer)


def test_several_ends_end():
    model, texts = marian(scale=2.0), prompts(5)
    special = SpecialTokens(ends=(2, 3, 4), padding=PADDING, start=START)
    exact, beam = doubled(model), Beam(width=3, n_best=3)
    for text, answer in zip(texts, decode(model, texts, beam, most_tokens=MOST, special=special), strict=True):
        assert_same(answer, slow.beam_search(slow.next_token(exact, text, special), special, beam, MOST))


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=12),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.sampled_from([None, 1, 3, 20]),
    st.sampled_from([0.01, 0.5, 0.9, 1.0]),
)
def test_chances_are_those_of_the_definition(logits, temperature, top_k, top_p):
    distinct = torch.tensor(logits) + 1e-3 * torch.arange(len(logits))  # topk orders ties as it likes
    sampling = Sampling(temperature, top_k, top_p)
    probabilities, tokens = token_choice.chances(distinct[None], sampling)
    fast = torch.zeros(len(logits), dtype=torch.float64).scatter_(0, tokens[0], probabilities[0])
    assert torch.allclose(
        fast, torch.tensor(token_choice.definition(distinct, sampling), dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_known_chances():
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    assert token_choice.definition(logits, Sampling(top_k=2)) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert token_choice.definition(logits, Sampling(top_p=0.6)) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert token_choice.definition(logits, Sampling(top_p=0.4)) == pytest.approx([1, 0, 0, 0])
    assert token_choice.definition(logits, Sampling(temperature=0.5))[0] == pytest.approx(0.25 / 0.34375)


def test_lots_draw_by_chance():
    """Evenly spaced lots draw each token in proportion to its chance."""
    logits, sampling, count = torch.tensor([1.0, -0.5, 2.0, 0.3, -4.0]), Sampling(0.7, top_p=0.95), 10_000
    lots = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens = token_choice.next_tokens(logits.expand(count, -1), sampling, lots)
    shares = torch.bincount(tokens, minlength=5).double() / count
    assert torch.allclose(
        shares, torch.tensor(token_choice.definition(logits, sampling), dtype=torch.float64), atol=1e-3
    )
    edge = token_choice.next_tokens(logits[None], sampling, torch.tensor([1.0 - 1e-17], dtype=torch.float64))
    assert token_choice.definition(logits, sampling)[int(edge)] > 0


def test_samples_depend_on_the_seed():
    model, texts = marian(scale=1.0), prompts(6)
    first, again, other = (decode(model, texts, Sampling(seed=seed), most_tokens=MOST) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    same_prompt = decode(model, [[3, 4]] * 6, Sampling(), most_tokens=MOST)
    assert len({answer[0].tokens for answer in same_prompt}) > 3


def test_the_log_probability_of_a_sample_is_that_of_the_model():
    model = marian(scale=2.0)
    exact, special = doubled(model), special_tokens(model)
    sample = decode(model, [[3, 4, 5]], Sampling(temperature=2.0, top_k=5), most_tokens=MOST)[0][0]
    log_p, total = slow.next_token(exact, [3, 4, 5], special), 0.0
    tokens = [*sample.tokens, *([END] if sample.has_ended else [])]
    for length, token in enumerate(tokens):
        total += log_p(tuple(tokens[:length]))[token]
    assert sample.log_probability == pytest.approx(total, abs=LOG_PROBABILITY)


def test_the_model_is_left_as_it_was():
    model = marian(scale=2.0)
    model.train()
    model.model.encoder.eval()
    modes = [module.training for module in model.modules()]
    weights = copy.deepcopy(model.state_dict())
    torch.manual_seed(0)
    before = torch.get_rng_state()
    decode(model, prompts(4), Sampling(), most_tokens=MOST)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: decode(marian(), [[3], []], Greedy(), most_tokens=3), "prompt 1 is empty"),
        (lambda: decode(marian(), [[3, 99]], Greedy(), most_tokens=3), "prompt 0 holds tokens from 3 to 99"),
        (lambda: decode(marian(), [[3]], Greedy(), most_tokens=0), "at least 1 token"),
        (lambda: decode(marian(), [[3]], Greedy(), most_tokens=3, rows=0), "at least 1 prompt"),
        (lambda: decode(marian(), [[3] * 65], Greedy(), most_tokens=3), "the model has 64 positions"),
        (lambda: decode(llama(), [[3] * 60], Greedy(), most_tokens=5), "has 60 tokens and 5 are to be written"),
        (lambda: Sampling(temperature=0), "temperature must be greater than 0"),
        (lambda: Sampling(top_k=0), "top_k must be at least 1"),
        (lambda: Sampling(top_p=1.5), "top_p must be"),
        (lambda: Beam(width=2, n_best=3), "width 2 cannot give 3 hypotheses"),
        (lambda: Beam(width=0, n_best=0), "width 0 cannot give 0"),
        (lambda: Beam(stopping="soon"), "stopping must be one of likely, certain"),
        (lambda: Beam(length_penalty=float("nan")), "length penalty must be finite"),
    ],
)
def test_what_cannot_be_decoded_is_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_a_decoder_without_a_first_token_is_refused():
    model = nn.Linear(1, 1)
    model.config = SimpleNamespace(is_encoder_decoder=True, eos_token_id=2, pad_token_id=0)
    with pytest.raises(UsageError, match="names no first token for its decoder"):
        decode(model, [[3]], Greedy(), most_tokens=3)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_weights_that_are_not_finite_are_refused(search):
    model = marian()
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    with pytest.raises(NumericsError, match="not finite"):
        decode(model, [[3, 4]], search, most_tokens=3)


def test_no_prompts_have_no_answers():
    assert decode(marian(), [], Greedy(), most_tokens=3) == []


def test_settings_need_no_torch():
    code = "import sys; from headscope.decoding import Beam; Beam(); raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

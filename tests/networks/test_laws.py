"""Laws of the networks: order of time, padding, caches, ties, single channels, saving, and refusals."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from headscope.errors import UsageError
from headscope.networks import DecoderConfig, RecurrentTranslator, TranslatorConfig, register
from headscope.networks.positions import SinusoidalPositions, turned
from tests.networks.small_networks import (
    SINGLE_STACKS,
    SIZES,
    TRANSLATORS,
    built,
    inputs,
    logits,
    recurrent,
    tokens,
)
from tests.tolerances import NETWORK_AGREEMENT

DECODERS = {name: config for name, config in SINGLE_STACKS.items() if name != "encoder"}
RECURRENT = {f"{cell} {score}": recurrent(cell, score) for cell, score in (("lstm", "bahdanau"), ("gru", "luong_dot"))}
SEQ2SEQ: dict[str, Any] = {**TRANSLATORS, **RECURRENT}
ALL: dict[str, Any] = {**SEQ2SEQ, **SINGLE_STACKS}


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return float((a - b).abs().max() / b.abs().max()) < NETWORK_AGREEMENT


@pytest.mark.parametrize("name", [*SEQ2SEQ, *DECODERS])
def test_no_output_depends_on_later_tokens(name):
    """The gradient of each output with respect to later inputs is 0, and to earlier ones it is not."""
    network = built(ALL[name])
    written = tokens(1, 7, seed=1)
    vectors = network.get_input_embeddings()(written).detach().requires_grad_()
    if network.config.is_encoder_decoder:
        out = network(input_ids=tokens(1, 9), decoder_inputs_embeds=vectors).logits
    else:
        out = network(inputs_embeds=vectors).logits
    (gradient,) = torch.autograd.grad(out[0, 4].square().sum(), vectors)
    assert not gradient[0, 5:].any()
    assert gradient[0, 4].any()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ALL)
def test_padding_changes_nothing(name, side):
    network = built(ALL[name])
    mechanisms = getattr(network.config, "mechanisms", None)
    if side == "left" and isinstance(network, RecurrentTranslator):
        with pytest.raises(UsageError, match="pad on the right"):
            network(input_ids=tokens(1, 3), attention_mask=torch.tensor([[0, 1, 1]]), decoder_input_ids=tokens(1, 2))
        return
    source, padding = tokens(1, 6), torch.full((1, 3), network.config.pad_token_id)
    parts, at = ((source, padding), slice(0, 6)) if side == "right" else ((padding, source), slice(3, 9))
    padded = torch.cat(parts, dim=1)
    mask = torch.cat([(part != network.config.pad_token_id).long() for part in parts], dim=1)
    more = {"decoder_input_ids": tokens(1, 5, seed=1)} if network.config.is_encoder_decoder else {}
    bare = logits(network, input_ids=source, **more)
    # The second text of the batch is not padded: rows do not depend on each other either.
    batch = {name: value.repeat(2, 1) for name, value in more.items()}
    both = logits(
        network,
        input_ids=torch.cat([padded, tokens(1, 9, seed=5)]),
        attention_mask=torch.cat([mask, torch.ones_like(mask)]),
        **batch,
    )
    assert near(both[:1] if more else both[:1, at], bare), mechanisms


@pytest.mark.parametrize("name", [*TRANSLATORS, *DECODERS])
def test_cached_steps_equal_one_forward(name):
    network = built(ALL[name])
    read = inputs(network)
    written = read.pop("decoder_input_ids") if network.config.is_encoder_decoder else read.pop("input_ids")
    letter = "decoder_input_ids" if read else "input_ids"
    whole = logits(network, **{letter: written}, **read)
    cache, steps = None, []
    for piece in written.split([3, *[1] * (written.shape[1] - 3)], dim=1):
        with torch.no_grad():
            answer = network(**{letter: piece}, **read, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        steps.append(answer.logits)
    assert near(torch.cat(steps, dim=1), whole)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", [*SEQ2SEQ, *DECODERS])
def test_generation_is_the_same_with_and_without_a_cache(name, beams):
    network = built(ALL[name])
    mask = torch.ones(2, 9, dtype=torch.long)
    options = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False, "attention_mask": mask}
    cached, uncached = (network.generate(tokens(2, 9), use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached, uncached)
    if beams == 1 and network.config.is_encoder_decoder:
        steps = logits(network, input_ids=tokens(2, 9), decoder_input_ids=cached[:, :-1]).argmax(-1)
        first_end = [row.tolist().index(1) if 1 in row else len(row) for row in steps]
        for row, end in enumerate(first_end):
            assert torch.equal(cached[row, 1 : end + 1], steps[row, :end])


def test_the_output_is_tied_with_the_embedding():
    network = built(TRANSLATORS["pre"])
    tables = [network.lm_head, network.model.encoder.embed_tokens, network.model.decoder.embed_tokens]
    assert len({id(table.weight) for table in tables}) == 1
    untied = built(TRANSLATORS["untied"])
    assert untied.lm_head.weight is not untied.model.encoder.embed_tokens.weight
    assert untied.model.decoder.embed_tokens.weight is not untied.model.encoder.embed_tokens.weight


@pytest.mark.parametrize("name", ALL)
def test_saved_networks_open_with_the_same_logits(name, tmp_path):
    register()
    network = built(ALL[name])
    network.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} <= {"config.json", "generation_config.json", "model.safetensors"}
    auto = AutoModelForSeq2SeqLM if network.config.is_encoder_decoder else AutoModelForCausalLM
    auto = AutoModelForMaskedLM if name == "encoder" else auto
    opened = auto.from_pretrained(tmp_path).eval()
    assert type(opened) is type(network)
    weights, opened_weights = network.state_dict(), opened.state_dict()
    assert weights.keys() == opened_weights.keys()
    assert all(torch.equal(weight, opened_weights[key]) for key, weight in weights.items())
    # torch's LSTM rounds by where its weights lie in memory; all else is equal to the last bit.
    same = near if isinstance(network, RecurrentTranslator) else torch.equal
    assert same(logits(opened, **inputs(network)), logits(network, **inputs(network)))


def test_one_channel_per_head():
    """As many heads as channels: each scores by the product of two numbers."""
    config = TranslatorConfig(**{**SIZES, "num_attention_heads": 24}, encoder_layers=1, decoder_layers=1)
    assert config.d_head == 1
    network = built(config)
    from headscope.networks.definition import defined_logits

    read = inputs(network, batch=1)
    exact = defined_logits(config, network.state_dict(), *(text[0] for text in read.values()))
    assert near(logits(network, **read)[0].double(), exact)


def test_sinusoidal_positions_are_the_formula():
    vectors = SinusoidalPositions(7)(torch.arange(40)[None], torch.float64)[0]
    for position in (0, 1, 17, 39):
        for channel in range(7):
            angle = torch.tensor(position / 10000 ** (2 * (channel // 2) / 7), dtype=torch.float64)
            expected = angle.cos() if channel % 2 else angle.sin()
            assert abs(float(vectors[position, channel] - expected)) < 1e-12


def test_rotary_products_depend_on_differences():
    from headscope.networks.positions import rotary_angles

    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64) for _ in range(2))

    def product(i: int, j: int) -> float:
        (a, b) = (rotary_angles(torch.tensor([[at]]), 8, 10000.0)[:, None] for at in (i, j))
        return float((turned(q, a.cos(), a.sin()) * turned(k, b.cos(), b.sin())).sum())

    assert abs(product(5, 2) - product(45, 42)) < 1e-12
    assert abs(product(5, 2) - product(5, 3)) > 1e-3


def test_loss_is_the_mean_cross_entropy_of_the_labels():
    network = built(TRANSLATORS["pre"])
    labels = tokens(2, 7, seed=2)
    labels[1, 5:] = -100
    answer = network(input_ids=tokens(2, 9), labels=labels)
    shifted = torch.cat([torch.zeros(2, 1, dtype=torch.long), labels[:, :-1]], dim=1).clamp_min(0)
    probabilities = logits(network, input_ids=tokens(2, 9), decoder_input_ids=shifted).double().log_softmax(-1)
    expected = -probabilities.gather(2, labels.clamp_min(0)[..., None])[..., 0][labels != -100].mean()
    assert abs(float(answer.loss.detach() - expected)) < 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 25}, "cannot be cut into 4 heads"),
        ({"norm": "batch"}, "expected one of layer, rms, none"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"dropout": 1.0}, "below 1"),
        ({"num_key_value_heads": 3}, "cannot share 3"),
        ({"num_key_value_heads": 2, "shared_queries_and_keys": True}, "cannot share a matrix"),
        ({"positions": "rotary", "head_dim": 5}, "odd"),
        ({"num_attention_heads": 10**9, "head_dim": 1}, "at most 65536"),
        ({"mechanisms": ["window(left=4)"]}, "expected heads by mechanism"),
        ({"mechanisms": {"window(left=4)": "L7"}}, "matches no head"),
        ({"mechanisms": {"windaw(left=4)": "enc.L0"}}, "windaw"),
        ({"mechanisms": {"window(left=4)": "enc.L0", "dense": "enc.L0.H1"}}, "replaced twice"),
        ({"mechanisms": {"window(left=4)": "enc.L0"}, "attention_dropout": 0.1}, "drop no attention weights"),
    ],
)
def test_impossible_networks_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        TranslatorConfig(**{**SIZES, **settings})


def test_impossible_recurrent_networks_are_refused():
    with pytest.raises(UsageError, match="same number of layers"):
        type(recurrent("gru", "none"))(encoder_layers=2, decoder_layers=1)
    with pytest.raises(UsageError, match="expected one of lstm, gru"):
        recurrent("rnn", "none")


def test_a_text_beyond_the_learnt_positions_is_refused():
    network = built(DecoderConfig.gpt(**SIZES, num_hidden_layers=1, max_position_embeddings=8))
    with pytest.raises(UsageError, match=r"9 tokens.*8 positions"):
        network(input_ids=tokens(1, 9))


def test_mechanisms_that_need_all_queries_refuse_a_cache():
    rules = {"low_rank(method='nystrom', segment=2)": "L0.H0"}
    network = built(DecoderConfig.llama(**SIZES, num_hidden_layers=1, mechanisms=rules))
    cache = network(input_ids=tokens(1, 6), use_cache=True).past_key_values
    with pytest.raises(UsageError, match="use_cache=False"):
        network(input_ids=tokens(1, 1), past_key_values=cache)
    # Without being asked for a cache, generation takes none.
    mask = torch.ones(1, 6, dtype=torch.long)
    written = network.generate(tokens(1, 6), attention_mask=mask, max_new_tokens=3, do_sample=False)
    whole = logits(network, input_ids=written[:, :-1]).argmax(-1)
    assert torch.equal(written[:, -1:], whole[:, -1:])
    with pytest.raises(UsageError, match=r"dec\.L0\.cross"):
        built(TranslatorConfig(**SIZES, mechanisms={"low_rank(method='nystrom', segment=2)": "dec.cross"}))

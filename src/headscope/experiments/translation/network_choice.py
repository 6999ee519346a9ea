"""The network that the settings choose, with fresh weights."""

import torch

from headscope.corpora.byte_pair_tokenizer import BOS_ID, EOS_ID, PAD_ID
from headscope.experiments.translation.settings import Network, Params
from headscope.networks import RecurrentConfig, RecurrentTranslator, Translator, TranslatorConfig

_TOKENS = {
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "decoder_start_token_id": BOS_ID,
}


def network_of(params: Params) -> Translator | RecurrentTranslator:
    """The network of the settings; torch's random generator is left as it was."""
    with torch.random.fork_rng([]):
        torch.manual_seed(params.seed)
        return _transformer(params) if params.network is Network.TRANSFORMER else _recurrent(params)


def _transformer(params: Params) -> Translator:
    return Translator(
        TranslatorConfig(
            **_shared(params),
            num_attention_heads=params.heads,
            intermediate_size=4 * params.width,
            max_position_embeddings=params.longest,
            initialisation=params.initialisation.value,
        )
    )


def _recurrent(params: Params) -> RecurrentTranslator:
    return RecurrentTranslator(RecurrentConfig(**_shared(params), cell=params.network.value, score=params.score.value))


def _shared(params: Params) -> dict[str, int | float]:
    sizes = {"vocab_size": params.vocabulary, "hidden_size": params.width, "dropout": params.dropout}
    return {**_TOKENS, **sizes, "encoder_layers": params.layers, "decoder_layers": params.layers}

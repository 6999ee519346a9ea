"""Random models small enough for exhaustive search."""

import copy

import torch
from torch import nn

PADDING, START, END = 0, 1, 2


def marian(vocabulary: int = 12, *, seed: int = 0, scale: float = 1.0):
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(seed)
    config = MarianConfig(
        **dict.fromkeys(("vocab_size", "decoder_vocab_size"), vocabulary),
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 32),
        d_model=16,
        max_position_embeddings=64,
        pad_token_id=PADDING,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        tie_word_embeddings=False,  # tied, a random model repeats its input
        init_std=0.3,
    )
    return sharpened(MarianMTModel(config), scale)


def llama(vocabulary: int = 12, *, seed: int = 0, scale: float = 1.0):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"pad_token_id": PADDING, "bos_token_id": START, "eos_token_id": END}
    config = LlamaConfig(vocab_size=vocabulary, max_position_embeddings=64, initializer_range=0.3, **sizes, **ids)
    return sharpened(LlamaForCausalLM(config), scale)


def gpt2(vocabulary: int = 12, *, seed: int = 0, scale: float = 1.0):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    ids = {"pad_token_id": PADDING, "bos_token_id": START, "eos_token_id": END}
    config = GPT2Config(vocab_size=vocabulary, initializer_range=0.3, **sizes, **ids)
    return sharpened(GPT2LMHeadModel(config), scale)


MODELS = {"marian": marian, "llama": llama, "gpt2": gpt2}


def sharpened(model: nn.Module, scale: float) -> nn.Module:
    """Larger logits, so that tokens differ in probability as in a trained model."""
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, logits: scale * logits)
    return model.eval()


def doubled(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def prompts(count: int, vocabulary: int = 12, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to 7 tokens."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 8, (count,), generator=generator).tolist()
    return [torch.randint(3, vocabulary, (size,), generator=generator).tolist() for size in sizes]

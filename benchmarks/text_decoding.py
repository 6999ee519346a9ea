"""Compare `headscope.decoding` with `generate` of transformers, on the same random weights and in turns.

    python -m benchmarks.text_decoding [--repeats 7] [--prompts 32] [--tokens 24]

A Marian of 3 + 3 layers and a Llama of 4, width 256, vocabulary 7000, prompts of 5 to 24 tokens. Random models end no
text, so that both write the same number of tokens. Times are processor times of one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

VOCABULARY = 7000
SIZES = {"d_model": 256, "heads": 4}


def main() -> None:
    """Measure every model and search and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=24)
    arguments = parser.parse_args()
    import torch

    from headscope.decoding import Beam, Greedy, Sampling, decode

    torch.set_num_threads(1)
    torch.manual_seed(0)
    searches = {
        "greedy": (Greedy(), {"do_sample": False}),
        "beam of 4": (Beam(4), {"do_sample": False, "num_beams": 4}),
        "top 50, 0.9": (Sampling(top_k=50, top_p=0.9), {"do_sample": True, "top_k": 50, "top_p": 0.9}),
    }
    sizes = torch.randint(5, 25, (arguments.prompts,)).tolist()
    prompts = [torch.randint(3, VOCABULARY, (size,)).tolist() for size in sizes]
    print("| model | search | headscope, s | generate, s | faster |\n" + "|---" * 5 + "|")
    for name, model in {"Marian": marian(), "Llama": llama()}.items():
        ids = padded(prompts, left=name == "Llama")
        for words, (search, options) in searches.items():
            ours, theirs = in_turns(
                lambda model=model, search=search: decode(model, prompts, search, most_tokens=arguments.tokens),
                lambda model=model, ids=ids, options=options: model.generate(
                    ids, attention_mask=(ids != 0).long(), max_new_tokens=arguments.tokens, **options
                ),
                arguments.repeats,
            )
            faster = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            times = f"{statistics.median(ours):.2f} | {statistics.median(theirs):.2f}"
            print(f"| {name} | {words} | {times} | {faster:.2f} × |", flush=True)


def in_turns(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> tuple[list[float], list[float]]:
    """The seconds of both, one after the other; the first turn does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for function, seconds in zip((ours, theirs), times, strict=True):
            start = time.process_time()
            function()
            seconds.append(time.process_time() - start)
    return times[0][1:], times[1][1:]


def padded(prompts: list[list[int]], *, left: bool) -> Any:
    """Prompts as `generate` takes them."""
    import torch

    longest = max(map(len, prompts))
    gaps = [[0] * (longest - len(prompt)) for prompt in prompts]
    return torch.tensor([gap + prompt if left else prompt + gap for gap, prompt in zip(gaps, prompts, strict=True)])


def marian() -> Any:
    """A random encoder–decoder."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        **dict.fromkeys(("vocab_size", "decoder_vocab_size"), VOCABULARY),
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 3),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), SIZES["heads"]),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 1024),
        **{"d_model": SIZES["d_model"], "max_position_embeddings": 128, "forced_eos_token_id": None},
        **{"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2},
    )
    return MarianMTModel(config).eval()


def llama() -> Any:
    """A random decoder-only model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **{"vocab_size": VOCABULARY, "hidden_size": SIZES["d_model"], "intermediate_size": 704},
        **{"num_hidden_layers": 4, "num_attention_heads": SIZES["heads"], "num_key_value_heads": 2},
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    )
    return LlamaForCausalLM(config).eval()


if __name__ == "__main__":
    main()

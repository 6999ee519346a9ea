"""Compare training steps of the encoder–decoder with torch's nn.Transformer and transformers' Marian of the same size.

The network of headscope also takes its steps as `study translation` does: with stored maps, and with products in
bfloat16.

    python -m benchmarks.training [--turns 7] [--steps 3] [--vocabulary 7000] [--batch 32] [--dropout 0.0]

One process, one thread; the networks take turns, in another order each time, on the same padded batches. A step is
forward, cross-entropy, backward and AdamW. Times are CPU seconds; the table holds medians of the ratios within a turn,
with the smallest and largest. All have width 256, 4 heads, 3 + 3 layers, a feed-forward part of 1,024 with ReLU, norms
after the parts, and one table for both texts and the output.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

OURS, TORCH, MARIAN = "headscope", "nn.Transformer", "Marian"
STORED, LOW = "headscope, stored maps", "headscope, stored maps, bfloat16"
WIDTH, HEADS, LAYERS, WIDE = 256, 4, 3, 1024
LENGTHS = (12, 36)  # of source and target, in tokens


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=7000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dropout", type=float, default=0.0)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    batches = [batch_of(arguments.batch, arguments.vocabulary) for _ in range(arguments.steps)]
    tokens = sum(int(real.sum()) + int((labels != -100).sum()) for _, real, _, labels in batches)
    makers = {
        OURS: translator,
        STORED: storing_translator,
        LOW: storing_translator,
        TORCH: torch_transformer,
        MARIAN: marian,
    }
    contenders = {
        name: step_of(make(arguments.vocabulary, arguments.dropout), low=name == LOW) for name, make in makers.items()
    }
    for step in contenders.values():  # the first step of a network allocates its gradients
        step(batches[0])
    turns = [turn(contenders, batches, number) for number in range(arguments.turns)]
    print(f"{tokens} tokens in {arguments.steps} batches of {arguments.batch}, {arguments.turns} turns\n")
    print("| network | tokens per CPU second | headscope is faster by |\n|---|---|---|")
    for name in contenders:
        ratios = [seconds[name] / seconds[OURS] for seconds in turns]
        speed = tokens / statistics.median(seconds[name] for seconds in turns)
        spread = "" if name == OURS else f"{statistics.median(ratios):.2f} × ({min(ratios):.2f}–{max(ratios):.2f})"
        print(f"| {name} | {speed:.0f} | {spread} |")


def turn(contenders: dict[str, Callable[[Any], None]], batches: list[Any], number: int) -> dict[str, float]:
    """CPU seconds of each network for all batches."""
    order = list(contenders)
    random.Random(number).shuffle(order)
    seconds = {}
    for name in order:
        start = time.process_time()
        for batch in batches:
            contenders[name](batch)
        seconds[name] = time.process_time() - start
    return seconds


def batch_of(count: int, vocabulary: int) -> tuple[Any, Any, Any, Any]:
    """Padded source tokens, which of them are real, what the decoder reads, and its labels."""
    import torch

    lengths = [torch.randint(*LENGTHS, (count,)) for _ in range(2)]
    source, target = (torch.randint(2, vocabulary, (count, int(length.max()))) for length in lengths)
    real, written = (torch.arange(int(length.max())) < length[:, None] for length in lengths)
    read = torch.cat([torch.zeros(count, 1, dtype=torch.long), target[:, :-1]], dim=1)
    return source.masked_fill(~real, 0), real.long(), read.masked_fill(~written, 0), target.masked_fill(~written, -100)


def step_of(network: Any, low: bool) -> Callable[[Any], None]:
    """One step of training, with products in bfloat16 where `low` is set."""
    import torch

    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-4)

    def step(batch: tuple[Any, Any, Any, Any]) -> None:
        source, real, read, labels = batch
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            answer = network(input_ids=source, attention_mask=real, decoder_input_ids=read)
        logits = getattr(answer, "logits", answer).float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def translator(vocabulary: int, dropout: float) -> Any:
    """The network of headscope."""
    from headscope.networks import Translator, TranslatorConfig

    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": WIDE}
    layers = {"encoder_layers": LAYERS, "decoder_layers": LAYERS, "norm_place": "post"}
    return Translator(TranslatorConfig(vocab_size=vocabulary, dropout=dropout, **sizes, **layers)).train()


def storing_translator(vocabulary: int, dropout: float) -> Any:
    """The network of headscope, which stores its maps."""
    network = translator(vocabulary, dropout)
    network.set_attn_implementation("eager")
    return network


def marian(vocabulary: int, dropout: float) -> Any:
    """The network of transformers."""
    from transformers import MarianConfig, MarianMTModel

    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", WIDE))
    }
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    config = MarianConfig(
        vocab_size=vocabulary, d_model=WIDTH, dropout=dropout, activation_function="relu", scale_embedding=True,
        max_position_embeddings=512, **sides, **tokens,
    )  # fmt: skip
    return MarianMTModel(config).train()


def torch_transformer(vocabulary: int, dropout: float) -> Any:
    """The network of torch, with a table of vectors, positions and a tied output around it."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(vocabulary, WIDTH)
            nn.init.normal_(self.table.weight, std=WIDTH**-0.5)
            self.positions = nn.Buffer(torch.randn(512, WIDTH))
            self.body = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, WIDE, dropout, batch_first=True)

        def forward(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any) -> Any:
            source, target = (self.placed(ids) for ids in (input_ids, decoder_input_ids))
            hidden = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            padding = attention_mask == 0
            states = self.body(
                source,
                target,
                tgt_mask=hidden,
                tgt_is_causal=True,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
            )
            return states @ self.table.weight.T

        def placed(self, ids: Any) -> Any:
            return self.table(ids) * WIDTH**0.5 + self.positions[: ids.shape[1]]

    return Network().train()


if __name__ == "__main__":
    main()

"""How well a model predicts text, and what it writes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.errors import UsageError
from headscope.model.token_ids import check_token_ids
from headscope.model.tokenizer_errors import tokenising
from headscope.model.transformers.library_messages import quiet
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options

if TYPE_CHECKING:
    from headscope.model.model import Model

# Two-sided 95 % quantiles of Student's t for 1 … 30 degrees of freedom; beyond that the normal one is within 2 %.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text.

    `interval` is a 95 % interval of `nats_per_token`, from the spread of the means of blocks of the text: neighbouring
    tokens are too similar to count as independent.
    """

    nats_per_token: float
    interval: tuple[float, float]
    n_tokens: int
    n_blocks: int
    window: int
    stride: int

    @property
    def perplexity(self) -> float:
        """The exponential of the nats per token."""
        return math.exp(self.nats_per_token)

    def __str__(self) -> str:
        low, high = (math.exp(end) for end in self.interval)
        return (
            f"perplexity {self.perplexity:.2f} [{low:.2f}, {high:.2f}] "
            f"({self.nats_per_token:.4f} nats per token over {self.n_tokens} tokens)"
        )


def encode(model: "Model", text: str) -> Int[Tensor, " tokens"]:
    """The tokens of a text, including the special ones of the tokenizer."""
    if model.tokenizer is None:
        raise UsageError(
            f"{model.spec.name} has no tokenizer, so it cannot read text",
            hint="put tokenizer.json beside config.json, or pass tokenizer= to headscope.open",
        )
    if not text.strip():
        raise UsageError("the text is empty", hint="give some words")
    with tokenising():
        ids = model.tokenizer(text)["input_ids"]
    tokens = torch.tensor(ids, dtype=torch.long)
    check_token_ids(tokens, model.spec)
    return tokens


def decode(model: "Model", tokens: Int[Tensor, " tokens"]) -> str:
    """The text of tokens, without special ones."""
    return "" if model.tokenizer is None else str(model.tokenizer.decode(tokens, skip_special_tokens=True))


def perplexity(model: "Model", text: str, *, window: int = 1024, stride: int | None = None) -> Perplexity:
    r"""Perplexity from overlapping windows.

    The mean is $\frac{1}{N}\sum_t -\ln p(x_t \mid x_{t-c}, …, x_{t-1})$. Every token but the first is scored once; a
    window moves on by `stride` (half of it by default), so that all but the first window's tokens are predicted from at
    least `window - stride` tokens before them.
    """
    _needs_next_token(model, "perplexity")
    tokens = encode(model, text)
    if len(tokens) < 2:
        raise UsageError(f"perplexity needs at least two tokens, the text has {len(tokens)}")
    window = min(window, model.spec.context or window)
    if window < 2:
        raise UsageError(f"perplexity needs a window of at least 2 tokens, got {window}")
    stride = stride or max(1, window // 2)
    if not 1 <= stride < window:
        raise UsageError(f"stride must be at least 1 and less than the window of {window} tokens, got {stride}")
    losses = torch.cat(list(_losses(model.hf, tokens, window, stride)))
    blocks = [block.mean() for block in torch.split(losses, max(stride // 4, 16)) if len(block) >= 8]
    return Perplexity(
        nats_per_token=float(losses.mean()),
        interval=_interval(float(losses.mean()), torch.stack(blocks) if blocks else losses),
        n_tokens=len(losses),
        n_blocks=len(blocks),
        window=window,
        stride=stride,
    )


def generate(
    model: "Model",
    prompt: str,
    *,
    max_new_tokens: int = 40,
    temperature: float = 0.0,
    cache: bool = True,
    seed: int = 0,
) -> str:
    """The text that the model writes after `prompt`.

    An encoder–decoder writes in answer to it. Greedy at temperature 0, otherwise sampled with `seed`. The prompt itself
    is not repeated.
    """
    tokens = prompt_tokens(model, prompt, max_new_tokens=max_new_tokens)
    generated = generate_tokens(
        model.hf, tokens, max_new_tokens=max_new_tokens, temperature=temperature, cache=cache, seed=seed
    )
    return decode(model, generated if model.spec.kind == "encoder-decoder" else generated[len(tokens) :])


def prompt_tokens(model: "Model", prompt: str, *, max_new_tokens: int, chat: bool = False) -> Int[Tensor, " tokens"]:
    """The tokens of a prompt.

    With `chat` the prompt is a user's turn in the chat template of the model, if it has one.

    Raises:
        UsageError: The model writes no text, or prompt and answer do not fit its context.
    """
    if not model.hf.can_generate():
        raise _cannot(model, "generate text")
    tokens = encode(model, prompt)
    if chat and has_chat_template(model):
        turn = [{"role": "user", "content": prompt}]
        with tokenising():
            spoken = model.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)  # type: ignore[union-attr]
            # The template writes the special tokens itself.
            tokens = torch.tensor(model.tokenizer(spoken, add_special_tokens=False)["input_ids"])  # type: ignore[misc]
    context = model.spec.context
    n_tokens = len(tokens) + (0 if model.spec.kind == "encoder-decoder" else max_new_tokens)
    if context is not None and n_tokens > context:
        raise UsageError(
            f"the prompt has {len(tokens)} tokens and {max_new_tokens} are to follow, "
            f"but {model.spec.name} reads at most {context}",
            hint=f"shorten the prompt to {max(context - max_new_tokens, 0)} tokens or ask for fewer",
        )
    return tokens


def has_chat_template(model: "Model") -> bool:
    """Whether the tokenizer has a chat template."""
    return bool(getattr(model.tokenizer, "chat_template", None))


def generate_tokens(
    hf: Any,
    tokens: Int[Tensor, " tokens"],
    *,
    max_new_tokens: int,
    temperature: float,
    cache: bool,
    seed: int,
    start: int | None = None,
) -> Int[Tensor, " written"]:
    """The tokens of a generation: prompt and continuation, or the decoder's tokens.

    `start` is the first token of a decoder whose configuration names none.

    Raises:
        UsageError: The decoder of an encoder–decoder has no first token.
    """
    if start is None and lacks_start(hf):
        raise UsageError(
            f"the configuration of this {hf.config.model_type} model names no first token for its decoder",
            hint="set decoder_start_token_id in its generation_config",
        )
    sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
    padding = hf.generation_config.pad_token_id
    with quiet(), torch.no_grad(), restored(hf):
        torch.manual_seed(seed)
        prompt = tokens[None].to(hf.device)
        generated: Tensor = hf.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_new_tokens,
            use_cache=cache,
            num_beams=1,
            pad_token_id=padding if padding is not None else _end_token(hf),
            **({} if start is None else {"decoder_start_token_id": start}),
            **sampling,
        )
    return generated[0].cpu()


def lacks_start(hf: Any) -> bool:
    """Whether the decoder of an encoder–decoder has no first token."""
    named = (hf.generation_config.decoder_start_token_id, hf.generation_config.bos_token_id)
    return bool(hf.config.is_encoder_decoder) and all(token is None for token in named)


def _end_token(hf: Any) -> int:
    end = hf.generation_config.eos_token_id
    first = end[0] if isinstance(end, list) else end
    return 0 if first is None else int(first)


def _losses(hf: Any, tokens: Int[Tensor, " tokens"], window: int, stride: int) -> Iterator[Float[Tensor, " scored"]]:
    n_scored = 1  # the first token has nothing before it
    start = 0
    while n_scored < len(tokens):
        piece = tokens[start : start + window]
        with torch.no_grad(), restored(hf):
            logits = hf(input_ids=piece[None].to(hf.device), **forward_options(hf)).logits[0, :-1]
        first = n_scored - start - 1  # the logits that predict the first token not scored yet
        log_p = torch.log_softmax(logits[first:].float(), dim=-1).cpu()
        yield -log_p.gather(1, piece[first + 1 :, None])[:, 0].double()
        n_scored = start + len(piece)
        start += stride


def _interval(mean: float, blocks: Float[Tensor, " blocks"]) -> tuple[float, float]:
    if len(blocks) < 2:
        return (-math.inf, math.inf)
    t = _T95[len(blocks) - 2] if len(blocks) - 1 <= len(_T95) else 1.96
    half = t * float(blocks.std()) / math.sqrt(len(blocks))
    return (mean - half, mean + half)


def predicts_next_token(model: "Model") -> bool:
    """Whether the model is a causal language model, with next-token probabilities."""
    return model.spec.kind == "decoder-only" and model.hf.get_output_embeddings() is not None


def _needs_next_token(model: "Model", quantity: str) -> None:
    if not predicts_next_token(model):
        raise _cannot(model, f"have a {quantity}")


def _cannot(model: "Model", action: str) -> UsageError:
    return UsageError(
        f"{model.spec.name} ({model.spec.architecture}, {model.spec.kind}) cannot {action}: "
        "it does not predict the next token",
        hint="use a causal language model, e.g. tiny or smollm2",
    )

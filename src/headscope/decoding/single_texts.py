"""One text for each prompt, token by token: greedy decoding and sampling."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headscope.decoding.hypothesis import Hypothesis
from headscope.decoding.searches import Greedy, Sampling
from headscope.decoding.special_ids import SpecialTokens
from headscope.decoding.token_choice import next_tokens
from headscope.decoding.token_reader import TokenReader


def single_texts(
    reader: TokenReader,
    search: Greedy | Sampling,
    special: SpecialTokens,
    numbers: Sequence[int],
    most_tokens: int,
) -> list[Hypothesis]:
    """A text for each prompt.

    `numbers` are those of the prompts among all: a text depends on the seed and its own number alone.
    """
    texts = [_Text() for _ in numbers]
    going = list(range(len(numbers)))  # the prompts that are still answered
    logits = reader.first_logits()
    lots = _lots(search, numbers, most_tokens).to(logits.device)
    for step in range(most_tokens):
        tokens, log_p = _chosen(logits, search, special, lots[going, step])
        for number, token, gain in zip(going, tokens.tolist(), log_p.tolist(), strict=True):
            texts[number].append(token, gain, special)
        places = [place for place, number in enumerate(going) if not texts[number].has_ended]
        if not places or step + 1 == most_tokens:
            break
        if len(places) < len(going):
            index = torch.tensor(places, device=tokens.device)
            reader.select(index, moves_prompts=True)
            going, tokens = [going[place] for place in places], tokens[index]
        logits = reader.next_logits(tokens)
    return [text.hypothesis for text in texts]


@dataclass
class _Text:
    """A text that is being written."""

    tokens: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    has_ended: bool = False

    def append(self, token: int, log_probability: float, special: SpecialTokens) -> None:
        """Add a token, or end with it."""
        self.log_probability += log_probability
        self.has_ended = token in special.ends
        if not self.has_ended:
            self.tokens.append(token)

    @property
    def hypothesis(self) -> Hypothesis:
        """The text as it is now."""
        return Hypothesis(tuple(self.tokens), self.log_probability, self.log_probability, self.has_ended)


def _chosen(logits: Tensor, search: Greedy | Sampling, special: SpecialTokens, lots: Tensor) -> tuple[Tensor, Tensor]:
    """The next tokens and their log-probabilities under the model."""
    logits = without(logits, special.forbidden)
    tokens = next_tokens(logits, search, lots)
    log_sum = logits.logsumexp(dim=-1)
    return tokens, (logits.gather(1, tokens[:, None])[:, 0] - log_sum).double()


def without(logits: Tensor, forbidden: Sequence[int]) -> Tensor:
    """Logits with forbidden tokens impossible."""
    if not forbidden:
        return logits
    return logits.index_fill(-1, torch.tensor(forbidden, device=logits.device), -torch.inf)


def _lots(search: Greedy | Sampling, numbers: Sequence[int], most_tokens: int) -> Tensor:
    """Random numbers for all steps of each prompt.

    Greedy decoding needs none.
    """
    if isinstance(search, Greedy):
        return torch.zeros(len(numbers), most_tokens)
    seeds = [(search.seed * 1_000_003 + number) % 2**32 for number in numbers]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return torch.stack([torch.rand(most_tokens, generator=generator, dtype=torch.float64) for generator in generators])

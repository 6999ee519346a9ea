"""The queries and keys whose scores are explained."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.errors import UsageError
from headscope.experiments.why.score_terms import ScoreTerms
from headscope.experiments.why.settings import Pairs, Params

# A head attends to the token after the last occurrence where it gives it so much more than to random earlier keys.
MARGIN = 0.1
# The first key is a sink where it gets on average at least this mass, and twice its share.
SINK = 0.1

Kind = Literal["named", "repeat", "attended"]


@dataclass(frozen=True)
class TargetPairs:
    """Queries, the key that each is asked about, and the other keys with which it is compared.

    The first key is left out of the others where it is a sink (`leaves_out_first`): it is far from all other keys, and
    a mean with it would say little about them.
    """

    kind: Kind
    queries: Int[Tensor, " queries"]
    keys: Int[Tensor, " queries"]
    other_keys: Bool[Tensor, "queries keys"]
    leaves_out_first: bool
    sink_mass: float

    @property
    def target(self) -> str:
        """What the keys are, for a sentence."""
        return {
            "named": f"key {int(self.keys[0])}",
            "repeat": "the token that followed the earlier copy",
            "attended": "the key that it attends to most",
        }[self.kind]

    @property
    def short_target(self) -> str:
        """What the keys are, for a picture."""
        return {"named": self.target, "repeat": "that token", "attended": "that key"}[self.kind]

    def at_keys(self, values: Float[Tensor, "*batch queries keys"]) -> Float[Tensor, "*batch queries"]:
        """The values at the key of each query."""
        return values[..., torch.arange(len(self.keys)), self.keys]

    def contrast(self, values: Float[Tensor, "*batch queries keys"]) -> Float[Tensor, "*batch queries"]:
        """For each query the value at its key minus the mean over the other keys."""
        return self.at_keys(values) - (values * self.other_keys).sum(-1) / self.other_keys.sum(-1)

    def null_contrasts(
        self, values: Float[Tensor, "*batch queries keys"], draws: int, generator: torch.Generator
    ) -> Float[Tensor, "draws *batch"]:
        """The mean contrast over the queries where random earlier keys replace the keys, per draw."""
        every = self.other_keys.clone()
        every[torch.arange(len(self.keys)), self.keys] = True
        total, count = (values * every).sum(-1), every.sum(-1)
        contrasts = []
        for _ in range(draws):
            random_keys = torch.multinomial(self.other_keys.double(), 1, generator=generator)[:, 0]
            at_random = values[..., torch.arange(len(random_keys)), random_keys]
            contrasts.append((at_random - (total - at_random) / (count - 1)).mean(-1))
        return torch.stack(contrasts)

    def mean_of_others(self, values: Float[Tensor, "queries keys"]) -> float:
        """The mean value at one of the other keys: that of a random key."""
        return float(((values * self.other_keys).sum(-1) / self.other_keys.sum(-1)).mean())


def target_pairs(
    terms: ScoreTerms, tokens: Int[Tensor, " tokens"], params: Params, *, needs_repeat: bool
) -> TargetPairs:
    """The pair that was named, or the pairs that suit the head.

    Raises:
        UsageError: There is no such pair, or the text has no repeated token where one is needed.
    """
    if params.query is not None and params.key is not None:
        return _pairs("named", terms, *_named(terms, params.query, params.key))
    queries, keys = repeats(tokens, terms.visible)
    if params.pairs is Pairs.ATTENDED:
        return _pairs("attended", terms, *_attended(terms))
    if len(queries):
        pairs = _pairs("repeat", terms, queries, keys)
        pattern = terms.pattern[pairs.queries]
        mass = float(pairs.at_keys(pattern).mean())
        if params.pairs is Pairs.REPEAT or needs_repeat or mass > pairs.mean_of_others(pattern) + MARGIN:
            return pairs
    elif params.pairs is Pairs.REPEAT or needs_repeat:
        raise UsageError(
            f"no token of the text comes twice, and {terms.label} is asked about the token that followed the earlier "
            "copy",
            hint="give a text in which a token comes twice, or name a head and --pairs attended, or --query and --key",
        )
    return _pairs("attended", terms, *_attended(terms))


def repeats(
    tokens: Int[Tensor, " tokens"], visible: Bool[Tensor, "tokens tokens"]
) -> tuple[Int[Tensor, " queries"], Int[Tensor, " queries"]]:
    """Queries whose token came before, and the position after its last occurrence; the two are not neighbours."""
    last: dict[int, int] = {}
    before: dict[int, int] = {}
    pairs = []
    for position, token in enumerate(tokens.tolist()):
        j = last.get(token)
        if j == position - 1:
            j = before.get(token)
        if j is not None and bool(visible[position, j + 1]):
            pairs.append((position, j + 1))
        if token in last:
            before[token] = last[token]
        last[token] = position
    queries, keys = zip(*pairs, strict=True) if pairs else ((), ())
    return torch.tensor(queries, dtype=torch.long), torch.tensor(keys, dtype=torch.long)


def _named(terms: ScoreTerms, query: int, key: int) -> tuple[Tensor, Tensor]:
    count = len(terms.scores)
    for name, position in (("query", query), ("key", key)):
        if position >= count:
            raise UsageError(
                f"--{name} {position} is beyond the text, which has {count} tokens",
                hint=f"positions run from 0 to {count - 1}; --tokens reads more of a longer text",
            )
    if not bool(terms.visible[query, key]):
        raise UsageError(
            f"{terms.label}: query {query} cannot see key {key}",
            hint="a causal head sees no later key, and a sliding window no distant one",
        )
    return torch.tensor([query]), torch.tensor([key])


def attended_keys(
    pattern: Float[Tensor, "tokens tokens"], visible: Bool[Tensor, "tokens tokens"]
) -> tuple[Int[Tensor, " queries"], Int[Tensor, " queries"]]:
    """Queries with at least two keys besides the first, and the key with the most mass; never the first."""
    queries = torch.nonzero(visible[:, 1:].sum(-1) >= 2)[:, 0]
    return queries, pattern[queries, 1:].argmax(-1) + 1


def _attended(terms: ScoreTerms) -> tuple[Tensor, Tensor]:
    """The keys with the most mass; refuses a text that is too short for them."""
    queries, keys = attended_keys(terms.pattern, terms.visible)
    if not len(queries):
        raise UsageError(f"the text has {len(terms.scores)} tokens: too few keys to compare", hint="give a longer text")
    return queries, keys


def _pairs(kind: Kind, terms: ScoreTerms, queries: Tensor, keys: Tensor) -> TargetPairs:
    leaves_out, sink_mass = _sink(terms)
    other_keys = terms.visible[queries].clone()
    other_keys[torch.arange(len(keys)), keys] = False
    if leaves_out:
        other_keys[:, 0] = False
    enough = other_keys.any(-1)
    if not bool(enough.any()):
        raise UsageError(
            f"{terms.label}: query {int(queries[0])} sees no other key to compare with", hint="name a later query"
        )
    return TargetPairs(kind, queries[enough], keys[enough], other_keys[enough], leaves_out, sink_mass)


def _sink(terms: ScoreTerms) -> tuple[bool, float]:
    """Whether the first key is a sink of this head on this text, and its mean mass."""
    rows = terms.visible[:, 0] & (terms.visible.sum(-1) > 2)
    if not bool(rows.any()):
        return False, 0.0
    mass = float(terms.pattern[rows, 0].mean())
    share = float((1 / terms.visible[rows].sum(-1).double()).mean())
    return mass >= max(SINK, 2 * share), mass

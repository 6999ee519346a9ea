"""What becomes of the mass on a key without one writer, or with it alone: in the arithmetic and in the model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.experiments.why.score_terms import BIASES, POSITIONS, ScoreTerms, Side
from headscope.experiments.why.target_pairs import TargetPairs
from headscope.model.model import Model


@dataclass(frozen=True)
class Sums:
    """The writers of one side: contrast, its null, and the mass on the key without and with only each of them.

    `null_low` and `null_high` hold 95 % of the contrasts with random earlier keys.
    """

    side: Side
    names: tuple[str, ...]
    contrast: Float[Tensor, " names"]
    null_low: Float[Tensor, " names"]
    null_high: Float[Tensor, " names"]
    without: Float[Tensor, " names"]
    alone: Float[Tensor, " names"]

    def strongest(self, count: int) -> list[int]:
        """The writers with the largest contrasts, the largest first."""
        return self.contrast.argsort(descending=True, stable=True)[:count].tolist()


@dataclass(frozen=True)
class PatchedRun:
    """The model run without what one writer gives to the queries or keys of the head.

    `mass` is the mean mass on the key, `logit` the mean logit of the token at the key minus the mean of all tokens,
    None for a model without logits.
    """

    side: Side
    writer: str
    mass: float
    logit: float | None


def side_sums(terms: ScoreTerms, pairs: TargetPairs, side: Side, draws: int, generator: torch.Generator) -> Sums:
    """All writers of one side, each taken out and left alone in the arithmetic."""
    parts = terms.terms(side, pairs.queries)
    all_scores = parts.sum(0)
    nulls = pairs.null_contrasts(parts, draws, generator)
    ends = torch.quantile(nulls, torch.tensor([0.025, 0.975], dtype=nulls.dtype), dim=0)
    masses = [
        [pairs.at_keys(terms.rebuilt_pattern(scores, pairs.queries)).mean() for scores in (all_scores - part, part)]
        for part in parts
    ]
    without, alone = torch.tensor(masses, dtype=torch.float64).T
    return Sums(side, terms.names, pairs.contrast(parts).mean(-1), ends[0], ends[1], without, alone)


def pair_contrasts(
    terms: ScoreTerms, pairs: TargetPairs, query_writers: Sequence[int], key_writers: Sequence[int]
) -> Float[Tensor, "query_writers key_writers"]:
    """The contrast that each pair of a query's writer and a key's writer gives."""
    return torch.stack(
        [
            pairs.contrast(terms.pair_terms(writer, list(key_writers), pairs.queries)).mean(-1)
            for writer in query_writers
        ]
    )


def patched_run(
    model: Model, tokens: Int[Tensor, " tokens"], terms: ScoreTerms, pairs: TargetPairs, side: Side, writer: str
) -> PatchedRun | None:
    """Run the model without one path; None for what is no writer that can be taken out."""
    if writer in (BIASES, POSITIONS):
        return None
    with model.session() as session:
        session.patch_path(writer, (terms.label, "k" if side == "key" else "q"))
        captured = session.capture("pattern", at=terms.label)
        answer = session.run(tokens)
        pattern = captured.take()["pattern"][terms.site][0, 0].cpu().double()
    mass = float(pairs.at_keys(pattern[pairs.queries]).mean())
    return PatchedRun(side, writer, mass, copied_logit(answer, tokens, pairs))


def copied_logit(answer: object, tokens: Int[Tensor, " tokens"], pairs: TargetPairs) -> float | None:
    """The mean logit of the token at the key minus the mean over all tokens; None without logits."""
    logits = getattr(answer, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        return None
    rows = logits[0, pairs.queries.to(logits.device)].double()
    copied = rows[torch.arange(len(pairs.keys)), tokens[pairs.keys].to(rows.device)]
    return float((copied - rows.mean(-1)).mean())

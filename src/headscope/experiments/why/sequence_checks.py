"""The strongest paths on further sequences of random tokens, since queries of one text give no interval."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.experiments.why.causal_checks import PatchedRun
from headscope.experiments.why.repeated_tokens import repeated_tokens
from headscope.experiments.why.score_terms import ScoreTerms, Side
from headscope.experiments.why.settings import Params
from headscope.experiments.why.target_pairs import TargetPairs, attended_keys, repeats
from headscope.maths.resampling.clustered_mean import Estimate, clustered_mean
from headscope.model.model import Model
from headscope.model.session.position_maps import following_layer


@dataclass(frozen=True)
class SequenceCheck:
    """The mean mass on the key in each sequence, in the model and in the model without one path."""

    side: Side
    writer: str
    masses: Float[Tensor, " sequences"]
    patched: Float[Tensor, " sequences"]

    def interval(self, masses: Float[Tensor, " sequences"]) -> Estimate:
        """The mean over sequences and its 95 % interval."""
        return clustered_mean(masses, torch.ones_like(masses))


def sequence_checks(
    model: Model, terms: ScoreTerms, pairs: TargetPairs, runs: tuple[PatchedRun, ...], params: Params
) -> tuple[SequenceCheck, ...]:
    """The strongest path of each side on sequences that did not choose it; none for a text or a named pair."""
    if params.text is not None or params.sequences < 2 or pairs.kind == "named":
        return ()
    tokens = repeated_tokens(model, params.random_tokens, params.seed + 2, params.sequences)
    unpatched = _patterns(model, terms, tokens, None)
    places = [_pairs(pairs, terms, row, pattern) for row, pattern in zip(tokens, unpatched, strict=True)]
    checks = []
    for side in ("key", "query"):
        strongest = next((run for run in runs if run.side == side), None)
        if strongest is not None:
            patched = _patterns(model, terms, tokens, strongest)
            checks.append(
                SequenceCheck(strongest.side, strongest.writer, _masses(unpatched, places), _masses(patched, places))
            )
    return tuple(checks)


def _patterns(
    model: Model, terms: ScoreTerms, tokens: Int[Tensor, "sequences tokens"], run: PatchedRun | None
) -> Float[Tensor, "sequences tokens tokens"]:
    """The pattern of the head in each sequence, without one path where a run names it."""
    with model.session() as session:
        if run is not None:
            session.patch_path(run.writer, (terms.label, "k" if run.side == "key" else "q"))
        captured = session.capture("pattern", at=terms.label)
        session.run(tokens, head=False, stop_at=following_layer(model, terms.site))
        return captured.take()["pattern"][terms.site][:, 0].cpu().double()


def _pairs(
    pairs: TargetPairs, terms: ScoreTerms, tokens: Int[Tensor, " tokens"], pattern: Float[Tensor, "tokens tokens"]
) -> tuple[Tensor, Tensor]:
    """Queries and keys of one sequence, chosen as on the first."""
    return repeats(tokens, terms.visible) if pairs.kind == "repeat" else attended_keys(pattern, terms.visible)


def _masses(
    patterns: Float[Tensor, "sequences tokens tokens"], places: list[tuple[Tensor, Tensor]]
) -> Float[Tensor, " sequences"]:
    return torch.stack(
        [pattern[queries, keys].mean() for pattern, (queries, keys) in zip(patterns, places, strict=True)]
    )

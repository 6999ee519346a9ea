"""The tables of the experiment `why`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.experiments.why.causal_checks import PatchedRun, Sums
from headscope.experiments.why.logit_effect import LogitEffect
from headscope.experiments.why.score_terms import ScoreTerms
from headscope.experiments.why.sequence_checks import SequenceCheck
from headscope.experiments.why.target_pairs import TargetPairs
from headscope.experiments.why.trigram_checks import TrigramChecks

_TRIGRAMS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("source", "query", "target"), pl.String),
    "weight_score": pl.Float64,
    "chosen_among": pl.String,
    "occurrences": pl.Int64,
    **dict.fromkeys(("log_probability", "mean_head", "effect", "low", "high"), pl.Float64),
    "elsewhere": pl.Int64,
    **dict.fromkeys(("log_probability_elsewhere", "effect_elsewhere"), pl.Float64),
}
MOST_PAIRED = 20  # writers of each side in the matrix of pairs


@dataclass(frozen=True)
class Explanation:
    """All that was measured about one head on one text."""

    terms: ScoreTerms
    pairs: TargetPairs
    tokens: Int[Tensor, " tokens"]
    pieces: tuple[str, ...]
    keys: Sums
    queries: Sums
    paired: tuple[list[int], list[int], Float[Tensor, "query_writers key_writers"]]
    runs: tuple[PatchedRun, ...]
    effect: LogitEffect | None
    sequence_checks: tuple[SequenceCheck, ...]
    trigrams: TrigramChecks | None
    trigram_pieces: tuple[tuple[str, str, str], ...]

    @property
    def mass(self) -> float:
        """The mean mass that the model puts on the key."""
        return float(self.pairs.at_keys(self.terms.pattern[self.pairs.queries]).mean())

    @property
    def random_mass(self) -> float:
        """The mean mass on a random other key."""
        return self.pairs.mean_of_others(self.terms.pattern[self.pairs.queries])


def tables(explanation: Explanation) -> dict[str, pl.DataFrame]:
    """Every table by name, the main one first."""
    return {
        "keys": _writers_table(explanation.keys, explanation.runs),
        "queries": _writers_table(explanation.queries, explanation.runs),
        "pairs": _pairs_table(explanation),
        "checks": _checks_table(explanation),
        "sequences": _sequences_table(explanation.sequence_checks),
        "trigrams": _trigrams_table(explanation),
        "chain": _chain_table(explanation),
        "positions": _positions_table(explanation),
    }


def _writers_table(sums: Sums, runs: Sequence[PatchedRun]) -> pl.DataFrame:
    """A row per writer of one side, the largest contrast first."""
    total = float(sums.contrast.sum())
    masses = {run.writer: run.mass for run in runs if run.side == sums.side}
    rows = [
        {
            "writer": sums.names[index],
            "contrast": float(sums.contrast[index]),
            "null_low": float(sums.null_low[index]),
            "null_high": float(sums.null_high[index]),
            "share": float(sums.contrast[index]) / total if total else None,
            "without": float(sums.without[index]),
            "alone": float(sums.alone[index]),
            "patched": masses.get(sums.names[index]),
        }
        for index in sums.strongest(len(sums.names))
    ]
    return pl.DataFrame(rows, schema_overrides={"share": pl.Float64, "patched": pl.Float64})


def _pairs_table(explanation: Explanation) -> pl.DataFrame:
    query_writers, key_writers, contrasts = explanation.paired
    names = explanation.terms.writers
    rows = [
        {"query_writer": names[u], "key_writer": names[w], "contrast": float(contrasts[i, j])}
        for i, u in enumerate(query_writers)
        for j, w in enumerate(key_writers)
    ]
    return pl.DataFrame(rows).sort("contrast", descending=True, maintain_order=True)


def _checks_table(explanation: Explanation) -> pl.DataFrame:
    """A row per path that was taken out of the model: the mass on the key in each state."""
    rows = []
    for run in explanation.runs:
        sums = explanation.keys if run.side == "key" else explanation.queries
        index = sums.names.index(run.writer)
        other_masses = torch.cat([sums.without[:index], sums.without[index + 1 :]])
        rows.append(
            {
                "side": run.side,
                "writer": run.writer,
                "mass": explanation.mass,
                "without": float(sums.without[index]),
                "patched": run.mass,
                "alone": float(sums.alone[index]),
                "without_another": float(other_masses.median()) if len(other_masses) else None,
                "logit": None if explanation.effect is None else explanation.effect.logit,
                "patched_logit": run.logit,
            }
        )
    numbers = dict.fromkeys(("without_another", "logit", "patched_logit"), pl.Float64)
    return pl.DataFrame(rows, schema_overrides=numbers)


def _sequences_table(checks: Sequence[SequenceCheck]) -> pl.DataFrame:
    """A row per side and further sequence: the mass on the key in the model, and without the path."""
    rows = [
        {"side": check.side, "writer": check.writer, "sequence": sequence, "mass": mass, "patched": patched}
        for check in checks
        for sequence, (mass, patched) in enumerate(zip(check.masses.tolist(), check.patched.tolist(), strict=True))
    ]
    schema = {"side": pl.String, "writer": pl.String, "sequence": pl.Int64, "mass": pl.Float64, "patched": pl.Float64}
    return pl.DataFrame(rows, schema=schema)


def _trigrams_table(explanation: Explanation) -> pl.DataFrame:
    """A row per skip trigram: its score, its queries, and what the head does to its target there and elsewhere."""
    rows = []
    checks = () if explanation.trigrams is None else explanation.trigrams.checks
    for check, pieces in zip(checks, explanation.trigram_pieces, strict=True):
        effect, elsewhere = check.effect(), check.effect_elsewhere()
        rows.append(
            {
                **dict(zip(("source", "query", "target"), pieces, strict=True)),
                "weight_score": check.pair.score,
                "chosen_among": "trigrams of the text" if check.occurs else "all pairs of its tokens",
                "occurrences": len(check.after_source),
                "log_probability": _mean(check.after_source, 0),
                "mean_head": _mean(check.after_source, 1),
                "effect": effect.mean,
                "low": effect.low,
                "high": effect.high,
                "elsewhere": len(check.elsewhere),
                "log_probability_elsewhere": _mean(check.elsewhere, 0),
                "effect_elsewhere": elsewhere.mean,
            }
        )
    return pl.DataFrame(rows, schema=_TRIGRAMS).fill_nan(None)


def _mean(rows: Tensor, state: int) -> float:
    return float(rows[:, state].mean()) if len(rows) else nan


def _chain_table(explanation: Explanation) -> pl.DataFrame:
    """From the strongest writers through the head to the logit, a row per link."""
    label = explanation.terms.label
    rows: list[dict[str, object]] = []
    for sums, letter in ((explanation.keys, "keys"), (explanation.queries, "queries")):
        top = sums.strongest(1)[0]
        rows.append(
            {
                "link": f"{sums.names[top]} → {letter} of {label}",
                "quantity": "contrast of the score",
                "value": float(sums.contrast[top]),
                "null_low": float(sums.null_low[top]),
                "null_high": float(sums.null_high[top]),
            }
        )
    mass = {"link": f"{label} → {explanation.pairs.target}", "quantity": "mass", "value": explanation.mass}
    rows.append({**mass, "null_low": explanation.random_mass, "null_high": explanation.random_mass})
    effect = explanation.effect
    if effect is not None:
        logit = f"{label} → logit of that token"
        ends = {"null_low": effect.on_other_tokens, "null_high": effect.on_other_tokens}
        rows.append({"link": logit, "quantity": "direct effect", "value": effect.direct, **ends})
        total = effect.logit - effect.ablated
        rows.append(
            {
                "link": logit,
                "quantity": "effect of removing the head",
                "value": total,
                "null_low": 0.0,
                "null_high": 0.0,
            }
        )
    return pl.DataFrame(rows)


def _positions_table(explanation: Explanation) -> pl.DataFrame:
    """A row per query with its key and their tokens."""
    pairs, pattern = explanation.pairs, explanation.terms.pattern
    rows = [
        {
            "query": query,
            "query_token": explanation.pieces[query],
            "key": key,
            "key_token": explanation.pieces[key],
            "mass": float(pattern[query, key]),
            "others": float(mean),
            "score": float(explanation.terms.scores[query, key]),
        }
        for query, key, mean in zip(
            pairs.queries.tolist(),
            pairs.keys.tolist(),
            (pattern[pairs.queries] * pairs.other_keys).sum(-1) / pairs.other_keys.sum(-1),
            strict=True,
        )
    ]
    return pl.DataFrame(rows)

"""The page and the record that lie next to the trained weights, in the form of those of the shipped model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from headscope.corpora.catalogue import SOURCES
from headscope.experiments.tiny import network_seed, text_mixture, training_phases
from headscope.experiments.tiny.head_roles import (
    FIRST,
    INDUCTION,
    MEASURE,
    PREVIOUS,
    REPEATS,
    RoleMass,
    strongest,
    window_name,
)
from headscope.experiments.tiny.settings import Params
from headscope.experiments.tiny.shipped_record import RECORD
from headscope.experiments.tiny.text_losses import N_GRAMS, TRAINED, WINDOWS, TextLoss, loss_of
from headscope.experiments.tiny.text_material import Material
from headscope.experiments.tiny.training_phases import TrainedNetwork

_CARD = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# tiny

A Llama of {parameters:,} parameters ({layers} layers, width {width}, {heads} heads of
{d_head}, {kv_heads} key-value heads, vocabulary {vocabulary}), trained by the recipe of the model
that headscope carries for examples and tests. It is made to be looked at, not to be useful: the
table of attention says which heads do induction, look one token back, or rest on the first token.

This page and `training.json` are written by `headscope study tiny`.

## Data

{texts}: {train_tokens:,} tokens for training, {judged_tokens:,} judged, in documents that no
training read. None of the text is in this folder. The weights have the licence of headscope,
Apache-2.0.

## Training

{minutes:.1f} minutes of one core ({clock} clock), {steps:,} steps, {tokens_seen:,} tokens, seed {seed}.
First cycles of random tokens, with L0.H0 started as a previous-token head, until a head put
{cycle_target:g} of its mass on the token after the earlier copy or their budget was spent:
{cycle_ends}. Then {text_share:.0%} text, {cycle_share:.0%} cycles, {repeated_share:.0%}
repeated text, in rows of {lengths} tokens. Muon for the matrices (peak learning rate
{matrix_rate:g}), AdamW for the rest ({other_rate:g}), linear decay.

## Measured

| held-out text | nats per token | perplexity |
|---|---|---|
{loss_rows}

Windows are disjoint and begin with `<s>`. The n-gram models are interpolated Kneser–Ney, fitted
to the same tokens, and see the true preceding tokens everywhere.

| attention | head | mean |
|---|---|---|
{head_rows}

Induction: from each token of the second copy to the token after its first occurrence, random
tokens twice over. The other rows: held-out text, windows of 128.

## Limits

Facts in what it writes are accidental. Positions beyond {positions} were never trained.
"""


@dataclass(frozen=True)
class Results:
    """What was measured of the trained weights."""

    params: Params
    material: Material
    trained: TrainedNetwork
    losses: Sequence[TextLoss]
    masses: list[RoleMass]


def card_files(results: Results) -> Mapping[str, bytes]:
    """README.md and training.json."""
    record = _record(results)
    return {
        "README.md": _card(results, record).encode(),
        RECORD: json.dumps(record, indent=2, ensure_ascii=False).encode() + b"\n",
    }


def _record(results: Results) -> dict[str, Any]:
    trained, losses = results.trained, {window: loss_of(results.losses, TRAINED, window) for window in WINDOWS}
    induction = {name: _best(results.masses, INDUCTION, name) for name in (window_name(*repeat) for repeat in REPEATS)}
    positional = {role.replace(" ", "_"): _best(results.masses, role, "text") for role in (PREVIOUS, FIRST)}
    states = [phase.outcome.state for phase in trained.phases]
    return {
        "finished": True,
        "steps": sum(state.step for state in states),
        "cycle_steps": sum(phase.outcome.state.step for phase in trained.cycles),
        "tokens_seen": sum(state.tokens for state in states),
        "cpu_minutes": round(trained.minutes, 2),
        "clock": results.params.clock.value,
        "seed": results.params.seed,
        "parameters": sum(parameter.numel() for parameter in trained.network.parameters()),
        "results": {
            "held_out_nats_per_token": {str(window): round(loss.nats_per_token, 4) for window, loss in losses.items()},
            "held_out_perplexity": {str(window): round(loss.perplexity, 2) for window, loss in losses.items()},
            "held_out_bits_per_byte": {str(window): round(loss.bits_per_byte, 4) for window, loss in losses.items()},
            "induction_best": induction,
            "positional_best": positional,
        },
        "baseline_nats_per_token": {
            system: round(loss_of(results.losses, system).nats_per_token, 4) for system in N_GRAMS
        },
        "data": {
            "documents": {
                name: {split: len(part) for split, part in parts.items()}
                for name, parts in results.material.documents.items()
            },
            "tokens": {"train": len(results.material.train), "judged": losses[WINDOWS[0]].n_tokens},
        },
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
        "curve": _curve(trained),
    }


def _best(masses: list[RoleMass], role: str, windows: str) -> dict[str, str | float]:
    mass = strongest(masses, role, windows)
    return {"head": mass.site.head_label(mass.head), "score": round(mass.value, 4)}


def _curve(trained: TrainedNetwork) -> list[dict[str, float | int]]:
    """The validations of the training on text, counted from the beginning of the cycles."""
    cycles = trained.cycles
    steps, seconds = (sum(getattr(phase.outcome.state, name) for phase in cycles) for name in ("step", "seconds"))
    rows = trained.text.outcome.metrics.filter(trained.text.outcome.metrics["validation_nats"].is_not_null())
    return [
        {
            "step": row["step"] + steps,
            "cpu_minutes": round((row["seconds"] + seconds) / 60, 2),
            "held_out_nats_128": round(row["validation_nats"], 4),
            "induction_2x48": round(row[MEASURE], 4),
        }
        for row in rows.iter_rows(named=True)
    ]


def _card(results: Results, record: dict[str, Any]) -> str:
    systems = [(f"tiny, window {window}", loss_of(results.losses, TRAINED, window)) for window in WINDOWS]
    systems += [(f"Kneser–Ney {system}", loss_of(results.losses, system)) for system in N_GRAMS]
    measured = record["results"]
    heads = {f"{INDUCTION} {windows}": best for windows, best in measured["induction_best"].items()}
    heads |= {role.replace("_", " "): best for role, best in measured["positional_best"].items()}
    cycles, repeated = text_mixture.CYCLE_SHARE, text_mixture.REPEATED_SHARE
    return _CARD.format(
        **{name: record[name] for name in ("parameters", "steps", "tokens_seen", "clock", "seed")},
        layers=network_seed.LAYERS,
        width=network_seed.WIDTH,
        heads=network_seed.HEADS,
        d_head=network_seed.D_HEAD,
        kv_heads=network_seed.KV_HEADS,
        vocabulary=results.params.vocabulary,
        positions=network_seed.POSITIONS,
        texts=", ".join(map(_with_licence, results.material.documents)),
        train_tokens=record["data"]["tokens"]["train"],
        judged_tokens=record["data"]["tokens"]["judged"],
        minutes=results.trained.minutes,
        cycle_target=training_phases.CYCLE_TARGET,
        cycle_ends=", ".join(phase.end for phase in results.trained.cycles),
        text_share=1.0 - cycles - repeated,
        cycle_share=cycles,
        repeated_share=repeated,
        lengths=", ".join(str(length) for _, length in text_mixture.LENGTHS),
        matrix_rate=training_phases.MATRIX_RATE,
        other_rate=training_phases.OTHER_RATE,
        loss_rows="\n".join(
            f"| {name} | {loss.nats_per_token:.3f} | {loss.perplexity:.1f} |" for name, loss in systems
        ),
        head_rows="\n".join(f"| {name} | {best['head']} | {best['score']:.2f} |" for name, best in heads.items()),
    )


def _with_licence(text: str) -> str:
    return f"{text} ({SOURCES[text].licence})" if text in SOURCES else text

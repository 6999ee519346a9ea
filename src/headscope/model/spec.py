"""Builds the `ModelSpec` of a model from its config and its sites."""

from typing import Any

from torch import nn

from headscope.attention.mechanism_spelling import spelling_of
from headscope.core.model_spec import ModelSpec
from headscope.core.selection import selection_text
from headscope.core.site import Site
from headscope.model.built_in_mechanisms import heads_by_built_in_mechanism
from headscope.model.tracing.position_kinds import position_kind
from headscope.model.tracing.silent_towers import silent_towers
from headscope.model.transformers.probe_inputs import device_of, vocabulary


def describe(
    hf: Any,
    sites: tuple[Site, ...],
    *,
    name: str,
    source: str,
    dtype: str,
    dequantised: str = "",
    sha256: str = "",
    licence: str = "",
    tells_initialisation: bool = True,
    notes: tuple[str, ...] = (),
) -> ModelSpec:
    """The spec of a real or skeleton model, with the facts about its source."""
    config = hf.config.get_text_config() if hasattr(hf.config, "get_text_config") else hf.config
    first = sites[0] if sites else None
    return ModelSpec(
        name=name,
        source=source,
        family=hf.config.model_type,
        architecture=type(hf).__name__,
        kind=_kind(hf.config, sites),
        n_layers=len({(site.stack, site.layer) for site in sites}),
        n_heads=first.n_heads if first else 0,
        n_kv_heads=first.n_kv_heads if first else 0,
        d_model=int(getattr(config, "hidden_size", 0) or 0),
        d_head=first.d_head if first else 0,
        vocabulary=vocabulary(hf.config),
        context=_context(hf, config),
        n_parameters=parameter_count(hf),
        dtype=dtype,
        positions=position_kind(hf, sites),
        dequantised=dequantised,
        sha256=sha256,
        licence=licence,
        initial_sd=_initial_sd(config) if tells_initialisation and not dequantised else None,
        notes=(*notes, *_unseen(hf.config, sites), *_built_in(hf, sites), *silent_towers(hf, sites)),
        device=str(device_of(hf)),
    )


def _initial_sd(config: Any) -> float | None:
    """The `initializer_range` of config.json, or the default of its family.

    None for a configuration from a GGUF file, which only has the default.
    """
    initial_sd = getattr(config, "initializer_range", None)
    return float(initial_sd) if isinstance(initial_sd, int | float) and initial_sd > 0 else None


def _unseen(config: Any, sites: tuple[Site, ...]) -> tuple[str, ...]:
    """Notes about parts of the model whose attention headscope does not see."""
    if not config.is_encoder_decoder or any(site.stack == "enc" for site in sites):
        return ()
    return ("the encoder does not attend through transformers' attention interface: only the decoder is shown",)


def _built_in(hf: Any, sites: tuple[Site, ...]) -> tuple[str, ...]:
    """Notes about heads that do not attend densely, because the network was built so."""
    heads = heads_by_built_in_mechanism(hf, sites)
    return tuple(
        f"built with {spelling_of(mechanism)} in {selection_text(group)}"
        for mechanism, group in heads.items()
        if mechanism is not None
    )


def _kind(config: Any, sites: tuple[Site, ...]) -> str:
    if config.is_encoder_decoder:
        return "encoder-decoder"
    if any(site.stack in ("text", "image", "sound") for site in sites):
        return "two towers"
    return "decoder-only" if any(site.causal for site in sites) else "encoder"


def _context(hf: Any, config: Any) -> int | None:
    """The longest text that the model reads: its position table's size, or None."""
    tables = [
        m for name, m in hf.named_modules() if isinstance(m, nn.Embedding) and name.endswith("position_embeddings")
    ]
    if tables and tables[0].padding_idx is not None:
        # RoBERTa and its kin count positions from the padding token on: the rows up to it are never reached.
        return int(tables[0].num_embeddings) - int(tables[0].padding_idx) - 1
    for key in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
        if isinstance(length := getattr(config, key, None), int) and length > 0:
            return length
    return None


def parameter_count(hf: Any) -> int:
    """The number of weights.

    A weight that several modules share counts once. A model without weights shares nothing yet: there transformers'
    list of tied weights decides.
    """
    tied = dict(getattr(hf, "all_tied_weights_keys", None) or {})
    weights = dict(hf.named_parameters())
    return sum(
        weight.numel() for name, weight in weights.items() if tied.get(name, name) not in weights.keys() - {name}
    )

"""Layout: the attention sites of a network, known from its configuration alone; loads no torch."""

from typing import Any

from headscope.attention.mechanism_rules import heads_by_mechanism
from headscope.core.site import Kind, Site, Stack


def planned_site(config: Any, stack: Stack, layer: int, *, kind: Kind = "self", causal: bool = False) -> Site:
    """The attention of one layer."""
    return Site(
        stack=stack,
        kind=kind,
        layer=layer,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.kv_heads,
        d_head=config.d_head,
        d_value=config.d_head,
        causal=causal,
    )


def is_causal(config: Any, stack: Stack) -> bool:
    """Whether tokens of a stack see no later ones."""
    return stack == "dec" or (stack == "only" and bool(config.is_decoder))


def translator_sites(config: Any) -> tuple[Site, ...]:
    """The sites of an encoder–decoder, in the order of its forward."""
    encoder = [planned_site(config, "enc", layer) for layer in range(config.encoder_layers)]
    decoder = [
        site
        for layer in range(config.decoder_layers)
        for site in (
            planned_site(config, "dec", layer, causal=True),
            planned_site(config, "dec", layer, kind="cross"),
        )
    ]
    return (*encoder, *decoder)


def single_stack_sites(config: Any) -> tuple[Site, ...]:
    """The sites of a network with one stack."""
    causal = is_causal(config, "only")
    return tuple(planned_site(config, "only", layer, causal=causal) for layer in range(config.num_hidden_layers))


def spelled_mechanisms(rules: dict[str, str] | None, sites: tuple[Site, ...]) -> dict[Site, dict[int, str]]:
    """The mechanism of each head that has one of its own, as it is spelled.

    Raises:
        UsageError: A rule cannot be read, selects no head, or claims a head of another rule.
    """
    by_site: dict[Site, dict[int, str]] = {}
    for mechanism, heads in heads_by_mechanism(rules or {}, sites).items():
        for site, selected in heads.items():
            by_site.setdefault(site, {}).update(dict.fromkeys(selected, mechanism))
    return by_site

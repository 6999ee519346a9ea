"""Notes on weights for every lens that reads them: their origin, what they leave out."""

from collections.abc import Mapping, Sequence

from headscope.core import HeadWeights, ModelSpec, Site, WeightSource, WeightStatus


def origin(spec: ModelSpec) -> str:
    """The column `weights` of a table."""
    return f"expanded from {spec.dequantised}" if spec.dequantised else "as stored"


def has_gain(w: HeadWeights, parts: str = "qkv") -> bool:
    """Whether what the projections give is scaled afterwards; `parts` says which of q, k, v count."""
    return any(bool((getattr(w, f"gain_{part}") != 1).any()) for part in parts)


def gain_warning(gained: Sequence[Site], sites: Sequence[Site], projections: str) -> tuple[str, ...]:
    """The warning that the numbers leave out the gains of some sites."""
    if not gained:
        return ()
    return (
        f"{len(gained)} of {len(sites)} sites (first {gained[0].label}) scale {projections} after the "
        "projection: the numbers are those of the raw weights, without that gain.",
    )


def status_warnings(spec: ModelSpec, statuses: Mapping[Site, WeightStatus], normed: str) -> tuple[str, ...]:
    """Warnings of rounding noise, of sites that normalise, clip or add other terms, and of sites left out.

    `normed` says what normalisation means for the lens.
    """
    texts = [spec.weight_warning] if spec.weight_warning else []
    normed_sites = [site for site, weight_status in statuses.items() if weight_status.status == "normed"]
    if normed_sites:
        texts.append(
            f"{len(normed_sites)} of {len(statuses)} sites (first {normed_sites[0].label}) normalise q and k after the "
            f"projection (QK-norm): {normed}."
        )
    clipped = [
        (site, weight_status.reason) for site, weight_status in statuses.items() if weight_status.status == "clipped"
    ]
    if clipped:
        texts.append(
            f"In {len(clipped)} of {len(statuses)} sites (first {clipped[0][0].label}) {clipped[0][1]}: "
            "the numbers are those of the weights, without that."
        )
    incomplete = {
        site: status.reason for site, status in statuses.items() if status.status == "exact" and status.reason
    }
    for site, reason in list(incomplete.items())[:1]:
        texts.append(f"In {len(incomplete)} of {len(statuses)} sites (first {site.label}) {reason}.")
    reasons: dict[str, list[Site]] = {}
    for site, weight_status in statuses.items():
        if weight_status.status == "refused":
            reasons.setdefault(weight_status.reason, []).append(site)
    for reason, sites in reasons.items():
        texts.append(f"Left out: {', '.join(site.label for site in sites)}. Reason: {reason}.")
    return tuple(texts)


def method_of(weights: WeightSource, how: str) -> str:
    """How the numbers came about, where the weights were read, and what W_QK means with rotary positions."""
    parts = [how, weights.method]
    if weights.spec.positions == "rotary":
        parts.append("Positions are rotary, so W_QK is the form at distance 0.")
    return " ".join(part[0].upper() + part[1:].rstrip(".") + "." for part in parts if part)

"""Every place of the registry against hooks written by hand: values, what is missing, and gradients.

`hand_hooks` has the table of modules. Inside the session a place is read and hooked by hand in one forward, so that
both see the same tensor, to the last bit.
"""

import sys
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from headscope.core.site import Site
from headscope.model.model import Model, open_model
from headscope.model.session.captures import QUANTITIES, WatchedQuantity
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from tests.model.hand_hooks import (
    BY_HAND,
    FAMILIES,
    ONLY_READER_OF_MID,
    PLACES,
    RMS,
    SCALES,
    Spot,
    hooked,
    output_matrix,
    output_projection,
    recorded,
    scale_by_hand,
    spots_by_hand,
)
from tests.model.test_fidelity import relative_error

# A scale in float32 against its formula in float64; parts of heads, scores and maps in float32 against the same
# products taken in another order; gradients in float64, which round at 1e-16 and pass two layers.
AGREEMENT = 1e-6

# Why a place is missing where the table has no module for it.
REASONS = {
    "embed": "no table of token vectors is read",
    "x_scale": "no norm stands directly before it",
    "mlp_scale": "no norm stands directly before it",
    "resid_mid": "adds the attention and the feed-forward part together",
    "mlp_act": "not one matrix out and one back",
    "final_scale": "no norm stands directly after the last layer",
    "logits": "no output head",
}
_OPENED: dict[str, Model] = {}


def opened(name: str) -> Model:
    if name not in _OPENED:
        _OPENED[name] = open_model(FAMILIES[name].build())
    return _OPENED[name]


def forward(model: Model) -> Any:
    return model.hf(**probe_inputs(model.hf, batch=2, seed=3), **forward_options(model.hf))


def spots_of(model: Model, place: str) -> Any:
    quantity = QUANTITIES[place]
    assert isinstance(quantity, WatchedQuantity)
    return model.spots(quantity)


def shown(model: Model) -> list[str]:
    return [place for place in PLACES if spots_of(model, place).by_site]


def labels(by_site: Any) -> list[str]:
    return [site.label for site in by_site]


def test_the_table_names_every_family_and_every_place() -> None:
    assert set(BY_HAND) == set(FAMILIES)
    # Parts of single heads (see the tests of heads), and what follows from weights alone.
    outside = {"head_out", "q_proj", "k_proj", "output_gram"}
    assert {name for name, entry in QUANTITIES.items() if isinstance(entry, WatchedQuantity)} == set(PLACES) | outside


@pytest.mark.parametrize("name", BY_HAND)
def test_a_place_is_missing_only_where_nobody_can_hook_it(name: str) -> None:
    model = opened(name)
    by_hand = spots_by_hand(name, model)
    for place in PLACES:
        spots = spots_of(model, place)
        assert labels(spots.by_site) == labels(by_hand[place]), (place, spots.missing)
        assert not set(spots.by_site) & set(spots.missing)
        for reason in spots.missing.values():
            assert REASONS[place] in reason
    assert labels(spots_of(model, "head_out").by_site) == labels(model.sites)


@pytest.mark.parametrize("name", BY_HAND)
def test_values_are_those_of_hooks_written_by_hand(name: str) -> None:
    model, noted = opened(name), dict[tuple[str, Site], list[Tensor]]()
    by_hand, places = spots_by_hand(name, model), shown(model)
    with torch.no_grad(), ExitStack() as stack:
        for place, spots in by_hand.items():
            for site, spot in spots.items():
                read = Spot(spot.modules, spot.side or "in", spot.factor)
                noted[place, site] = stack.enter_context(recorded(model.hf, read))
        capture = stack.enter_context(model.session()).capture(*places)
        forward(model)
    taken = capture.take()
    assert {(place, site) for place, by_site in taken.items() for site in by_site} == set(noted)
    for (place, site), (tensor,) in noted.items():
        captured = taken[place][site]
        if place in SCALES:
            norm = model.hf.get_submodule(by_hand[place][site].modules[0][0])
            formula = scale_by_hand(norm, tensor, name in RMS).reshape(captured.shape)
            assert ((captured.double() - formula) / formula).abs().max() <= AGREEMENT, (place, site.label)
        else:
            assert captured.ndim == 3, place
            # Some families read all texts as one list of tokens.
            assert torch.equal(captured, tensor.reshape(captured.shape)), (place, site.label)


@pytest.mark.parametrize("name", BY_HAND)
def test_heads_give_what_the_output_projection_reads_and_sum_to_what_it_gives(name: str) -> None:
    model = opened(name)
    read = {site: Spot(spot.modules, "in") for site, spot in spots_by_hand(name, model)["attn_out"].items()}
    with torch.no_grad(), ExitStack() as stack:
        noted = {site: stack.enter_context(recorded(model.hf, spot)) for site, spot in read.items()}
        capture = stack.enter_context(model.session()).capture("z", "head_out", "attn_out")
        forward(model)
    taken = capture.take()
    for site, (tensor,) in noted.items():
        z = taken["z"][site]
        assert torch.equal(z.transpose(1, 2).reshape(tensor.shape), tensor)
        linear = output_projection(name, model, site)
        matrices = output_matrix(linear).reshape(site.n_heads, site.d_value, -1)
        parts = taken["head_out"][site]
        for head in range(site.n_heads):
            assert relative_error(parts[:, head], z[:, head] @ matrices[head]) <= AGREEMENT
        bias = 0 if linear.bias is None else linear.bias.detach()
        assert relative_error(parts.sum(1) + bias, taken["attn_out"][site]) <= AGREEMENT


def by_head(tensor: Tensor, width: int) -> Tensor:
    """What a projection gives, as batch × heads × tokens × width."""
    return tensor.unflatten(-1, (-1, width)).transpose(1, 2)


def normed_by_head(normed: Tensor, states: Tensor) -> Tensor:
    """What a norm of queries or keys gives; it sees all heads as one vector, or each before or after transposition."""
    if normed.ndim == 3:
        return by_head(normed, states.shape[-1])
    return normed if normed.shape == states.shape else normed.transpose(1, 2)


def places_of_projections(model: Model) -> None:
    """Look them up: the forwards that do so pass the hooks too."""
    for place in ("q_proj", "k_proj"):
        assert labels(spots_of(model, place).by_site) == labels(model.sites)


# Families with a module for each of q, k and v: with rotary positions, some with norms before them, and without.
ROTARY = (
    "llama_gqa", "llama_bias", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss", "olmo", "olmo2",
    "cohere", "granite",
)  # fmt: skip
UNROTATED = ("bert", "distilbert", "albert", "electra", "t5", "bart", "marian", "vit", "gpt_neo", "mpnet")


@pytest.mark.parametrize("name", [*ROTARY, *UNROTATED])
def test_queries_keys_and_values_are_those_of_their_modules(name: str) -> None:
    """Projections and values to the last bit; so are queries and keys, after the family's own norm and rotation."""
    model, rotations = opened(name), dict[Site, tuple[Tensor, Tensor]]()
    sites = [site for site in model.sites if site.kind == "self"]
    places_of_projections(model)
    with torch.no_grad(), ExitStack() as stack:
        noted = {}
        for site in sites:
            attention = model.hf.get_submodule(site.module)

            def note(_: Any, args: Any, kwargs: Any, site: Site = site) -> None:
                rotations[site] = kwargs.get("position_embeddings")

            stack.callback(attention.register_forward_pre_hook(note, with_kwargs=True).remove)
            modules = dict(zip("qkv", spots_by_hand(name, model)["x"][site].modules, strict=True))
            for letter, module in modules.items():
                noted[letter, site] = stack.enter_context(recorded(model.hf, Spot((module,), "out")))
                normed = (f"{site.module}.{letter}_norm", site.call)
                if hasattr(attention, f"{letter}_norm"):
                    noted[f"{letter}_norm", site] = stack.enter_context(recorded(model.hf, Spot((normed,), "out")))
        capture = stack.enter_context(model.session()).capture("q_proj", "k_proj", "q", "k", "v", "scores", "scale")
        forward(model)
    taken = capture.take()
    for site in sites:
        widths = {"q": site.d_head, "k": site.d_head, "v": site.d_value}
        q, k, v = (by_head(noted[letter, site][0], width) for letter, width in widths.items())
        assert torch.equal(taken["q_proj"][site], q)
        assert torch.equal(taken["k_proj"][site], k)
        assert torch.equal(taken["v"][site], v)
        if ("q_norm", site) in noted:
            q, k = (normed_by_head(noted[f"{letter}_norm", site][0], states) for letter, states in (("q", q), ("k", k)))
        if name in ROTARY:
            attention = model.hf.get_submodule(site.module)
            q, k = sys.modules[type(attention).__module__].apply_rotary_pos_emb(q, k, *rotations[site])
        assert torch.equal(taken["q"][site], q)
        assert torch.equal(taken["k"][site], k)
        if not set(site.extras) & {"bias", "softcap"}:
            product = float(taken["scale"][site]) * q @ k.repeat_interleave(site.n_heads // site.n_kv_heads, 1).mT
            assert relative_error(taken["scores"][site], product) <= AGREEMENT


# Pre-norm with grouped queries, fused projections, sandwich norms, factors, parallel blocks, experts, post-norm, shared
# layers, cross-attention, and two that compute their attention themselves, one of them with additions in place.
DIFFERENTIATED = (
    "llama_gqa",
    "gpt2",
    "gemma2",
    "granite_scaled",
    "gpt_neox",
    "mixtral",
    "bert",
    "albert",
    "t5",
    "bart",
    "bloom",
    "falcon",
)


def inputs_of(model: Model) -> dict[str, Tensor]:
    tokens = torch.randint(3, 99, (2, 6), generator=torch.Generator().manual_seed(5))
    names = ("input_ids", "decoder_input_ids") if model.spec.kind == "encoder-decoder" else ("input_ids",)
    return dict.fromkeys(names, tokens)


def one_number(logits: Tensor) -> Tensor:
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(9), dtype=logits.dtype)
    return (logits * weights).sum()


class _Leaves:
    """Tensors on the way to the output, each put in its place by a hook written by hand."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[str, Site], Tensor] = {}
        self._entering: dict[tuple[str, Site], Tensor] = {}

    def copy_at(self, key: tuple[str, Site]) -> Any:
        def copied(tensor: Tensor) -> Tensor:
            self.tensors[key] = tensor.clone()
            return self.tensors[key]

        return copied

    def stream_at(self, key: tuple[str, Site]) -> Any:
        def noted(tensor: Tensor) -> Tensor:
            self._entering[key] = tensor.detach()
            return tensor

        return noted

    def scale_at(self, key: tuple[str, Site], norm: Any, is_rms: bool) -> Any:
        """The norm gives d·g/σ + b: put another leaf in the place of σ."""

        def rescaled(normed: Tensor) -> Tensor:
            scale = scale_by_hand(norm, self._entering[key], is_rms)
            self.tensors[key] = scale.clone().requires_grad_()
            bias = getattr(norm, "bias", None)
            shift = 0 if bias is None else bias
            return (normed - shift) * (scale / self.tensors[key]) + shift

        return rescaled


def gradients_by_hand(name: str, model: Model) -> dict[tuple[str, Site], Tensor]:
    leaves = _Leaves()
    spots = spots_by_hand(name, model)
    with torch.enable_grad(), model.session(), ExitStack() as stack:
        for site, spot in spots["attn_out"].items():
            stack.enter_context(hooked(model.hf, Spot(spot.modules, "in"), leaves.copy_at(("z", site))))
        for place, by_site in spots.items():
            for site, spot in by_site.items():
                key = (place, site)
                if place in SCALES:
                    norm = model.hf.get_submodule(spot.modules[0][0])
                    stack.enter_context(hooked(model.hf, Spot(spot.modules, "in"), leaves.stream_at(key)))
                    act = leaves.scale_at(key, norm, name in RMS)
                    stack.enter_context(hooked(model.hf, Spot(spot.modules, "out"), act))
                elif place != "resid_mid" or name in ONLY_READER_OF_MID:
                    stack.enter_context(hooked(model.hf, spot, leaves.copy_at(key)))
        logits = model.hf(**inputs_of(model), **forward_options(model.hf)).logits
    computed = torch.autograd.grad(one_number(logits), list(leaves.tensors.values()), allow_unused=True)
    factors = {(place, site): spot.factor for place, by_site in spots.items() for site, spot in by_site.items()}
    gradients = {
        key: (torch.zeros_like(leaf) if gradient is None else gradient) / factors.get(key, 1.0)
        for (key, leaf), gradient in zip(leaves.tensors.items(), computed, strict=True)
    }
    for site in spots["resid_mid"]:
        # mid = resid + attn_add, so both have the same gradient.
        gradients.setdefault(("resid_mid", site), gradients["attn_add", site])
    for site in spots["attn_out"]:
        z = gradients["z", site]
        gradients["z", site] = z.reshape(*z.shape[:2], site.n_heads, site.d_value).transpose(1, 2)
        gradients["head_out", site] = gradients["attn_out", site][:, None].expand(-1, site.n_heads, -1, -1)
    return gradients


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_are_those_of_tensors_hooked_by_hand(name: str) -> None:
    hf = FAMILIES[name].build().double()
    hf.set_experts_implementation("eager")  # torch multiplies grouped matrices in float32 at most
    model = open_model(hf)
    by_hand = gradients_by_hand(name, model)
    places = [*shown(model), "head_out", "z"]
    with model.session() as session:
        capture = session.capture(*places, gradient=True)
        number = one_number(session.run(inputs_of(model)["input_ids"]).logits)
        computed = capture.gradients(number)
    assert {(place, site) for place, by_site in computed.items() for site in by_site} == set(by_hand)
    for (place, site), gradient in by_hand.items():
        mine = computed[place][site]
        assert relative_error(mine, gradient.reshape(mine.shape)) <= AGREEMENT, (place, site.label)


@pytest.mark.parametrize("name", ["llama_gqa", "gpt2", "bert", "t5", "bloom"])
def test_gradients_inside_the_attention_follow_from_that_of_its_output(name: str) -> None:
    """z = P v, P = softmax(S), S = scale · q kᵀ (and a bias): the derivatives, written out."""
    model = open_model(FAMILIES[name].build().double())
    with model.session() as session:
        capture = session.capture("q", "k", "v", "scores", "pattern", "z", gradient=True)
        scales = session.capture("scale")
        number = one_number(session.run(inputs_of(model)["input_ids"]).logits)
        gradients, taken, scale_by_site = capture.gradients(number), capture.take(), scales.take()["scale"]
    for site in model.sites:
        q, k, v, weights = (taken[what][site].detach().double() for what in ("q", "k", "v", "pattern"))
        groups = site.n_heads // site.n_kv_heads
        of_z = gradients["z"][site]
        of_pattern = of_z @ v.repeat_interleave(groups, 1).mT
        of_scores = weights * (of_pattern - (weights * of_pattern).sum(-1, keepdim=True))
        scale = float(scale_by_site[site])

        def per_group(heads: Tensor, groups: int = groups) -> Tensor:
            return heads.unflatten(1, (-1, groups)).sum(2)

        expected = {
            "pattern": of_pattern,
            "scores": of_scores,
            "v": per_group(weights.mT @ of_z),
            "q": scale * of_scores @ k.repeat_interleave(groups, 1),
            "k": per_group(scale * of_scores.mT @ q),
        }
        for what, gradient in expected.items():
            assert relative_error(gradients[what][site], gradient) <= AGREEMENT, (what, site.label)

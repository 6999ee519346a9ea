"""The registry of captures: one entry is all that a quantity takes, and each entry is true."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headscope.attention.maps import pattern, scores
from headscope.errors import CaptureError, UsageError
from headscope.model.model import Model, open_model
from headscope.model.session import axes
from headscope.model.session.axes import Axis, Extent
from headscope.model.session.captures import (
    QUANTITIES,
    InputQuantity,
    MapQuantity,
    OutputQuantity,
    WatchedQuantity,
    find_quantity,
)
from headscope.model.session.module_taps import ModuleTap, Watched
from headscope.model.session.places import Spot, Spots
from headscope.model.transformers.layers import enclosing_layer
from headscope.shapes import AXES
from tests.model.families import DISPATCHING, OTHER_OUTSIDE, OUTSIDE

BATCH = 2
LEFT = QUANTITIES["resid"]
ALBERT = next(family for family in DISPATCHING if family.name == "albert")

# A quantity that exists nowhere but in this file: the largest weight of each row.
PEAK = MapQuantity(
    name="peak",
    meaning="The largest weight of each row.",
    axes=(axes.BATCH, axes.HEADS, axes.QUERIES),
    compute=lambda call: pattern(call).amax(-1),
    of="pattern",
    cut=lambda stored: stored.amax(-1),
)


@pytest.fixture(params=["tiny", "llama_gqa", "t5", "bert", "bloom", "gpt_neo"])
def model(request: pytest.FixtureRequest, tiny: Model) -> Model:
    """The embedded model, families of the attention interface, and two that are watched at their softmax."""
    by_name = {family.name: family for family in DISPATCHING + OUTSIDE}
    return tiny if request.param == "tiny" else open_model(by_name[request.param].build())


def tokens(length: int = 9) -> Tensor:
    return torch.randint(3, 99, (BATCH, length), generator=torch.Generator().manual_seed(7))


def captured(model: Model, *names: str, at: str = "all", length: int = 9) -> dict[str, dict[object, Tensor]]:
    with model.session() as session:
        capture = session.capture(*names, at=at)
        session.run(tokens(length))
        return capture.take()


def test_a_quantity_of_the_map_is_one_entry(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is captured, shown, spelled and described, and no other line is written for it."""
    monkeypatch.setitem(QUANTITIES, "peak", PEAK)
    taken = captured(model, "pattern", "peak")
    assert set(taken["peak"]) == set(model.sites)
    for site, whole in taken["pattern"].items():
        assert torch.allclose(taken["peak"][site], whole.amax(-1), atol=1e-6)
    with model.session() as session:
        assert "peak" in session.shown
        with pytest.raises(UsageError, match=r"cannot capture peaks\n.*\bpeak\b"):
            session.capture("peaks")
        with pytest.raises((UsageError, CaptureError), match=r"cannot (patch 'peak'|be patched)"):
            session.patch("all", "peak", torch.zeros(1))
    assert "| `peak` | batch × heads × queries | The largest weight of each row. |" in docs_page()


def test_a_quantity_of_the_scores_is_one_entry(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Families that are watched at their softmax follow the scores for it, although nobody asks for `scores`."""
    mean = MapQuantity(
        name="mean_score",
        meaning="The mean of all scores.",
        axes=(axes.BATCH, axes.HEADS),
        compute=lambda call: scores(call).mean((-1, -2)),
        of="scores",
        cut=lambda stored: stored.mean((-1, -2)),
    )
    monkeypatch.setitem(QUANTITIES, "mean_score", mean)
    means, whole = captured(model, "mean_score")["mean_score"], captured(model, "scores")["scores"]
    for site in model.sites:
        assert torch.allclose(means[site], whole[site].mean((-1, -2)), atol=1e-5)


def test_a_quantity_without_a_cut_is_computed_from_the_call(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    uncut = MapQuantity(name="peak", meaning=PEAK.meaning, axes=PEAK.axes, compute=PEAK.compute, of="pattern")
    monkeypatch.setitem(QUANTITIES, "peak", uncut)
    taken = captured(model, "pattern", "peak")
    for site in model.sites:
        assert torch.allclose(taken["peak"][site], taken["pattern"][site].amax(-1), atol=1e-6)


def test_a_quantity_of_the_inputs_is_one_entry(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its axis of key/value heads says which of them belong to the selected heads."""
    lengths = InputQuantity(
        name="key_lengths",
        meaning="The lengths of the keys.",
        axes=(axes.BATCH, axes.KV_HEADS, axes.KEYS),
        read=lambda call: call.k.norm(dim=-1),
    )
    monkeypatch.setitem(QUANTITIES, "key_lengths", lengths)
    families = [family for family in DISPATCHING + OTHER_OUTSIDE if family.name in ("llama_gqa", "falcon_grouped")]
    for model in (tiny, *(open_model(family.build()) for family in families)):
        taken = captured(model, "k", "key_lengths", at="L1.H2-3")
        for site, k in taken["k"].items():
            assert torch.equal(taken["key_lengths"][site], k.norm(dim=-1))
            assert k.shape[1] == len({site.kv_head(2), site.kv_head(3)}) < site.n_kv_heads


def test_a_quantity_of_the_output_is_one_entry(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = OutputQuantity(
        name="z_lengths",
        meaning="The lengths of what the heads give.",
        axes=(axes.BATCH, axes.HEADS, axes.QUERIES),
        read=lambda out: out.norm(dim=-1),
    )
    monkeypatch.setitem(QUANTITIES, "z_lengths", lengths)
    stack = "dec." if model.spec.kind == "encoder-decoder" else ""
    taken = captured(model, "z", "z_lengths", at=f"{stack}L1.H1-2")
    for site, z in taken["z"].items():
        assert torch.allclose(taken["z_lengths"][site], z.norm(dim=-1))


@pytest.mark.parametrize("name", ["llama_gqa", "albert", "bloom"])
def test_a_watched_place_is_one_entry(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves each layer is what enters the next one."""

    def layer_outputs(model: Model) -> Spots:
        per_forward = len({site.call for site in model.sites})
        layers = {site: (enclosing_layer(model.hf, site.module),) for site in model.sites}
        return Spots({site: Spot(layers[site], "output", site.call, per_forward) for site in model.sites})

    entry = WatchedQuantity(
        name="left",
        meaning="What leaves the layer.",
        axes=(axes.BATCH, axes.TOKENS, axes.D_MODEL),
        place=layer_outputs,
        needs="layers",
    )
    monkeypatch.setitem(QUANTITIES, "left", entry)
    model = open_model(next(family for family in DISPATCHING + OUTSIDE if family.name == name).build())
    taken = captured(model, "left", "resid", "final")
    for before, after in zip(model.sites, model.sites[1:], strict=False):
        assert torch.equal(taken["left"][before], taken["resid"][after])
    assert torch.equal(taken["left"][model.sites[-1]], taken["final"][model.sites[-1]])


@pytest.mark.parametrize("is_long", [False, True])
def test_axes_say_the_shape_of_every_capture(model: Model, is_long: bool) -> None:
    """In long windows not all tokens are in the pairs, among the sampled rows and, with room for 70, in the corner."""
    length = min(70, model.spec.context or 70) if is_long else 9
    with model.session() as session:
        places = {name: QUANTITIES[name] for name in session.shown}
        shown = [
            name
            for name, quantity in places.items()
            if not isinstance(quantity, WatchedQuantity) or model.spots(quantity).by_site
        ]
        names = [*shown, "corner:5"]
    for name, by_site in captured(model, *names, length=length).items():
        quantity = find_quantity(name)
        assert quantity is not None
        assert by_site, name
        for site, tensor in by_site.items():
            # T5's feed-forward width and the vocabulary are not in the spec of a site.
            widths = {"d_mlp": (1, *tensor.shape)[-1], "vocabulary": (1, *tensor.shape)[-1]}
            extent = Extent(site, model.spec.d_model, queries=length, keys=length, **widths)
            batch = BATCH if axes.BATCH in quantity.axes else 1
            lengths = [batch if axis is axes.BATCH else axis.length(extent) for axis in quantity.axes]
            assert list(tensor.shape) == lengths, name
            assert tensor.numel() == batch * quantity.numbers_per_window(extent)


def test_axes_are_in_the_glossary() -> None:
    everywhere = {axis.name for quantity in QUANTITIES.values() for axis in quantity.axes}
    assert everywhere == {axis.name for axis in vars(axes).values() if isinstance(axis, Axis)} | {
        "first_queries",
        "first_keys",
    }
    assert everywhere <= set(AXES)


def test_each_meaning_is_one_sentence() -> None:
    for name, quantity in QUANTITIES.items():
        assert quantity.name == name
        assert quantity.meaning.endswith(".")
        assert ". " not in quantity.meaning


@pytest.mark.parametrize(
    ("name", "size"), [("corner", 64), ("corner:256", 256), ("corner:0", None), ("corner:x", None), ("pairs:3", None)]
)
def test_names_with_a_size(name: str, size: int | None, tiny: Model) -> None:
    quantity = find_quantity(name)
    assert (quantity is None) == (size is None)
    if quantity is not None and size is not None:
        extent = Extent(tiny.sites[0], 1, queries=1000, keys=1000)
        assert quantity.name == name
        assert quantity.numbers_per_window(extent) == tiny.sites[0].n_heads * size**2


@pytest.mark.parametrize("name", [*QUANTITIES, "corner:5"])
def test_an_entry_says_whether_it_can_be_patched(name: str, tiny: Model) -> None:
    quantity = find_quantity(name)
    assert quantity is not None
    with tiny.session() as session:
        if not quantity.patchable:
            with pytest.raises(UsageError, match=rf"cannot patch '{name}'\n.*q, k, v, scores, pattern, z, "):
                session.patch("L0", name, torch.zeros(1))
            return
        before = session.run(tokens()).logits
        place = "L3" if name in ("final", "final_scale", "logits") else "L0.H1"
        session.patch(place, name, lambda value: value * 2)
        after = session.run(tokens()).logits
    # A norm follows `final`, so that its length does not matter.
    assert float((after - before).abs().max()) > (1e-9 if name == "final" else 1e-4)


def test_parts_of_a_patched_pattern(tiny: Model) -> None:
    """What can be cut from a map is cut from the patched one; heads that are not patched give the same as ever."""
    plain = captured(tiny, "corner:5", "early", at="L0.H0")
    with tiny.session() as session:
        session.patch("L0.H1", "pattern", lambda before: before.flip(-1))
        all_heads, other_head = (
            session.capture("pattern", "corner:5", at="L0"),
            session.capture("corner:5", "early", at="L0.H0"),
        )
        session.run(tokens())
        whole, parts = all_heads.take(), other_head.take()
        session.capture("early", at="L0")
        with pytest.raises(CaptureError, match="early cannot be captured where pattern is patched"):
            session.run(tokens())
    site = tiny.sites[0]
    assert torch.equal(whole["corner:5"][site], whole["pattern"][site][..., :5, :5])
    for name in ("corner:5", "early"):
        assert torch.equal(parts[name][site], plain[name][site])


def test_the_gram_of_outputs_gives_the_length_of_what_heads_write(model: Model) -> None:
    taken = captured(model, "z", "head_out", "output_gram")
    assert taken["output_gram"]
    for site, gram in taken["output_gram"].items():
        z, written = taken["z"][site], taken["head_out"][site]
        lengths = torch.einsum("bhqd,bhde,bhqe->bhq", z, gram, z).sqrt()
        assert torch.allclose(lengths, written.norm(dim=-1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["resid", "x"])
def test_a_shared_layer_shows_the_selected_call(name: str) -> None:
    """ALBERT calls one module for all layers: a selection of one of them is not given another's stream."""
    model = open_model(ALBERT.build())
    model.weight_source()
    whole = captured(model, name)[name]
    assert not torch.equal(whole[model.sites[0]], whole[model.sites[1]])
    for site in model.sites:
        assert torch.equal(captured(model, name, at=site.label)[name][site], whole[site])


def test_a_forward_that_broke_off_does_not_shift_the_next() -> None:
    model = open_model(ALBERT.build())
    whole = captured(model, "resid", "final")

    def broken() -> None:
        raise ZeroDivisionError

    with model.session() as session:
        capture = session.capture("resid", "final")
        with pytest.raises(ZeroDivisionError):
            session.run(tokens(), each=broken)
        capture.take_all()
        session.run(tokens())
        taken = capture.take()
    for name, by_site in whole.items():
        assert set(taken[name]) == set(by_site)
        assert all(torch.equal(taken[name][site], tensor) for site, tensor in by_site.items()), name


def test_a_place_without_a_tensor_is_refused(tiny: Model) -> None:
    site, module = tiny.sites[0], torch.nn.Identity()
    watched = Watched(LEFT, site, Spot(("some.module",), "output"))
    tap = ModuleTap("some.module", [watched], lambda watched, tensor, given, module: tensor, lambda: True)
    tap.attach(module, "output")
    with pytest.raises(CaptureError, match=r"^L0: some\.module has no tensor that could be captured as resid$"):
        module({"states": 1})


def test_a_refused_capture_leaves_no_hook() -> None:
    model = open_model(ALBERT.build())
    with model.session() as session:
        before = [len(module._forward_pre_hooks) for module in model.hf.modules()]
        with pytest.raises(UsageError, match="matches no head"):
            session.capture("resid", "x", at="L9")
        assert [len(module._forward_pre_hooks) for module in model.hf.modules()] == before


def docs_page() -> str:
    """The page of captures, as the script writes it now."""
    path = Path(__file__).parents[2] / "scripts" / "make_docs.py"
    spec = importlib.util.spec_from_file_location("make_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page: str = module.capture_page()
    return page


class _AddsInPlace(torch.nn.Module):
    """A layer of a Llama that adds what it computes to the tensor it was given."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states: Tensor, **options: object) -> Tensor:
        return hidden_states.copy_(self.layer(hidden_states, **options))


def test_what_a_model_writes_over_is_captured_as_it_was() -> None:
    family = next(family for family in DISPATCHING if family.name == "llama_gqa")
    hf = family.build()
    plain = captured(open_model(hf), "resid", "resid_post")
    for number, layer in enumerate(hf.model.layers):
        hf.model.layers[number] = _AddsInPlace(layer)
    model = open_model(hf)
    assert model.overwrites
    overwritten = captured(model, "resid")
    for before, after in zip(plain["resid"].values(), overwritten["resid"].values(), strict=True):
        assert torch.equal(before, after)


def test_a_hook_that_writes_over_what_was_captured_is_noticed() -> None:
    model = open_model(next(family for family in DISPATCHING if family.name == "llama_gqa").build())
    assert not model.overwrites

    def wipe(module: torch.nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        inputs[0].zero_()

    handle = model.hf.model.layers[0].mlp.register_forward_hook(wipe)
    try:
        with model.session() as session:
            capture = session.capture("mlp_in")
            session.run(tokens())
            with pytest.raises(CaptureError, match=r"mlp_in of L0 was written over in place.*\n.*return a new tensor"):
                capture.take()
    finally:
        handle.remove()


def test_a_change_may_write_over_what_it_is_handed() -> None:
    model = open_model(next(family for family in DISPATCHING if family.name == "llama_gqa").build())
    plain = captured(model, "resid_post")
    with model.session() as session:
        capture = session.capture("resid_post")
        session.patch("L1", "resid", lambda stream: stream.mul_(0))
        session.run(tokens())
        assert torch.equal(capture.take()["resid_post"][model.sites[0]], plain["resid_post"][model.sites[0]])

"""Families that compute their attention themselves: their queries, keys, values and outputs, read and changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope.core import Site
from headscope.errors import CaptureError
from headscope.lenses.spectra.lens import LENS
from headscope.lenses.spectra.settings import Params
from headscope.model.model import Model, open_model
from headscope.model.transformers.attention_hook import implementation
from headscope.model.transformers.attention_products import AttentionHandler, AttentionProducts, ProductWatch, Softmax
from headscope.model.transformers.head_layout import HeadLayout
from headscope.model.transformers.matrix_products import read_product
from headscope.model.transformers.model_state import restored
from headscope.model.transformers.probe_inputs import forward_options
from tests.model.families import OTHER_OUTSIDE, OUTSIDE, Family
from tests.model.hand_projections import BY_HAND
from tests.model.opened_families import opened
from tests.model.test_fidelity import by_name, padded_inputs
from tests.tolerances import SAME_FUNCTION, SCORES_OF_A_MAP, WEIGHT_AGREEMENT

FAMILIES = {family.name: family for family in (*OUTSIDE, *OTHER_OUTSIDE)}
ALL = list(FAMILIES.values())


class Recorder(AttentionHandler):
    """Keeps what it is shown, and changes what it is told to."""

    def __init__(self, **changes: Callable[[Site, Tensor], Tensor]) -> None:
        self.changes = changes
        self.shown: dict[str, dict[Site, Tensor]] = {}
        self.order: list[tuple[str, Site]] = []

    def follows_scores(self) -> bool:
        return "scores" in self.changes

    def _note(self, name: str, site: Site, tensor: Tensor) -> Tensor:
        self.order.append((name, site))
        changed = self.changes.get(name, lambda _, before: before)(site, tensor)
        self.shown.setdefault(name, {})[site] = changed
        return changed

    def inputs(self, site: Site, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._note("q", site, q), self._note("k", site, k)

    def scores(self, site: Site, scores: Tensor) -> Tensor:
        return self._note("scores", site, scores)

    def pattern(self, site: Site, softmax: Softmax) -> Tensor:
        return self._note("pattern", site, softmax.pattern)

    def values(self, site: Site, v: Tensor) -> Tensor:
        return self._note("v", site, v)

    def output(self, site: Site, z: Tensor) -> Tensor:
        return self._note("z", site, z)


def products_of(model: Model) -> AttentionProducts:
    assert model._softmax is not None
    return model._softmax.products


@contextmanager
def watched(model: Model, handler: AttentionHandler) -> Iterator[None]:
    watch = ProductWatch(products_of(model), handler, model.spec.family)
    with implementation(model.hf, "eager"), watch.on(model.hf):
        yield


def logits(model: Model, inputs: dict[str, Tensor], handler: AttentionHandler | None = None) -> Tensor:
    with torch.no_grad(), restored(model.hf), watched(model, handler or AttentionHandler()):
        return model.hf(**inputs, **forward_options(model.hf))[0]


def text(model: Model, batch: int = 3, length: int = 11) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {"input_ids": torch.randint(3, 99, (batch, length), generator=generator)}


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return ours.shape == theirs.shape and float((ours - theirs).abs().max() / theirs.abs().max()) <= tolerance


def module_tensors(
    model: Model, name: str, inputs: dict[str, Tensor]
) -> tuple[dict[tuple[int, str], Tensor], Recorder]:
    """What the modules that project give, what the output projection is given, and what the watch shows."""
    by_hand, tensors = BY_HAND[name], dict[tuple[int, str], Tensor]()
    hooks = []
    for site in model.sites:
        for letter in "qkv":

            def keep(_: nn.Module, __: Any, out: Tensor, key: tuple[int, str] = (site.layer, letter)) -> None:
                tensors[key] = out.detach().clone()

            hooks.append(by_hand.module(model.hf, site.layer, letter).register_forward_hook(keep))

        def keep_input(_: nn.Module, args: Any, key: tuple[int, str] = (site.layer, "o")) -> None:
            tensors[key] = args[0].detach().clone()

        hooks.append(by_hand.module(model.hf, site.layer, "o").register_forward_pre_hook(keep_input))
    recorder = Recorder()
    try:
        logits(model, inputs, recorder)
    finally:
        for hook in hooks:
            hook.remove()
    return tensors, recorder


@pytest.mark.parametrize("name", BY_HAND)
def test_queries_keys_values_and_outputs_are_those_of_hooks_by_hand(name: str) -> None:
    model = opened(FAMILIES[name])
    inputs = text(model)
    tensors, recorder = module_tensors(model, name, inputs)
    for site in model.sites:
        for letter in "qkv":
            expected = BY_HAND[name].states(model.hf, site.layer, letter, tensors[site.layer, letter])
            assert close(recorder.shown[letter][site], expected, WEIGHT_AGREEMENT), (site.label, letter)
        z = tensors[site.layer, "o"].unflatten(-1, (4, 8)).transpose(1, 2)
        assert torch.equal(recorder.shown["z"][site], z)


@pytest.mark.parametrize("name", BY_HAND)
def test_weights_are_the_slices_of_the_family(name: str) -> None:
    model, by_hand = opened(FAMILIES[name]), BY_HAND[name]
    for site in model.sites:
        weights = model.weights(site)
        assert weights.status.status == "exact"
        for letter in "qkvo":
            assert torch.equal(getattr(weights, f"w_{letter}"), by_hand.weight(model.hf, site.layer, letter))
        for letter in "qkv":
            bias = by_hand.bias(model.hf, site.layer, letter)
            assert torch.allclose(getattr(weights, f"b_{letter}"), bias, atol=WEIGHT_AGREEMENT), letter
            gain = getattr(weights, f"gain_{letter}")
            assert torch.allclose(gain, torch.full_like(gain, by_hand.gain.get(letter, 1.0)), rtol=WEIGHT_AGREEMENT)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_head_without_output_is_a_head_without_columns(name: str) -> None:
    model = open_model(FAMILIES[name].build())
    inputs, head, site = text(model), 2, model.sites[1]

    def silenced(at: Site, z: Tensor) -> Tensor:
        if at is not site:
            return z
        return torch.cat((z[:, :head], torch.zeros_like(z[:, :1]), z[:, head + 1 :]), dim=1)

    plain, changed = logits(model, inputs), logits(model, inputs, Recorder(z=silenced))
    output = BY_HAND[name].module(model.hf, site.layer, "o")
    columns = slice(8 * head, 8 * head + 8)
    with torch.no_grad():
        if isinstance(output, nn.Linear):
            output.weight[:, columns] = 0.0
        else:
            output.weight[columns] = 0.0
    wanted = logits(model, inputs)
    assert not close(plain, wanted, 1e-3)
    assert close(changed, wanted, SAME_FUNCTION)


@pytest.mark.parametrize("family", ALL, ids=by_name)
def test_new_tensors_with_the_same_numbers_change_nothing(family: Family) -> None:
    model = opened(family)
    inputs = padded_inputs(model.hf)
    same = Recorder(**dict.fromkeys(("q", "k", "pattern", "v", "z"), lambda _, tensor: tensor.clone()))
    plain = Recorder()
    without = logits(model, inputs, plain)
    assert torch.equal(without, logits(model, inputs))
    assert close(logits(model, inputs, same), without, SAME_FUNCTION)
    for site in model.sites:
        names = [name for name, at in plain.order if at == site]
        assert names == ["q", "k", "pattern", "v", "z"]


@pytest.mark.parametrize("family", ALL, ids=by_name)
def test_the_output_is_the_pattern_times_the_values(family: Family) -> None:
    model, recorder = opened(family), Recorder()
    logits(model, padded_inputs(model.hf), recorder)
    for site in model.sites:
        pattern, v, z = (recorder.shown[name][site] for name in ("pattern", "v", "z"))
        assert v.shape[1:] == (site.n_kv_heads, pattern.shape[3], site.d_value)
        assert close(pattern @ v.repeat_interleave(site.n_heads // site.n_kv_heads, dim=1), z, WEIGHT_AGREEMENT)


@pytest.mark.parametrize("family", ALL, ids=by_name)
def test_scores_are_the_scaled_products_and_a_bias(family: Family) -> None:
    """On other tokens than those of the probe; what is added is the same in every text, or said not to be."""
    model, recorder = opened(family), Recorder(scores=lambda _, scores: scores)
    logits(model, text(model), recorder)
    places = {products_of(model).sites[number]: place.scores for number, place in products_of(model).products.items()}
    for site in model.sites:
        place = places[site]
        assert place is not None
        q, k, pattern = (recorder.shown[name][site].double() for name in ("q", "k", "pattern"))
        products = place.scale * q @ k.repeat_interleave(site.n_heads // site.n_kv_heads, dim=1).mT
        seen = pattern > 0
        bias = torch.where(seen, pattern.log() - products, 0.0)
        bias = bias - torch.where(seen, bias, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
        bias = torch.where(seen, bias, 0.0)
        assert (float(bias.abs().max()) > SCORES_OF_A_MAP) == (place.adds != "nothing")
        assert (float((bias - bias[:1]).abs().max()) > SCORES_OF_A_MAP) == (place.adds == "content")
        assert ("bias" in site.extras) == (place.adds != "nothing")


@pytest.mark.parametrize(("what", "projection"), [("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj")])
def test_a_changed_input_is_another_output_of_its_module(what: str, projection: str) -> None:
    """GPT-Neo rotates nothing, so that what a module gives is what the product reads."""
    model = opened(FAMILIES["gpt_neo"])
    inputs, site = text(model), model.sites[0]
    factor = torch.tensor([1.0, -2.0, 0.5, 3.0])
    changed = logits(
        model,
        inputs,
        Recorder(**{what: lambda at, x: x * factor[:, None, None] if at is site else x}),
    )
    module = model.hf.get_submodule(f"{site.module}.{projection}")
    hook = module.register_forward_hook(lambda _, __, out: out * factor.repeat_interleave(8))
    try:
        wanted = logits(model, inputs)
    finally:
        hook.remove()
    assert not close(wanted, logits(model, inputs), 1e-3)
    assert close(changed, wanted, SAME_FUNCTION)


@pytest.mark.parametrize("name", ["falcon", "falcon_grouped"])
def test_a_shared_key_head_changes_for_all_its_queries(name: str) -> None:
    model = opened(FAMILIES[name])
    inputs, site = text(model), model.sites[0]
    recorder = Recorder(k=lambda _, k: k * 0.0)
    logits(model, inputs, recorder)
    pattern = recorder.shown["pattern"][site]
    uniform = torch.ones(11, 11).tril() / torch.arange(1.0, 12.0)[:, None]
    assert recorder.shown["k"][site].shape == (3, site.n_kv_heads, 11, 8)
    assert torch.allclose(pattern, uniform.expand_as(pattern), atol=1e-6)


@pytest.mark.parametrize("name", ["gptj", "bloom", "mpt", "deberta_v2", "xlnet"])
def test_changed_scores_go_through_the_mask(name: str) -> None:
    model = opened(FAMILIES[name])
    inputs = padded_inputs(model.hf)
    plain, changed = Recorder(scores=lambda _, s: s), Recorder(scores=lambda _, scores: 2 * scores)
    logits(model, inputs, plain)
    logits(model, inputs, changed)
    site = model.sites[0]
    real = inputs["attention_mask"].bool()  # a row of padding may see nothing
    pattern, scores, after = (
        recorder.shown[name][site].transpose(1, 2)[real]
        for recorder, name in ((plain, "pattern"), (plain, "scores"), (changed, "pattern"))
    )
    assert torch.equal(pattern == 0, after == 0)
    assert torch.allclose(after, (2 * scores).masked_fill(pattern == 0, -torch.inf).softmax(-1), atol=1e-6)


@pytest.mark.parametrize("name", BY_HAND)
def test_gradients_are_those_at_the_modules(name: str) -> None:
    """In one backward: what a projection gives has the gradient of the queries, keys or values made of it."""
    model, by_hand = opened(FAMILIES[name]), BY_HAND[name]
    site, tensors = model.sites[0], dict[str, Tensor]()
    # Rotated queries are no slices of a projection, and terms of content read queries a second time.
    turned = by_hand.is_rotary or products_of(model).change_refusal
    letters = "v" if turned else "qkv"

    def keep(key: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, out: Tensor | None = None) -> None:
            tensors[key] = args[0] if out is None else out
            tensors[key].retain_grad()

        return hook

    def followed(key: str) -> Callable[[Site, Tensor], Tensor]:
        def change(at: Site, tensor: Tensor) -> Tensor:
            if at is not site:
                return tensor
            tensors[f"shown {key}"] = tensor.clone()
            tensors[f"shown {key}"].retain_grad()
            return tensors[f"shown {key}"]

        return change

    hooks = [by_hand.module(model.hf, 0, letter).register_forward_hook(keep(letter)) for letter in letters]
    hooks.append(by_hand.module(model.hf, 0, "o").register_forward_pre_hook(keep("z")))
    try:
        with watched(model, Recorder(**{letter: followed(letter) for letter in (*letters, "z")})):
            output = model.hf(**text(model), **forward_options(model.hf))[0]
    finally:
        for hook in hooks:
            hook.remove()
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    (output * direction).sum().backward()
    model.hf.zero_grad(set_to_none=True)
    gradients = {key: tensor.grad for key, tensor in tensors.items()}
    z = gradients["z"].unflatten(-1, (4, 8)).transpose(1, 2)
    assert close(gradients["shown z"], z, WEIGHT_AGREEMENT)
    for letter in letters:
        by_head = gradients[letter][..., by_hand.rows[letter]].transpose(1, 2)
        assert close(gradients[f"shown {letter}"] * by_hand.gain.get(letter, 1.0), by_head, WEIGHT_AGREEMENT)


def test_sizes_are_those_of_the_tensors() -> None:
    kv_heads = {name: opened(FAMILIES[name]).sites[0].n_kv_heads for name in ("falcon", "falcon_grouped", "gptj")}
    assert kv_heads == {"falcon": 1, "falcon_grouped": 2, "gptj": 4}
    site = opened(FAMILIES["convbert"]).sites[0]
    assert (site.n_heads, site.d_head, site.d_value) == (2, 8, 8)


def test_terms_of_content_are_read_but_not_changed() -> None:
    for name in ("deberta", "deberta_v2", "xlnet"):
        assert "half a change" in products_of(opened(FAMILIES[name])).change_refusal
    for name in ("gptj", "bloom", "mpnet"):
        assert not products_of(opened(FAMILIES[name])).change_refusal


def test_lenses_say_what_w_qk_does_not_show() -> None:
    source = opened(FAMILIES["deberta"]).weight_source()
    finding = LENS.measure(Params(), source)
    assert any("In 2 of 2 sites (first L0)" in text and "W_QK does not show" in text for text in finding.warnings)
    other = LENS.measure(Params(), opened(FAMILIES["gptj"]).weight_source())
    assert not any("does not show" in text for text in other.warnings)


def test_scores_multiplied_by_0_are_not_known() -> None:
    """OpenAI's GPT multiplies hidden scores by 0 before it adds the mask: they are not those before the mask."""
    model = opened(FAMILIES["openai"])
    assert model._softmax is not None
    assert "does not follow" in model._softmax.scores


def with_attention(name: str, change: Callable[[Any], None]) -> AttentionProducts:
    hf = FAMILIES[name].build()
    change(hf)
    return products_of(open_model(hf))


def test_heads_that_are_mixed_before_the_values_are_refused() -> None:
    """DeBERTa can mix the maps of its heads after the softmax; then no head has a map of its own."""

    def mix(hf: Any) -> None:
        for layer in hf.deberta.encoder.layer:
            layer.attention.self.head_weights_proj = nn.Linear(4, 4, bias=False)

    with pytest.raises(CaptureError, match="no softmax in it gives the maps"):
        with_attention("deberta", mix)


class Bounded(nn.Module):
    """GPT-Neo's attention with scores that a tanh bounds."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None) -> tuple[Tensor, Tensor]:
        scores = 2 * torch.tanh(torch.matmul(query, key.transpose(-1, -2)) / 2)
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        pattern = nn.functional.softmax(scores.masked_fill(hidden, -1e9), dim=-1)
        return torch.matmul(pattern, value), pattern


class Gated(Bounded):
    """The same with an output that a mean over all channels shifts."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None) -> tuple[Tensor, Tensor]:
        z, pattern = super().forward(query, key, value)
        return z + z.mean(dim=(1, 3), keepdim=True), pattern


def attend_by(kind: type[nn.Module]) -> Callable[[Any], None]:
    def change(hf: Any) -> None:
        for block in hf.transformer.h:
            block.attn.attention._attn = kind().forward

    return change


def test_bounded_scores_are_no_multiple_of_a_product() -> None:
    products = with_attention("gpt_neo", attend_by(Bounded))
    assert "no multiple of a product of queries and keys" in products.score_refusal
    assert not products.refusal
    assert all(place.scores is None for place in products.products.values())


def test_outputs_that_mix_heads_before_a_matrix_are_refused() -> None:
    products = with_attention("gpt_neo", attend_by(Gated))
    assert "head by head" in products.refusal
    assert not products.products


def test_weights_that_are_not_known_say_why() -> None:
    hf = FAMILIES["gpt_neo"].build()
    attend_by(Gated)(hf)
    model = open_model(hf)
    assert "head by head" in model.weight_status(model.sites[0]).reason


def test_another_form_of_attention_is_refused() -> None:
    """BigBird reads a long text in blocks: other products than at opening."""
    model = opened(FAMILIES["big_bird"])
    with pytest.raises(CaptureError, match="another form"):
        logits(model, text(model, length=64), Recorder())


def test_a_watch_leaves_nothing_behind() -> None:
    model = opened(FAMILIES["bloom"])
    inputs = text(model)

    class Failing(AttentionHandler):
        def values(self, site: Site, v: Tensor) -> Tensor:
            raise KeyboardInterrupt

    before = logits(model, inputs)
    with pytest.raises(KeyboardInterrupt):
        logits(model, inputs, Failing())
    assert not model.hf._forward_hooks
    assert not model.hf.base_model._forward_pre_hooks
    assert torch.equal(logits(model, inputs), before)


A, B = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 8, 5)
C, D = torch.randn(8, 5, 8), torch.randn(8, 8, 5)
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "matmul": (torch.matmul, (A, B), {}),
    "method": (Tensor.matmul, (A, B), {}),
    "by name": (torch.matmul, (A,), {"other": B}),
    "operator": (Tensor.__matmul__, (A, B), {}),
    "bmm": (torch.bmm, (C, D), {}),
    "baddbmm": (Tensor.baddbmm, (torch.randn(8, 5, 5),), {"batch1": C, "batch2": D, "beta": 0.5, "alpha": 2.0}),
    "einsum": (torch.einsum, ("bhic,bhcj->bhij", A, B), {}),
    "einsum of a list": (torch.einsum, ("ibnd,jbnd->bnij", [torch.randn(5, 2, 4, 8), torch.randn(6, 2, 4, 8)]), {}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_products_are_read_and_computed_again(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> None:
    func, args, kwargs = call
    product = read_product(func, args, kwargs)
    assert product is not None
    assert torch.equal(product.run(), func(*args, **kwargs))
    without = product.compute(torch.zeros_like(product.left), product.right)
    summand = 0.5 * args[0] if func is Tensor.baddbmm else torch.zeros_like(without)
    assert torch.equal(without, summand)


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (torch.matmul, (A, torch.randn(8, 3))),
        (torch.add, (A, A)),
        (torch.einsum, ("ijbn->bnij", A)),
        (torch.einsum, ("ibnd,hnd->ibh", A, torch.randn(3, 5, 8))),
        (torch.einsum, ("bhic,bhic->bhi", A, A)),
    ],
    ids=["with a matrix", "sum", "one operand", "two axes summed", "no columns"],
)
def test_other_functions_are_no_products(func: Any, args: tuple[Any, ...]) -> None:
    assert read_product(func, args, {}) is None


@pytest.mark.parametrize(
    ("layout", "shape", "by_heads"),
    [
        (HeadLayout((0, 1, 2, 3), 4), (2, 4, 5, 8), (2, 4, 5, 8)),
        (HeadLayout((0, 1, 3, 2), 4), (2, 4, 8, 5), (2, 4, 5, 8)),
        (HeadLayout((1, 2, 0, 3), 4), (5, 2, 4, 8), (2, 4, 5, 8)),
        (HeadLayout((0, 1, 2), 4), (8, 5, 8), (2, 4, 5, 8)),
        (HeadLayout((0, 2, 1), 4), (8, 8, 5), (2, 4, 5, 8)),
        (HeadLayout((0, 1, 2, 3), 4, copies=2), (2, 4, 5, 8), (2, 2, 5, 8)),
        (HeadLayout((0, 1, 2), 4, copies=4), (8, 5, 8), (2, 1, 5, 8)),
    ],
)
def test_layouts_are_turned_back(layout: HeadLayout, shape: tuple[int, ...], by_heads: tuple[int, ...]) -> None:
    states = torch.randn(by_heads)
    tensor = layout.write(states)
    assert tensor.shape == shape
    assert layout.fits(tensor)
    assert torch.equal(layout.read(tensor), states)

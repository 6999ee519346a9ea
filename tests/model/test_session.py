"""Sessions: what they show, what they change, and that they leave nothing behind."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import headscope.attention as attention
from headscope.attention.maps import pairs_of
from headscope.attention.statistics import Request
from headscope.core import Selection
from headscope.errors import UsageError
from headscope.model.model import Model, open_model
from headscope.model.transformers import attention_hook
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from tests.model.families import DECODERS, DISPATCHING, ENCODER_DECODERS, OTHER_OUTSIDE, OUTSIDE, Family
from tests.model.test_fidelity import by_name, first_output, padded_inputs, real_rows, relative_error
from tests.tolerances import SAME_FUNCTION


def family(name: str) -> Family:
    return next(f for f in DISPATCHING + OUTSIDE + OTHER_OUTSIDE if f.name == name)


def opened(name: str) -> Model:
    return open_model(family(name).build())


def run(model: Model, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return first_output(model.hf(**inputs, **forward_options(model.hf)))


def tokens(model: Model, length: int = 9) -> Tensor:
    return torch.randint(3, 99, (2, length), generator=torch.Generator().manual_seed(7))


def state_of(model: Model) -> tuple[object, ...]:
    """Everything a session might leave behind: hooks, config, handlers, instance attributes, weights."""
    modules = list(model.hf.modules())
    return (
        [sorted(module.__dict__) for module in modules],
        [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in modules],
        [c._attn_implementation for module in modules if (c := getattr(module, "config", None)) is not None],
        (dict(attention_hook._open.handlers), dict(attention_hook._switches)),
        [parameter.clone() for parameter in model.hf.parameters()],
    )


def assert_untouched(model: Model, before: tuple[object, ...]) -> None:
    after = state_of(model)
    assert after[:4] == before[:4]
    assert all(torch.equal(a, b) for a, b in zip(after[4], before[4], strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["llama_gqa", "t5", "albert", "gemma2", "bloom"])
def test_nothing_is_left_behind(name: str) -> None:
    model = opened(name)
    before = state_of(model)
    with model.session() as session:
        session.capture("pattern")
        session.stream()
        session.run(tokens(model))
    assert_untouched(model, before)


@pytest.mark.parametrize("name", ["llama_gqa", "marian", "bloom"])
def test_nothing_is_left_behind_after_an_exception(name: str) -> None:
    model = opened(name)
    before = state_of(model)
    with pytest.raises(ZeroDivisionError), model.session() as session:
        session.capture("pattern")
        session.run(tokens(model))
        raise ZeroDivisionError
    with pytest.raises(IndexError), model.session() as session:
        session.run(torch.full((1, 4), 10_000))  # no such token: the model itself raises
    assert_untouched(model, before)


def test_two_models_do_not_disturb_each_other() -> None:
    first, second = opened("llama_gqa"), opened("bert")
    alone = run(second, probe_inputs(second.hf, batch=2))
    with first.session() as one:
        one.ablate("L0")
        with second.session() as two:
            both = run(second, probe_inputs(second.hf, batch=2))
            two.ablate("all")
            assert relative_error(both, alone) <= SAME_FUNCTION
        assert torch.equal(run(second, probe_inputs(second.hf, batch=2)), alone)


def test_a_model_that_shares_its_config_is_not_disturbed() -> None:
    hf = family("llama_gqa").build()
    twin = type(hf)(hf.config).eval()
    inputs = probe_inputs(twin, batch=2)
    model = open_model(hf)
    with torch.no_grad():
        alone = twin(**inputs).logits
        with model.session() as session:
            session.ablate("all")
            assert relative_error(twin(**inputs).logits, alone) <= SAME_FUNCTION


def test_an_inner_session_adds_to_the_outer_one_and_ends() -> None:
    model = opened("llama_gqa")
    before = state_of(model)
    with torch.no_grad(), model.session() as outer:
        outer.ablate("L0.H1")
        one_ablated = model.hf(tokens(model)).logits
        with model.session() as inner:
            inner.ablate("L1.H2")
            z = inner.capture("z")
            both_ablated = model.hf(tokens(model)).logits
            assert not torch.equal(both_ablated, one_ablated)
            taken = z.take()["z"]
            assert [
                int(taken[site][:, head].count_nonzero()) for site, head in zip(model.sites, (1, 2), strict=True)
            ] == [0, 0]
        assert torch.equal(model.hf(tokens(model)).logits, one_ablated)
        assert z.take_all() == []
    assert_untouched(model, before)


def test_captures_have_the_promised_shapes() -> None:
    model = opened("llama_gqa")
    with model.session() as session:
        chosen = session.capture("q", "k", "v", "scores", "pattern", "z", "resid", at="L1.H1-3")
        session.run(tokens(model))
        taken = {what: by_site[model.sites[1]] for what, by_site in chosen.take().items()}
    shapes = {what: tuple(tensor.shape) for what, tensor in taken.items()}
    assert shapes == {
        "q": (2, 3, 9, 8), "k": (2, 2, 9, 8), "v": (2, 2, 9, 8), "scores": (2, 3, 9, 9),
        "pattern": (2, 3, 9, 9), "z": (2, 3, 9, 8), "resid": (2, 9, 32),
    }  # fmt: skip
    kv = taken["v"][:, [0, 1, 1]]  # heads 1, 2, 3 of four read key/value heads 0, 1, 1 of two
    assert torch.allclose(taken["pattern"] @ kv, taken["z"], atol=1e-6)
    masked = taken["scores"].masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    assert torch.allclose(masked.softmax(-1), taken["pattern"], atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama_gqa", "bert", "albert"])
def test_resid_is_what_transformers_calls_hidden_states(name: str) -> None:
    model = opened(name)
    inputs = probe_inputs(model.hf, batch=2)
    with torch.no_grad(), model.session() as session:
        captured = session.capture("resid")
        output = model.hf(**inputs, output_hidden_states=True)
        resid = captured.take()["resid"]
    for site in model.sites:
        assert torch.equal(resid[site], output.hidden_states[site.layer])


@pytest.mark.parametrize(("name", "norm"), [
    ("gpt2", "ln_f"), ("llama_gqa", "norm"), ("bert", ""), ("albert", ""),
    ("t5", "decoder.final_layer_norm"), ("marian", ""),
])  # fmt: skip
def test_final_is_what_the_last_layer_gives(name: str, norm: str) -> None:
    """With the norm behind it, where there is one, it is the model's own last hidden state."""
    model = opened(name)
    inputs = probe_inputs(model.hf, batch=2)
    with torch.no_grad(), model.session() as session:
        captured = session.capture("final")
        output = model.hf.base_model(**inputs, output_hidden_states=True)
        final = captured.take()["final"]
        stacks = {site.stack for site in model.sites}
        last = [site for site in model.sites if site.kind == "self" and site.stack != "enc"][-1]
        behind = model.hf.base_model.get_submodule(norm)(final[last]) if norm else final[last]
    assert {site.stack for site in final} == stacks
    shown = output.last_hidden_state if hasattr(output, "last_hidden_state") else output.decoder_hidden_states[-1]
    assert torch.equal(behind, shown)


@pytest.mark.parametrize("name", ["llama_gqa", "t5", "bloom"])
def test_pieces_together_are_the_whole(name: str) -> None:
    """Drained after each attention call or taken at the end: the same tensors, and one site's at a time."""
    model, pieces = opened(name), []
    with model.session() as session:
        captured = session.capture("pattern")
        rows = session.stream()
        session.run(tokens(model))
        whole, (statistics, _) = captured.take()["pattern"], rows.take()
        session.run(tokens(model), each=lambda: pieces.append((captured.drain(), rows.drain())))
        assert captured.take() == {}
        assert rows.take() == ({}, {})
    assert [list(piece["pattern"]) for piece, _ in pieces] == [[site] for site in whole]
    for (piece, (found, _)), site in zip(pieces, whole, strict=True):
        assert torch.equal(piece["pattern"][site], whole[site])
        assert torch.equal(found[site].entropy_nats, statistics[site].entropy_nats)


@pytest.mark.parametrize("name", ["llama_gqa", "bert"])
def test_a_corner_of_any_size(name: str) -> None:
    model = opened(name)
    with model.session() as session:
        capture = session.capture("corner:5", "corner", "pattern")
        session.run(tokens(model))
        found = capture.take()
        for wrong in ("corner:0", "corner:x", "corner:", "pairs:3"):
            with pytest.raises(UsageError, match="cannot capture"):
                session.capture(wrong)
    for site, whole in found["pattern"].items():
        assert torch.allclose(found["corner:5"][site], whole[..., :5, :5], atol=1e-6)
        assert torch.allclose(found["corner"][site], whole, atol=1e-6)


def test_pairs_follow_a_patched_pattern() -> None:
    """Windows of 60 tokens: not all of them are in the pairs."""
    model = opened("llama_gqa")
    with model.session() as session:
        session.patch("L0.H1", "pattern", lambda before: before.flip(-1))
        captured = session.capture("pattern", "pairs")
        session.run(tokens(model, 60))
        taken = captured.take()
    for site in model.sites:
        assert taken["pairs"][site].shape[2] < 60
        assert torch.allclose(taken["pairs"][site], pairs_of(taken["pattern"][site]), atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5"])
def test_x_is_what_the_queries_are_made_of(name: str) -> None:
    """No rotary positions in these: q = x w_q + b_q, and the rows are scale · q·k (plus the bias of T5)."""
    model = opened(name)
    model.weight_source()
    with model.session() as session:
        captured = session.capture("x", "q", "k", "rows", "scale", "scores")
        session.run(tokens(model))
        taken = captured.take()
    for site in model.sites:
        w = model.weights(site)
        q = torch.einsum("bnm,hmd->bhnd", taken["x"][site], w.w_q) + w.b_q[None, :, None]
        assert torch.allclose(q * w.gain_q[None, :, None], taken["q"][site], atol=1e-5)
        rows = taken["rows"][site]
        assert torch.allclose(rows, taken["scores"][site].masked_fill(rows == -torch.inf, -torch.inf), atol=1e-6)
        if "bias" not in site.extras:
            product = float(taken["scale"][site]) * taken["q"][site] @ taken["k"][site].mT
            assert torch.allclose(product, taken["scores"][site], atol=1e-5)


def test_weights_are_looked_up_inside_a_session_without_a_trace() -> None:
    """The forwards that look are not those of the session: its changes and captures do not meet them."""
    model = opened("llama_gqa")
    with model.session() as session:
        session.patch("all", "z", lambda z: 1 / 0)  # whoever gets here fails
        captured = session.capture("x", "z", "resid_mid")
        assert model.weights(model.sites[0]).status.status == "exact"
        assert captured.take_all() == []
        with pytest.raises(ZeroDivisionError):
            session.run(tokens(model))


def test_take_wants_exactly_one_forward() -> None:
    model = opened("llama_gqa")
    with model.session() as session:
        captured = session.capture("z")
        with pytest.raises(UsageError, match="there were 0"):
            captured.take()
        session.run(tokens(model))
        session.run(tokens(model, 5))
        with pytest.raises(UsageError, match="there were 2"):
            captured.take()
        assert [frame["z"][model.sites[0]].shape[2] for frame in captured.take_all()] == [9, 5]


@pytest.mark.parametrize("name", ["llama_gqa", "mistral", "gemma2", "gpt_oss", "bert", "t5", "bloom"])
def test_streams_equal_the_stored_map(name: str) -> None:
    model = opened(name)
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, 6:] = False
    request = Request(bands=(1, 3))
    with model.session() as session:
        rows, stored = session.stream(request), session.capture("pattern")
        session.run(tokens(model), real)
        measured, uniform = rows.take()
        maps = stored.take()["pattern"]
    for site in model.sites:
        got = measured[site]
        p = maps[site].double()
        entropy = -torch.special.xlogy(p, p).sum(-1)
        use = real[:, None, :].expand_as(entropy)
        assert torch.allclose(got.entropy_nats[use], entropy[use], atol=1e-5)
        assert torch.allclose(got.participation[use], (p**2).sum(-1)[use], atol=1e-5)
        if site.stack == "only" or site.kind == "self":
            assert bool(got.entropy_nats[~use].isnan().all())
        visible = uniform[site].n_visible.expand_as(entropy)
        assert torch.allclose(
            uniform[site].entropy_nats.expand_as(entropy)[use], visible[use].double().log(), atol=1e-9
        )


# Decoders that compute their attention themselves: with rotary positions, ALiBi, windows, grouped heads.
MULTIPLYING = tuple(
    family
    for family in OUTSIDE + OTHER_OUTSIDE
    if family.name in ("falcon", "falcon_grouped", "bloom", "mpt", "gptj", "gpt_neo", "codegen", "xglm", "openai")
)
CHANGED = ["llama_gqa", "gptj", "bloom", "falcon_grouped", "gpt_neo"]


@pytest.mark.parametrize("family", DECODERS + MULTIPLYING, ids=by_name)
def test_an_infinite_window_changes_nothing(family: Family) -> None:
    model = open_model(family.build())
    for inputs in (probe_inputs(model.hf, batch=2), padded_inputs(model.hf)):
        before = run(model, inputs)
        with model.session() as session:
            session.replace("all", attention.window())
            inside = run(model, inputs)
        real = real_rows(model, inputs, before)
        assert relative_error(inside[real], before[real]) <= SAME_FUNCTION


@pytest.mark.parametrize("name", CHANGED)
def test_a_window_sees_only_its_keys(name: str) -> None:
    model = opened(name)
    with model.session() as session:
        session.replace("L0.H1", attention.window(left=2))
        maps = session.capture("pattern")
        session.run(tokens(model))
        first = maps.take()["pattern"][model.sites[0]]
    beyond = torch.ones(9, 9).tril(-3).bool()
    assert float(first[:, 1][:, beyond].abs().max()) == 0.0
    assert float(first[:, 0][:, beyond].min()) > 0.0


@pytest.mark.parametrize(
    "mechanism", [attention.vertical_slash(near=4, rows=2), attention.top_blocks(2), attention.low_rank()]
)
def test_queries_choose_no_keys_in_cross_attention(mechanism: attention.Mechanism) -> None:
    """Later tokens of the decoder would choose for earlier ones."""
    model = opened("t5")
    before = state_of(model)
    with model.session() as session:
        with pytest.raises(UsageError, match="tokens that come later"):
            session.replace("dec.cross", mechanism)
        with pytest.raises(UsageError, match="tokens that come later"):
            session.replace(None, mechanism)
        session.replace("enc", mechanism)
        session.replace("dec.cross", attention.window(left=3))
    assert_untouched(model, before)


@pytest.mark.parametrize("name", CHANGED)
def test_replacing_some_heads_leaves_the_others(name: str) -> None:
    model = opened(name)
    with model.session() as session:
        z = session.capture("z", at="L0")
        session.run(tokens(model))
        before = z.take()["z"][model.sites[0]]
        session.replace("L0.H2", attention.window(left=1))
        session.run(tokens(model))
        after = z.take()["z"][model.sites[0]]
    assert torch.allclose(after[:, [0, 1, 3]], before[:, [0, 1, 3]], atol=1e-6)
    assert float((after[:, 2] - before[:, 2]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", CHANGED)
def test_ablation_zeroes_z_and_only_there(name: str) -> None:
    model = opened(name)
    with model.session() as session:
        session.ablate("L1.H0,L1.H3")
        z = session.capture("z")
        session.run(tokens(model))
        taken = z.take()["z"]
    assert not taken[model.sites[1]][:, [0, 3]].any()
    assert taken[model.sites[1]][:, [1, 2]].any()
    assert taken[model.sites[0]].abs().amin() > 0


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("what", ["q", "k", "v", "scores", "pattern", "z"])
def test_a_patch_with_the_value_itself_changes_nothing_and_another_does(what: str, name: str) -> None:
    model = opened(name)
    inputs = probe_inputs(model.hf, batch=2)
    before = run(model, inputs)
    with model.session() as session:
        session.patch("L0.H1", what, lambda value: value)
        assert relative_error(run(model, inputs), before) <= SAME_FUNCTION
        session.patch("L0.H1", what, lambda value: value * 2, order=1)
        assert relative_error(run(model, inputs), before) > 1e-3


@pytest.mark.parametrize("name", CHANGED)
def test_a_patched_tensor_is_what_is_used(name: str) -> None:
    model = opened(name)
    with model.session() as session:
        session.patch("L0.H1", "z", torch.full((8,), 0.5))
        z = session.capture("z")
        session.run(tokens(model))
        assert bool((z.take()["z"][model.sites[0]][:, 1] == 0.5).all())
        session.patch("L0.H1", "z", torch.zeros(3, 7), order=1)
        with pytest.raises(UsageError, match=r"patch of z has shape \(3, 7\), expected \(2, 1, 9, 8\)"):
            session.run(tokens(model))


@pytest.mark.parametrize("name", [name for name in CHANGED if name != "bloom"])  # its scores hold a bias without q too
def test_several_at_once(name: str) -> None:
    model = opened(name)
    with model.session() as session:
        maps, rows, z = (
            session.capture("pattern", at="L0"),
            session.stream(at="L1"),
            session.capture("z", at="L1.H0"),
        )
        session.replace("L1.H1", attention.window(left=1))
        session.ablate("L1.H0")
        session.patch("L0.H0", "q", lambda q: q * 0)
        session.run(tokens(model))
        uniform_row = maps.take()["pattern"][model.sites[0]][0, 0, 8]
        assert torch.allclose(uniform_row, torch.full((9,), 1 / 9), atol=1e-6)
        assert not z.take()["z"][model.sites[1]].any()
        distance = rows.take()[0][model.sites[1]].distance
        assert float(distance[:, 1].max()) <= 1.0 < float(distance[:, 0].max())


def generated(model: Model, cache: bool) -> Tensor:
    from headscope.model.language import generate_tokens

    prompt = torch.randint(3, 99, (7,), generator=torch.Generator().manual_seed(1))
    return generate_tokens(model.hf, prompt, max_new_tokens=10, temperature=0.0, cache=cache, seed=0)


# OpenAI's GPT has no cache.
MULTIPLYING_WITH_CACHE = tuple(family for family in MULTIPLYING if family.name != "openai")
GENERATING = tuple(f for f in DECODERS + ENCODER_DECODERS + MULTIPLYING_WITH_CACHE if f.name != "whisper")


@pytest.mark.parametrize("family", GENERATING, ids=by_name)
def test_generation_with_a_cache_gives_the_same_tokens(family: Family) -> None:
    model = open_model(family.build())
    plain = generated(model, cache=False)
    assert torch.equal(generated(model, cache=True), plain)
    with model.session():
        assert torch.equal(generated(model, cache=True), plain)
        assert torch.equal(generated(model, cache=False), plain)


@pytest.mark.parametrize("family", GENERATING, ids=by_name)
def test_generation_with_a_replaced_mechanism_and_a_cache(family: Family) -> None:
    model = open_model(family.build())
    where = "dec.self" if family in ENCODER_DECODERS else "all"
    with model.session() as session:
        session.replace(where, attention.window(left=3))
        assert torch.equal(generated(model, cache=True), generated(model, cache=False))


def test_a_window_changes_generation() -> None:
    """Otherwise the test above would prove nothing."""
    model = opened("llama_gqa")
    plain = generated(model, cache=True)
    with model.session() as session:
        session.replace("all", attention.window(left=0))
        assert not torch.equal(generated(model, cache=True), plain)


def test_wrong_requests_say_what_is_possible() -> None:
    model = opened("llama_gqa")
    session = model.session()
    with pytest.raises(UsageError, match="not open"):
        session.capture("z")
    with session:
        with pytest.raises(UsageError, match="cannot capture maps"):
            session.capture("maps")
        with pytest.raises(UsageError, match="cannot patch 'rows'"):
            session.patch("L0", "rows", torch.zeros(1))
        with pytest.raises(UsageError, match=r"matches no head.*L0\.H0 … L1\.H3"):
            session.ablate("L7")
        with pytest.raises(UsageError, match="cannot read 'layer3'"):
            session.ablate("layer3")


def test_selections_in_python_use_python_ranges() -> None:
    model = opened("llama_gqa")
    with model.session() as session:
        taken = session.capture("z", at=Selection.at(layers=range(1, 2), heads=range(2)))
        session.run(tokens(model))
        assert {s.label: t.shape[1] for s, t in taken.take()["z"].items()} == {"L1": 2}


def test_a_model_in_training_mode_is_refused() -> None:
    hf = family("llama_gqa").build().train()
    with pytest.raises(UsageError, match="training mode"):
        open_model(hf)
    assert hf.training


def test_captures_on_disk_are_the_same(tmp_path: Path) -> None:
    """Tensors beyond the stated size are in files; all of them read as they would from memory."""
    model = opened("llama_gqa")
    with model.session() as session:
        in_memory = session.capture("z", "pattern", "resid_mid")
        on_disk = session.capture("z", "pattern", "resid_mid", folder=tmp_path / "all", above=0)
        in_part = session.capture("z", "pattern", "resid_mid", folder=tmp_path / "some", above=3000)
        for _ in range(2):
            session.run(tokens(model))
        expected = in_memory.take_all()
        for capture in (on_disk, in_part):
            for frame, there in zip(capture.take_all(), expected, strict=True):
                for name, by_site in there.items():
                    assert all(torch.equal(frame[name][site], tensor) for site, tensor in by_site.items())
    n_tensors = sum(len(by_site) for frame in expected for by_site in frame.values())
    assert len(list((tmp_path / "all").glob("*.safetensors"))) == n_tensors
    in_files = sum(path.stat().st_size for path in (tmp_path / "some").iterdir())
    size = sum(t.nbytes for frame in expected for by_site in frame.values() for t in by_site.values())
    assert 0 < size - 3000 <= in_files < size
    with model.session() as session:
        with pytest.raises(UsageError, match="stay in memory"):
            session.capture("z", folder=tmp_path, gradient=True)
        with pytest.raises(UsageError, match="all holds tensors already"):
            session.capture("z", folder=tmp_path / "all", above=0)

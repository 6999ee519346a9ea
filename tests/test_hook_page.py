"""The code of docs/transformer-lens.md and docs/captures.md runs, and what the pages say of it holds."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headscope.model.model import Model

DOCS = Path(__file__).parents[1] / "docs"
HEADING = re.compile(r"^### (.+)$", re.M)
BLOCK = re.compile(r"(?:^\*(\w+)\*\n\n)?^```python\n(.*?)^```$", re.M | re.S)
FIRST_NAME, N_HEADS = 5, 8  # the position of the name that differs between the prompts; heads of a layer
AGREEMENT = 2e-5  # logits are of order 10, and float32 rounds them at 1e-6 in each of four layers
CLOSE = {"rtol": 0, "atol": AGREEMENT}

Namespace = dict[str, Any]


def jobs() -> dict[str, list[tuple[str, str]]]:
    """By heading, the blocks of code under it, each with the library it is for; those before the first are `set-up`."""
    page = (DOCS / "transformer-lens.md").read_text(encoding="utf-8").partition("## Jobs")[2]
    titles = ["set-up", *HEADING.findall(page)]
    parts = [part for number, part in enumerate(HEADING.split(page)) if number % 2 == 0]
    return {title: BLOCK.findall(part) for title, part in zip(titles, parts, strict=True)}


@pytest.fixture(scope="module")
def done() -> dict[str, Namespace]:
    """The variables after each job; the blocks of headscope run one after the other."""
    namespace: Namespace = {}
    after: dict[str, Namespace] = {}
    for title, blocks in jobs().items():
        for library, code in blocks:
            if library == "headscope":
                exec(code, namespace)
        after[title] = dict(namespace)
    return after


@pytest.fixture(scope="module")
def prompts(done: dict[str, Namespace]) -> Namespace:
    return done["set-up"]


def logits_of(model: Model, text: str | Tensor) -> Tensor:
    """The logits of the model itself."""
    tokens = model.encode(text) if isinstance(text, str) else text
    with torch.no_grad():
        return model.hf(tokens[None]).logits


def test_there_are_ten_jobs_in_both_libraries() -> None:
    by_title = jobs()
    assert len(by_title) >= 11
    for title, blocks in by_title.items():
        assert [library for library, _ in blocks][:2] == ["TransformerLens", "headscope"], title


def test_the_logits_are_those_of_the_model(done: dict[str, Namespace], prompts: Namespace) -> None:
    job = done["Run a text and take the logits"]
    torch.testing.assert_close(job["logits"], logits_of(prompts["model"], prompts["clean"]), **CLOSE)
    assert {"pattern", "resid_mid", "mlp_act", "logits"} <= {name for _, name in job["cache"]}
    assert len(prompts["model"].encode(prompts["clean"])) == len(prompts["model"].encode(prompts["corrupt"]))


def test_a_pattern_is_that_of_transformers(done: dict[str, Namespace], prompts: Namespace) -> None:
    job, hf = done["Look at one pattern"], prompts["model"].hf
    implementation = hf.config._attn_implementation
    hf.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            answer = hf(prompts["model"].encode(prompts["clean"])[None], output_attentions=True)
    finally:
        hf.set_attn_implementation(implementation)
    torch.testing.assert_close(job["pattern"], answer.attentions[1][0, 3], **CLOSE)
    assert torch.equal(job["cache"]["blocks.1.attn.hook_pattern"][0, 0], job["pattern"])


def test_the_filter_takes_the_layer_and_no_other(done: dict[str, Namespace], prompts: Namespace) -> None:
    job = done["Capture a layer by a filter"]
    assert {site for site, _ in job["cache"]} == {"L2"}
    with prompts["model"].session() as session:
        everything = session.everything("L2")
    assert sorted(job["names"]) == sorted([*everything, "head_out"])


def test_ablation_is_a_head_without_output(done: dict[str, Namespace], prompts: Namespace) -> None:
    model, job = prompts["model"], done["Ablate a head"]
    with model.session() as session:
        session.patch("L1.H3", "z", "zero")
        patched = session.run(prompts["clean"]).logits
    matrix = model.hf.model.layers[1].self_attn.o_proj.weight
    columns = slice(3 * model.spec.d_head, 4 * model.spec.d_head)
    before = matrix[:, columns].clone()
    with torch.no_grad():
        matrix[:, columns] = 0
        by_hand = logits_of(model, prompts["clean"])
        matrix[:, columns] = before
    torch.testing.assert_close(job["ablated"], by_hand, **CLOSE)
    torch.testing.assert_close(patched, by_hand, **CLOSE)
    assert float((by_hand - logits_of(model, prompts["clean"])).abs().max()) > 1e-2


def test_mean_ablation_is_a_patch_with_the_mean(done: dict[str, Namespace], prompts: Namespace) -> None:
    job = done["Replace a head by its mean over a reference text"]
    mean = job["reference"]["L1.H3", "z"].mean((0, 1))
    with prompts["model"].session() as session:
        session.patch("L1.H3", "z", mean)
        by_hand = session.run(prompts["clean"]).logits
    torch.testing.assert_close(job["mean_ablated"], by_hand, **CLOSE)
    assert float((by_hand - logits_of(prompts["model"], prompts["clean"])).abs().max()) > 1e-2


def test_activation_patching_is_a_hook_on_a_layer(done: dict[str, Namespace], prompts: Namespace) -> None:
    job, model, score = done["Patch the stream from another run"], prompts["model"], prompts["score"]
    effect, tokens = job["effect"], job["corrupt_tokens"]
    untouched = float(score(logits_of(model, tokens)))
    same = [n for n, (a, b) in enumerate(zip(tokens, model.encode(prompts["clean"]), strict=True)) if a == b]
    assert all(float(effect[0, position]) == pytest.approx(untouched, abs=AGREEMENT) for position in same)
    for layer, position in ((0, FIRST_NAME), (2, -1)):

        def swap(module: Any, args: tuple[Tensor, ...], position: int = position, layer: int = layer) -> Any:
            changed = args[0].clone()
            changed[:, position] = job["clean_cache"][f"L{layer}", "resid"][:, position]
            return (changed, *args[1:])

        handle = model.hf.model.layers[layer].register_forward_pre_hook(swap)
        try:
            by_hand = float(score(logits_of(model, tokens)))
        finally:
            handle.remove()
        assert float(effect[layer, position]) == pytest.approx(by_hand, abs=AGREEMENT)


def test_layer_one_moves_the_answer(done: dict[str, Namespace]) -> None:
    """As the page says: the first name up to layer 1, the last token from layer 2 on."""
    effect = done["Patch the stream from another run"]["effect"]
    assert effect.argmax(dim=1).tolist() == [FIRST_NAME, FIRST_NAME, effect.shape[1] - 1, effect.shape[1] - 1]


def test_steering_is_the_same_without_a_cache(done: dict[str, Namespace], prompts: Namespace) -> None:
    job, model = done["Steer while text is generated"], prompts["model"]
    plain = model.generate("And he said unto", max_new_tokens=12)
    with model.session() as session:
        session.patch("L2", "resid", lambda resid: resid + job["direction"])
        assert model.generate("And he said unto", max_new_tokens=12, cache=False) == job["steered"] != plain


def test_attribution_is_the_slope_of_patching(done: dict[str, Namespace], prompts: Namespace) -> None:
    """Gradient times difference, with both taken by torch alone at the input of each output projection."""
    model, score = prompts["model"], prompts["score"]
    inputs: dict[str, list[Tensor]] = {}
    for name in ("clean", "corrupt"):
        vectors = model.hf.get_input_embeddings()(model.encode(prompts[name])[None]).requires_grad_()
        read: list[Tensor] = []
        hooks = [
            layer.self_attn.o_proj.register_forward_pre_hook(lambda module, args, read=read: read.append(args[0]))
            for layer in model.hf.model.layers
        ]
        try:
            number = score(model.hf(inputs_embeds=vectors).logits)
        finally:
            for hook in hooks:
                hook.remove()
        inputs[name] = read
    gradients = torch.autograd.grad(number, inputs["corrupt"])
    products = [
        (clean - corrupt) * gradient
        for clean, corrupt, gradient in zip(inputs["clean"], inputs["corrupt"], gradients, strict=True)
    ]
    by_hand = torch.stack([product.unflatten(-1, (N_HEADS, -1)).sum((0, 1, 3)) for product in products])
    torch.testing.assert_close(done["Attribution patching"]["attribution"], by_hand.detach(), **CLOSE)


def test_two_heads_of_layer_one_come_first(done: dict[str, Namespace]) -> None:
    """As the page says."""
    attribution = done["Attribution patching"]["attribution"]
    assert set(attribution.flatten().topk(2).indices.tolist()) == {N_HEADS, N_HEADS + 3}


def test_direct_contributions_add_up_to_the_score(done: dict[str, Namespace], prompts: Namespace) -> None:
    job = done["Direct logit attribution"]
    total = prompts["score"](logits_of(prompts["model"], prompts["clean"]))
    torch.testing.assert_close(job["direct"].sum(), total, **CLOSE)
    torch.testing.assert_close(job["of_one_head"], job["direct"][1 + N_HEADS + 3], **CLOSE)


def test_what_enters_the_layer_is_its_hidden_state(done: dict[str, Namespace], prompts: Namespace) -> None:
    model = prompts["model"]
    with torch.no_grad():
        states = model.hf(model.encode(prompts["clean"])[None], output_hidden_states=True).hidden_states
    torch.testing.assert_close(done["Stop at a layer"]["resid"], states[2], **CLOSE)


def test_the_loss_is_that_of_the_perplexity(done: dict[str, Namespace], prompts: Namespace) -> None:
    loss = done["The loss at every position"]["loss"]
    assert float(loss.mean()) == pytest.approx(
        prompts["model"].perplexity(prompts["clean"]).nats_per_token, abs=AGREEMENT
    )


def test_the_code_of_the_captures_page_runs() -> None:
    """Its three ways to use a quantity give what the comments say."""
    namespace: Namespace = {}
    for _, code in BLOCK.findall((DOCS / "captures.md").read_text(encoding="utf-8")):
        exec(code, namespace)
    model, text, n_tokens = namespace["model"], namespace["text"], len(namespace["model"].encode(namespace["text"]))
    assert namespace["cache"]["L1.H3", "pattern"].shape == (1, n_tokens, n_tokens)
    assert {site for site, _ in namespace["last"]} == {"L0", "L1"}
    assert namespace["last"]["L1", "z"].shape == (1, N_HEADS, 1, 16)
    assert [site.label for site in namespace["patterns"]] == ["L2", "L3"]
    assert not torch.allclose(namespace["changed"], logits_of(model, text))
    assert namespace["gradients"]["z"][model.sites[1]].shape == (1, N_HEADS, n_tokens, 16)
    assert set(namespace["gradients"]) == {"z", "mlp_act"}

"""Plans: written and read, put into a model and taken out, refused where they do not fit."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import headscope as hs
from headscope.attention.mechanism import mechanisms
from headscope.attention.mechanism_spelling import spelled, spelling_of
from headscope.core.selection import Selection, selection_text
from headscope.errors import UsageError
from headscope.files import sha256_of
from headscope.model.model import Model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import KEY, Plan
from headscope.model.plans.repaired_weights import RepairedWeights, Slice
from headscope.model.plans.weight_digest import weight_digest

NEAR = "band_sparse(left=8, right=0, columns=(0,))"
TEXT = "Call me Ishmael. Some years ago, never mind how long precisely, I went to sea, and saw the watery part. " * 3


@pytest.fixture(scope="module")
def tiny() -> Model:
    return hs.open("tiny")


def last_states(model: Model) -> torch.Tensor:
    with torch.no_grad():
        states: torch.Tensor = model.hf.base_model(model.encode(TEXT)[None]).last_hidden_state
    return states


def test_a_plan_is_read_back(tiny: Model, tmp_path: Path) -> None:
    plan = Plan.for_model(tiny, {NEAR: "L0-1,L2.H0-2", "window(left=4)": "L3.H1"}, {"by": "hand", "budget": 0.01})
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    assert len((tmp_path / "plan.json").read_bytes()) < 1000


def test_a_plan_replaces_its_heads(tiny: Model) -> None:
    """The plan gives what a session with the same replacements gives, and not what the model gives."""
    plan = Plan.for_model(tiny, {NEAR: "L0-1,L2.H0-2"})
    with tiny.session() as session:
        session.replace("L0-1,L2.H0-2", spelled(NEAR))
        expected = last_states(tiny)
    with apply(plan, tiny) as swapped:
        assert torch.equal(last_states(swapped.model), expected)
    assert not torch.allclose(last_states(tiny), expected, atol=1e-3)


def test_mechanisms_that_see_everything_change_nothing(tiny: Model) -> None:
    """A window longer than the text is dense attention, whether its heads are whole groups or not."""
    before = last_states(tiny)
    for heads in ("all", "L0.H0-1,L1.H1,L2.H1-2,L3.H3", "L0.H2-3,L2.H0-1"):
        with apply(Plan.for_model(tiny, {"window(left=4096, right=0)": heads}), tiny):
            assert torch.allclose(last_states(tiny), before, atol=1e-4)


def test_close_leaves_the_model_as_it_was(tiny: Model) -> None:
    before = last_states(tiny)
    swapped = apply(Plan.for_model(tiny, {NEAR: "all"}), tiny)
    assert not torch.equal(last_states(tiny), before)
    swapped.close()
    swapped.close()
    assert torch.equal(last_states(tiny), before)


def test_a_model_of_transformers_generates_through_a_plan(tiny: Model, tmp_path: Path) -> None:
    """Cached steps through the plan write what steps without a cache write, on a model that transformers loaded."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny.hf.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)  # type: ignore[union-attr]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    plain = loaded.generate(ids, **settings)
    with hs.apply(Plan.for_model(tiny, {NEAR: "all"}), loaded):
        cached = loaded.generate(ids, **settings)
        uncached = loaded.generate(ids, use_cache=False, **settings)
    assert torch.equal(cached, uncached)
    assert torch.equal(loaded.generate(ids, **settings), plain)


def test_an_applied_plan_is_the_model_too(tiny: Model) -> None:
    with apply(Plan.for_model(tiny, {NEAR: "all"}), tiny) as swapped:
        inside = swapped.perplexity(TEXT).nats_per_token
        assert swapped.spec is tiny.spec
    assert inside != tiny.perplexity(TEXT).nats_per_token


def test_a_plan_for_other_weights_is_refused(tiny: Model) -> None:
    plan = Plan({NEAR: "L0"}, {"name": "other", "architecture": "Other", "weights": "0" * 16})
    with pytest.raises(UsageError, match="made for other"):
        apply(plan, tiny)
    apply(Plan({NEAR: "L0"}), tiny).close()  # written by hand, for no particular weights


def test_a_plan_that_does_not_fit_leaves_the_model_alone(tiny: Model) -> None:
    before = last_states(tiny)
    for rules, message in (
        ({NEAR: "L99"}, "matches no head"),
        ({NEAR: "L0", "window(left=4)": "L0.H1"}, "L0.H1 is replaced twice"),
        ({"widnow(left=4)": "L0"}, "widnow"),
        ({"window(reach=4)": "L0"}, "reach"),
    ):
        with pytest.raises(UsageError, match=message):
            apply(Plan(rules), tiny)
    assert torch.equal(last_states(tiny), before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no JSON"),
        ("[]", "is missing"),
        ("{}", "is missing"),
        (json.dumps({KEY: 3}), "version 3"),
        (json.dumps({KEY: 1, "repair": {}}), "unknown entry 'repair'"),
        (json.dumps({KEY: 2, "repair": {"file": "../x", "sha256": "0"}}), "repair must name a file"),
        (json.dumps({KEY: 2, "repair": {"file": "x"}}), "repair must name a file"),
        (json.dumps({KEY: 2, "repair": 3}), "must be an object"),
        (json.dumps({KEY: 1, "replce": {}}), "replce"),
        (json.dumps({KEY: 1, "replace": ["L0"]}), "must be an object"),
        (json.dumps({KEY: 1, "replace": {NEAR: 3}}), "must be an object"),
        (json.dumps({KEY: 1, "replace": {"open('x')": "L0"}}), "parameters are given by name"),
        (json.dumps({KEY: 1, "replace": {NEAR: "H"}}), "cannot read"),
        (json.dumps({KEY: 1, "origin": []}), "must be an object"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_damaged_plans(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=message):
        Plan.read(file)


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no plan"):
        Plan.read(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="cannot be read"):
        Plan.read(tmp_path)


def repaired_plan(model: Model) -> Plan:
    """A plan with new values for some columns of one W_O and some rows of one W_Q."""
    generator = torch.Generator().manual_seed(2)
    weights = dict(model.hf.named_parameters())
    o, q = "model.layers.1.self_attn.o_proj.weight", "model.layers.1.self_attn.q_proj.weight"
    columns, rows = torch.arange(3, 20), torch.tensor([1, 40, 7])
    slices = {
        o: Slice(1, columns, torch.randn(weights[o].shape[0], len(columns), generator=generator)),
        q: Slice(0, rows, torch.randn(len(rows), weights[q].shape[1], generator=generator)),
    }
    return replace(Plan.for_model(model, {NEAR: "L1"}), repair=RepairedWeights.of(slices))


def test_a_repaired_plan_is_read_back(tiny: Model, tmp_path: Path) -> None:
    """Plan and weights lie side by side, and have the effect of the plan in memory."""
    plan = repaired_plan(tiny)
    plan.write(tmp_path / "mine.json")
    assert {file.name for file in tmp_path.iterdir()} == {"mine.json", "mine_repair.safetensors"}
    content = json.loads((tmp_path / "mine.json").read_text())
    assert content[KEY] == 2
    assert content["repair"]["sha256"] == sha256_of(tmp_path / "mine_repair.safetensors")
    assert Plan.read(tmp_path / "mine.json") == plan
    with apply(plan, tiny):
        expected = last_states(tiny)
    with apply(tmp_path / "mine.json", tiny):
        assert torch.equal(last_states(tiny), expected)
    with apply(replace(plan, repair=None), tiny):
        assert not torch.allclose(last_states(tiny), expected, atol=1e-3)


def test_repaired_weights_are_put_in_and_taken_out(tiny: Model) -> None:
    """Inside, exactly the named rows and columns have the new values; afterwards every bit is as it was."""
    plan = repaired_plan(tiny)
    before = {name: weight.detach().clone() for name, weight in tiny.hf.named_parameters()}
    with apply(plan, tiny):
        changed = {name: weight for name, weight in tiny.hf.named_parameters() if not torch.equal(weight, before[name])}
        assert changed.keys() == plan.repair.slices.keys()  # type: ignore[union-attr]
        for name, part in plan.repair.slices.items():  # type: ignore[union-attr]
            assert torch.equal(changed[name].index_select(part.axis, part.index), part.values.float())
            others = [at for at in range(changed[name].shape[part.axis]) if at not in part.index.tolist()]
            kept = torch.tensor(others)
            assert torch.equal(changed[name].index_select(part.axis, kept), before[name].index_select(part.axis, kept))
    assert all(torch.equal(weight, before[name]) for name, weight in tiny.hf.named_parameters())


def test_repaired_weights_that_are_not_those_of_the_plan(tiny: Model, tmp_path: Path) -> None:
    plan, file = repaired_plan(tiny), tmp_path / "plan.json"
    plan.write(file)
    weights = tmp_path / "plan_repair.safetensors"
    before = last_states(tiny)
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"\x7f")
    with pytest.raises(UsageError, match="is not the file that the plan names"):
        apply(file, tiny)
    weights.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        apply(file, tiny)
    nowhere = Slice(0, torch.tensor([10**6]), torch.zeros(1, 128))
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.99.weight"):
        lost = replace(plan, repair=RepairedWeights.of({name: nowhere}))
        with pytest.raises(UsageError, match="cannot hold"):
            apply(lost, tiny)
    assert torch.equal(last_states(tiny), before)
    assert not tiny.edited


def test_digest_of_forms(tiny: Model) -> None:
    """A body alone, and the model in bfloat16, have the digest of the model."""
    assert weight_digest(tiny.hf.base_model) == weight_digest(tiny.hf)
    assert weight_digest(copy.deepcopy(tiny.hf).to(torch.bfloat16)) == weight_digest(tiny.hf)


def test_digest_of_other_weights(tiny: Model) -> None:
    other = copy.deepcopy(tiny.hf)
    with torch.no_grad():
        next(other.base_model.parameters()).flatten()[0] += 1.0
    assert weight_digest(other) != weight_digest(tiny.hf)


def test_spelling_and_back() -> None:
    """Every example that is made of literals is read back; the others are refused."""
    n_written = 0
    for mechanism in (example for kind in mechanisms().values() for example in kind.examples(16)):
        try:
            text = spelling_of(mechanism)
        except UsageError:
            continue
        assert spelled(text) == mechanism
        n_written += 1
    assert n_written >= 10


def test_selection_text_and_back(tiny: Model) -> None:
    for text in ("all", "L0", "L0.H1", "L0-2,L3.H0-1", "L1.H0-2,L2.H0-2,L3", "L0.H0,L1.H1,L2.H2,L3.H3"):
        heads = Selection.parse(text).resolve(tiny.sites)
        assert Selection.parse(selection_text(heads)).resolve(tiny.sites) == heads
    assert selection_text(Selection.parse("L0-2,L3.H0-1").resolve(tiny.sites)) == "L0-2,L3.H0-1"

"""Scores mean the same in every family: after scale, cap and bias, before the mask."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headscope.core import Site
from headscope.errors import CaptureError
from headscope.model.model import Model, open_model
from headscope.model.transformers import softmax_watch
from headscope.model.transformers.probe_inputs import forward_options, probe_inputs
from headscope.model.transformers.unmasked_scores import HIDING, MaskWatch
from tests.model.families import DISPATCHING, OUTSIDE, Family
from tests.model.opened_families import opened
from tests.model.test_fidelity import by_name, padded_inputs
from tests.tolerances import SCORES_OF_A_MAP


def captured(model: Model, inputs: dict[str, Tensor], *what: str) -> dict[str, dict[Site, Tensor]]:
    with model.session() as session, torch.no_grad():
        capture = session.capture(*what)
        model.hf(**inputs, **forward_options(model.hf))
        return capture.take()


@pytest.mark.parametrize("family", [*DISPATCHING, *OUTSIDE], ids=by_name)
def test_scores_are_those_before_the_mask(family: Family) -> None:
    """No score is hidden, and over the keys that a row sees they are the logarithm of its pattern, up to a constant."""
    model = opened(family)
    inputs = padded_inputs(model.hf)
    maps = captured(model, inputs, "scores", "pattern")
    hidden = 0
    for site in model.sites:
        # A row of padding may see nothing; what such a row is differs between families and means nothing.
        rows = inputs["attention_mask"].bool() if "attention_mask" in inputs and site.stack != "dec" else slice(None)
        scores, pattern = (maps[what][site].double().transpose(1, 2)[rows] for what in ("scores", "pattern"))
        assert float(scores.abs().max()) < -HIDING
        seen = pattern > 0
        hidden += int((~seen).sum())
        count = seen.sum(-1, keepdim=True).clamp_min(1)
        logs = torch.where(seen, pattern.log(), 0.0)
        differences = [
            torch.where(seen, values - torch.where(seen, values, 0.0).sum(-1, keepdim=True) / count, 0.0)
            for values in (scores, logs)
        ]
        assert float((differences[0] - differences[1]).abs().max()) <= SCORES_OF_A_MAP
    assert hidden or "attention_mask" not in inputs


@pytest.mark.parametrize("family", OUTSIDE, ids=by_name)
def test_padding_does_not_change_the_scores_of_the_first_layer(family: Family) -> None:
    """What the first layer computes of two real tokens does not depend on which tokens are padding."""
    model = opened(family)
    padded = padded_inputs(model.hf)
    plain = {key: value for key, value in padded.items() if key != "attention_mask"}
    first = model.sites[0]
    with_padding, without = (captured(model, inputs, "scores")["scores"][first] for inputs in (padded, plain))
    real = padded["attention_mask"].bool()
    for row in range(2):
        kept = real[row]
        assert torch.equal(with_padding[row][:, kept][..., kept], without[row][:, kept][..., kept])


@pytest.mark.parametrize(("name", "scale"), [("gpt_neo", 1.0), ("xglm", 8**-0.5)])
def test_hidden_scores_are_products_of_queries_and_keys(name: str, scale: float) -> None:
    """In families whose projections are modules of their own, the whole map of scores by its definition."""
    model = opened(next(family for family in OUTSIDE if family.name == name))
    seen: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, out, part=part: seen.setdefault(part, out))
        for path, module in model.hf.named_modules()
        for part in ("q_proj", "k_proj")
        if path.endswith(part)
    ]
    scores = captured(model, probe_inputs(model.hf, batch=2, seed=3), "scores")["scores"][model.sites[0]]
    for hook in hooks:
        hook.remove()
    q, k = (seen[part].double().unflatten(-1, (4, 8)).transpose(1, 2) for part in ("q_proj", "k_proj"))
    wanted = scale * q @ k.mT
    assert float((scores.double() - wanted).abs().max() / wanted.abs().max()) <= SCORES_OF_A_MAP


class Following(TorchFunctionMode):
    """Runs a function under a `MaskWatch` and asks it for the scores at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = MaskWatch()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.watch.run(func, args, kwargs or {})


LOW = torch.finfo(torch.float32).min
SEEN = torch.ones(4, 4).tril().bool()
ADDED = torch.where(SEEN, 0.0, LOW)
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda s: s + ADDED,
    "added from the left": lambda s: ADDED + s,
    "added in place": lambda s: s.clone().add_(ADDED),
    "subtracted": lambda s: s - torch.where(SEEN, 0.0, 65500.0),
    "filled": lambda s: s.masked_fill(~SEEN, LOW),
    "filled in place": lambda s: s.clone().masked_fill_(~SEEN, -torch.inf),
    "selected": lambda s: torch.where(SEEN, s, torch.tensor(LOW)),
    "selected the other way": lambda s: torch.where(~SEEN, torch.tensor(LOW), s),
    "twice": lambda s: torch.max(s + ADDED + ADDED, torch.tensor(LOW)),
    "reshaped": lambda s: (s + ADDED).view(1, 4, 4).float().transpose(0, 1).transpose(0, 1)[0],
    "with a bias already in the mask": lambda s: s + (torch.zeros(4, 4) + ADDED),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_way_to_mask_is_followed(way: Callable[[Tensor], Tensor]) -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    with Following() as following:
        reached = way(scores)
    assert not torch.equal(reached, scores)
    found = following.watch.scores(reached)
    assert found is not None
    assert torch.equal(found, scores)


def test_what_follows_the_mask_is_done_to_the_scores_too() -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    bias = torch.arange(16.0).reshape(4, 4)
    with Following() as following:
        reached = (scores.masked_fill(~SEEN, -1e5) + bias) / 2
    found = following.watch.scores(reached)
    assert found is not None
    assert torch.equal(found, (scores + bias) / 2)


def test_what_is_not_understood_is_not_guessed() -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    with Following() as following:
        reached = torch.cumsum(scores + ADDED, dim=-1)
        elsewhere = ADDED.clone()
    assert following.watch.scores(reached) is None
    assert following.watch.scores(elsewhere) is None


def test_scores_that_are_not_known_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_watch.MaskWatch, "scores", lambda self, reached: None)
    model = open_model(next(family for family in OUTSIDE if family.name == "bloom").build())
    with model.session() as session:
        assert "scores" not in session.shown
        with pytest.raises(CaptureError, match="masks its scores in a way that headscope does not follow"):
            session.capture("scores")

r"""Switches heads off one at a time, and measures how far the model's predictions move.

Definition:
    A head that is off gives zero, or its mean over tokens of the split `fit`, at every position. With p the prediction
    of the whole model and p' that without the head, of the N scored tokens of a window:
    $\mathrm{KL} = \frac{1}{N} \sum_t \sum_x p_t(x) \ln \frac{p_t(x)}{p'_t(x)}$ and
    $\mathrm{rise} = \frac{1}{N} \sum_t \ln \frac{p_t(x_t)}{p'_t(x_t)}$ on the tokens of the text.
    KL is the rise that the model itself expects. Per token the rise scatters by about $\sqrt{2\,\mathrm{KL}}$ around
    it: to know a rise of 0.001 nats as well as its KL takes thousands of tokens.
How:
    Before the layer of a head nothing changes. So the heads of a layer are rows of one forward that has a single row up
    to that layer and many from it on. Families that need whole rows everywhere get them (`starts_late`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.experiments.prune.settings import Off
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.session.late_rows import rows_from
from headscope.progress import Step

MEANS_TASK = "reading the mean output of heads, window"
TASK = "switching off single heads, layer"
LOGIT_BYTES = 256 * 2**20  # of all rows of one forward
_ROUNDING = 1e-4  # nats by which rows of one batch may differ from a row alone
Outputs = Mapping[Site, Float[Tensor, "heads d_value"]]


@dataclass(frozen=True)
class Scores:
    """For each window, way to switch off, and head: KL and rise, in nats per token."""

    divergence: Float[Tensor, "windows ways heads"]
    rise: Float[Tensor, "windows ways heads"]


def mean_outputs(model: Model, windows: Sequence[Tokens], step: Step) -> Outputs:
    """What each head gives on average over all tokens of the windows."""
    sums: dict[Site, Tensor] = {}
    with model.session() as session:
        capture = session.capture("z")
        for index, tokens in enumerate(windows):
            step(MEANS_TASK, index, len(windows))
            session.run(tokens[None], head=False)
            for site, z in capture.take()["z"].items():
                sums[site] = sums.get(site, torch.zeros(())) + z[0].cpu().double().mean(1) / len(windows)
    step(MEANS_TASK, len(windows), len(windows))
    return sums


def outputs_when_off(off: Off, means: Outputs) -> Outputs:
    """What each head gives when it is switched off."""
    return means if off is Off.MEAN else {site: torch.zeros_like(mean) for site, mean in means.items()}


@contextmanager
def switched_off(model: Model, heads_by_site: Mapping[Site, Sequence[int]], outputs: Outputs) -> Iterator[None]:
    """The model with these heads off, for as long as the context lasts.

    Properties:
        - with zero the same as an ablation by the session  (tested: test_off_is_ablated)
        - with what the heads give anyway nothing changes  (tested: test_a_constant_head_is_its_mean)
    """
    with model.session() as session:
        for site, heads in heads_by_site.items():
            values = outputs[site][list(heads)][:, None]
            session.patch(site, "z", partial(_with_constant, heads=tuple(heads), values=values))
        yield


def _with_constant(z: Tensor, heads: Sequence[int], values: Tensor) -> Tensor:
    changed = z.clone()
    changed[:, list(heads)] = values.to(z.device, z.dtype)
    return changed


def starts_late(model: Model, tokens: Tokens) -> bool:
    """Whether a forward of this model may begin with one row and go on with several."""
    site = model.sites[len(model.sites) // 2]
    try:
        with model.session() as session, rows_from(model, site, 2):
            late = session.run(tokens[None]).logits
    except RuntimeError:  # a shape that goes with one row only
        return False
    log_p = _log_p(model, tokens)
    return len(late) == 2 and all(_is_same(log_p, torch.log_softmax(row.float(), -1)) for row in late)


def _is_same(log_p: Tensor, log_q: Tensor) -> bool:
    return bool((log_p - log_q).abs().mul(log_p.exp()).sum(-1).max() < _ROUNDING)


def single_heads(model: Model, windows: Sequence[Tokens], means: Outputs, late: bool, step: Step) -> Scores:
    """KL and rise of every head alone, off in every way, on every window.

    Properties:
        - those of two plain forwards  (tested: test_importance_by_its_definition)
        - the same with whole rows  (tested: test_rows_from_a_layer_on_are_whole_rows)
    """
    divergence, rise = [], []
    total = len(windows) * len(model.sites)
    for index, tokens in enumerate(windows):
        log_p = _log_p(model, tokens)
        by_site = []
        for number, site in enumerate(model.sites):
            step(TASK, index * len(model.sites) + number, total)
            by_site.append(_of_site(model, site, tokens, means, log_p, late))
        pairs = torch.cat(by_site, 1)
        divergence.append(pairs[..., 0])
        rise.append(pairs[..., 1])
    step(TASK, total, total)
    return Scores(torch.stack(divergence), torch.stack(rise))


def _log_p(model: Model, tokens: Tokens) -> Tensor:
    with model.session() as session:
        return torch.log_softmax(session.run(tokens[None]).logits[0].float(), -1)


def _of_site(
    model: Model, site: Site, tokens: Tokens, means: Outputs, log_p: Tensor, late: bool
) -> Float[Tensor, "ways heads 2"]:
    """KL and rise of each head of a site, in every way to switch it off."""
    rows = [(head, outputs_when_off(off, means)[site][head]) for off in Off for head in range(site.n_heads)]
    most = max(1, LOGIT_BYTES // (log_p.numel() * log_p.element_size()))
    pairs = [
        pair for start in range(0, len(rows), most)
        for pair in _of_rows(model, site, tokens, rows[start : start + most], log_p, late)
    ]  # fmt: skip
    return torch.tensor(pairs, dtype=torch.float64).reshape(len(Off), site.n_heads, 2)


def _of_rows(
    model: Model, site: Site, tokens: Tokens, rows: Sequence[tuple[int, Tensor]], log_p: Tensor, late: bool
) -> list[tuple[float, float]]:
    def one_head_off(z: Tensor) -> Tensor:
        changed = z.clone()
        for row, (head, value) in enumerate(rows):
            changed[row, head] = value.to(z.device, z.dtype)
        return changed

    with ExitStack() as stack:
        session = stack.enter_context(model.session())
        session.patch(site, "z", one_head_off)
        if late:
            stack.enter_context(rows_from(model, site, len(rows)))
        text = tokens[None] if late else tokens.expand(len(rows), -1)
        logits = session.run(text).logits
    return [_moved(log_p, row, tokens) for row in logits]


def _moved(
    log_p: Float[Tensor, "tokens vocabulary"], logits: Float[Tensor, "tokens vocabulary"], tokens: Tokens
) -> tuple[float, float]:
    """KL and rise per token of one row."""
    difference = (log_p - torch.log_softmax(logits.float(), -1))[:-1]
    following = tokens[1:, None].to(difference.device)
    divergence = (log_p[:-1].exp() * difference).sum(-1)
    rise = difference.gather(1, following)[:, 0]
    return float(divergence.cpu().double().mean()), float(rise.cpu().double().mean())

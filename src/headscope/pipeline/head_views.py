"""Chosen heads on the first window of a text: their patterns, exact, and their numbers, from one forward."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch
from jaxtyping import Int
from torch import Tensor

from headscope.core import HeadNumber, HeadView, HeadViews, Selection, Site
from headscope.core.head_selection import chosen_heads
from headscope.core.selection import Term
from headscope.corpora import Amount, Text, read_windows, text_of
from headscope.errors import CaptureError, UsageError
from headscope.lenses.focus.lens import LENS as FOCUS
from headscope.lenses.focus.settings import Params
from headscope.lenses.focus.tables import head_quantities
from headscope.lenses.lens import AS_IS, Batch, NotApplicable, TextSize
from headscope.model.devices import device_named
from headscope.model.head_check import check_heads_of
from headscope.model.model import Model, open_model
from headscope.model.sources.names import check_name, resolve
from headscope.model.token_ids import check_token_ids
from headscope.model.token_maps import spelled_ids
from headscope.model.token_pieces import SAMPLE, surroundings_of, token_pieces
from headscope.pipeline.subject import is_source
from headscope.pipeline.threads import fitting_threads
from headscope.progress import Progress, Silent

DEFAULT_TOKENS = 64
MOST_BYTES = 2 * 2**30  # of all patterns together
_FLOAT32_BYTES = 4
_ENTROPY = ("entropy_nats", "entropy", "nats")  # the lens offers its share of the largest entropy alone


def head_views(
    model: Any,
    heads: Sequence[str | Selection],
    *,
    text: Text | str | Path | None = None,
    tokens: int = DEFAULT_TOKENS,
    hub: bool = False,
    device: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> HeadViews:
    """Run the first tokens of a text once and return the patterns and numbers of the chosen heads.

    Args:
        model: A model from `open`, or whatever `open` accepts.
        heads: Labels such as `L1.H3` or `dec.L0.cross.H1`, or selections such as `L1`.
        text: As in `measure`.
        tokens: Tokens of the window, special ones included; fewer where the text is shorter.
        hub: Whether a name may be fetched from the model hub.
        device: Where the model runs.
        seed: Of a freshly initialised model.
        progress: Told about every step.

    Raises:
        UsageError: There is no such head, the window is longer than the context, or the model reads no text.
    """
    listener = progress or Silent()
    _check_arguments(model, heads, tokens, device, hub=hub)
    source_text = text_of(text, listener.step)
    if is_source(model):
        listener.step(f"opening {model}", 0, 1)
        check_heads_of(resolve(model, hub=hub, seed=seed, progress=listener.step), heads)
    opened = open_model(model, hub=hub, device=device, seed=seed, progress=listener.step)
    places = chosen_heads(opened.spec.name, opened.sites, heads)
    _check_size(opened, len(places), tokens)
    ids = _first_window(opened, source_text, tokens)
    listener.step("running the model", 0, 1)
    with torch.no_grad(), fitting_threads(opened.spec):
        views = HeadViews(tuple(_run(opened, ids, places, source_text.name)))
    listener.step("running the model", 1, 1)
    return views


def _check_arguments(
    model: Any, heads: Sequence[str | Selection], tokens: int, device: str | None, *, hub: bool
) -> None:
    """Refuse what can be refused before anything is fetched or opened."""
    Amount(tokens)
    if not heads:
        raise UsageError("no head was chosen", hint="name one, e.g. L1.H3")
    for selection in heads:
        Selection.of(selection)
    if device is not None:
        device_named(device)
    if is_source(model):
        check_name(model, hub=hub)


def _check_size(model: Model, n_heads: int, tokens: int) -> None:
    name, context = model.spec.name, model.spec.context
    if not model.reads_text:
        lacks = "comes without a tokenizer" if model.tokenizer is None else "does not read text alone"
        raise UsageError(f"a head is drawn on a text, and {name} ({model.spec.architecture}) {lacks}")
    if context is not None and tokens > context:
        raise UsageError(
            f"{tokens} tokens were asked for, and {name} reads at most {context}", hint=f"ask for {context} or fewer"
        )
    n_bytes = n_heads * tokens**2 * _FLOAT32_BYTES
    if n_bytes > MOST_BYTES:
        raise UsageError(
            f"{n_heads} patterns of {tokens} × {tokens} weights take {n_bytes / 2**30:.1f} GiB, "
            f"expected at most {MOST_BYTES / 2**30:.0f}",
            hint="choose fewer heads, or fewer tokens",
        )


def _first_window(model: Model, text: Text, n_tokens: int) -> Int[Tensor, " tokens"]:
    """The ids of the first tokens of a text, special ones included."""
    sample = next((part for parts in text.streams() for part in parts), "")[:SAMPLE]
    surroundings = surroundings_of(model.tokenizer, sample)

    def pieces() -> Iterator[list[int]]:
        for parts in text.streams():
            yield from token_pieces(model.tokenizer, parts, surroundings)

    reading = read_windows(pieces, surroundings.head, surroundings.tail, n_tokens, Amount(n_tokens))
    (first, *_) = reading.windows.batches(1)
    check_token_ids(first, model.spec)
    return first[0]


def _run(
    model: Model, ids: Int[Tensor, " tokens"], places: Sequence[tuple[Site, int]], text: str
) -> Iterator[HeadView]:
    """One forward, in which the patterns are captured and the statistics of their rows are taken."""
    params = _params(len(ids))
    with model.session() as session:
        capture = session.capture("pattern", at=_selection(places))
        # The lens wants all heads of a site.
        stream = session.stream(FOCUS.needs(params).statistics, at=_selection([(site, None) for site, _ in places]))
        session.run(ids[None], head=False)
        patterns, (rows, uniform_rows) = capture.take()["pattern"], stream.take()
    statistics, uniform = ({site: row.cpu() for site, row in part.items()} for part in (rows, uniform_rows))
    batch = Batch(AS_IS, ids[None], torch.ones(1, len(ids), dtype=torch.bool), statistics, uniform)
    numbers = _numbers(model, params, batch)
    tokens = spelled_ids(model, ids.tolist())
    for site, head in places:
        pattern = _plain(patterns[site][0, capture.at[site].index(head)])
        if pattern.shape != (len(tokens), len(tokens)):
            raise CaptureError(
                f"the pattern of {site.head_label(head)} has {pattern.shape[0]} queries and {pattern.shape[1]} keys, "
                f"but the text has {len(tokens)} tokens: which token is which is not known",
                hint="capture the pattern in a session",
            )
        yield HeadView(model.spec.name, site, head, text, pattern, tokens, tokens, numbers.get((site, head), ()))


def _params(n_tokens: int) -> Params:
    """The settings of the lens, without bands that hold the whole window."""
    return Params(bands=",".join(str(width) for width in Params().widths() if width < n_tokens - 1))


def _selection(heads: Sequence[tuple[Site, int | None]]) -> Selection:
    """The heads as one selection; None is every head of a site."""
    terms = (
        Term(site.stack, site.kind, frozenset({site.layer}), None if head is None else frozenset({head}))
        for site, head in heads
    )
    return Selection(tuple(dict.fromkeys(terms)), "the chosen heads")


def _plain(pattern: Tensor) -> Tensor:
    """The pattern on the CPU; half precision, which numpy does not know, as float32, which is exact."""
    wide = pattern if pattern.dtype in (torch.float32, torch.float64) else pattern.float()
    return wide.cpu().contiguous()


def _numbers(model: Model, params: Params, batch: Batch) -> Mapping[tuple[Site, int], tuple[HeadNumber, ...]]:
    """What the lens `focus` says about the heads on this window alone; nothing where no row sees two keys."""
    sites = tuple(batch.statistics)
    state = FOCUS.start(params, model.spec, sites, TextSize(1, batch.tokens.shape[1]))
    try:
        table = FOCUS.finish(FOCUS.update(state, batch), None).tables["heads"]
    except NotApplicable:
        return {}
    names = (
        _ENTROPY,
        *((quantity.key, quantity.label, quantity.unit) for quantity in head_quantities(table)),
    )
    return {
        (site, head): tuple(_head_numbers(_rows_of(table, site, head), names))
        for site in sites
        for head in range(site.n_heads)
    }


def _rows_of(table: pl.DataFrame, site: Site, head: int) -> dict[str, dict[str, Any]]:
    place = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
    rows = table.filter(*(pl.col(name) == entry for name, entry in place.items()))
    return {row["quantity"]: row for row in rows.iter_rows(named=True)}


def _head_numbers(rows: Mapping[str, Mapping[str, Any]], names: Sequence[tuple[str, str, str]]) -> Iterator[HeadNumber]:
    for key, label, unit in names:
        if key in rows:
            yield HeadNumber(key, label, unit, rows[key]["value"], rows[key]["uniform"])

"""The first screens of a comparison: the models, the atlas of differences, the largest of them, the heads."""

from collections.abc import Iterator

from headscope.comparison.circumstances import letter
from headscope.comparison.comparison import Comparison, Pair
from headscope.comparison.head_differences import HeadDifferences
from headscope.comparison.sentences import change_text, movement_sentences
from headscope.core import Run
from headscope.core.html_text import escape
from headscope.core.model_summary import amount
from headscope.core.numbers import count
from headscope.report.markup import sentence
from headscope.report.overview import unbroken

MOST_DIFFERENCES = 5
MOST_CARDS = 8
_MOST_CHANGES = 3  # that a card names


def front(comparison: Comparison) -> str:
    """The models in one line each, what moved, and what was measured differently."""
    first, *later_labels = comparison.labels
    lines = "".join(
        f"<li><b>{letter(index)}</b> {escape(label)}: {escape(_line(run))}</li>"
        for index, (run, label) in enumerate(zip(comparison.runs, comparison.labels, strict=True))
    )
    heading = f"{escape(' and '.join(later_labels))} <small>against {escape(first)}</small>"
    leads = "".join(_lead(pair, index, len(comparison.pairs)) for index, pair in enumerate(comparison.pairs))
    warnings = "".join(f'<p class="warning">{text}</p>' for text in _warnings(comparison))
    return f'<header id="top"><h1>{heading}</h1>{leads}<ol class="compared">{lines}</ol>{warnings}</header>'


def _line(run: Run) -> str:
    model = run.model
    text = f", on {run.text.name} ({count(run.text.n_tokens)} tokens)" if run.text else ""
    return f"{model.architecture}, {model.kind}, {amount(model.n_parameters)} parameters{text}"


def _lead(pair: Pair, index: int, n_pairs: int) -> str:
    if pair.heads is None:
        start = f"{pair.other_label}: no" if n_pairs > 1 else "No"
        return f'<p class="lead">{escape(f"{start} difference atlas, because {pair.obstacle}.")}</p>'
    start = f"<b>{escape(pair.other_label)}:</b> " if n_pairs > 1 else ""
    return f'<p class="lead" data-pair="{index}">{start}{escape(" ".join(movement_sentences(pair.heads)))}</p>'


def _warnings(comparison: Comparison) -> Iterator[str]:
    for pair in comparison.pairs:
        if pair.notes:
            start = f"{pair.base_label} and {pair.other_label} were not measured alike"
            yield f"{escape(start)}: {sentence('; '.join(pair.notes))}."


def overview(comparison: Comparison) -> str:
    """The atlas and the largest differences side by side; for each pair, of which the script shows one."""
    pairs = [(index, pair) for index, pair in enumerate(comparison.pairs) if pair.heads is not None]
    if not pairs:
        return ""
    findings = "".join(_largest(pair, index, named=len(comparison.pairs) > 1) for index, pair in pairs)
    return (
        f'<section id="overview"><div class="overview">{_atlas(comparison)}'
        f'<div id="findings"><h2>Largest differences</h2>{findings}</div></div></section>'
    )


def _atlas(comparison: Comparison) -> str:
    """The places of the atlases, which the script draws."""
    places = "".join(
        f'<div class="atlas-of" data-pair="{index}"></div>'
        for index, pair in enumerate(comparison.pairs)
        if pair.heads is not None
    )
    return (
        '<div id="atlas"><h2>Atlas of differences</h2><p class="no-script">This page draws the differences of heads '
        f"where scripts are allowed; the tables below hold the numbers.</p>{places}</div>"
    )


def _largest(pair: Pair, index: int, *, named: bool) -> str:
    heads = pair.heads
    title = f"<h3>{escape(f'{pair.other_label} minus {pair.base_label}')}</h3>" if named else ""
    items = [
        f'<li><a href="#{escape(heads.grid.heads[entry.head].label)}">'
        f'<span class="says">{unbroken(sentence(entry.text))}</span>'
        f'<span class="from">{escape(entry.lens)}, effect {entry.effect:.2f}</span></a></li>'
        for entry in pair.largest(MOST_DIFFERENCES)
        if heads is not None
    ]
    body = f'<ol class="top-findings">{"".join(items)}</ol>' if items else "<p>No head moved.</p>"
    return f'<div data-pair="{index}">{title}{body}</div>'


def moved_heads(comparison: Comparison) -> str:
    """The heads that moved most, as cards; the script draws both patterns."""
    blocks = [
        _cards(pair, pair.heads, index, named=len(comparison.pairs) > 1)
        for index, pair in enumerate(comparison.pairs)
        if pair.heads is not None and pair.heads.ranking()
    ]
    if not blocks:
        return ""
    return f'<section id="moved"><h2>Heads that moved most</h2>{"".join(blocks)}</section>'


def _cards(pair: Pair, heads: HeadDifferences, index: int, *, named: bool) -> str:
    title = f"<h3>{escape(f'{pair.other_label} against {pair.base_label}')}</h3>" if named else ""
    items = "".join(_card(heads, head, index) for head in heads.ranking()[:MOST_CARDS])
    return f'<div data-pair="{index}">{title}<ul class="pair-cards">{items}</ul></div>'


def _card(heads: HeadDifferences, head: int, index: int) -> str:
    label = heads.grid.heads[head].label
    n_moved = sum(int(part.moved[head]) for part in heads.quantities)
    parts = sorted((part for part in heads.quantities if part.moved[head]), key=lambda part: -part.effect[head])
    changes = "".join(
        f"<li>{sentence(part.quantity.label)} <i>{escape(change_text(part, head))}</i></li>"
        for part in parts[:_MOST_CHANGES]
    )
    summary = f"movement {heads.movement[head]:.2f}, {n_moved} of {len(heads.quantities)} quantities"
    return (
        f'<li><a class="pair-card" href="#{escape(label)}" data-head="{head}" data-of="{index}">'
        f'<b>{escape(label)}</b><span class="quiet">{summary}</span></a><ul class="changes">{changes}</ul></li>'
    )

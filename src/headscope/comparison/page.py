"""The page of a comparison: one self-contained file in the style of the report, a pure function of the runs."""

from headscope.comparison.answer_table import answer_table, answers_anchor
from headscope.comparison.comparison import Comparison, Pair
from headscope.comparison.difference_table import difference_table
from headscope.comparison.front import front, moved_heads, overview
from headscope.comparison.page_data import comparison_json
from headscope.core.html_text import escape
from headscope.report.contents import navigation
from headscope.report.markup import sentence
from headscope.report.model_card import card
from headscope.report.page import document
from headscope.report.page_data import data_script

_PROVENANCE = "provenance"


def render(comparison: Comparison) -> str:
    """The comparison as one HTML page that needs no network; the same runs give the same bytes."""
    parts = {
        "overview": ("Overview", overview(comparison)),
        "moved": ("Heads that moved most", moved_heads(comparison)),
        "verdicts": ("One answer per lens", answer_table(comparison)),
        "heads": ("All differences", _tables(comparison)),
        _PROVENANCE: ("Provenance", _provenance(comparison)),
    }
    body = [
        front(comparison),
        parts["overview"][1],
        navigation([(id_, title) for id_, (title, html) in parts.items() if html]),
        *(html for id_, (_, html) in parts.items() if id_ != "overview"),
        _FOOTER,
        _data(comparison),
    ]
    return document(title(comparison), "\n".join(part for part in body if part))


def title(comparison: Comparison) -> str:
    """The name of the page."""
    first, *later_labels = comparison.labels
    return f"{' and '.join(later_labels)} against {first}"


def _tables(comparison: Comparison) -> str:
    tables = [
        difference_table(pair, pair.heads, index)
        for index, pair in enumerate(comparison.pairs)
        if pair.heads is not None
    ]
    if not tables:
        return ""
    return f'<section id="heads"><h2>All differences</h2>{"".join(tables)}</section>'


def _provenance(comparison: Comparison) -> str:
    """How the differences were made, then model, text and versions of each run."""
    texts = dict.fromkeys(text for pair in comparison.pairs for text in _pair_facts(pair))
    rules = "".join(f"<p>{sentence(text)}</p>" for text in texts)
    cards = "".join(
        f"<h3>{escape(label)}</h3>{card(run)}" for run, label in zip(comparison.runs, comparison.labels, strict=True)
    )
    summary = "<summary>Provenance: how differences are made, models, texts, versions, hashes</summary>"
    return f'<section id="{_PROVENANCE}"><details>{summary}<div>{rules}{cards}</div></details></section>'


def _pair_facts(pair: Pair) -> list[str]:
    texts = [f"{pair.other_label} against {pair.base_label}: {note}." for note in pair.notes]
    if pair.heads is not None:
        texts.append(pair.rule)
        for certainty, words in _WORDS.items():
            labels = [part.quantity.label for part in pair.heads.quantities if part.certainty == certainty]
            if labels:
                texts.append(f"{words}: {'; '.join(labels)}.")
        texts += [f"Not compared: {reason}." for reason in pair.heads.skipped]
    return texts


_WORDS = {
    "exact": "From the weights alone, so without a sampling error",
    "unknown": "Without a stored error, so without an interval, and no head is said to have moved in it",
}
_FOOTER = (
    "<footer><p>Differences are the later model's number minus the first model's. The effect of a difference is its "
    "share of the range over all heads of both models. The movement of a head is the mean over lenses of its largest "
    "effect.</p><p><code>differences.parquet</code> in the same folder holds every difference with its interval. "
    "This page is self-contained: it asks nothing of the network.</p></footer>"
)


def _data(comparison: Comparison) -> str:
    """What the script reads: the differences of all heads, their patterns, and what a search finds."""
    first = comparison.runs[0]
    lenses = [
        {"lens": lens, "title": about.title, "question": about.question, "anchor": answers_anchor(lens)}
        for lens in comparison.lenses
        for about in (first.findings[lens].about,)
    ]
    scripts = [data_script("lenses", lenses)]
    if any(pair.heads is not None for pair in comparison.pairs):
        scripts.append(data_script("comparison", comparison_json(comparison)))
    return "".join(scripts)

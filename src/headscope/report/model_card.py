"""The card at the top of the report: the model, its sites, the text, the versions."""

from collections.abc import Iterable, Sequence

from headscope.core import ModelSpec, Run, Site, TextSpec
from headscope.core.html_text import escape
from headscope.core.model_summary import amount, head_count, site_lines
from headscope.core.numbers import count


def card(run: Run) -> str:
    """The card of a run as HTML."""
    facts = [
        *_model_facts(run.model),
        *_site_facts(run.sites),
        *_text_facts(run.text),
        *_origin_facts(run),
    ]
    warning = run.model.weight_warning
    return f'<dl class="facts">{"".join(f"<dt>{term}</dt><dd>{value}</dd>" for term, value in facts)}</dl>' + (
        f'<p class="warning">{escape(warning)}</p>' if warning else ""
    )


def _model_facts(model: ModelSpec) -> Iterable[tuple[str, str]]:
    size = f"{amount(model.n_parameters)} parameters, {model.n_layers} layers, d_model {count(model.d_model)}"
    yield "Model", escape(f"{model.architecture} ({model.family}), {model.kind}; {size}")
    context = "unknown" if model.context is None else f"{count(model.context)} tokens"
    yield (
        "Input",
        escape(f"{model.positions} positions, context {context}, vocabulary {count(model.vocabulary)}"),
    )


def _site_facts(sites: Sequence[Site]) -> Iterable[tuple[str, str]]:
    if sites:
        yield "Attention", "<br>".join(map(escape, (head_count(sites), *site_lines(sites))))


def _text_facts(text: TextSpec | None) -> Iterable[tuple[str, str]]:
    if text is None:
        yield "Text", "none was read"
        return
    windows = f"{count(text.n_windows)} {'window' if text.n_windows == 1 else 'windows'}"
    size = f"{count(text.n_tokens)} tokens in {windows} of {count(text.window)}"
    if text.n_windows_in_text > text.n_windows:
        size = f"{count(text.n_tokens)} tokens, {count(text.n_windows)} of {count(text.n_windows_in_text)} windows"
        size += f" of {count(text.window)} tokens, evenly spread"
    documents = f" in {count(text.n_documents)} documents" if text.n_documents > 1 else ""
    origin = f"from {count(text.n_characters)} characters{documents}"
    yield "Text", escape(f"{text.name}: {size}, {origin}") + _hash(text.sha256)


def _origin_facts(run: Run) -> Iterable[tuple[str, str]]:
    model = run.model
    quantisation = f", expanded from {model.dequantised}" if model.dequantised else ""
    licence = f"; licence {model.licence}" if model.licence else ""
    yield (
        "Weights",
        escape(f"{model.source}; {model.dtype}{quantisation}{licence}")
        + (_hash(model.sha256) or "; freshly initialised, no hash"),
    )
    if model.notes:
        yield "Notes", "<br>".join(map(escape, model.notes))
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    yield "Made with", escape(f"{versions}; seed {run.seed}" if versions else f"seed {run.seed}")


def _hash(sha256: str) -> str:
    return f'<br><code class="hash">sha256 {escape(sha256)}</code>' if sha256 else ""

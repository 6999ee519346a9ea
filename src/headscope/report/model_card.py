"""The card at the top of the report: the model, its sites, the text, the versions."""

from collections.abc import Iterable, Sequence

from headscope.core import ModelSpec, Run, Site, TextSpec
from headscope.report.markup import escape
from headscope.report.numbers import count, ranges

_STACKS = {"enc": "encoder ", "dec": "decoder ", "only": "", "text": "text ", "image": "image ", "sound": "sound "}


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
    """The attention sites; sites that differ only by layer share a line."""
    alike: dict[tuple[str, str], list[int]] = {}
    for site in sites:
        alike.setdefault(_description(site), []).append(site.layer)
    lines = [
        f"{where} in {'layer' if len(set(layers)) == 1 else 'layers'} {ranges(layers)}: {features}"
        for (where, features), layers in alike.items()
    ]
    if lines:
        total = f"{count(sum(site.n_heads for site in sites))} heads at {count(len(sites))} sites"
        yield "Attention", "<br>".join(map(escape, (total, *lines)))


def _description(site: Site) -> tuple[str, str]:
    kv_heads = f" on {site.n_kv_heads} key/value heads" if site.n_heads != site.n_kv_heads else ""
    values = f", values {site.d_value}" if site.d_head != site.d_value else ""
    sees = "causal" if site.causal else "sees everything" if site.window is None else ""
    window = f"window {site.window}" if site.window is not None else ""
    features = [f"{site.n_heads} heads{kv_heads} of size {site.d_head}{values}", sees, window, *site.extras]
    return f"{_STACKS[site.stack]}{site.kind}-attention", ", ".join(part for part in features if part)


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


def amount(n: int) -> str:
    """A large number in words: `135 million`."""
    for size, name in ((10**9, "billion"), (10**6, "million")):
        if n >= size:
            return f"{n / size:.3g} {name}"
    return count(n)

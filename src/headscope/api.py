"""The public face: open a model, measure it, report on it. `headscope` re-exports these names."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headscope.attention.bench.mechanism_bench import Setting as BenchSetting
from headscope.attention.bench.mechanism_bench import bench as bench_attention
from headscope.attention.compiled import use as use_compiled
from headscope.attention.mechanism import mechanism_named, mechanisms
from headscope.attention.mechanism_spelling import spelled
from headscope.attention.mechanism_summary import D_HEAD, LENGTHS, SHOWN_AT, summary_of
from headscope.attention.pictures import pictures
from headscope.comparison.comparison import Comparison
from headscope.comparison.measured_runs import measured_runs
from headscope.core import Entry, HeadView, HeadViews, Ledger, Run, Selection, Trend
from headscope.core.ports import plug
from headscope.corpora import Text, spelled_text, texts
from headscope.corpora.splits import SHARES as SPLIT_SHARES
from headscope.decoding import Beam, Greedy, SentenceTranslator, TranslatedSentence, Translation
from headscope.errors import UsageError
from headscope.experiments import experiment_members, experiment_named
from headscope.experiments.experiment import Display, Passage, TrainingExperiment
from headscope.lenses import lens_members, lens_named, lenses
from headscope.model.devices import device_named as check_device
from headscope.model.load import load as load_model
from headscope.model.look import SECONDS_OF_DRAWING, look
from headscope.model.model import Model, open_model
from headscope.model.plans.applied_plan import apply
from headscope.model.plans.plan import Plan
from headscope.model.sources.hub_survey import check_outcomes, survey
from headscope.model.sources.names import resolve
from headscope.model.sources.names import sources as models
from headscope.model.verify import verify
from headscope.pipeline import Progress, measure
from headscope.pipeline.head_views import DEFAULT_TOKENS, head_views
from headscope.pipeline.threads import fitting_threads
from headscope.pipeline.versions import versions
from headscope.progress import WRITING, Silent, Stage, announce
from headscope.progress import Step as ProgressStep
from headscope.report.figure_file import encoded_figure, save_figure
from headscope.report.head_file import checked_kind, save_heads
from headscope.report.ledger import write_ledger
from headscope.report.page import notebook_html, write
from headscope.store import check_folder, load
from headscope.store import save as save_run
from headscope.store.folder import RunFolder
from headscope.theory.index import Item, Step, Way, document_of, documents, item_named, items, ways, why_not
from headscope.theory.index.page import page, published_table
from headscope.theory.ledger import claims, ledger, lenses_needed, meant_ids
from headscope.trajectories.trajectory import Trajectory
from headscope.trajectories.trajectory import trajectory as measured_trajectory

__all__ = [
    "D_HEAD",
    "LENGTHS",
    "SHOWN_AT",
    "SPLIT_SHARES",
    "BenchSetting",
    "Comparison",
    "Display",
    "Item",
    "Passage",
    "Plan",
    "Progress",
    "Step",
    "Text",
    "Trajectory",
    "TranslatedSentence",
    "Translation",
    "Way",
    "apply",
    "bench_attention",
    "check_device",
    "check_outcomes",
    "compare",
    "document_of",
    "documents",
    "encoded_figure",
    "experiment_named",
    "head",
    "heads",
    "item_named",
    "items",
    "judge_claims",
    "ledger_objects",
    "lens_named",
    "lenses",
    "load",
    "look",
    "measure",
    "mechanism_named",
    "mechanisms",
    "models",
    "open",
    "pictures",
    "published_table",
    "report",
    "reproduce",
    "run_experiment",
    "save_figure",
    "save_run",
    "spelled",
    "summary_of",
    "survey",
    "text",
    "texts",
    "trajectory",
    "translate",
    "use_compiled",
    "verify",
    "ways",
    "why_not",
    "write_ledger",
    "writing_seconds",
]

open = open_model
JUDGING_SECONDS = 20.0  # that all claims take, about


def writing_seconds(n_findings: int) -> float:
    """Estimate the seconds that writing a report takes."""
    return SECONDS_OF_DRAWING * n_findings / len(lens_members())


def report(what: Any, out: str | Path | None = None, **options: Any) -> Path:
    """Write `report.html`, one self-contained file, and return its path.

    Args:
        what: A run, a run folder, or a model (also by name), which is measured first.
        out: The folder to write to. A run folder is its own default; a run needs none but `headscope-report`.
        options: For a model: those of `measure`.
    """
    run, folder = _run_and_folder(what, out, options)
    target = folder / "report.html"
    write(run, target)
    return target


def head(
    model: Any,
    at: str | Selection,
    *,
    text: Text | str | Path | None = None,
    tokens: int = DEFAULT_TOKENS,
    hub: bool = False,
    device: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> HeadView:
    """Look at one head: its attention pattern on a text, with its tokens and its numbers.

    The result draws itself in a notebook; `pattern`, `tokens` and `quantities` hold what it shows.

    Args:
        model: A model, or what `open` takes.
        at: The head: `L1.H3`; with two stacks `enc.L0.H1`, `dec.L0.H1` or `dec.L0.cross.H1`.
        text: As in `measure`.
        tokens: The first tokens of the text, special ones included.
        hub: Whether a name may be fetched from the model hub.
        device: Where the model runs, e.g. "cuda"; None is the CPU, or where a loaded model is.
        seed: Of a freshly initialised model.
        out: A file for a page (.html) or a drawing (.png, .svg, .pdf).
        progress: Told about every step.

    Raises:
        UsageError: There is no such head, or several are meant.
    """
    if out is not None:
        checked_kind(Path(out))
    views = heads(model, at, text=text, tokens=tokens, hub=hub, device=device, seed=seed, progress=progress)
    if len(views) > 1:
        raise UsageError(
            f"{at!r} means {len(views)} heads, expected one",
            hint=f"name one of them, e.g. {views[0].label!r}; `headscope.heads` shows several",
        )
    if out is not None:
        save_heads(views, out)
    return views[0]


def heads(
    model: Any,
    *at: str | Selection,
    text: Text | str | Path | None = None,
    tokens: int = DEFAULT_TOKENS,
    hub: bool = False,
    device: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> HeadViews:
    """Look at several heads on the same text: `heads("tiny", "L1.H3", "L2")`; the other arguments are those of `head`.

    The result is a sequence of what `head` returns; a head is also found by its label (`views["L2.H0"]`).
    """
    if out is not None:
        checked_kind(Path(out))
    views = head_views(model, at, text=text, tokens=tokens, hub=hub, device=device, seed=seed, progress=progress)
    if out is not None:
        save_heads(views, out)
    return views


def compare(
    *sources: Any,
    text: Any = None,
    lenses: Sequence[Any] | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    window: int = 512,
    first_tokens: int | None = None,
    all_windows: bool = False,
    hub: bool = False,
    device: str | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare models or runs: which heads moved, by how much, and what every lens answers about each.

    Args:
        sources: Two or more, each compared with the first: runs, run folders, or models (also by name). Models are
            measured on the same text with the same settings.
        text: As in `measure`; so are `params`, `seed`, `window`, `first_tokens`, `all_windows`, `hub` and `device`.
        lenses: Names of lenses; None is all of them, or those of the stored runs where there are any.
        params: Parameters by lens name.
        seed: Of everything that is drawn at random.
        window: Tokens per window.
        first_tokens: Read the first tokens of the text, so many of them.
        all_windows: Read the whole text.
        hub: Whether a name may be fetched from the model hub.
        device: Where models run, e.g. "cuda".
        out: A folder for `compare.html`, its tables, and a run folder for each model that is measured; what it holds
            already is not measured again.
        progress: Told about every step.

    Raises:
        UsageError: Fewer than two sources, the same twice, runs without a common lens, a folder without a run.
        CheckpointError: A model cannot be opened.
    """
    options = {
        "text": text, "params": params, "seed": seed, "window": window, "first_tokens": first_tokens,
        "all_windows": all_windows, "device": device,
    }  # fmt: skip
    folder = None if out is None else Path(out)
    listener = progress or Silent()
    if folder is not None:
        announce(listener, [Stage(WRITING, writing_seconds(len(lenses or lens_members())))])
    runs = measured_runs(sources, lenses=lenses, out=folder, hub=hub, progress=listener, options=options)
    comparison = Comparison.of(runs)
    if folder is not None:
        listener.step(WRITING, 0, 1)
        comparison.save(folder)
        listener.step(WRITING, 1, 1)
    return comparison


def trajectory(
    training: str | Path,
    lens: Any,
    *,
    quantities: Sequence[str] | None = None,
    text: Any = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    window: int = 512,
    first_tokens: int | None = None,
    all_windows: bool = False,
    device: str | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    """Follow the heads of a network over the saved steps of its training, and find where they change most steeply.

    Args:
        training: The folder of a training.
        lens: The name of a lens that offers numbers of single heads.
        quantities: Keys of its quantities; None is all of them.
        text: As in `measure`; so are `seed`, `window`, `first_tokens`, `all_windows` and `device`.
        params: Parameters of the lens.
        seed: Of everything that is drawn at random.
        window: Tokens per window.
        first_tokens: Read the first tokens of the text, so many of them.
        all_windows: Read the whole text.
        device: Where the networks run, e.g. "cuda".
        out: A folder for `trajectory.html`, its tables, and a run folder for each step; what it holds already is not
            measured again.
        progress: Told about every step.

    Raises:
        UsageError: The folder holds no training or fewer than two saved steps, or the lens has no such quantity.
        CheckpointError: None of the steps can be opened.
    """
    return measured_trajectory(
        training, lens, quantities=quantities, params=params, out=out, progress=progress, text=text, seed=seed,
        window=window, first_tokens=first_tokens, all_windows=all_windows, device=device,
    )  # fmt: skip


def text(what: str | Path, split: str | None = None, *, progress: ProgressStep | None = None) -> Text:
    """A text by its name or from a file, whole or one of its splits; fetched once where that is needed.

    Args:
        what: A name that `texts()` lists, the path of a UTF-8 file, or `-` for standard input.
        split: `fit`, `search` or `test`: documents are split by a hash, near-duplicates together.
        progress: Called with what is fetched, how many bytes are here, and how many there are.
    """
    return spelled_text(str(what) if split is None else f"{what}:{split}", progress)


def translate(
    model: Any,
    sentences: str | Sequence[str],
    *,
    beam: int = 4,
    n_best: int = 1,
    length_penalty: float | int = 1.0,
    hub: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
) -> list[TranslatedSentence]:
    """Translate sentences with an encoder–decoder: `translate(model, "Click the button.")[0].text`.

    Args:
        model: A model, or what `open` takes.
        sentences: A sentence, or several.
        beam: The width of the beam search; 1 is greedy decoding.
        n_best: How many translations of each sentence.
        length_penalty: The power of the length by which log-probabilities are divided; a greedy translation has none.
        hub: Whether a name may be fetched from the model hub.
        device: Where the model runs, e.g. "cuda"; None is the CPU, or where a loaded model is.
        progress: Told about every step.

    Raises:
        UsageError: The model does not translate, or a sentence is empty or too long.
        CheckpointError: The tokenizer belongs to another model.
    """
    search = Greedy() if beam == n_best == 1 else Beam(beam, length_penalty, n_best)
    listener = progress or Silent()
    translator = _translator(model, hub=hub, device=device, step=listener.step)
    inputs = [sentences] if isinstance(sentences, str) else list(sentences)
    return translator.translate(inputs, search, lambda done, total: listener.step("translating sentence", done, total))


def _translator(model: Any, *, hub: bool, device: str | None, step: ProgressStep) -> SentenceTranslator:
    """The network and tokenizer of a model; one without attention translates, too, so it is not opened as a `Model`."""
    if isinstance(model, str | Path):
        source = resolve(model, hub=hub, progress=step)
        loaded = load_model(source, progress=step)
        network = loaded.model if device is None else loaded.model.to(check_device(device))
        return SentenceTranslator(network, loaded.tokenizer, source.name)
    opened = model if isinstance(model, Model) else open(model, device=device)
    return SentenceTranslator(opened.hf, opened.tokenizer, opened.spec.name)


def run_experiment(
    name: str,
    model: Any = None,
    params: Any = None,
    *,
    hub: bool = False,
    device: str | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Do an experiment with a model.

    Args:
        name: The experiment's name, e.g. `intervene`.
        model: A model, or what `open` takes; None for an experiment that trains its own.
        params: The `Params` of the experiment; None for its defaults.
        hub: Whether a name may be fetched from the model hub.
        device: Where the model runs, e.g. "cuda"; None is the CPU, or where a loaded model is.
        out: A folder for the run and its `report.html`.
        progress: Told about every step.

    Raises:
        UsageError: There is no such experiment, or its parameters make no sense.
    """
    experiment = experiment_named(name)
    settings = experiment.params() if params is None else params
    experiment.check(settings)
    listener = progress or Silent()
    if isinstance(experiment, TrainingExperiment):
        return _trained_run(experiment, settings, Path(out or experiment.default_out), device, listener)
    if out is not None:
        check_folder(Path(out))
        announce(listener, [Stage(WRITING, writing_seconds(1))])
    if isinstance(model, str | Path):
        listener.step(f"opening {model}", 0, 1)
    opened = open(model, hub=hub, device=device, seed=settings.seed, progress=listener.step)
    announce(listener, experiment.stages(opened, settings))
    with nullcontext() if experiment.keeps_threads else fitting_threads(opened.spec):
        finding, spec = experiment.run(opened, settings, listener.step)
    run = Run(opened.spec, opened.sites, {finding.lens: finding}, spec, versions(), settings.seed)
    if out is not None:
        listener.step(WRITING, 0, 1)
        report(run, out=out)
        listener.step(WRITING, 1, 1)
    return run


def _trained_run(
    experiment: TrainingExperiment[Any], params: Any, folder: Path, device: str | None, listener: Progress
) -> Run:
    """Train the models of an experiment in a folder, where it goes on if it was stopped, and write its run there."""
    if device not in (None, "cpu"):
        raise UsageError(f"experiment {experiment.name!r} trains on the CPU, not on {device!r}", hint="leave it out")
    announce(listener, [Stage(WRITING, writing_seconds(1))])
    holder = RunFolder.begin(folder)
    try:
        result = experiment.train(params, folder, listener)
    finally:
        holder.release()
    findings = {finding.lens: finding for finding in result.findings}
    if result.model is not None and result.lenses:
        lens_run = measure(
            result.model, lenses=list(result.lenses), params=result.lenses, seed=params.seed, progress=listener
        )
        findings |= lens_run.findings
    run = Run(result.spec, result.sites, findings, result.text, versions(), params.seed)
    listener.step(WRITING, 0, 1)
    report(run, out=folder)
    listener.step(WRITING, 1, 1)
    return run


def judge_claims(
    ids: Sequence[str] = (),
    *,
    seed: int = 0,
    model: Any = None,
    hub: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
) -> Ledger:
    """Judge every claim, or those of `ids`; with a model also the claims that a lens or experiment settles."""
    if model is not None and progress is not None:
        announce(progress, [Stage("judging claim", JUDGING_SECONDS)])
    findings, name = {}, ""
    needed = lenses_needed(claims(ids)) if model is not None else ()
    chosen_lenses = [lens for lens in needed if lens in lens_members()]
    if chosen_lenses:
        run = measure(model, lenses=chosen_lenses, hub=hub, device=device, seed=seed, progress=progress)
        findings, name = dict(run.findings), run.model.name
    experiments = [member for name, member in experiment_members().items() if name in needed]
    if experiments:
        opened = open(model, hub=hub, device=device, seed=seed, progress=(progress or Silent()).step)
        for member in experiments:
            with suppress(UsageError):  # it cannot be done with this model: the claims go on waiting for one
                params = replace(member.setting("FOR_CLAIMS"), seed=seed)
                run = run_experiment(member.name, opened, params, device=device, progress=progress)
                findings, name = {**findings, **run.findings}, run.model.name
    step = None if progress is None else progress.step
    return ledger(ids, seed=seed, findings=findings, model=name, step=step)


def reproduce(
    item: Item,
    model: Any,
    *,
    text: Any = None,
    hub: bool = False,
    device: str | None = None,
    seed: int = 0,
    window: int = 512,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Measure an item of the index on a model: our figures, our numbers next to the published ones, its claims.

    Args:
        item: One whose steps name a lens that exists; see `item_named`.
        model: What `open` takes.
        text: As in `measure`.
        hub: Whether a name may be fetched from the model hub.
        device: Where the model runs, e.g. "cuda"; None is the CPU, or where a loaded model is.
        seed: Of everything that is drawn.
        window: Tokens per window.
        out: A folder for the run and its `report.html`.
        progress: Told about every step.
    """
    listener = progress or Silent()
    if out is not None:
        check_folder(Path(out))
        announce(listener, [Stage(WRITING, writing_seconds(1))])
    needed = {*item.lenses, *lenses_needed(claims(item.claims) if item.claims else ())}
    lens_names = [name for name in lens_members() if name in needed]
    run = measure(
        model, text=text, lenses=lens_names, seed=seed, window=window, hub=hub, device=device, progress=progress
    )
    step = None if progress is None else progress.step
    judged = _judged(item, run, step)
    finding = page(item, run.findings, judged, run.model.name)
    item_run = replace(run, findings={finding.lens: finding})
    if out is not None:
        listener.step(WRITING, 0, 1)
        report(item_run, out=out)
        listener.step(WRITING, 1, 1)
    return item_run


def _judged(item: Item, run: Run, step: Any) -> tuple[Entry, ...]:
    if not item.claims:
        return ()
    return ledger(item.claims, seed=run.seed, findings=run.findings, model=run.model.name, step=step).entries


def ledger_objects(judged: Ledger, ids: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One plain object per id; `measured` and `error` are those of the number that decides."""
    ids_meant = meant_ids(ids)
    return [_ledger_object(entry, name) for entry in judged.entries for name in entry.ids if name in ids_meant]


def _ledger_object(entry: Entry, name: str) -> dict[str, Any]:
    evidence = entry.evidence
    decisive = () if evidence is None else evidence.stated or evidence.answer
    worst = max(decisive, key=lambda comparison: comparison.deviation, default=None)
    groups = () if evidence is None else evidence.groups
    return {
        "id": name,
        "verdict": entry.reading,
        "kind": entry.verdict,
        "slip": entry.slip,
        "stated": entry.formula or entry.statement,
        "corrected": entry.corrected_formula or entry.correction or None,
        "predicted": None if worst is None else worst.predicted,
        "measured": None if worst is None else worst.measured,
        "error": None if worst is None else worst.error,
        "trend": None if evidence is None or evidence.trend is None else _trend_object(evidence.trend),
        "source": str(entry.source),
        "statement": entry.statement,
        "correction": entry.correction or None,
        "lesson": entry.lesson,
        "lens": entry.lens or None,
        "reason": entry.reason or None,
        "model": entry.model or None,
        "related": list(entry.related),
        "numbers": [{"formula": group, **asdict(c), "agrees": c.agrees} for group, cs in groups for c in cs],
    }


def _trend_object(trend: Trend) -> dict[str, Any]:
    """The trend with its measured order beside the stated one; digits below the uncertainty are dropped."""
    return {**asdict(trend), "fitted": round(trend.fitted, 4), "uncertainty": round(trend.uncertainty, 4)}


def _run_and_folder(source: Any, out: str | Path | None, options: Mapping[str, Any]) -> tuple[Run, Path]:
    if isinstance(source, Run):
        folder = Path(out or "headscope-report")
        return source, save_run(source, folder)
    if isinstance(source, (str, Path)) and (Path(source) / "manifest.json").is_file():
        return load(source), Path(out or source)
    folder = Path(out or "headscope-report")
    return measure(source, out=folder, **options), folder


plug(render=notebook_html, save=save_run, save_heads=save_heads)

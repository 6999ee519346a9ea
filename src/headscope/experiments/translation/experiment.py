"""Translation: a network trained on a parallel text, its held-out translations, and other networks next to it."""

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from headscope.core import Finding, TextSpec
from headscope.experiments.experiment import Display, Made, Passage, TrainingExperiment, short_table
from headscope.experiments.prune.curve import ORIGINAL_TASK, random_name
from headscope.experiments.prune.curve import task_of as order_task
from headscope.experiments.prune.tables import spared_table
from headscope.experiments.translation.figures import figures
from headscope.experiments.translation.head_pruning import DRAWS, IMPORTANCE, head_pruning
from headscope.experiments.translation.head_pruning import TASK as ALONE_TASK
from headscope.experiments.translation.judged_translations import BEAM, GREEDY, task_of
from headscope.experiments.translation.judgement import Judged, judged
from headscope.experiments.translation.made_model import MadeModel, made_model
from headscope.experiments.translation.pair_material import Material, gather
from headscope.experiments.translation.pair_structure import TASK as STRUCTURE_TASK
from headscope.experiments.translation.pair_structure import pair_structure
from headscope.experiments.translation.sentence_maps import SentenceMaps, drawn_sentences, sentence_maps
from headscope.experiments.translation.sentences import headlines
from headscope.experiments.translation.settings import COMMAND, Params
from headscope.experiments.translation.tables import (
    head_quantities,
    heads_table,
    losses_table,
    pruning_table,
    scores_table,
    sizes_table,
    translations_table,
    variants_table,
)
from headscope.experiments.translation.training_job import trained
from headscope.experiments.translation.variants import MAIN, description, folder_name, variants_of
from headscope.progress import Progress, Stage, Step, announce
from headscope.training.trainer import TRAINING

# Lenses whose sections the report of a study has, besides the pairs' own, with their parameters. None of them reads the
# shipped text: encoder and decoder would both be given it, and it is no translation of itself.
LENSES: Mapping[str, Mapping[str, object]] = {"spectra": {}, "alignment": {}, "roles": {"with_text": False}}
_SHOWN = 4  # translations on a terminal
_SECONDS_BY_PAIR = {GREEDY: 0.02, BEAM: 0.06}  # of a core, for the time left at first


class Translation(TrainingExperiment[Params]):
    """A translator and its variants, each trained in a folder of its own.

    Properties:
        - it learns a language that is planted  (tested: test_a_planted_language_is_learnt)
        - killed and resumed, it gives the same tables  (tested: test_a_killed_study_ends_the_same)
    """

    name = "translation"
    command = COMMAND.path
    params = Params
    keeps_threads = True
    default_out = COMMAND.default_out

    def train(self, params: Params, folder: Path, progress: Progress) -> Made:
        """Train every network, translate the test pairs, and compare."""
        self.check(params)
        material = gather(params, progress.step)
        networks = variants_of(params)
        stages = [stage for name in networks for stage in _stages(name, params, material)]
        announce(progress, [*stages, *_later_stages()])
        results = {name: _judged(name, settings, material, folder, progress) for name, settings in networks.items()}
        main = results[MAIN]
        model = made_model(main.trained)
        tables = _tables(results, material, params.seed) | _heads(model, material, params.seed, progress.step)
        finding = Finding(
            self.name,
            self.about,
            tables=tables,
            figures=figures(tables, model.sites, _maps(model, main, material, params)),
            headlines=headlines(tables),
            quantities=head_quantities() if "heads" in tables else (),
            method=_method(params, material, main),
            params=_stated(params),
        )
        text = _text_spec(material, params)
        if model.model is None:
            return Made(model.spec, model.sites, (finding,), text)
        structure = pair_structure(model.model, material, main.translations[BEAM].hypotheses, progress.step)
        findings = (finding,) if structure is None else (finding, structure)
        return Made(model.spec, model.sites, findings, text, model.model, LENSES)

    def show(self, finding: Finding) -> Display:
        """The scores, or the variants where there are some; and some translations."""
        rows = finding.tables["translations"].head(_SHOWN).iter_rows(named=True)
        passages = tuple(
            Passage(row["source"], (("reference", row["reference"]), (BEAM, row[BEAM]), ("copy", row["copy"])))
            for row in rows
        )
        variants = finding.tables["variants"]
        if variants.height > 1:
            names = ("variant", "network", "steps", "validation_nats", "BLEU", "BLEU_change", "chrF")
            return Display(short_table(variants, dict(zip(names, names, strict=True))), passages)
        names = ("system", "band", "metric", "sentences", "value", "low", "high")
        return Display(short_table(finding.tables["scores"], dict(zip(names, names, strict=True))), passages)


EXPERIMENT = Translation()


def _stages(variant: str, params: Params, material: Material) -> list[Stage]:
    pairs = len(material.judged.pairs)
    systems = (GREEDY, BEAM) if variant == MAIN else (GREEDY,)
    return [
        Stage(TRAINING, 60 * params.minutes),
        *(Stage(task_of(system), pairs * _SECONDS_BY_PAIR[system]) for system in systems),
    ]


def _later_stages() -> list[Stage]:
    """What follows once the networks are judged; the time is that of a small network."""
    orders = (IMPORTANCE, *(random_name(draw, DRAWS) for draw in range(DRAWS)))
    return [
        *(Stage(task, 10.0) for task in (ALONE_TASK, ORIGINAL_TASK, *map(order_task, orders))),
        Stage(STRUCTURE_TASK, 10.0),
    ]


def _judged(name: str, params: Params, material: Material, folder: Path, progress: Progress) -> Judged:
    network = trained(params, material, folder / folder_name(name), progress)
    return judged(name, params, network, material, progress.step)


def _heads(model: MadeModel, material: Material, seed: int, step: Step) -> dict[str, pl.DataFrame]:
    """What each head is worth; nothing where no head attends."""
    if model.model is None:
        return {}
    pruning = head_pruning(model.model, material, seed, step)
    spared = spared_table(pruning.curves, len(pruning.heads))
    return {"heads": heads_table(pruning), "pruning": pruning_table(pruning), "spared": spared}


def _maps(model: MadeModel, main: Judged, material: Material, params: Params) -> list[SentenceMaps]:
    if model.model is None:
        return []
    hypotheses = main.translations[BEAM].hypotheses
    positions = drawn_sentences(material, params.maps, params.seed)
    pairs = [(material.judged.sources[index], hypotheses[index]) for index in positions]
    return [sentence_maps(model.model, source, translation) for source, translation in pairs]


def _tables(results: Mapping[str, Judged], material: Material, seed: int) -> dict[str, pl.DataFrame]:
    main = results[MAIN]
    return {
        "scores": scores_table(main, material, seed),
        "losses": losses_table(results),
        "translations": translations_table(main, material),
        "sizes": sizes_table(main, material),
        "variants": variants_table(results, seed),
    }


def _method(params: Params, material: Material, main: Judged) -> str:
    state = main.trained.outcome.state
    return (
        f"{description(params)[0].upper()}{description(params)[1:]}; {main.n_parameters:,} parameters; "
        f"{material.tokenizer.get_vocab_size():,} byte-pair tokens for both languages. AdamW, cosine schedule after "
        f"{params.warmup} steps of warm-up, label smoothing 0.1, dropout {params.dropout:g}, "
        f"{_agreement(params)}{params.precision} products; "
        f"{state.step:,} steps, {state.tokens:,} tokens, {state.seconds / 60:.1f} minutes "
        f"({params.clock.value} clock); weights of the best validation (step {state.best_step}). Sentences are judged "
        "as sacrebleu does; intervals: bootstrap over groups of near-duplicates. Variants are decoded greedily."
    )


def _agreement(params: Params) -> str:
    return f"each batch read twice with a price of {params.agreement:g} on disagreement, " if params.agreement else ""


def _stated(params: Params) -> dict[str, str | int | float | bool | None]:
    names = ("pair", "network", "score", "layers", "heads", "width", "initialisation", "vocabulary", "minutes", "beam")
    values = {name: getattr(params, name) for name in names}
    return {name: str(value) if isinstance(value, str) else value for name, value in values.items()}


def _text_spec(material: Material, params: Params) -> TextSpec:
    part = material.judged
    encodings = material.tokenizer.encode_batch([*part.sources, *part.targets])
    return TextSpec(
        part.name,
        part.sha256,
        sum(len(pair.source) + len(pair.target) for pair in part.pairs),
        sum(len(encoding.ids) for encoding in encodings),
        len(part.pairs),
        params.longest,
    )

"""Tiny: the recipe of the shipped model, run again, and its figures next to those of the shipped weights."""

from collections.abc import Mapping
from pathlib import Path

from threadpoolctl import threadpool_limits

from headscope.attention.bench.timing import one_thread
from headscope.core import Finding, TextSpec
from headscope.core.numbers import counted
from headscope.experiments.experiment import Display, Made, TrainingExperiment, short_table
from headscope.experiments.tiny.bands import bands_of
from headscope.experiments.tiny.figures import figures
from headscope.experiments.tiny.head_roles import RoleMass, role_masses
from headscope.experiments.tiny.model_card import Results, card_files
from headscope.experiments.tiny.sentences import headlines
from headscope.experiments.tiny.settings import COMMAND, Params
from headscope.experiments.tiny.shipped_record import NAME, shipped_record
from headscope.experiments.tiny.tables import bands_table, course_table, heads_table, losses_table, sizes_table
from headscope.experiments.tiny.text_losses import (
    SHIPPED,
    TRAINED,
    WINDOWS,
    check_judged,
    judged_tokens,
    judging_task,
    n_gram_losses,
    network_losses,
)
from headscope.experiments.tiny.text_material import Material, gather
from headscope.experiments.tiny.training_phases import (
    CYCLE_MINUTES,
    CYCLE_TARGET,
    TEXT,
    TrainedNetwork,
    phase_names,
    phase_task,
    train_phases,
)
from headscope.model.model import Model, open_model
from headscope.progress import Progress, Stage, Step, announce
from headscope.training.model_files import model_files
from headscope.training.training_folder import TrainingFolder
from headscope.training.weights import weights_of

MODEL_FOLDER = "model"
_JUDGING_SECONDS = 40.0  # of a network, for the time left at first


class Tiny(TrainingExperiment[Params]):
    """The phases of the recipe, each in a folder of its own, and the bands of the shipped figures.

    Properties:
        - the phases are trained one after the other  (tested: test_each_phase_has_its_folder)
        - killed and resumed, it ends with the same weights  (tested: test_a_killed_study_ends_the_same)
    """

    name = "tiny"
    command = COMMAND.path
    params = Params
    default_out = COMMAND.default_out

    def train(self, params: Params, folder: Path, progress: Progress) -> Made:
        """Train all phases on one thread, judge the weights, and set them next to the shipped ones."""
        self.check(params)
        with one_thread(), threadpool_limits(1, user_api="blas"):
            material = gather(params, progress.step)
            check_judged(material, open_model(NAME))
            announce(progress, _stages(params))
            network = train_phases(params, material, folder, progress)
            return self._judged(params, material, network, folder, progress.step)

    def show(self, finding: Finding) -> Display:
        """The bands."""
        names = ("figure", "value", "low", "high", "is_inside", "published", "shipped", "null")
        return Display(short_table(finding.tables["bands"], {name: name for name in names}))

    def _judged(
        self, params: Params, material: Material, network: TrainedNetwork, folder: Path, progress: Step
    ) -> Made:
        record = shipped_record()
        models = {TRAINED: _write_model(network, material, folder, {}), SHIPPED: open_model(NAME)}
        losses = [
            *(
                loss
                for system, model in models.items()
                for loss in network_losses(system, model, material.judged, progress)
            ),
            *n_gram_losses(material),
        ]
        masses = {system: _masses(model, material) for system, model in models.items()}
        card = card_files(Results(params, material, network, losses, masses[TRAINED]))
        model = _write_model(network, material, folder, card)
        tables = {
            "bands": bands_table(bands_of(losses, masses, record, params.texts)),
            "losses": losses_table(losses),
            "heads": heads_table(masses[TRAINED]),
            "course": course_table(network),
            "sizes": sizes_table(network, material, record),
        }
        finding = Finding(
            self.name,
            self.about,
            tables=tables,
            figures=figures(tables, record),
            headlines=headlines(tables),
            method=_method(params, network),
            params=_stated(params),
        )
        return Made(model.spec, model.sites, (finding,), _text_spec(material, params))


EXPERIMENT = Tiny()


def _stages(params: Params) -> list[Stage]:
    *cycles, text = phase_names()
    cycle_seconds = 60 * min(CYCLE_MINUTES, params.minutes / 2)
    return [
        *(Stage(phase_task(name), cycle_seconds / len(cycles)) for name in cycles),
        Stage(phase_task(text), 60 * params.minutes - cycle_seconds),
        *(Stage(judging_task(system), _JUDGING_SECONDS) for system in (TRAINED, SHIPPED)),
    ]


def _write_model(network: TrainedNetwork, material: Material, folder: Path, card: Mapping[str, bytes]) -> Model:
    """Write the weights as a model, with the page about them, and open it."""
    companions = {**model_files(network.network), **material.companions, **card}
    return open_model(TrainingFolder(folder, companions).write_weights(MODEL_FOLDER, weights_of(network.network)))


def _masses(model: Model, material: Material) -> list[RoleMass]:
    documents = [document for part in material.judged.values() for document in part]
    tokenizer = model.tokenizer
    return role_masses(model, tokenizer.bos_token_id, judged_tokens(model, documents))  # type: ignore[union-attr]


def _method(params: Params, network: TrainedNetwork) -> str:
    cycles = ", ".join(phase.end for phase in network.cycles)
    state = network.text.outcome.state
    return (
        f"Cycles with AdamW until a head has mass {CYCLE_TARGET:g} in induction, or their budget is spent: {cycles}. "
        f"Then {TEXT} with Muon and AdamW: {counted(state.step, 'step')}, {state.tokens:,} tokens; the rate falls "
        f"linearly to 0. {network.minutes:.1f} minutes in all ({params.clock.value} clock), on one thread; the weights "
        "of the last step are judged, on all full windows of the judged documents."
    )


def _stated(params: Params) -> dict[str, str | int | float | bool | None]:
    return {
        "texts": ", ".join(params.texts),
        "vocabulary": params.vocabulary,
        "minutes": params.minutes,
        "clock": params.clock.value,
        "steps": params.steps,
        "judged": params.judged,
    }


def _text_spec(material: Material, params: Params) -> TextSpec:
    documents = [document for part in material.judged.values() for document in part]
    encodings = material.tokenizer.encode_batch(documents, add_special_tokens=False)
    n_tokens = sum(len(encoding.ids) + 1 for encoding in encodings)
    return TextSpec(
        ", ".join(f"{name}:test" for name in params.texts),
        material.sha256,
        sum(map(len, documents)),
        n_tokens,
        n_tokens // WINDOWS[-1],
        WINDOWS[-1],
        n_documents=len(documents),
    )

"""What a study knows of each network: its training, and its translations by each way to decode."""

from collections.abc import Mapping
from dataclasses import dataclass

from headscope.experiments.translation.judged_translations import BEAM, GREEDY, judged_translations, searches
from headscope.experiments.translation.pair_material import Material
from headscope.experiments.translation.settings import Params
from headscope.experiments.translation.training_job import TrainedNetwork
from headscope.experiments.translation.translation_scores import Translations
from headscope.experiments.translation.variants import MAIN
from headscope.progress import Step


@dataclass(frozen=True)
class Judged:
    """A trained network with its translations by system. Variants are decoded greedily alone."""

    params: Params
    trained: TrainedNetwork
    translations: Mapping[str, Translations]

    @property
    def n_parameters(self) -> int:
        """How many numbers are trained; tables that are tied count once."""
        return sum(parameter.numel() for parameter in self.trained.network.parameters())


def judged(variant: str, params: Params, trained: TrainedNetwork, material: Material, progress: Step) -> Judged:
    """A network judged on the test pairs."""
    systems = (GREEDY, BEAM) if variant == MAIN else (GREEDY,)
    by_name = searches(params.beam)
    translations = {
        system: judged_translations(trained, material, system, by_name[system], progress) for system in systems
    }
    return Judged(params, trained, translations)

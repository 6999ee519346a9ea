"""The trained network as a model that can be measured, as far as it attends."""

from dataclasses import dataclass
from typing import Any

from headscope.core import ModelSpec, Site
from headscope.experiments.translation.training_job import TrainedNetwork
from headscope.files import sha256_of
from headscope.model.model import Model, open_model
from headscope.training.saved_steps import WEIGHTS


@dataclass(frozen=True)
class MadeModel:
    """What a model is as plain data, its attention sites, and the model itself where it attends."""

    spec: ModelSpec
    sites: tuple[Site, ...]
    model: Model | None


def made_model(trained: TrainedNetwork) -> MadeModel:
    """The model of a training; a recurrent network without attention has no site, and cannot be opened as one."""
    config: Any = trained.network.config
    if getattr(config, "score", "") == "none":
        return MadeModel(_without_attention(trained, config), (), None)
    model = open_model(trained.folder)
    return MadeModel(model.spec, model.sites, model)


def _without_attention(trained: TrainedNetwork, config: Any) -> ModelSpec:
    return ModelSpec(
        name=str(trained.folder),
        source="folder",
        family=config.model_type,
        architecture=type(trained.network).__name__,
        kind="encoder-decoder",
        n_layers=config.decoder_layers,
        n_heads=0,
        n_kv_heads=0,
        d_model=config.hidden_size,
        d_head=0,
        vocabulary=config.vocab_size,
        context=None,
        n_parameters=sum(parameter.numel() for parameter in trained.network.parameters()),
        dtype="float32",
        sha256=sha256_of(trained.folder / WEIGHTS),
        notes=("a recurrent network without attention",),
    )

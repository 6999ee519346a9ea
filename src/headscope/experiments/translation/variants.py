"""The networks that a study compares, each with the budget of the main one."""

from dataclasses import replace

from headscope.experiments.translation.settings import Initialisation, Network, Params, Score

MAIN = "main"


def variants_of(params: Params) -> dict[str, Params]:
    """The settings of each variant by its name, the main network first; those that equal it are left out.

    The recurrent networks have one layer, as in Conti (The Math behind transformers, 1.1.1).
    """
    main = replace(params, variants=False)
    if not params.variants:
        return {MAIN: main}
    transformer = replace(main, network=Network.TRANSFORMER)
    lstm = replace(main, network=Network.LSTM, layers=1)
    changed = {
        "1 head": replace(transformer, heads=1),
        "8 heads": replace(transformer, heads=8),
        "1 layer": replace(transformer, layers=1),
        "2 layers": replace(transformer, layers=2),
        "4 layers": replace(transformer, layers=4),
        "identity": replace(transformer, initialisation=Initialisation.IDENTITY),
        "lstm": replace(lstm, score=Score.NONE),
        "lstm bahdanau": replace(lstm, score=Score.BAHDANAU),
    }
    return {MAIN: main} | {name: settings for name, settings in changed.items() if settings != main}


def folder_name(variant: str) -> str:
    """The folder of a variant's training, below that of the study."""
    return "training" if variant == MAIN else f"variants/{variant.replace(' ', '-')}"


def description(params: Params) -> str:
    """What a network is, in a few words."""
    layers = f"{params.layers} layer{'s' * (params.layers != 1)}"
    if params.network is not Network.TRANSFORMER:
        attention = "no attention" if params.score is Score.NONE else f"{params.score.value} attention"
        return f"{params.network.value}, {layers}, {attention}, width {params.width}"
    heads = f"{params.heads} head{'s' * (params.heads != 1)}"
    return f"transformer, {layers}, {heads}, {params.initialisation.value}, width {params.width}"

"""The families of networks, by the name in config.json; loads no torch until transformers learns them."""

from functools import cache
from importlib import import_module
from typing import Any

# The configuration, the model without its output, the auto class of the whole one, and the whole one.
_SINGLE = "headscope.networks.single_stack"
FAMILIES = {
    "headscope-translator": ("TranslatorConfig", "AutoModelForSeq2SeqLM", "headscope.networks.translator",
                             "TranslatorBody", "Translator"),
    "headscope-decoder": ("DecoderConfig", "AutoModelForCausalLM", _SINGLE, "DecoderBody", "DecoderNetwork"),
    "headscope-recurrent": ("RecurrentConfig", "AutoModelForSeq2SeqLM", "headscope.networks.recurrent",
                            "RecurrentBody", "RecurrentTranslator"),
    "headscope-encoder": ("EncoderConfig", "AutoModelForMaskedLM", _SINGLE, "EncoderBody", "EncoderNetwork"),
}  # fmt: skip


@cache
def register() -> None:
    """Let transformers open the networks by their configuration; harmless when done twice."""
    import transformers

    configurations = import_module("headscope.networks.configuration")
    for family, (config_name, auto_name, module_name, body_name, whole_name) in FAMILIES.items():
        config, module = getattr(configurations, config_name), import_module(module_name)
        transformers.AutoConfig.register(family, config)
        transformers.AutoModel.register(config, getattr(module, body_name))
        auto: Any = getattr(transformers, auto_name)
        auto.register(config, getattr(module, whole_name))

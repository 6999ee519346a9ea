"""Networks of headscope's own: readable transformers and their recurrent ancestors, with any mechanism in any head.

    from headscope.networks import Translator, TranslatorConfig
    network = Translator(TranslatorConfig(vocab_size=7000, mechanisms={"window(left=4)": "enc.L0.H0-1"}))

They are models of transformers: they save, open, generate and are measured as any other. Names are fetched when they
are used.
"""

from typing import TYPE_CHECKING

from headscope.lazy_names import lazy_names

if TYPE_CHECKING:
    from headscope.networks.configuration import DecoderConfig, EncoderConfig, RecurrentConfig, TranslatorConfig
    from headscope.networks.families import register
    from headscope.networks.recurrent import RecurrentTranslator
    from headscope.networks.single_stack import DecoderNetwork, EncoderNetwork
    from headscope.networks.translator import Translator

_HOMES = {
    "configuration": "DecoderConfig EncoderConfig RecurrentConfig TranslatorConfig",
    "families": "register",
    "recurrent": "RecurrentTranslator",
    "single_stack": "DecoderNetwork EncoderNetwork",
    "translator": "Translator",
}

__all__ = [
    "DecoderConfig",
    "DecoderNetwork",
    "EncoderConfig",
    "EncoderNetwork",
    "RecurrentConfig",
    "RecurrentTranslator",
    "Translator",
    "TranslatorConfig",
    "register",
]

__getattr__ = lazy_names(__name__, _HOMES)

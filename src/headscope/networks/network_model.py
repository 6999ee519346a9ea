"""NetworkModel: what every network of headscope is to transformers."""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from headscope.attention.head_mechanisms import mechanisms_of
from headscope.networks.configuration import NetworkConfig
from headscope.networks.initialisation import first_values, xavier


class NetworkModel(PreTrainedModel):  # type: ignore[misc]  # transformers has no types
    """A model of transformers: it saves, loads, generates and dispatches attention as any other."""

    config: NetworkConfig
    config_class = NetworkConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True

    def post_init(self) -> None:
        """Finish what transformers needs, and generate without a cache where a mechanism needs all queries."""
        super().post_init()
        generation = getattr(self, "generation_config", None)
        mechanisms = (mechanisms_of(module) for module in self.modules())
        if generation is not None and any(part is not None and part.needs_all_queries for part in mechanisms):
            generation.use_cache = False

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # transformers would look for its attention interface in the text of the module that holds the class.
        return True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.copy_(module.weight, first_values(module))
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            # Times √d as it is read, a vector has entries of variance 1.
            scaled = getattr(self.config, "scale_embedding", False)
            init.normal_(module.weight, std=self.config.hidden_size**-0.5 if scaled else 0.02)
        elif isinstance(module, nn.RNNBase):
            for name, weight in module.named_parameters():
                rows = weight.shape[0]
                init.copy_(weight, xavier(rows, weight.shape[1])) if "weight" in name else init.zeros_(weight)
        else:
            super()._init_weights(module)


def language_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of the labels, in nats; labels of -100 do not count."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten().to(logits.device), ignore_index=-100)


def shifted_right(labels: Tensor, config: Any) -> Tensor:
    """What a decoder reads to write the labels: the first token, then all labels but the last."""
    tokens = labels.masked_fill(labels == -100, config.pad_token_id).roll(1, dims=1)
    tokens[:, 0] = config.decoder_start_token_id
    return tokens

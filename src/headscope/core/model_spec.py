"""ModelSpec: what a checkpoint is, as plain data."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelSpec:
    """The opened checkpoint: enough to cite it, reproduce it and judge its numbers.

    `dequantised` is empty for a checkpoint with full-precision weights; otherwise it names the quantised
    format the weights were expanded from ("Q4_1"), and every number computed from weights shows it.
    `sha256` is the hash of the weight files (empty for a freshly initialised model). `initial_sd` is the standard
    deviation with which the configuration initialises a matrix; None where it is unknown (as in a GGUF file).
    """

    name: str
    source: str
    family: str
    architecture: str
    kind: str  # "decoder-only" | "encoder" | "encoder-decoder" | "two towers"
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    vocabulary: int
    context: int | None
    n_parameters: int  # numbers in the weights; a weight that several modules share counts once
    dtype: str
    positions: str = (
        "unknown"  # "rotary" | "learned" | "sinusoidal" | "sinusoidal and learned" | "relative bias" | "unknown"
    )
    dequantised: str = ""
    sha256: str = ""
    licence: str = ""
    initial_sd: float | None = None
    notes: tuple[str, ...] = field(default=())
    device: str = "cpu"  # where the model runs; every device rounds differently

    @property
    def weight_warning(self) -> str:
        """The warning for every number computed from these weights.

        Empty where the weights are exact.
        """
        if not self.dequantised:
            return ""
        return (
            f"The weights of {self.name} were expanded from {self.dequantised}: "
            "rounding noise is part of every number computed from them."
        )

r"""The figures of the shipped weights with the bands in which a training gives them again.

Definition:
    A figure is given again if $l \le x \le h$. Losses are compared on the same documents, by the same code: the band
    lies around what the shipped weights reach there. Masses of heads do not depend on the choice of text: their band
    lies around the published figure.
Properties:
    - the shipped weights lie in their own bands  (tested: test_the_shipped_weights_lie_in_their_bands)
    - a figure beyond its band is outside  (tested: test_a_figure_beyond_its_band_is_said)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headscope.experiments.tiny.head_roles import (
    FIRST,
    INDUCTION,
    PREVIOUS,
    REPEATS,
    RoleMass,
    strongest,
    window_name,
)
from headscope.experiments.tiny.settings import TEXTS
from headscope.experiments.tiny.shipped_record import ShippedRecord
from headscope.experiments.tiny.text_losses import (
    N_GRAMS,
    SHIPPED,
    TRAINED,
    UNIFORM,
    WINDOWS,
    TextLoss,
    loss_of,
)

# Bits per byte by which a loss may be worse or better than that of the shipped weights on the same documents.
WORSE_BITS, BETTER_BITS = 0.06, 0.15
# Nats per token by which an n-gram model may differ from the one that was fitted to the text of the shipped weights.
N_GRAM_NATS = 0.1
PREVIOUS_MASS = 0.1
FIRST_MASS = 0.3
_LOSS_REASON = (
    f"at most {WORSE_BITS:g} worse: two seeds of 3 minutes differ by 0.005 to 0.013, the shipped weights read most of "
    f"these documents in training, and the study learns from 70 % of the text instead of 97 %; at most {BETTER_BITS:g} "
    "better: a faster processor takes more steps in the same minutes"
)
_N_GRAM_REASON = (
    f"±{N_GRAM_NATS:g}: no weights matter; it says whether the text is as hard, with another Bible and other documents"
)
_PREVIOUS_REASON = f"±{PREVIOUS_MASS:g}: the head begins in this role; two seeds of 3 minutes differ by 0.02"
_FIRST_REASON = (
    f"±{FIRST_MASS:g}: which heads rest on the first token depends on the seed; two of 3 minutes differ by 0.22"
)


@dataclass(frozen=True)
class Band:
    """A figure of the trained weights, the same of the shipped ones, and the limits with their reason."""

    figure: str
    unit: str
    value: float
    null: float | None
    published: float
    shipped: float | None
    low: float
    high: float
    reason: str

    @property
    def is_inside(self) -> bool:
        """Whether the figure is given again."""
        return self.low <= self.value <= self.high


def bands_of(
    losses: Sequence[TextLoss], masses: Mapping[str, list[RoleMass]], record: ShippedRecord, texts: Sequence[str]
) -> tuple[Band, ...]:
    """All figures; `masses` are those of the trained and of the shipped weights.

    With other texts than those of the recipe, losses cannot be given again.
    """
    is_recipe = set(texts) == set(TEXTS)
    return (
        *(_loss_band(losses, record, window) for window in WINDOWS if is_recipe),
        *(_n_gram_band(losses, record, system) for system in N_GRAMS if is_recipe),
        *(_induction_band(masses, record, window_name(*repeat)) for repeat in REPEATS),
        _text_band(masses, record, PREVIOUS, PREVIOUS_MASS, _PREVIOUS_REASON),
        _text_band(masses, record, FIRST, FIRST_MASS, _FIRST_REASON),
    )


def _loss_band(losses: Sequence[TextLoss], record: ShippedRecord, window: int) -> Band:
    shipped = loss_of(losses, SHIPPED, window).bits_per_byte
    return Band(
        f"loss, window {window}",
        "bits per byte",
        loss_of(losses, TRAINED, window).bits_per_byte,
        loss_of(losses, "bigram").bits_per_byte,
        record.bits_per_byte[window],
        shipped,
        shipped - BETTER_BITS,
        shipped + WORSE_BITS,
        _LOSS_REASON,
    )


def _n_gram_band(losses: Sequence[TextLoss], record: ShippedRecord, system: str) -> Band:
    published = record.n_grams[system]
    return Band(
        f"Kneser–Ney {system}",
        "nats per token",
        loss_of(losses, system).nats_per_token,
        loss_of(losses, UNIFORM).nats_per_token,
        published,
        None,
        published - N_GRAM_NATS,
        published + N_GRAM_NATS,
        _N_GRAM_REASON,
    )


def _induction_band(masses: Mapping[str, list[RoleMass]], record: ShippedRecord, windows: str) -> Band:
    least, largest = record.late_induction
    tolerance = largest - least
    reason = f"±{tolerance:.2f}: the range of the mass in windows 2x48 in the second half of the shipped training"
    return _mass_band(masses, INDUCTION, windows, record.induction[windows], tolerance, reason)


def _text_band(
    masses: Mapping[str, list[RoleMass]], record: ShippedRecord, role: str, tolerance: float, reason: str
) -> Band:
    return _mass_band(masses, role, "text", record.positional[role], tolerance, reason)


def _mass_band(
    masses: Mapping[str, list[RoleMass]], role: str, windows: str, published: float, tolerance: float, reason: str
) -> Band:
    trained, shipped = (strongest(masses[system], role, windows) for system in (TRAINED, SHIPPED))
    name = role if windows == "text" else f"{role}, {windows}"
    return Band(
        name,
        "mass",
        trained.value,
        trained.null,
        published,
        shipped.value,
        published - tolerance,
        min(published + tolerance, 1.0),
        reason,
    )

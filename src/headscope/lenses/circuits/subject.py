"""A model as the lens `circuits` sees it: weights, how the stream is read, and token vectors."""

from dataclasses import dataclass

from headscope.core import Site, StreamReading, WeightSource
from headscope.errors import WeightsRefused
from headscope.lenses.circuits.settings import Params
from headscope.lenses.circuits.vocabulary import TokenTables, token_tables
from headscope.lenses.lens import NotApplicable


@dataclass(frozen=True)
class Subject:
    """A model as this lens sees it: `tables` is a reason where heads cannot be followed to logits."""

    weights: WeightSource
    reading: StreamReading
    tables: TokenTables | str
    params: Params

    def followed(self) -> TokenTables:
        """The tables; only of a model whose heads can be followed to the logits."""
        if isinstance(self.tables, str):
            raise NotApplicable(self.tables)
        return self.tables

    def reaches_tokens(self, site: Site) -> bool:
        """Whether a site reads tokens and writes to the logits through known norms."""
        is_last = site.stack == self.weights.sites[-1].stack
        return not isinstance(self.tables, str) and is_last and site in self.reading.before


def subject_of(params: Params, weights: WeightSource) -> Subject:
    """The model; a reason for token vectors where heads do not reach the logits."""
    try:
        reading = weights.stream_reading()
    except WeightsRefused as error:
        return Subject(weights, StreamReading({}), error.message, params)
    return Subject(weights, reading, token_tables(weights, reading, params), params)

"""Which positions of the text a tensor of the running forward holds."""

from torch import Tensor

from headscope.core.site import Site, Stack
from headscope.model.session import axes
from headscope.model.session.captures import Quantity
from headscope.model.session.changes import Window
from headscope.model.transformers.forward_position import ForwardPosition


class TextWindows:
    """The window of each tensor, and how long the text was when it was first read."""

    def __init__(self, position: ForwardPosition) -> None:
        self.position = position
        self._prompts: dict[Stack, int] = {}

    def begin(self) -> None:
        """A forward begins; unless it goes on with a text, the next tensors tell how long the text is."""
        if not self.position.continues:
            self._prompts.clear()

    def of(self, quantity: Quantity, site: Site, tensor: Tensor) -> Window:
        """The window of a tensor of a quantity at a site."""
        axis = quantity.token_axis
        if axis is None:
            return Window(0, 1)
        n_tokens = tensor.shape[axis]
        of_keys = quantity.axes[axis] == axes.KEYS
        if of_keys and site.kind == "cross":
            return Window(0, n_tokens)  # all keys are those of the encoder, in every step
        offset = 0 if of_keys else self.position.offset(site.stack)
        prompt = self._prompts.setdefault(site.stack, offset + n_tokens)
        return Window(offset, prompt)

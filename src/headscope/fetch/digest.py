"""The hash of a file, under the name by which `model` imports it."""

from headscope.files import sha256_of

__all__ = ["sha256_of"]

"""A package that brings a lens to headscope."""

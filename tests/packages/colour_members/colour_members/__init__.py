"""A package that brings a lens, a mechanism and an experiment to headscope."""

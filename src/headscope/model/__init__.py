"""Real checkpoints: find, open, probe, run and change them.

This package knows no mathematics beyond attention itself. `model.model` holds what others use most: `Model`,
`open_model`, `open_weights`. Nothing is imported here, so that the formats are listed without loading torch.
"""

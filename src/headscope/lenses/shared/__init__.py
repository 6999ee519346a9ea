"""What several lenses share: samples of text, plots, phrases, notes on weights."""

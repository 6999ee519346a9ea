"""Parallel text: pairs of sentences in two languages, cleaned, and split so that no near-duplicate is in two splits."""

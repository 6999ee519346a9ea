"""A translator trained from a parallel text, judged on held-out pairs."""

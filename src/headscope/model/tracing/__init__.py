"""What a model consists of, found by running it on a few tokens, without a table of families."""

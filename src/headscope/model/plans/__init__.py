"""Plans: which heads of a model attend through which cheaper mechanism, kept as a small file and put into a model."""

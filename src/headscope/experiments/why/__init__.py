"""The experiment `why`."""

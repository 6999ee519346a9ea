"""Draws what a run found: figures as files, the run as one page, a finding in a notebook."""

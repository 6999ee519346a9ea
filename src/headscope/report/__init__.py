"""Draws a run as a page, a finding for a notebook, and figures as files."""

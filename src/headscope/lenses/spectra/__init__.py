"""The lens `spectra`."""

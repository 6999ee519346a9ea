"""The experiment `repaint`."""

"""What the lenses show: figures as plain data, drawn by `headscope.report`."""

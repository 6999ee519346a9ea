"""One file per mechanism; a scan of this folder finds them."""

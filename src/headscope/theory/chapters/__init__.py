"""One file per chapter of a work; a scan of this folder finds them."""

"""What package indexes bring: run their clients, watch the download, check it, keep it in the cache.

Models and texts arrive the same way, so the way is written once, below both of them.
"""

def figures(*a): return ()

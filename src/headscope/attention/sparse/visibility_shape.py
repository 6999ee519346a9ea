"""Whether the limits of a call are simple: none, or causal and nothing else."""

from headscope.attention.call import Call


def sees_all(call: Call) -> bool:
    """Whether positions hide no key from any query.

    Padding and stray masks do not count.
    """
    if call.left is None and call.right is None:
        return True
    if call.offset is None:
        return False
    left_bites = call.left is not None and call.left < call.q.shape[2] - 1 + call.offset
    right_bites = call.right is not None and call.right < call.k.shape[2] - 1 - call.offset
    return not (left_bites or right_bites)


def is_causal_tail(call: Call) -> bool:
    """Whether the queries are the last positions, each with all keys up to its own."""
    if not call.causal or call.offset is None or call.offset < 0:
        return False
    queries, keys = call.q.shape[2], call.k.shape[2]
    return keys == queries + call.offset and (call.left is None or call.left >= keys - 1)

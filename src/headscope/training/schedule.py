"""What depends on the number of the step: learning rate and trajectory."""

import math

from headscope.training.recipe import Rate


def rate_factor(rate: Rate, step: int, share: float) -> float:
    r"""The learning rate of a step over its peak.

    Definition:
        With step s = 0, 1, …, warm-up of w steps and the share x of the budget that is used up, the factor is
        $\min(1, (s + 1) / w)$ times a decay: $\sqrt{w / \max(w, s + 1)}$ (inverse-root), $(1 + \cos \pi x) / 2$
        (cosine), $1 - x$ (linear) or 1 (constant).
    Properties:
        - it rises to the peak at the last step of the warm-up  (tested: test_the_rate_rises_to_its_peak)
        - from there it never rises again  (tested: test_the_rate_never_rises_after_the_warm_up)
    """
    warmup = max(rate.warmup_steps, 1)
    rise = min(1.0, (step + 1) / warmup)
    share = min(max(share, 0.0), 1.0)
    decays = {
        "inverse-root": math.sqrt(warmup / max(warmup, step + 1)),
        "cosine": (1.0 + math.cos(math.pi * share)) / 2.0,
        "linear": 1.0 - share,
        "constant": 1.0,
    }
    return rise * decays[rate.decay]


def is_trajectory_step(step: int, per_doubling: int) -> bool:
    """Whether the weights after `step` steps belong to a trajectory.

    Definition:
        The steps are 0 and 2^(i/n), rounded, for i = 0, 1, … and n steps for each doubling.
    """
    if per_doubling == 0 or step <= 0:
        return per_doubling > 0 and step == 0
    exponent = round(per_doubling * math.log2(step))
    return step in (round(2 ** (i / per_doubling)) for i in range(max(exponent - 1, 0), exponent + 2))

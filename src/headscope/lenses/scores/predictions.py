"""References for measured numbers: predictions for Gaussian tokens, stated formulas, nulls."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.lenses.scores.row_sums import AT
from headscope.lenses.scores.site_sums import SiteSums
from headscope.lenses.scores.softmax_row import LEVEL
from headscope.lenses.scores.window import bent
from headscope.maths.gaussians.bilinear_scores import GaussianPair, score_excess_kurtosis, score_mean, score_variance


def sides(site: Site, site_sums: SiteSums, mean: Float[Tensor, "summed heads"]) -> dict[str, dict[str, Tensor]]:
    """Predictions, stated formulas and nulls of the quantities that have them."""
    theory = _predicted(site, site_sums)
    level, zero, full = (torch.full((site.n_heads,), x, dtype=torch.float64) for x in (LEVEL, 0.0, 1.0))
    references: dict[str, dict[str, Tensor]] = {
        "row_skewness": {"predicted": zero},
        "row_kurtosis": {"predicted": mean[AT["kurtosis_null"]]},
        "rejected_share": {"null": level},
        "log_mean_exp": {"predicted": mean[AT["lifted_predicted"]], "stated": mean[AT["lifted_stated"]]},
        "entropy_share": {"predicted": mean[AT["entropy_predicted"]], "null": full},
        "entropy_share_all": {"predicted": mean[AT["entropy_all_predicted"]], "null": full},
        **{f"jacobian_{name}": {"null": mean[AT["uniform"]]} for name in ("trained", "root_d", "unscaled")},
    }
    if theory is not None:
        references |= {
            "mean": {"predicted": theory.mean},
            "variance": {"predicted": theory.variance},
            "row_variance": {"predicted": theory.row_variance},
            "pair_kurtosis": {"predicted": theory.kurtosis, "stated": zero},
        }
        if not bent(site):
            references["freezing"] = {"predicted": theory.row_variance.clamp_min(0.0).sqrt() * mean[AT["melting"]]}
    return references


@dataclass(frozen=True)
class _Predicted:
    """The moments of scores of independent Gaussian tokens, for each head."""

    mean: Float[Tensor, " heads"]
    variance: Float[Tensor, " heads"]
    row_variance: Float[Tensor, " heads"]
    kurtosis: Float[Tensor, " heads"]


def _predicted(site: Site, site_sums: SiteSums) -> _Predicted | None:
    """From means and covariances of q and k; None where there are too few tokens for any covariance."""
    if min(site_sums.q.count, site_sums.k.count) < 2:
        return None
    groups = site.n_heads // site.n_kv_heads
    mean_k, cov_k = (x.repeat_interleave(groups, 0) for x in (site_sums.k.mean, site_sums.k.covariance()))
    pair = GaussianPair.independent(site_sums.q.mean, site_sums.q.covariance(), mean_k, cov_k)
    form = site_sums.scale * torch.eye(site.d_head, dtype=torch.float64).expand(site.n_heads, -1, -1)
    variance = score_variance(form, pair)
    between = site_sums.scale**2 * torch.einsum("hi,hij,hj->h", mean_k, site_sums.q.covariance(), mean_k)
    return _Predicted(score_mean(form, pair), variance, variance - between, score_excess_kurtosis(form, pair))

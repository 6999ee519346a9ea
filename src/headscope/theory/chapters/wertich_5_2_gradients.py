r"""Wertich, section 5.2.1: the gradient of the cross-entropy through a softmax."""

import torch
from torch import Tensor

from headscope.core.verdict import Evidence
from headscope.maths.attention.softmax import softmax
from headscope.theory.checks import Lab, exact, fact
from headscope.theory.works import wertich

CHAPTER = wertich()

_EVENTS = 6


def _cross_entropy(q: Tensor, p: Tensor) -> Tensor:
    return -(q * p.log()).sum()


def _gradient(q: Tensor, scores: Tensor) -> Tensor:
    """The gradient by automatic differentiation, with torch's softmax."""
    x = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_cross_entropy(q, torch.softmax(x, -1)), x)
    return gradient


def _jacobian(scores: Tensor) -> Tensor:
    """The derivative of share k by score j, by automatic differentiation."""
    x = scores.clone().requires_grad_()
    return torch.stack([torch.autograd.grad(share, x, retain_graph=True)[0] for share in torch.softmax(x, -1)])


def _target_and_scores(lab: Lab) -> tuple[Tensor, Tensor]:
    return softmax(lab.normal(_EVENTS, purpose="target")), lab.normal(_EVENTS, purpose="scores")


@CHAPTER.claim(
    "W-5.2a",
    section="5.2.1",
    statement="The derivative of the cross-entropy between a target q and the softmax p of x is the difference of "
    "both, p_j − q_j.",
    formula=r"\frac{\partial H(q, p)}{\partial x_j} = p_j - q_j",
    lesson="The logarithm of the loss undoes the exponential of the softmax, so the gradient is simply prediction "
    "minus target. It uses that the target sums to one; for logarithms of another base it gains a constant factor.",
)
def gradient_of_cross_entropy(lab: Lab) -> Evidence:
    q, x = _target_and_scores(lab)
    h = 1e-4
    steps = torch.eye(_EVENTS, dtype=torch.float64) * h

    def loss(scores: Tensor) -> Tensor:
        return _cross_entropy(q, torch.softmax(scores, -1))

    # Fourth-order differences: a check that knows nothing of derivatives.
    differences = torch.stack(
        [(8 * (loss(x + e) - loss(x - e)) - (loss(x + 2 * e) - loss(x - 2 * e))) / (12 * h) for e in steps]
    )
    return Evidence(
        (
            exact("gradient by automatic differentiation (worst component)", softmax(x) - q, _gradient(q, x)),
            exact("gradient by differences (worst component)", softmax(x) - q, differences, scale=10.0),
        )
    )


@CHAPTER.claim(
    "W-5.2b",
    section="5.2.1",
    statement="This follows from the product of the two derivatives of the same index: dH/dx_j = dH/dp_j · dp_j/dx_j.",
    formula=r"\frac{dH}{dx_j} = \frac{dH}{dp_j} \cdot \frac{dp_j}{dx_j}",
    correction="The chain rule sums over all shares, because x_j changes every one of them through the common "
    "denominator. The single term is −q_j (1 − p_j), not p_j − q_j.",
    corrected=r"\frac{\partial H}{\partial x_j} = \sum_k \frac{\partial H}{\partial p_k}\,"
    r"\frac{\partial p_k}{\partial x_j} = p_j - q_j",
    lesson="Raising one score lowers all the other shares, and that matters to the loss. With only the term k = j, "
    "the gradient could never be positive, so no score could ever be pushed down. The rule is the chain rule, not the "
    "product rule; the result of the section is right although this line is not.",
    slip=True,
)
def chain_rule(lab: Lab) -> Evidence:
    q, x = _target_and_scores(lab)
    p = softmax(x)
    by_share = -q / p
    jacobian = _jacobian(x)
    measured = _gradient(q, x)
    return Evidence(
        stated=(exact("gradient from the single term (worst component)", by_share * jacobian.diagonal(), measured),),
        corrected=(
            exact("gradient from the sum over all shares (worst component)", by_share @ jacobian, measured),
            exact("the single term is −q_j(1 − p_j)", -q * (1 - p), by_share * jacobian.diagonal()),
        ),
    )


@CHAPTER.claim(
    "W-5.2c",
    section="5.2.1",
    statement="If p is a mixture of distributions with weights λ_l that sum to one, the gradient is the mixture of "
    "their errors, and with equal weights it is shared among the backpropagation paths in equal magnitude.",
    formula=r"\frac{dH}{dx_j} = \sum_l \lambda_l\,(p_j^{(l)} - q_j)",
    correction="As a way to write p − q the sum is right where x are the scores of the mixture itself (x = ln p). But "
    "nothing flows back in these parts: with r_li, the share that component l has in the mixture's weight on event i, "
    "the scores of component l receive p_j^(l) Σ_i q_i r_li − q_j r_lj. Equal weights do not make these equal; a "
    "component that explains the target better gets another gradient.",
    corrected=r"\frac{\partial H}{\partial x_j^{(l)}} = p_j^{(l)} \sum_i q_i r_{li} - q_j r_{lj}, \quad "
    r"r_{li} = \lambda_l p_i^{(l)} / p_i",
    lesson="The loss contains the logarithm of a sum, and a logarithm of a sum does not split into its parts. Each "
    "component is made responsible for an event in proportion to how much of the mixture it supplied there (the same "
    "responsibilities as in the EM algorithm). So the gradient is shared by merit, not equally.",
)
def gradient_of_a_mixture(lab: Lab) -> Evidence:
    q, _ = _target_and_scores(lab)
    weights = torch.full((3, 1), 1 / 3, dtype=torch.float64)
    parts = lab.normal(3, _EVENTS, purpose="components").requires_grad_()
    shares = torch.softmax(parts, -1)
    mixture = (weights * shares).sum(0)
    (measured,) = torch.autograd.grad(_cross_entropy(q, mixture), parts)
    shares, mixture = shares.detach(), mixture.detach()
    by_part = weights * (shares - q)
    merit = weights * shares / mixture
    true = shares * (q * merit).sum(-1, keepdim=True) - q * merit
    sizes = torch.linalg.vector_norm(measured, dim=-1)
    return Evidence(
        stated=(
            exact("gradient that reaches the scores of a component (worst of 3 × 6)", by_part, measured),
            exact("length of the gradient of each component, equal weights", sizes.mean(), sizes),
        ),
        corrected=(
            exact("gradient that reaches the scores of a component (worst of 3 × 6)", true, measured),
            exact("gradient in the scores x = ln p of the mixture", by_part.sum(0), _gradient(q, mixture.log())),
            fact(f"the longest gradient is {float(sizes.max() / sizes.min()):.2f} times the shortest",
                 float(sizes.max() / sizes.min()) > 1.01),
        ),
    )  # fmt: skip


@CHAPTER.claim(
    "W-5.2d",
    section="5.2.1",
    statement="Softmax with cross-entropy has the same form of gradient as regression with a squared error: "
    "prediction minus target.",
    formula=r"\nabla_x H(q, \mathrm{Softmax}(x)) = p - q, \quad \nabla_y \frac{1}{2}\|y - t\|^2 = y - t",
    lesson="Both are a model with its natural loss: the loss is a convex function whose gradient is the model's "
    "prediction, minus the linear term of the target. That is why the errors look alike. Put a squared error behind a "
    "softmax and the likeness is gone: the gradient becomes J(p − q) with the Jacobian J of the softmax.",
)
def same_form_as_regression(lab: Lab) -> Evidence:
    q, x = _target_and_scores(lab)
    target = lab.normal(_EVENTS, purpose="regression")
    y = x.clone().requires_grad_()
    (regression,) = torch.autograd.grad((y - target).square().sum() / 2, y)
    return Evidence(
        (
            exact("cross-entropy: gradient against prediction minus target", softmax(x) - q, _gradient(q, x)),
            exact("squared error: gradient against prediction minus target", x - target, regression),
        )
    )

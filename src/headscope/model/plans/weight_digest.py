"""A digest of a model's weights, the same however the model was loaded.

A plan is made for certain weights. The hash of a checkpoint's files does not reach a model that a user has loaded with
transformers, so the weights themselves are sampled: `SAMPLES` evenly spaced numbers of every weight of the model's
body, by name, as bfloat16. A model in bfloat16 then has the digest of its float32 form. The output head is left out:
a body alone has the digest of the whole model.
"""

import hashlib
from typing import Any

import torch

SAMPLES = 64
DIGITS = 16  # of the hexadecimal digest: 64 bits


def weight_digest(hf: Any) -> str:
    """The digest of the weights of a transformers model.

    Properties:
        - the same in float32 and bfloat16, with and without output head  (tested: test_digest_of_forms)
        - another one when a weight changes at a sampled place  (tested: test_digest_of_other_weights)
    """
    digest = hashlib.sha256()
    for name, weight in sorted(hf.base_model.named_parameters()):
        numbers = weight.detach().flatten()
        places = torch.arange(0, numbers.numel(), max(1, numbers.numel() // SAMPLES), device=numbers.device)
        sample = numbers[places].to(torch.bfloat16).cpu().view(torch.int16)
        digest.update(f"{name} {tuple(weight.shape)} {sample.tolist()}\n".encode())
    return digest.hexdigest()[:DIGITS]

"""Read the outputs of transformers' routers in any form: logits, gates and experts of every token.

    (logits, gates [T, k], experts [T, k], ...)      most classes
    (gates [T, E], logits)                           Llama4
    (mask of first choices, gates, logits)           Switch, NLLB-MoE
    assignments sorted by expert                     JetMoE

`streamed` reads them in a model, and the conformance suite reads them one class at a time.
"""

import re

import torch

ROUTERS = r"\w*(?:Router|TopKGating|MoEV1Gate)"
"""The names of router classes."""


def read_router(name: str, answer) -> tuple:
    """Return (logits, gates, experts) from the output of a router class.

    Returns:
        Tensors: logits [..., E], gates [..., k], experts [..., k]. If the router gives only gates [..., E], with 0 for
        experts that are not chosen, `experts` is None.

    Raises:
        LookupError: the router returned only logits; another class chooses the experts.
    """
    if not isinstance(answer, tuple):
        raise LookupError(f"{name} returns only logits; another class chooses the experts")
    if "Switch" in name:  # (mask [b, T, E], probability [b, T, 1], logits)
        return answer[2], answer[0] * answer[1], None
    if "Nllb" in name:  # (mask of first choices, gates [T, E], logits)
        return answer[2], answer[1], None
    if "Gating" in name:  # JetMoE: the experts are sorted; the token of each assignment, gates, expert sizes, logits
        _, token, gate, sizes, logits = answer
        expert = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        return logits, torch.zeros(logits.shape, dtype=gate.dtype).index_put((token, expert), gate), None
    if len(answer) == 2:
        return answer[1], answer[0], None
    if re.search("Gemma", name):  # probabilities instead of logits
        return answer[0].log(), *answer[1:3]
    return answer[:3]

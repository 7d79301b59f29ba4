"""Compiled loops for CPUs.

`experts.py` calls `experts`, and `transformer.py` calls `attention`; no other file outside this folder uses the loops.
`portable` disables both for exported programs.
"""

from .attention_layer import attention
from .calls import portable
from .expert_layer import experts, experts_run

__all__ = ["attention", "experts", "experts_run", "portable"]

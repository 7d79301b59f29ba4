"""Compiled loops for CPUs.

Outside this folder, only `experts.py` calls `experts`, and only `transformer.py` calls `attention`. `portable` disables
both for exported programs.
"""

from .attention_layer import attention
from .calls import portable
from .expert_layer import experts, experts_run

__all__ = ["attention", "experts", "experts_run", "portable"]

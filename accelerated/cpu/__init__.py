"""Compiled loops for CPUs, behind two doors: `experts.py` enters by `experts`, `transformer.py` by `attention`, and no
other file outside of this folder knows of them; `portable` shuts both doors for programs that are exported."""

from .attention_layer import attention
from .calls import portable
from .expert_layer import experts, experts_run

__all__ = ["attention", "experts", "experts_run", "portable"]

"""Judge a library in this process: `python tools/wild/ask.py deepspeed FILE` writes a JSON list.

For transformers, a third argument is a pattern of names: `python tools/wild/ask.py transformers FILE "Mixtral\\w*"`.

The suite gives the verdict (`Backend.stance`). This file measures the other columns on fixed inputs:

    repeats           share of 256 tokens whose experts or gates are the same in a second call, in evaluation
    bfloat16          share of the tokens, 64 experts and k = 2 (or the library's k), whose experts change from float32
                      to bfloat16. For transformers, tokens and router weights (width 64) are random numbers that
                      bfloat16 holds; for others the logits are, so that only the arithmetic after them counts
    balance           the balance loss of equal loads and equal mean probabilities, by k, for 8 experts
    balance_gradient  whether the gradient of the balance loss by the logits is above 0
    padding           the balance loss with a mask over the loss of the real tokens alone; 1 if padding does not count
    sum_at_minus_60   the sum of the gates of a token with logits near -60, over the sum with logits near 0
    returns           what a router of transformers returns as its logits: them, or their softmax or sigmoid
    layer             the relation of the experts and gates of the whole layer to those of the router
    experts_trained   experts with a gradient, of 8, in the whole layer with random weights and 512 tokens
"""

import contextlib
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np

from routelaws.conformance.adapters import blocks
from routelaws.conformance.dialects.classifier import classify_backend
from routelaws.conformance.engine import backends as engine
from routelaws.conformance.engine.ledger import Ledger
from routelaws.conformance.engine.values import as_numpy

TOP_K = "routers.top_k.top_k_router"
PATHS = {
    "top_k_router": TOP_K,
    "dispatch": "experts.dispatch",
    "auxiliary_loss": "balance.auxiliary_loss",
    "expert_capacity": "experts.expert_capacity",
}


def convert(namespace, array, dtype: str = "float32"):
    own = getattr(namespace, "from_numpy", None)
    return array if own is None else own(array, dtype)


def route(namespace, logits, k: int, dtype: str = "float32"):
    """Return (experts [T, k] sorted, their gates) as NumPy arrays."""
    found = namespace.top_k_router(convert(namespace, np.array(logits), dtype), k)
    experts, gates = as_numpy(found["expert"]), np.asarray(as_numpy(found["gate"]), float)
    order = np.argsort(experts, axis=1)
    return np.take_along_axis(experts, order, 1), np.take_along_axis(gates, order, 1)


def random_logits(num_tokens: int, num_experts: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num_tokens, num_experts)).astype(np.float32)


def in_any_k(measure):
    """Return measure(k) for the first k of 2 and 1 that the library has, or None."""
    for k in (2, 1):
        with contextlib.suppress(Exception):
            return measure(k)
    return None


def repeats(namespace):
    def measure(k):
        (first, gates), (second, more) = (route(namespace, random_logits(256, 8), k) for _ in range(2))
        return float(((first == second) & (gates == more)).all(1).mean())

    return in_any_k(measure)


def bfloat16(namespace):
    """Return the effect of the arithmetic after the logits, with the identity as weights."""
    if not hasattr(namespace, "from_numpy"):
        return None
    rounded = (random_logits(512, 64).view(np.uint32) & 0xFFFF0000).view(np.float32)

    def measure(k):
        low, exact = route(namespace, rounded, k, "bfloat16")[0], route(namespace, rounded, k)[0]
        return float((low != exact).any(1).mean())

    return in_any_k(measure)


def sum_at_minus_60(namespace):
    def measure(k):
        z = random_logits(64, 8)
        low, plain = (route(namespace, values, k)[1].sum(1) for values in (z - 60, z))
        return float(np.median(low / plain))

    return in_any_k(measure)


def circulant():
    """Return logits of 32 tokens for 8 experts.

    Token t prefers expert t, then expert t + 1 and so on, so the routing is balanced at every k.
    """
    row = -np.arange(8, dtype=np.float32) / 4
    return np.tile(np.array([np.roll(row, t) for t in range(8)]), (4, 1))


def balance(namespace) -> dict:
    values, z = {}, circulant()
    for k in (1, 2, 4):
        experts = np.argsort(-z, axis=1, kind="stable")[:, :k].copy()
        with contextlib.suppress(Exception):
            loss = namespace.auxiliary_loss(convert(namespace, z), convert(namespace, experts))["loss"]
            values[str(k)] = round(float(as_numpy(loss)), 6)
    return values


def balance_gradient(namespace):
    z = random_logits(64, 8)
    for k in (2, 1):
        with contextlib.suppress(Exception):
            logits = convert(namespace, z).requires_grad_()
            experts = convert(namespace, np.argsort(-z, axis=1)[:, :k].copy())
            loss = namespace.auxiliary_loss(logits, experts)["loss"]
            if loss.requires_grad:
                loss.backward()
                return bool(logits.grad.abs().max() > 0)
    return None


def padding(namespace):
    z, mask = random_logits(64, 8), np.arange(64) < 40
    experts = np.argsort(-z, axis=1)[:, :2].copy()
    with contextlib.suppress(Exception):
        options = [{"mask": convert(namespace, mask)}, {}]
        parts = [(z, experts), (z[mask], experts[mask])]
        padded, real = (
            float(as_numpy(namespace.auxiliary_loss(*(convert(namespace, a.copy()) for a in part), **more)["loss"]))
            for part, more in zip(parts, options, strict=True)
        )
        return padded / real
    return None


def row(library: str, function: str, namespace) -> dict:
    if "torch" in sys.modules:  # what a library draws is the same in every run
        sys.modules["torch"].manual_seed(0)
    backend = engine.Backend(library, namespace, Ledger())
    found = {"library": library, "version": namespace.__version__, "function": function}
    if hasattr(namespace, "expert_choice_router"):
        choice = {name: one.matches for name, one in classify_backend(namespace).items() if one.matches}
        found["expert_choice"] = {name: matches[0] for name, matches in choice.items()}
    for name, path in PATHS.items():
        if hasattr(namespace, name):
            finding = backend.stance(path).finding
            found[name] = {
                "verdict": finding.verdict, "kind": finding.kind, "dialect": finding.dialect, "detail": finding.detail,
                "inputs": finding.inputs, "facts": dict(finding.facts),
            }  # fmt: skip
    if hasattr(namespace, "top_k_router"):
        found |= {measure.__name__: measure(namespace) for measure in (repeats, bfloat16, sum_at_minus_60)}
    if hasattr(namespace, "auxiliary_loss"):
        found |= {measure.__name__: measure(namespace) for measure in (balance, balance_gradient, padding)}
    return found


def of_transformers(pattern: str = "") -> list[dict]:
    """Return a row for each router class, and one for each routed layer that is not its router followed by experts."""
    from routelaws.conformance.adapters import transformers_modules as library

    rows = []
    layers = library.names(r"\w*(?:SparseMLP|SparseMoeBlock|MoE|Moe|MoELayer|TextMoe)")
    for name, module in sorted(library.names(*[pattern] * bool(pattern)).items()):
        try:
            namespace = library.find(name)
            found = row("transformers", name, namespace) | {"bfloat16": router_in_bfloat16(library, name, module)}
            found["returns"] = returns(library, name, module)
            if "HashRouter" in name:  # the adapter fills its table, so the choice is not its own
                facts = found["top_k_router"]["facts"]
                found["top_k_router"]["facts"] = {key: facts[key] for key in facts if key not in ("choice", "ties")}
        except LookupError as error:
            found = {"library": "transformers", "function": name}
            found["top_k_router"] = {"verdict": "not askable", "detail": str(error)}
        rows.append(found)
        prefix = re.split("TopK|Topk|Top1|Top2|Router|Gate|TokenChoice", name)[0]
        for layer in (one for one, where in layers.items() if where == module and one.startswith(prefix)):
            with contextlib.suppress(LookupError):
                whole = library.find(layer)
                found |= {"layer_class": layer, "layer": agrees(namespace, whole)}
                trained = {"experts_trained": library.experts_with_gradient(layer)}
                if found["layer"] == "other experts or gates":
                    rows.append(row("transformers", layer, whole) | trained)
                else:
                    found |= trained
                break
    for one in rows:
        one["version"] = f"transformers {library.transformers.__version__}"
    return rows


def router_in_bfloat16(library, name: str, module: str):
    """Return the share of tokens whose experts change if a router with random weights runs in bfloat16."""
    import torch

    torch.manual_seed(0)
    weight, x = (torch.randn(*shape).bfloat16().float() for shape in ((64, 64), (4096, 64)))
    files = importlib.import_module(module)

    def measure(k):
        router = library._build(files, getattr(files, name), 64, k, 64, {}).eval()
        with torch.no_grad():
            for path, value in router.state_dict().items():
                if "bias" in path:
                    value.zero_()
                elif value.ndim == 2:
                    value.copy_(weight.repeat(2, 1)[: len(value)] / 8)
            names = [one for one in list(inspect.signature(router.forward).parameters)[1:] if "bias" in one]
            exact, low = (
                library._read(router.to(dtype), x.to(dtype), dict.fromkeys(names, torch.zeros(64)))
                for dtype in (torch.float32, torch.bfloat16)
            )
        exact, low = (np.sort(blocks.read(answer, k)[0], axis=1) for answer in (exact, low))
        return float((exact != low).any(1).mean())

    return in_any_k(measure)


def returns(library, name: str, module: str):
    """Describe the numbers that a router class returns as its logits."""
    import torch

    files, logits = importlib.import_module(module), torch.from_numpy(random_logits(16, 8))
    forms = {"logits": logits, "their softmax": logits.softmax(1), "their sigmoid": logits.sigmoid()}

    def measure(k):
        router = library._build(files, getattr(files, name), 8, k, 8, {}).eval()
        library._set_identity(router, 8, None)
        names = [one for one in list(inspect.signature(router.forward).parameters)[1:] if "bias" in one]
        with torch.no_grad():
            answer = router(logits, **dict.fromkeys(names, torch.zeros(8)))
        found = library.read_router(name, answer)[0].reshape(logits.shape).float()
        return next(
            (form for form, values in forms.items() if torch.allclose(found, values, atol=1e-5)), "other numbers"
        )

    return in_any_k(measure)


def agrees(router, layer) -> str | None:
    """Describe the relation of the experts and gates of a whole layer to its router's, up to a constant."""

    def measure(k):
        (experts, gates), (others, answers) = (route(one, random_logits(32, 8), k) for one in (router, layer))
        if (experts == others).all():
            for words, ratio in (("as its router", answers / gates), ("gate on the input", answers / gates**2)):
                if np.ptp(ratio) <= 1e-3 * abs(ratio.mean()):
                    return words
        return "other experts or gates"

    return in_any_k(measure)


def main() -> int:
    library, file, *pattern = sys.argv[1:]
    if library.startswith("transformers"):
        rows = of_transformers(*pattern)
    else:
        import models

        rows = [row(library, name, one) for name, one in models.LIBRARIES[library]().items()]
    Path(file).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

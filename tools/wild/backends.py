"""Routers of other libraries as backends of the suite. Each function imports only its own library.

Every function returns {name: backend}. If a library draws random numbers by default, the first backend has the default.
A second backend has no random numbers, if the library has this option.
"""

from importlib import metadata

import torch

from routelaws.conformance.adapters import blocks, torch_modules


def named(package: str) -> str:
    return f"{package} {metadata.version(package)}"


def _backend(package: str, route=None, **more):
    return blocks.backend(route, name=named(package), convert=torch_modules.from_numpy, **more)


def _factor(logits, capacity: int) -> float:
    """Return the factor c for which ceil(c T / E) is a capacity."""
    num_tokens, num_experts = logits.shape
    return capacity * num_experts / num_tokens


def _eye(logits):
    return torch.eye(logits.shape[1], dtype=logits.dtype)


def deepspeed() -> dict:
    from deepspeed.moe import sharded_moe as library

    def gate(logits, k, capacity=None, mask=None, **options):
        size, per_token = logits.shape[1], k
        factor = _factor(logits, len(logits) if capacity is None else capacity) / per_token
        made = library.TopKGate(size, size, k, eval_capacity_factor=factor - 1e-6, min_capacity=0, **options)
        torch_modules.put(made, wg__weight=_eye(logits))
        return made(logits, None if mask is None else mask.long())

    def combine(**options):
        return lambda logits, k, *more: gate(logits, k, *more, **options)[1]

    def masked(**options):
        return lambda logits, k, *, mask=None: gate(logits, k, mask=mask, **options)[1]

    def loss(logits, experts):
        return gate(logits, experts.shape[1], top2_2nd_expert_sampling=False, use_rts=False)[0]

    def capacity(num_tokens, num_experts, k, capacity_factor):
        gates = torch.zeros(num_tokens, num_experts)
        factor = capacity_factor if k == 1 else capacity_factor * k
        return int(library._capacity(gates, torch.tensor(factor), torch.tensor(4)))  # the least, of MoE

    quiet = {"top2_2nd_expert_sampling": False, "use_rts": False}
    return {
        "TopKGate.eval()": _backend("deepspeed", masked(), dispatch=combine(), loss=loss, expert_capacity=capacity),
        "TopKGate.eval(), no sampling": _backend("deepspeed", masked(**quiet), dispatch=combine(**quiet), loss=loss),
    }


def fairscale() -> dict:
    from fairscale.nn.moe.top2gate import top2gating

    def route(logits, k):
        """The capacity is 2 T / E. Another 2 T E tokens, evenly spread after the real tokens, leave room for the real
        tokens."""
        _only(k, 2)
        num_tokens, num_experts = logits.shape
        spread = 9 * torch.eye(num_experts, dtype=logits.dtype).repeat(2 * num_tokens, 1)
        rest = -num_tokens % num_experts
        filler = torch.cat([spread, spread[:rest]]) if rest else spread
        return top2gating(torch.cat([logits, filler]))[1][:num_tokens]

    def drop(logits, k, capacity):
        _only(k, 2)
        if len(logits) % logits.shape[1] or 2 * len(logits) // logits.shape[1] != capacity:
            raise NotImplementedError("a capacity other than 2 T / E")
        return top2gating(logits)[1]

    def loss(logits, experts):
        if len(logits) % logits.shape[1]:
            raise NotImplementedError("T that E does not divide")
        return top2gating(logits)[0]

    return {"top2gating": _backend("fairscale", route, dispatch=drop, loss=loss)}


def mixture_of_experts() -> dict:
    from mixture_of_experts.mixture_of_experts import Top2Gating

    return top_2_gating("mixture-of-experts", Top2Gating)


def top_2_gating(package: str, Top2Gating) -> dict:
    def gate(logits, k, capacity=None, policy="random"):
        _only(k, 2)
        size = logits.shape[1]
        capacity = max(len(logits), 4) if capacity is None else capacity
        if capacity < 4:
            raise NotImplementedError("a capacity below 4")
        options = {"second_policy_eval": policy, "capacity_factor_eval": _factor(logits, capacity) + 1e-6}
        return torch_modules.put(Top2Gating(size, size, **options), w_gating=_eye(logits))(logits[None])

    def combine(policy):
        return lambda logits, k, *more: gate(logits, k, *more, policy=policy)[1][0]

    def loss(logits, experts):
        return gate(logits, 2, policy="all")[2]

    return {
        "Top2Gating.eval()": _backend(package, combine("random"), loss=loss),
        "Top2Gating.eval(), policy all": _backend(package, combine("all"), dispatch=combine("all"), loss=loss),
        "Top2Gating.eval(), policy threshold": _backend(package, combine("threshold")),
    }


def st_moe_pytorch() -> dict:
    from st_moe_pytorch.st_moe_pytorch import TopNGating

    return top_n_gating("st-moe-pytorch", TopNGating)


def top_n_gating(package: str, TopNGating) -> dict:
    def gate(logits, k, capacity=None, threshold=0.2, train=False):
        if k < 2:
            raise NotImplementedError("k 1, only 2 and more")
        size, capacity = logits.shape[1], max(len(logits), 4) if capacity is None else capacity
        if capacity < 4:
            raise NotImplementedError("a capacity below 4")
        factor = _factor(logits, capacity) + 1e-6
        options = {"threshold_eval": threshold, "capacity_factor_eval": factor, "capacity_factor_train": factor}
        made = TopNGating(size, size, top_n=k, **options)
        return torch_modules.put(made, to_gates__weight=_eye(logits)).train(train)(logits[None])

    def combine(threshold):
        return lambda logits, k, *more: gate(logits, k, *more, threshold=threshold)[1][0]

    def loss(logits, experts):
        return gate(logits, max(experts.shape[1], 2), train=True)[2]

    return {
        "TopNGating.eval()": _backend(package, combine(0.2), loss=loss, z_loss=lambda z: gate(z, 2, train=True)[3]),
        "TopNGating.eval(), threshold 0": _backend(package, combine(0.0), dispatch=combine(0.0)),
    }


def megatron_core() -> dict:
    from megatron.core.transformer.moe import moe_utils as library

    def route(**options):
        def routed(logits, k, *, bias=None):
            if bias is not None and options.get("score_function") != "sigmoid":
                raise NotImplementedError("bias with softmax scores")
            routing = library.topk_routing_with_score_function(logits, k, expert_bias=bias, **options)
            return torch.where(routing[1].bool(), routing[0], 0)

        return routed

    def drop(policy):
        def dropped(logits, k, capacity):
            gates, chosen = library.topk_routing_with_score_function(logits, k)[:2]
            factor = _factor(logits, capacity) / k - 1e-6
            return library.apply_router_token_dropping(gates, chosen.bool(), k, factor, drop_policy=policy)[0]

        return dropped

    def loss(logits, experts):
        num_tokens, num_experts = logits.shape
        counts = torch.bincount(experts.ravel(), minlength=num_experts)
        return library.switch_load_balancing_loss_func(
            logits.softmax(1), counts, num_tokens, experts.shape[1], num_experts, 1.0
        )

    def capacity(num_tokens, num_experts, k, capacity_factor):
        return library.get_capacity(num_tokens * k, num_experts, capacity_factor)

    name = "topk_routing_with_score_function"
    more = {"loss": loss, "z_loss": lambda z: library.z_loss_func(z, 1.0), "expert_capacity": capacity}
    return {
        name: _backend("megatron-core", route(), dispatch=drop("probs"), **more),
        f"{name}, use_pre_softmax": _backend("megatron-core", route(use_pre_softmax=True), dispatch=drop("position")),
        f"{name}, sigmoid": _backend("megatron-core", route(score_function="sigmoid")),
    }


def ai2_olmo_core() -> dict:
    from olmo_core.nn.moe import loss as losses
    from olmo_core.nn.moe.router import MoELinearRouter

    def route(**options):
        def routed(logits, k):
            size = logits.shape[1]
            router = MoELinearRouter(d_model=size, num_experts=size, top_k=k, **options)
            torch_modules.put(router, weight=_eye(logits).ravel())
            gates, experts, _, _ = router(logits[None])
            return gates[0], experts[0]

        return routed

    def loss(logits, experts):
        num_experts = logits.shape[1]
        counts = torch.bincount(experts.ravel(), minlength=num_experts)
        return losses.load_balancing_loss(
            num_experts=num_experts, top_k=experts.shape[1], expert_scores=logits.softmax(1)[None],
            batch_size_per_expert=counts, batched_batch_size_per_expert=counts[None],
            granularity=losses.MoELoadBalancingLossGranularity.local_batch,
        )  # fmt: skip

    z_loss = lambda z: losses.router_z_loss(expert_logits=z[None])  # noqa: E731
    return {
        "MoELinearRouter": _backend("ai2-olmo-core", route(), loss=loss, z_loss=z_loss),
        "MoELinearRouter, sigmoid": _backend("ai2-olmo-core", route(gating_function="sigmoid")),
        "MoELinearRouter, normalised": _backend("ai2-olmo-core", route(normalize_expert_weights=1.0)),
    }


def torchtitan() -> dict:
    from torchtitan.models.common.linear import Linear
    from torchtitan.models.common.moe import TokenChoiceTopKRouter

    def route(**options):
        def routed(logits, k, *, bias=None):
            size = logits.shape[1]
            gate = Linear.Config(in_features=size, out_features=size, bias=False)
            router = TokenChoiceTopKRouter(
                TokenChoiceTopKRouter.Config(num_experts=size, gate=gate, top_k=k, **options)
            )
            torch_modules.put(router, gate__weight=_eye(logits))
            gates, experts, _ = router(logits[None], bias)
            return gates[0], experts[0]

        return routed

    return {
        "TokenChoiceTopKRouter": _backend("torchtitan", route()),
        "TokenChoiceTopKRouter, route_norm": _backend("torchtitan", route(route_norm=True)),
        "TokenChoiceTopKRouter, softmax": _backend("torchtitan", route(score_func="softmax")),
    }


def pytorch_mixtures() -> dict:
    from pytorch_mixtures.configs import MoEConfig
    from pytorch_mixtures.expert_choice_moe import ExpertChoiceMoE
    from pytorch_mixtures.topk_moe import TopkMoE

    def build(kind, size, k, factor=1.0):
        d_ff = 2 * size + 3
        config = MoEConfig(size + 1, d_ff, size, "ff", "relu", "topk", factor, k, torch.float32)
        return torch_modules.plant(kind(config), size, size + 1, d_ff)

    def run(planted, k):
        size = planted.router.shape[1]
        return build(TopkMoE, size, k)(torch.from_numpy(planted.x)[None])

    def choice(logits, capacity_factor=1.0):
        size = logits.shape[1]
        gate, token = build(ExpertChoiceMoE, size, 1, capacity_factor).compute_routing(logits)
        return {"token": token, "gate": gate, "experts_per_token": torch.bincount(token.ravel(), minlength=len(logits))}

    return {
        "TopkMoE": _backend("pytorch-mixtures", blocks.layer(run)),
        "ExpertChoiceMoE": _backend("pytorch-mixtures", expert_choice_router=choice),
    }


def sinkhorn_router_pytorch() -> dict:
    import sinkhorn_router_pytorch as library

    def route(logits, k):
        """SinkhornRouter gives tokens no experts: an expert takes tokens of its column of the plan."""
        _only(k, 1)
        plan = library.sinkhorn(logits)
        expert = plan.argmax(1, keepdim=True)
        return plan.gather(1, expert), expert

    return {"sinkhorn": _backend("sinkhorn-router-pytorch", route)}


def keras_hub() -> dict:
    import keras
    import numpy as np
    from keras_hub.src.models.mixtral import mixtral_decoder
    from keras_hub.src.models.qwen_moe import qwen_moe_decoder

    def layer(kind, **options):
        def run(planted, k):
            size, d_model = planted.router.shape[1], planted.router.shape[0]
            made = kind(d_model, k, options)
            made.build((1, len(planted.x), d_model))
            made.set_weights([_planted(weight, size, d_model) for weight in made.weights])
            output = made(planted.x[None])
            return np.asarray(output[0] if isinstance(output, tuple) else output)

        return blocks.layer(run)

    def _planted(weight, size, d_model):
        value = np.zeros(weight.shape, "float32")
        if value.shape == (d_model, size):
            value[:size] = np.eye(size)
        elif value.ndim == 3 and value.shape[:2] == (size, d_model):
            value[:, -1] = blocks.ANSWER
        elif value.ndim == 3 and value.shape[2] == d_model:
            value[np.arange(size), 0, np.arange(size)] = blocks.ANSWER**-2
        return value

    def mixtral(d_model, k, options):
        return mixtral_decoder.MixtralSparseMoeBlock(
            hidden_dim=d_model, intermediate_dim=2 * d_model + 1, num_experts=d_model - 1, top_k=k, **options
        )

    def qwen(d_model, k, options):
        return qwen_moe_decoder.QwenSparseMoeBlock(
            hidden_dim=d_model, moe_intermediate_dim=2 * d_model + 1, shared_expert_intermediate_dim=3,
            num_experts=d_model - 1, top_k=k, norm_top_k_prob=False, **options,
        )  # fmt: skip

    def loss(function):
        return lambda z, e: np.asarray(function(keras.ops.convert_to_tensor(np.asarray(z)), z.shape[1], e.shape[1]))

    def backend(kind, function):
        name = f"keras-hub {metadata.version('keras-hub')}"
        return blocks.backend(layer(kind), name=name, loss=loss(function))

    return {
        "MixtralSparseMoeBlock": backend(mixtral, mixtral_decoder.compute_load_balancing_loss),
        "QwenSparseMoeBlock": backend(qwen, qwen_moe_decoder.compute_load_balancing_loss),
    }


def attnax() -> dict:
    import attnax as library
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    def answer(planted, k):
        num_experts, d_model, d_ff = planted.up.shape
        made = library.MixtureOfExperts(
            nnx.Rngs(0), d_model=d_model, d_ff=d_ff, num_experts=num_experts, top_k=k, ff_activation="relu"
        )
        named = {
            "router": planted.router,
            "gate_proj": planted.up,
            "up_proj": 0 * planted.up,
            "down_proj": planted.down,
        }
        for name, value in named.items():
            setattr(made, name, nnx.Param(jnp.asarray(value, "float32")))
        output, extra = made(jnp.asarray(planted.x, "float32")[None], deterministic=True)
        return np.asarray(output[0]), float(extra["load_balance_loss"])

    def loss(logits, experts):
        return answer(blocks.plant(np.asarray(logits, "float32")), experts.shape[1])[1]

    name = f"attnax {metadata.version('attnax')}"
    return {"MixtureOfExperts": blocks.backend(blocks.layer(answer), name=name, loss=loss)}


def _only(k: int, value: int) -> None:
    if k != value:
        raise NotImplementedError(f"k {k}, only {value}")


LIBRARIES = {
    "deepspeed": deepspeed, "fairscale": fairscale, "mixture-of-experts": mixture_of_experts,
    "st-moe-pytorch": st_moe_pytorch, "megatron-core": megatron_core, "ai2-olmo-core": ai2_olmo_core,
    "torchtitan": torchtitan, "pytorch-mixtures": pytorch_mixtures, "sinkhorn-router-pytorch": sinkhorn_router_pytorch,
    "keras-hub": keras_hub, "attnax": attnax,
}  # fmt: skip

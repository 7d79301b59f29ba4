#!/usr/bin/env bash
# transformers 5.24.0 and trl 1.16.0: a reward model of a mixture trains without a balance loss, whatever you configure.
#
# With `output_router_logits=True`, the loss of `...ForCausalLM` contains the balance loss, for each of six models. The
# loss of `...ForSequenceClassification`, `...ForTokenClassification` and `...ForQuestionAnswering` does not, even with
# the coefficient 10, and the output has no `router_logits`. After 40 steps of trl's `RewardTrainer`, all weights of a
# Qwen3-MoE are the same with the coefficient 100 and without a balance loss. Its busiest expert gets twice the mean
# load. No warning is printed. The other trainers of trl (SFT, DPO, KTO, GRPO, RLOO) add the balance loss.
#
# Cause: the heads for classification are generic. They keep only the hidden states of the model, and compute the loss
# from their labels alone. The model below them, `model.model`, does return `router_logits` if you pass
# `output_router_logits=True` to it, so add `load_balancing_loss_func` of them yourself.
#
# Seen with torch 2.13.0, transformers 5.24.0 and trl 1.16.0 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0 trl==1.16.0 \
  accelerate==1.15.0 datasets==5.2.0
cat > "$folder/reward.py" <<'PYTHON'
import random
import sys

import datasets
import tokenizers
import torch
import transformers
import trl

torch.set_num_threads(1)
sizes = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=8, num_local_experts=8, num_experts_per_tok=2,
    pad_token_id=0, bos_token_id=0, eos_token_id=0,
)
ids = torch.randint(2, 64, (4, 16), generator=torch.Generator().manual_seed(0))
first, second = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)
LABELS = {
    "CausalLM": {"labels": ids},
    "SequenceClassification": {"labels": second},
    "TokenClassification": {"labels": ids % 2},
    "QuestionAnswering": {"start_positions": first, "end_positions": second},
}


def made(name, head, labels=2, **options):
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{name}Config")(**sizes, num_labels=labels, **options)
    return getattr(transformers, f"{name}For{head}")(configuration).train()


for name in ("Mixtral", "Qwen2Moe", "Qwen3Moe", "GptOss", "MiniMax", "Phimoe"):
    heads = {}
    for head, labels in LABELS.items():
        if hasattr(transformers, f"{name}For{head}"):
            losses = []
            for coefficient in (0.0, 10.0):
                model = made(name, head, output_router_logits=True, router_aux_loss_coef=coefficient)
                torch.manual_seed(1)  # the jitter of Phimoe
                output = model(input_ids=ids, **labels)
                losses.append(float(output.loss))
            assert ("router_logits" in output) == (losses[0] != losses[1])
            heads.setdefault("in" if losses[0] != losses[1] else "not in", []).append(head)
    print(f"{name}: the balance loss is in {', '.join(heads['in'])}, not in {', '.join(heads['not in'])}")

words = [f"w{number}" for number in range(62)]
vocabulary = {word: token for token, word in enumerate(["<pad>", "<unk>", *words])}
tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<pad>", bos_token="<pad>"
)
draw = random.Random(0)
texts = [" ".join(draw.choices(words, [1 / (1 + rank) for rank in range(62)], k=24)) for _ in range(64)]
rows = datasets.Dataset.from_list([{"chosen": f"{text} w1", "rejected": f"{text} w2"} for text in texts])


def trained(**options):
    model = made("Qwen3Moe", "SequenceClassification", labels=1, **options)
    arguments = trl.RewardConfig(
        output_dir=sys.argv[1], max_steps=40, per_device_train_batch_size=16, learning_rate=3e-3, use_cpu=True,
        report_to=[], save_strategy="no", logging_steps=40, disable_tqdm=True, seed=0,
    )
    trl.RewardTrainer(model, args=arguments, train_dataset=rows, processing_class=tokenizer).train()
    return model


without = trained(output_router_logits=False)
with_loss = trained(output_router_logits=True, router_aux_loss_coef=100.0)
same = all(torch.equal(*pair) for pair in zip(without.parameters(), with_loss.parameters(), strict=True))
tokens = torch.tensor(tokenizer(texts)["input_ids"])
output = with_loss.model(input_ids=tokens, output_router_logits=True)
loads = [torch.bincount(logits.topk(2).indices.ravel(), minlength=8) for logits in output.router_logits]
busiest = max(float(load.max() / load.float().mean()) for load in loads)
print(f"RewardTrainer: the same weights with the coefficient 100: {same}; largest load > 1.5 x mean: {busiest > 1.5}")
PYTHON
export HF_HUB_OFFLINE=1 HF_HOME="$folder/home"
seen=$("$folder/venv/bin/python" -W ignore "$folder/reward.py" "$folder/run" 2> "$folder/errors" | grep -v "^{" ||
  cat "$folder/errors")
wanted=$(for name in Mixtral Qwen2Moe Qwen3Moe GptOss MiniMax Phimoe; do
  heads="SequenceClassification, TokenClassification, QuestionAnswering"
  case "$name" in GptOss) heads=${heads%, *} ;; Phimoe) heads=${heads%%, *} ;; esac
  echo "$name: the balance loss is in CausalLM, not in $heads"
done
echo "RewardTrainer: the same weights with the coefficient 100: True; largest load > 1.5 x mean: True")
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }

#!/usr/bin/env bash
# transformers 5.24.0: a Trainer that resumes from its own checkpoint keeps the experts that it started with.
#
# `train(resume_from_checkpoint=...)` loads the attention, but no expert of Mixtral, Qwen3-MoE and OLMoE, and not the
# router of Mixtral. These keep the weights of the model that was given to the Trainer: the base model of a fine-tuning
# run, or random weights. A warning lists the missing keys, and training goes on. With `load_best_model_at_end`, the
# experts of the last step stay in place of the best ones. A dense Llama resumes right.
#
# Cause: `save_pretrained` writes each expert under the old names of the released models, such as
# `experts.0.w1.weight`. `from_pretrained` converts them back into the stacks [E, ., .]. The Trainer passes the file to
# `load_state_dict(..., strict=False)`, without the conversion. So load a checkpoint by `from_pretrained`.
# Issue 48805 of transformers reports it.
#
# Seen with torch 2.13.0, transformers 5.24.0 and accelerate 1.15.0 on Python 3.11. The script fails if the behaviour
# changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
cat > "$folder/resume.py" <<'PYTHON'
import sys

import torch
import transformers

sizes = dict(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=16, vocab_size=64, num_experts=4, num_local_experts=4, num_experts_per_tok=2,
    eos_token_id=1,
)
tokens = torch.randint(64, (16,), generator=torch.Generator().manual_seed(0))
data = dict.fromkeys(("train_dataset", "eval_dataset"), [dict(input_ids=tokens, labels=tokens)] * 8)
parts = {"experts": "mlp.experts.", "router": "mlp.gate.weight", "ffn": "mlp.up_proj", "attention": "self_attn."}


def compare(model, sources):
    """Name the source whose weights each part of the model has."""
    for part, text in parts.items():
        names = [name for name in model.state_dict() if text in name]
        for title, source in sources.items():
            if names and all(torch.equal(model.state_dict()[name], source[name]) for name in names):
                print(f"  {part}: {title}")


def run(folder, model, checkpoint=None, **options):
    arguments = transformers.TrainingArguments(
        folder, learning_rate=0.01, per_device_train_batch_size=8, report_to=[], use_cpu=True, disable_tqdm=True,
        save_steps=2, logging_strategy="no", **options,
    )
    transformers.Trainer(model, arguments, **data).train(resume_from_checkpoint=checkpoint)


for name in ("Llama", "Mixtral", "Qwen3Moe", "Olmoe"):
    kind, folder = getattr(transformers, f"{name}ForCausalLM"), f"{sys.argv[1]}/{name}"
    torch.manual_seed(0)
    model = kind(getattr(transformers, f"{name}Config")(**sizes))
    model.save_pretrained(f"{folder}/base")
    run(folder, model, max_steps=2)
    checkpoint = f"{folder}/checkpoint-2"
    sources = {
        title: kind.from_pretrained(path).state_dict()
        for title, path in (("the base model", f"{folder}/base"), ("the checkpoint", checkpoint))
    }
    resumed = kind.from_pretrained(f"{folder}/base")
    run(folder, resumed, checkpoint, max_steps=2)  # no step is left, so these are the weights that it loaded
    print(f"{name} resumes with")
    compare(resumed, sources)

print("The best checkpoint is the first of two. The model ends with")  # the largest loss counts as best here
folder = f"{sys.argv[1]}/best"
best = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))
run(
    folder, best, max_steps=4, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True,
    metric_for_best_model="eval_loss", greater_is_better=True,
)
compare(best, {
    title: transformers.MixtralForCausalLM.from_pretrained(f"{folder}/checkpoint-{step}").state_dict()
    for title, step in (("the best checkpoint", 2), ("the last checkpoint", 4))
})
PYTHON
seen=$("$folder/venv/bin/python" -W ignore "$folder/resume.py" "$folder/out" 2> "$folder/errors" |
  grep -v "_runtime") || cat "$folder/errors"
wanted='Llama resumes with
  ffn: the checkpoint
  attention: the checkpoint
Mixtral resumes with
  experts: the base model
  router: the base model
  attention: the checkpoint
Qwen3Moe resumes with
  experts: the base model
  router: the checkpoint
  attention: the checkpoint
Olmoe resumes with
  experts: the base model
  router: the checkpoint
  attention: the checkpoint
The best checkpoint is the first of two. The model ends with
  experts: the last checkpoint
  router: the last checkpoint
  attention: the best checkpoint'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }

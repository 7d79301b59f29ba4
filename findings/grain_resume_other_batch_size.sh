#!/usr/bin/env bash
# grain 0.2.18: a run that resumes with another batch size skips or repeats data, if `batch` comes before the iterator.
#
# After 10 batches of 4, the next record is 40. A run that resumes with batches of 8, as in a ramp of the batch size,
# continues at record 80, and never sees records 40 to 79. With batches of 2, it continues at record 20, and repeats 20
# records. After 10,000 steps with batches of 1,024, a change to 2,048 skips 10 million sequences. `set_state` accepts
# the state, and nothing warns. A new seed of `shuffle` is accepted, too: the rest of the epoch then repeats records.
#
# Cause: the state of `data.batch(4).to_iter_dataset()` is the number of batches, 10. The state of
# `data.to_iter_dataset().batch(4)` is the number of records, 40, and any batch size continues at record 40. So does
# `grain.DataLoader`. The documents say that the state is index information, and not in which unit. Batch after
# `to_iter_dataset`, or multiply `next_index` by the old batch size over the new one.
#
# Seen with grain 0.2.18 and numpy 2.4.6 on Python 3.11. The script fails if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet grain==0.2.18 numpy==2.4.6
cat > "$folder/resume.py" <<'PYTHON'
import grain

data = grain.MapDataset.range(1000)
source = grain.sources.RangeDataSource(0, 1000, 1)
sampler = grain.samplers.IndexSampler(1000, num_epochs=1, shard_options=grain.sharding.NoSharding())
pipelines = {
    "batch, then iterator": lambda size: data.batch(size).to_iter_dataset(),
    "iterator, then batch": lambda size: data.to_iter_dataset().batch(size),
    "DataLoader": lambda size: grain.DataLoader(
        data_source=source, sampler=sampler, operations=[grain.transforms.Batch(size)], worker_count=0
    ),
}
for name, pipeline in pipelines.items():
    batches = iter(pipeline(4))
    for _ in range(10):
        last = next(batches)
    assert last[-1] == 39
    starts = []
    for size in (2, 4, 8):
        resumed = iter(pipeline(size))
        resumed.set_state(batches.get_state())
        starts.append(f"{size}: record {next(resumed)[0]}")
    print(f"{name}, resumed with batches of {', '.join(starts)}")
first = iter(data.shuffle(seed=1).batch(4).to_iter_dataset())
seen = {record for _ in range(125) for record in next(first).tolist()}
second = iter(data.shuffle(seed=2).batch(4).to_iter_dataset())
second.set_state(first.get_state())
repeated = seen & {record for batch in second for record in batch.tolist()}
print(f"a new seed after half of 1000 records: {len(repeated)} of the other 500 are repeated")
PYTHON
seen=$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/resume.py" 2> "$folder/errors" || cat "$folder/errors")
wanted='batch, then iterator, resumed with batches of 2: record 20, 4: record 40, 8: record 80
iterator, then batch, resumed with batches of 2: record 40, 4: record 40, 8: record 40
DataLoader, resumed with batches of 2: record 40, 4: record 40, 8: record 40
a new seed after half of 1000 records: 252 of the other 500 are repeated'
printf '%s\n' "$seen"
[ "$seen" = "$wanted" ] || { echo "the behaviour has changed"; exit 1; }

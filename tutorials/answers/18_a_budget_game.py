"""Answers to the exercises of lesson 18."""

import contextlib
import importlib.util
import io
import sys
from pathlib import Path

import numpy as np

folder = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(folder))
spec = importlib.util.spec_from_file_location("game", folder / "18_a_budget_game.py")
game = importlib.util.module_from_spec(spec)
with contextlib.redirect_stdout(io.StringIO()):
    spec.loader.exec_module(game)

# 1. Between 3 and 5 %. The budget of the final run is more than a thousand times the
# largest profile, so the errors are larger than those of the fits. A narrow interval
# misses, and a miss costs twenty times its distance; a wide one costs its width.
plans = [(w, game.isoflop_player(w)) for w in map(game.new_world, range(100))]
means = {}
for width in (0.01, 0.02, 0.03, 0.05, 0.08):
    scores = []
    for world, (*plan, low, high) in plans:
        ends = np.sqrt(low * high) * np.exp([-width, width])
        scores.append(game.score(world, *plan, *ends)[1])
    means[width] = np.mean(scores)
    print(f"1. {width:.0%} on both sides: mean interval score {means[width]:.1f}")
assert min(means, key=means.get) in (0.03, 0.05)

# 2. The median regret more than doubles, but it stays below 1 %: the recipe is wrong by
# a factor of about 1.5, and the loss is flat near the best rate and batch.
regrets = {}
for name, tune in (("tuned", game.find_factors), ("recipe", lambda world: np.ones(2))):
    game.find_factors = tune
    worlds = list(map(game.new_world, range(100)))
    each = [game.score(w, *game.isoflop_player(w))[0] for w in worlds]
    regrets[name] = np.median(each)
    print(f"2. {name}: median regret {regrets[name]:.2f} %")
assert 2 * regrets["tuned"] < regrets["recipe"] < 1

# 3. As many as there are: the loss falls with E at every size of this budget. The limit
# of memory alone makes fewer experts worth a thought.
law, N = game.joint.PUBLISHED["joint"].coefficients, np.geomspace(1e8, 1e11, 200)
best = {
    E: game.joint.predict_joint(N, game.FINAL / (6 * N), E, law).min()
    for E in (1, 2, 4, 8, 16, 32)
}
print("3. " + ", ".join(f"E {E}: {loss:.3f}" for E, loss in best.items()))
assert list(best.values()) == sorted(best.values(), reverse=True)

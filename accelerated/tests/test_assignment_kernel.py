"""The loops behind the balanced assignment, piece by piece, as plain Python.

Nothing is compiled, and what a loop keeps up to date is made anew by the test after every step.
"""

import heapq

import numpy as np
import pytest

from routelaws.accelerated.kernels import assignment
from routelaws.conformance.suite.strategies_base import bound_of, first_optimum, scipy_optimum

FAR, HELD = assignment.FAR, assignment.HELD


def whole_scores(seed: int, shape, most: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most + 1, shape)


# The table of links


class Table:
    """Tokens at experts: the arrays of the loops, and all that they should hold made anew."""

    def __init__(self, scores, slots):
        """Hold experts [k T] and join nobody yet."""
        (num_tokens, num_experts), size = scores.shape, len(slots)
        self.scores, self.whole = scores, scores.copy()
        self.expert, self.own = np.full(size, -1, np.int32), np.full(size, 99)
        for slot, e in enumerate(slots):
            assignment._hold(slot % num_tokens, slot, e, self.whole, self.expert, self.own)
        self.links = np.full((num_experts + 1, num_experts + 1), FAR)
        self.cheapest = np.full((num_experts + 1, num_experts + 1), -1, np.int32)
        self.ring = np.full((2, size + num_experts), -1, np.int32)
        self.ring[:, size:] = np.arange(size, size + num_experts)
        self.joined = []

    def arrays(self):
        return self.whole, self.expert, self.own, self.links, self.cheapest, self.ring

    def join(self, slot):
        assignment._join(slot % len(self.whole), slot, *self.arrays())
        self.joined.append(slot)

    def leave(self, slot):
        assignment._leave(slot, *self.arrays())
        self.joined.remove(slot)

    def check(self):
        check_table(self.scores, self.arrays(), self.joined)


def check_table(scores, arrays, joined):
    """Whose numbers are held, the rings, the links and who stands behind them: each made anew from the experts."""
    whole, expert, own, links, cheapest, ring = arrays
    (num_tokens, num_experts), size = scores.shape, len(expert)
    held = np.zeros(scores.shape, bool)
    held[np.arange(size) % num_tokens, expert] = True
    assert held.sum() == size and np.array_equal(whole, np.where(held, HELD, scores))
    assert np.array_equal(own, scores[np.arange(size) % num_tokens, expert])
    for e in range(num_experts):
        forth, back = ([head := size + e] for _ in range(2))
        for line, way in ((0, forth), (1, back)):
            while len(way) <= size and (following := int(ring[line, way[-1]])) != head:
                way.append(following)
        assert forth[1:] == back[:0:-1]
        assert sorted(forth[1:]) == sorted(slot for slot in joined if expert[slot] == e)
        for k in range(num_experts):
            able = [slot for slot in forth[1:] if not held[slot % num_tokens, k]]
            costs = {slot: own[slot] - whole[slot % num_tokens, k] for slot in able}
            assert links[e, k] == min(costs.values(), default=FAR)
            assert costs[cheapest[e, k]] == links[e, k] if costs else cheapest[e, k] == -1


def dealt(seed: int, shape, k: int) -> Table:
    """Return a table of random scores with many equals, all of them below 0, and random experts."""
    random = np.random.default_rng(seed)
    experts = np.array([random.permutation(shape[1])[:k] for _ in range(shape[0])])
    return Table(whole_scores(seed, shape, 3) - 5, experts.T.ravel())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_links_after_every_join_and_leave(plain, k):
    """The cheapest of who is there, whoever came or went."""
    table = dealt(k, (7, 4), k)
    order = np.random.default_rng(k).permutation(7 * k)
    for slot in order:
        table.join(slot)
        table.check()
    for slot in np.roll(order, 3)[:-2]:
        table.leave(slot)
        table.check()
        if slot % 3 == 0:
            table.join(slot)
            table.check()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_links_after_every_move(plain, k):
    """A token goes along a link, by any of its slots: every link is right again, of its other slots too."""
    table = dealt(10 + k, (8, 5), k)
    for slot in range(8 * k):
        table.join(slot)
    random, moved = np.random.default_rng(0), 0
    for j, e in random.integers(0, 5, (40, 2)):
        slot = table.cheapest[j, e]
        if table.links[j, e] < FAR:
            assignment._move_slot(slot, e, *table.arrays())
            assert table.expert[slot] == e
            table.check()
            moved += 1
    assert moved > 20


def test_of_equals_the_first_to_join_stands_behind_a_link(plain):
    """Also when the links are searched anew; those that nobody stood for are not."""
    table = Table(np.array([[0, 5, 1], [0, 5, 1], [0, 5, 1], [0, 5, 0]]), [0, 0, 0, 0])
    for slot in (3, 2, 1, 0):
        table.join(slot)
    assert table.cheapest[0, :3].tolist() == [-1, 3, 2] and table.links[0, :3].tolist() == [FAR, -5, -1]
    table.leave(2)
    assert table.cheapest[0, :3].tolist() == [-1, 3, 1]
    table.leave(3)
    assert table.cheapest[0, :3].tolist() == [-1, 1, 1]
    table.leave(0)
    assert table.cheapest[0, :3].tolist() == [-1, 1, 1]


def test_who_leaves_has_only_the_links_searched_that_it_stood_for(plain, recorded, monkeypatch):
    """And who stood for none has none searched."""
    table = dealt(5, (8, 4), 2)
    for slot in range(16):
        table.join(slot)
    searched = recorded(assignment, "_search")
    for slot in range(16):
        e = table.expert[slot]
        wanted = np.flatnonzero(table.cheapest[e] == slot).tolist()
        table.leave(slot)
        assert [(call[0], call[1][: call[2]].tolist()) for call in searched] == ([(e, wanted)] if wanted else [])
        searched.clear()


def test_who_moves_is_searched_for_where_it_stood(plain, recorded, monkeypatch):
    """Its other slots are for the link to where it goes, if they stood behind that."""
    found = 0
    for seed in range(12):
        table = dealt(20 + seed, (4, 5), 3)
        for slot in range(12):
            table.join(slot)
        slot, e = table.cheapest[0, 1], 1
        if table.links[0, 1] < FAR:
            t, before = slot % 4, table.cheapest.copy()
            others = [other for other in range(t, 12, 4) if other != slot]
            with monkeypatch.context() as patch:
                searched = recorded(assignment, "_search", patch=patch)
                wanted = [(table.expert[other], [e]) for other in others if before[table.expert[other], e] == other]
                assignment._move_slot(slot, e, *table.arrays())
                assert [(call[0], call[1][: call[2]].tolist()) for call in searched[1:]] == wanted
            found += len(wanted)
    assert found


# Chains


def shortest(links, price, wanted, cost, limit):
    """Return target, costs and nodes before by Dijkstra's way with a heap; of equally near nodes the first."""
    cost, before, done = cost.tolist(), [-1] * len(cost), set()
    heap = [(at, node) for node, at in enumerate(cost) if at < FAR]
    heapq.heapify(heap)
    while heap and heap[0][0] <= limit:
        at, j = heapq.heappop(heap)
        if j in done:
            continue
        if wanted[j]:
            return j, cost, before
        done.add(j)
        for k in range(len(cost)):
            through = at + int(links[j, k] - price[j] + price[k])
            if links[j, k] < FAR and through < cost[k]:
                cost[k], before[k] = through, j
                heapq.heappush(heap, (through, k))
    return -1, cost, before


def test_the_cheapest_chain(plain):
    """Against a heap: few links and many, several ends and beginnings or none, and a limit."""
    random, ends = np.random.default_rng(0), []
    for trial in range(200):
        size = random.integers(2, 9)
        price = random.integers(-9, 9, size)
        links = random.integers(0, 4, (size, size)) + price[:, None] - price
        links[random.random((size, size)) < (0.3, 0.8)[trial % 2]] = FAR
        wanted = random.random(size) < 0.3
        cost = np.where((random.random(size) < 0.3) & ~wanted, 0, FAR)
        limit = (FAR - 1, 0, 2)[trial % 3]
        target, costs, nodes = shortest(links, price, wanted, cost, limit)
        before = np.full(size, 7)
        assert assignment._cheapest_chain(links, price, wanted, cost, before, limit) == target
        assert cost.tolist() == costs and before.tolist() == nodes
        ends.append(target)
    assert 20 < ends.count(-1) < 180 and len(set(ends)) == 10 - 1


def test_tokens_move_along_a_chain(plain):
    """By hand: 0 gives to 2 and 2 to 1; then the reserve, node 3, takes over one of 1 and gives up one of 0."""
    table = Table(np.array([[0, -9, -1], [0, -9, -9], [0, -2, 0], [-5, 0, -5]]), [0, 0, 2, 1])
    for slot in range(4):
        table.join(slot)
    table.links[:3, 3], table.links[3, 0], table.links[0, 3] = 0, 0, FAR
    arrays = table.arrays()
    assert assignment._move(1, np.array([-1, 2, 0, -1]), *arrays) == 0
    assert table.expert.tolist() == [2, 0, 1, 1]
    table.check()
    assert assignment._move(0, np.array([3, -1, -1, 1]), *arrays) == 1
    assert table.expert.tolist() == [2, 0, 1, 1]
    assert table.links[:3, 3].tolist() == [0, FAR, 0] and table.links[3, :3].tolist() == [FAR, 0, FAR]
    assert assignment._move(2, np.array([-1, -1, -1, -1]), *arrays) == 2, "a chain without links"


# The whole solution


SIZES = [((9, 3), 1), ((7, 3), 1), ((8, 4), 2), ((5, 3), 2), ((6, 4), 3), ((3, 5), 1), ((4, 3), 3), ((5, 1), 1)]


def start(seed: int, shape, k: int):
    """Return the arguments of `solve` for whole scores with many equals, and prices of some sort."""
    price = np.append(np.random.default_rng(seed).integers(0, 4, shape[1]), 0) * (seed % 2)
    return whole_scores(seed, shape, 2), price, k, *divmod(shape[0] * k, shape[1])


def greedy(whole, price, k: int, everyone: int) -> list:
    """Return (token, slot, expert) in turn: the best; of equals the first with room, else the least too full."""
    load, found = [-everyone] * whole.shape[1], []
    for t in range(len(whole)):
        value = {e: whole[t, e] - price[e] for e in range(whole.shape[1])}
        for i in range(k):
            best = [e for e in value if value[e] == max(value.values())]
            e = next((e for e in best if load[e] < 0), min(best, key=lambda e: load[e]))
            load[e] += 1
            found.append((t, i * len(whole) + t, e))
            del value[e]
    return found


@pytest.mark.parametrize("shape, k", SIZES)
def test_who_goes_where_at_first(plain, recorded, monkeypatch, shape, k):
    """And the table of links as it is then: nobody has joined; the last token joins first."""
    size = shape[0] * k
    for seed in range(8):
        given = start(seed, shape, k)
        wanted = greedy(*given[:4])
        with monkeypatch.context() as patch:
            held, joins = (recorded(assignment, name, patch=patch) for name in ("_hold", "_join"))
            assignment.solve(*given)
        assert [call[:3] for call in held[:size]] == wanted
        slots = [(t, i * shape[0] + t) for t in range(shape[0] - 1, -1, -1) for i in range(k)]
        assert [call[:2] for call in joins[:size]] == slots
        *_, links, cheapest, ring = joins[0]
        assert (links == FAR).all() and (cheapest == -1).all() and links.shape == cheapest.shape == (shape[1] + 1,) * 2
        assert ring.tolist() == [[-1] * size + list(range(size, size + shape[1]))] * 2


class Chains:
    """Takes the place of `_move`, and looks at every chain before and after."""

    def __init__(self, scores, price):
        self.scores, self.price, self.move, self.loads = scores, price, assignment._move, []

    def load(self, expert, links):
        """Return the tokens of each expert less the one in the reserve, and how many that holds."""
        in_reserve = links[-1, :-1] == 0
        return np.append(np.bincount(expert, minlength=len(in_reserve)) - in_reserve, in_reserve.sum())

    def __call__(self, target, before, *arrays):
        expert, links = arrays[1], arrays[3]
        self.loads.append(was := self.load(expert, links))
        source = self.move(target, before, *arrays)
        nodes = np.arange(len(was))
        assert np.array_equal(self.load(expert, links), was + (nodes == target) * 1 - (nodes == source))
        check_table(self.scores, arrays, range(len(expert)))
        left = links - self.price[:, None] + self.price
        assert left[links < FAR].min() >= 0, "no link is negative at the prices"
        return source


@pytest.mark.parametrize("shape, k", SIZES)
def test_every_chain_of_a_solution(plain, recorded, monkeypatch, shape, k):
    """As many as tokens are too many; each begins and ends where it should, links stay right, prices prove the end."""
    for seed in range(8):
        whole, price, _, everyone, more = given = start(seed, shape, k)
        scores, moved, wanted = whole.copy(), Chains(whole.copy(), price), np.append([everyone] * shape[1], more)
        with monkeypatch.context() as patch:
            chains = recorded(assignment, "_cheapest_chain", patch=patch)
            patch.setattr(assignment, "_move", moved)
            patch.setattr(assignment, "_settle_ties", lambda *given: None)
            expert = assignment.solve(*given)
        load = np.bincount(expert, minlength=shape[1])
        assert load.max() - load.min() <= 1
        assert len(chains) == (np.maximum(moved.loads[0] - wanted, 0).sum() if chains else 0)
        for (links, _, ends, cost, _, limit), was in zip(chains, moved.loads, strict=True):
            assert np.array_equal(ends, was < wanted) and limit == FAR - 1
            assert np.array_equal(cost, np.where(was > wanted, 0, FAR))
            into, out = links[:-1, -1].tolist(), links[-1, :-1].tolist()
            assert sorted(out) == [0] * more + [FAR] * (shape[1] - more)
            assert into == [FAR - back if more else FAR for back in out]
        objective = scores[np.arange(len(expert)) % shape[0], expert].sum()
        assert objective == bound_of(scores, price[:-1], k) == scipy_optimum(scores.astype(float), k)


# Ties


@pytest.mark.parametrize("shape, k", [((6, 3), 1), ((5, 3), 1), ((4, 4), 2), ((5, 3), 2), ((4, 4), 3), ((3, 4), 1)])
def test_the_first_of_the_best(plain, shape, k):
    """All balanced assignments looked at one after the other; the prices to start from decide nothing."""
    for seed in range(10):
        whole, *rest = start(seed, shape, k)
        whole = np.sign(whole) * (seed % 3 > 0)
        wanted = first_optimum(whole, k)
        slots = assignment.solve(whole, *rest).reshape(k, shape[0])
        assert [tuple(sorted(row)) for row in slots.T.tolist()] == wanted, seed


def test_without_ties_nobody_leaves_the_links(plain, recorded, monkeypatch):
    """And with them every one leaves once at most; no search is for nothing."""
    found = 0
    for seed, most in ((0, 10**6), (1, 10**6), (2, 1), (3, 0), (4, 1)):
        for k in (1, 2):
            whole = whole_scores(seed, (12, 4), most)
            with monkeypatch.context() as patch:
                chains, left, moved = (
                    recorded(assignment, name, patch=patch) for name in ("_cheapest_chain", "_leave", "_move_slot")
                )
                assignment.solve(whole, np.zeros(5, np.int64), k, 3 * k, 0)
            searches = [call for call in chains if call[-1] == 0]
            settled = len(left) - len(moved)
            assert settled == 0 if most > 1 else (searches and settled <= 12 * k)
            found += settled
            assert all(call[2].any() for call in searches) or k > 1
    assert found


def test_what_a_token_could_give_up(plain):
    """Experts above the lower one that are worth the same; by hand."""
    expert, own, price = np.array([1, 0, 3, 1, 2, 2]), np.array([5, 9, 6, 9, 7, 9]), np.array([0, 1, 3, 2, 0])
    for lower, wanted in ((0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [])):
        marks = np.zeros(5, bool)
        assignment._mark(0, lower, 4, True, marks, price, expert, own, 2)
        assert np.flatnonzero(marks).tolist() == wanted
        assignment._mark(0, lower, 4, False, marks, price, expert, own, 2)
        assert not marks.any()
    assignment._mark(0, 0, 3, True, marks, price, expert, own, 2)
    assert not marks.any()

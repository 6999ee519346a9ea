r"""Key columns and runs of diagonals with the most mass, estimated from a few rows of the map.

For every block of queries a few rows of the map are computed whole, in float64. The columns with the largest sums are
chosen first, without the nearest pairs: those are in the band of the queries too. A key that is in the band of the
estimating rows alone, such as the first one for the second block, can be chosen. Then come the runs of diagonals beyond
the band with the largest sums of what is left, so that a heavy column does not choose every diagonal that crosses it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.sparse.gathered import GROUP_ENTRIES, Gathered, Group
from headscope.attention.sparse.grouped_heads import grouped_products
from headscope.attention.sparse.query_blocks import QueryBlock, query_blocks
from headscope.attention.sparse.ranking import NONE, largest
from headscope.attention.sparse.working_memory import DOUBLE, FLOAT, INDEX

FAR = 1 << 40  # the distance of a run of diagonals that is none, and of limits that never bite
ESTIMATED_ENTRIES = 1 << 19  # numbers of the rows that are estimated at a time
_MAP_BYTES = 27.0  # per pair of an estimated row: scores, map, run of diagonals, three masks
_RANKED_MAP_BYTES = 19.0  # the same without the scores
_SUM_BYTES = 37.0  # per sum: itself, as float32, and whole numbers that rank it
TILE_ROWS = 64  # queries that share the keys of their diagonals


@dataclass(frozen=True)
class Sizes:
    """How much is chosen: columns, runs of `width` diagonals beyond `near`, rows of the estimate."""

    columns: int
    diagonals: int
    width: int
    near: int
    rows: int


@dataclass(frozen=True, eq=False)
class Chosen:
    """What the queries of a block attend to besides the band, for each head.

    A run of diagonals holds the pairs with distance ≤ i − j < distance + width, i and j being positions.
    """

    block: QueryBlock
    columns: Int[Tensor, "heads columns"]  # key indices; NONE where there are fewer
    distances: Int[Tensor, "heads diagonals"]  # FAR where there are fewer


@torch.no_grad()
def chosen_sets(call: Call, sizes: Sizes) -> list[Chosen]:
    """The choice for every block of queries of a call of one sequence.

    Properties:
        - that of the definition, whatever shapes the call  (tested: test_what_it_has_seen_is_the_map_it_computes)
        - planted columns and diagonals are found  (tested: test_planted_columns_and_diagonals)
    """
    exact = replace(call, k=call.k.double().contiguous())  # once for all blocks
    blocks = query_blocks(call, sizes.near)
    count = sizes.rows if sizes.columns or sizes.diagonals else 0
    rows = [estimating_rows(block.choosers, count, evenly=call.right is None) for block in blocks]
    at_a_time = _blocks_at_a_time(call.k.shape[2], call.groups, sizes)
    sets: list[Chosen] = []
    while len(sets) < len(blocks):
        first = len(sets)
        stop = first + 1
        while stop < min(len(blocks), first + at_a_time) and len(rows[stop]) == len(rows[first]):
            stop += 1
        columns, distances = _heaviest(exact, torch.stack(rows[first:stop]), sizes)
        sets += map(Chosen, blocks[first:stop], columns.unbind(), distances.unbind())
    return sets


def estimating_rows(choosers: Int[Tensor, " choosers"], count: int, *, evenly: bool) -> Int[Tensor, " rows"]:
    """The queries whose rows are computed: the last ones, or as many spread evenly."""
    available = len(choosers)
    count = min(count, available)
    if not evenly:
        return choosers[available - count :]
    return choosers[(2 * torch.arange(count, device=choosers.device) + 1) * available // (2 * max(count, 1))]


def chosen_pairs(call: Call, sizes: Sizes) -> Bool[Tensor, "1 heads queries keys"]:
    """True for the pairs of the band, the columns and the diagonals, of a call of one sequence."""
    heads, (queries, keys) = call.q.shape[1], (call.query_positions[0], call.key_positions[0])
    pairs = torch.zeros(1, heads, len(queries), len(keys), dtype=torch.bool, device=queries.device)
    for choice in chosen_sets(call, sizes):
        ahead = queries[choice.block.queries][:, None] - keys
        allowed = (ahead.abs() <= sizes.near).expand(heads, -1, -1).clone()
        for distance in choice.distances.T:
            beyond = ahead - distance[:, None, None]
            allowed |= (beyond >= 0) & (beyond < sizes.width)
        head, place = (choice.columns != NONE).nonzero(as_tuple=True)
        allowed[head, :, choice.columns[head, place]] = True
        pairs[0, :, choice.block.queries] = allowed
    return pairs


def column_and_diagonal_plans(call: Call, sizes: Sizes) -> list[list[Gathered]]:
    """For each head of a call of one sequence the columns and the diagonals beyond the band, as disjoint parts.

    The call has positions without gaps, and nothing shapes it but its limits and padding.

    Properties:
        - band, columns and diagonals hold every pair once  (tested: test_plans_hold_every_chosen_pair_once)
    """
    choices = chosen_sets(call, sizes)
    return [
        [
            Gathered(list(_column_groups(call, choices, sizes, head)), call.scale, call.key_padding),
            Gathered(list(_diagonal_groups(call, choices, sizes, head)), call.scale, call.key_padding),
        ]
        for head in range(call.q.shape[1])
    ]


def estimate_bytes(n: int, d: int, sizes: Sizes) -> float:
    """What the estimate holds at its peak: rows of the map, or the sums of all columns and runs while they are ranked.

    Besides it holds the keys in float64.
    """
    if not sizes.columns and not sizes.diagonals:
        return 0.0
    blocks = min(-(-n // sizes.near), _blocks_at_a_time(n, 1, sizes))
    entries, sums = blocks * min(sizes.rows, n) * n, blocks * max(n, 2 * n // sizes.width)
    return DOUBLE * n * d + max(_MAP_BYTES * entries, _RANKED_MAP_BYTES * entries + _SUM_BYTES * sums)


def plan_bytes(n: int, d: int, sizes: Sizes) -> tuple[float, float]:
    """What the plans of a head hold, and what a group of their blocks holds more while it is computed.

    Columns and diagonals are taken to lie anywhere: a block has a mask where a column is in its band, or where a run of
    diagonals leaves the sequence.
    """
    rows = min(TILE_ROWS, sizes.near)
    crossed = rows + sizes.width - 1  # keys of one run of diagonals
    in_band, leaving = min(1.0, 3 * sizes.near / n), min(1.0, crossed / n)
    parts = [
        _part_bytes(-(-n // sizes.near), (sizes.near, sizes.columns, d), 1 - (1 - in_band) ** sizes.columns),
        _part_bytes(-(-n // rows), (rows, sizes.diagonals * crossed, d), 1 - (1 - leaving) ** sizes.diagonals),
    ]
    return sum(plan for plan, _ in parts), max(group for _, group in parts)


def _part_bytes(blocks: int, shape: tuple[int, int, int], share: float) -> tuple[float, float]:
    """A plan of blocks, and a group of these: their keys, values, masks and output.

    `shape` is rows, keys and width of a block; `share` that of the blocks with a mask, which are groups of their own.
    """
    rows, run, d = shape
    if not run:
        return 0.0, 0.0
    masked, most = round(share * blocks), max(1, GROUP_ENTRIES // (run * d))
    plan = INDEX * blocks * (rows + run) + masked * rows * run
    output = FLOAT * rows * (d + 2)
    plain_group = min(blocks, most) * (2 * FLOAT * run * d + output)  # most blocks are plain, or have as many keys
    masked_group = min(masked, most) * (2 * FLOAT * run * d + output + (FLOAT + 1) * rows * run)
    return float(plan), float(max(plain_group, masked_group))


def _blocks_at_a_time(n_keys: int, groups: int, sizes: Sizes) -> int:
    return max(1, ESTIMATED_ENTRIES // max(1, groups * sizes.rows * n_keys))


def _heaviest(call: Call, rows: Int[Tensor, "blocks rows"], sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Columns and distances of diagonals for some blocks, by the rows of each: [blocks, heads, columns] and so on."""
    n_blocks, n_rows = rows.shape
    heads, device = call.q.shape[1], call.q.device
    columns = torch.full((n_blocks, heads, sizes.columns), NONE, device=device)
    distances = torch.full((n_blocks, heads, sizes.diagonals), FAR, device=device)
    first, part = _in_reach(call, rows.flatten())
    n_keys = part.k.shape[2]
    if not n_keys:
        return columns, distances
    ahead = part.query_positions[0][:, None] - part.key_positions[0]
    is_near, is_recent = ahead.abs() <= sizes.near, 2 * ahead.abs() <= sizes.near
    runs, names = _runs(ahead, sizes)
    # The runs of one block after those of another, to add up all blocks at once.
    runs = runs.view(n_blocks, -1) + len(names) * torch.arange(n_blocks, device=device)[:, None]
    del ahead  # distances of all pairs are as large as the map
    by_position = replace(part, mask=None).visible()
    for key_head in range(call.k.shape[1]):
        of_head = part.part(slice(0, 1), slice(key_head, key_head + 1))
        mass = _mass(of_head, by_position if of_head.mask is None else by_position & of_head.mask)
        mass = mass.masked_fill_(is_recent, 0.0).view(-1, n_blocks, n_rows, n_keys)
        places = largest(mass.sum(dim=2), sizes.columns, above=0.0)
        # Where there are fewer, all columns with mass are chosen, so that the first one has none to lose.
        mass.scatter_(-1, places.clamp(min=0)[:, :, None].expand(-1, -1, n_rows, -1), 0.0)
        mass.masked_fill_(is_near.view(n_blocks, n_rows, n_keys), 0.0)
        sums = mass.new_zeros(len(mass), n_blocks * len(names))
        sums.scatter_add_(1, runs.flatten().expand(len(mass), -1), mass.flatten(1))
        run = largest(sums.view(-1, n_blocks, len(names)), sizes.diagonals, above=0.0)
        heads_of_key = slice(key_head * call.groups, (key_head + 1) * call.groups)
        columns[:, heads_of_key] = torch.where(places == NONE, NONE, places + first).transpose(0, 1)
        distances[:, heads_of_key] = _distances(names, run, sizes).transpose(0, 1)
    return columns, distances


def _in_reach(call: Call, rows: Tensor) -> tuple[int, Call]:
    """Some rows of a call over the run of keys that their positions let them see, and the first of these keys."""
    queries, keys = call.query_positions[0][rows], call.key_positions[0]
    if not len(rows):
        return 0, call.take(slice(0, 0), slice(0, 0))
    in_reach = torch.ones_like(keys, dtype=torch.bool)
    if call.left is not None:
        in_reach &= keys >= queries.min() - call.left
    if call.right is not None:
        in_reach &= keys <= queries.max() + call.right
    places = in_reach.nonzero()[:, 0]
    first, stop = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    part = call.take(slice(None), slice(first, stop))
    return first, replace(
        part,
        q=part.q[:, :, rows],
        query_positions=queries[None],
        mask=None if part.mask is None else part.mask[:, :, rows],
        bias=None if part.bias is None else part.bias[:, :, rows],
    )


def _mass(call: Call, visible: Tensor) -> Float[Tensor, "heads rows keys"]:
    """The map of a call of one sequence, in float64; rows that see nothing are 0."""
    scores = grouped_products(call.q.double() * call.scale, call.k)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias.double()
    mass = torch.softmax(scores.masked_fill_(~visible, -torch.inf), dim=-1)
    blind = ~visible.any(dim=-1, keepdim=True)
    return (mass.masked_fill_(blind, 0.0) if bool(blind.any()) else mass)[0]


def _runs(ahead: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The run of diagonals that each pair belongs to, as a place among the names of the runs.

    The name of run t is 2 t behind the query and 2 t + 1 ahead of it.
    """
    far = (ahead.abs() - sizes.near - 1).clamp_(min=0).div_(sizes.width, rounding_mode="floor")
    runs = far.mul_(2).add_(ahead < 0)
    names = torch.arange(int(runs.max()) + 1, device=runs.device)
    if len(names) > runs.numel():  # large gaps between positions
        names, runs = torch.unique(runs, return_inverse=True)
    return runs, names


def _distances(names: Tensor, places: Tensor, sizes: Sizes) -> Tensor:
    """The distances at which runs of diagonals begin; FAR where there is none."""
    number = names[places.clamp(min=0)]
    steps = number.div(2, rounding_mode="floor") * sizes.width
    distances = torch.where(number % 2 == 0, sizes.near + 1 + steps, -(sizes.near + sizes.width + steps))
    return distances.masked_fill_(places == NONE, FAR)


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Runs of `rows` queries, each inside a block: the first query of each, and the number of its block."""

    rows: int
    starts: Int[Tensor, " tiles"]
    owners: Int[Tensor, " tiles"]

    def queries(self) -> Int[Tensor, "tiles rows"]:
        return self.starts[:, None] + torch.arange(self.rows, device=self.starts.device)

    def where(self, is_member: Tensor) -> "_Tiles":
        return _Tiles(self.rows, self.starts[is_member], self.owners[is_member])


def _tiles(choices: Sequence[Chosen], most_rows: int) -> list[_Tiles]:
    """The queries of all blocks in tiles, by their number of rows."""
    starts: dict[int, list[tuple[int, int]]] = {}
    for owner, block in enumerate(choices):
        first, count = int(block.block.queries[0]), len(block.block.queries)
        for start in range(0, count, most_rows):
            starts.setdefault(min(most_rows, count - start), []).append((first + start, owner))
    device = choices[0].columns.device if choices else None
    return [_Tiles(rows, *torch.tensor(places, device=device).unbind(dim=1)) for rows, places in sorted(starts.items())]


def _column_groups(call: Call, choices: Sequence[Chosen], sizes: Sizes, head: int) -> Iterator[Group]:
    """The chosen columns of a head, without the pairs of the band and of the chosen diagonals."""
    if not sizes.columns:
        return
    columns = torch.stack([block.columns[head] for block in choices])
    distances = torch.stack([block.distances[head] for block in choices])
    runs = list(_other_runs(call, distances, sizes))
    for tiles in _tiles(choices, sizes.near):
        tiles = tiles.where((columns != NONE).any(dim=1)[tiles.owners])
        keys = columns[tiles.owners]
        allowed = (keys != NONE)[:, None].repeat(1, tiles.rows, 1)
        first = tiles.starts[:, None] + _offset(call) - keys  # how far the first query of a tile is ahead of a column
        for low, high in runs:
            low, high = low[tiles.owners], high[tiles.owners]
            # Few columns meet a run inside a tile.
            meets = (first[:, :, None] + tiles.rows - 1 >= low[:, None]) & (first[:, :, None] <= high[:, None])
            tile, column, run = meets.nonzero(as_tuple=True)
            ahead = first[tile, column][:, None] + torch.arange(tiles.rows, device=first.device)
            pair, row = ((ahead >= low[tile, run][:, None]) & (ahead <= high[tile, run][:, None])).nonzero(
                as_tuple=True
            )
            allowed[tile[pair], row, column[pair]] = False
        yield from _by_mask(Group(tiles.queries(), keys.clamp(min=0), allowed))


def _diagonal_groups(call: Call, choices: Sequence[Chosen], sizes: Sizes, head: int) -> Iterator[Group]:
    """The chosen diagonals of a head: each tile of queries over the keys that its runs of diagonals cross."""
    if not sizes.diagonals:
        return
    distances = torch.stack([block.distances[head] for block in choices])
    n_keys, device = call.k.shape[2], distances.device
    for tiles in _tiles(choices, min(TILE_ROWS, sizes.near)):
        tiles = tiles.where((distances != FAR).any(dim=1)[tiles.owners])
        steps, rows = torch.arange(tiles.rows + sizes.width - 1, device=device), torch.arange(tiles.rows, device=device)
        first = tiles.starts[:, None] + _offset(call) - distances[tiles.owners] - (sizes.width - 1)
        keys = (first[:, :, None] + steps).flatten(1)
        is_key = (keys >= 0) & (keys < n_keys)
        inside = (steps >= rows[:, None]) & (steps < rows[:, None] + sizes.width)
        crossed = inside.repeat(1, sizes.diagonals)[None]
        is_uncut = is_key.all(dim=1)
        if call.left is not None or call.right not in (None, 0):
            is_uncut = torch.zeros_like(is_uncut)  # a limit may cut a run of diagonals
        uncut, cut = tiles.where(is_uncut), tiles.where(~is_uncut)
        if len(uncut.starts):
            yield Group(uncut.queries(), keys[is_uncut], crossed)
        if len(cut.starts):
            keys, places = keys[~is_uncut], cut.queries()[:, :, None] + _offset(call)
            allowed = crossed & is_key[~is_uncut][:, None]
            # Keys are compared with the ends of a query's limits: distances of all pairs would be eight times as large.
            if call.left is not None:
                allowed &= keys[:, None] >= places - call.left
            if call.right is not None:
                allowed &= keys[:, None] <= places + call.right
            yield Group(cut.queries(), keys.clamp(0, n_keys - 1), allowed)


def _other_runs(call: Call, distances: Tensor, sizes: Sizes) -> Iterator[tuple[Tensor, Tensor]]:
    """The distances, from and to, at which a column has no pair of its own, for each block."""
    if sizes.diagonals:
        yield distances, distances + sizes.width - 1
    edges = distances.new_tensor([[-sizes.near, sizes.near]])
    if call.left is not None:
        edges = torch.cat([edges, edges.new_tensor([[call.left + 1, FAR]])])
    if call.right is not None:
        edges = torch.cat([edges, edges.new_tensor([[-FAR, -call.right - 1]])])
    yield edges[:, 0].expand(len(distances), -1), edges[:, 1].expand(len(distances), -1)


def _by_mask(group: Group) -> Iterator[Group]:
    """A group in two, so that blocks without a masked pair need no mask."""
    if group.allowed is None or group.keys is None:
        yield group
        return
    everything, anything = group.allowed.flatten(1).all(dim=1), group.allowed.flatten(1).any(dim=1)
    partly = anything & ~everything
    if bool(everything.any()):
        yield Group(group.queries[everything], group.keys[everything])
    if bool(partly.any()):
        yield Group(group.queries[partly], group.keys[partly], group.allowed[partly])


def _offset(call: Call) -> int:
    """The first query position less the first key position."""
    return int(call.query_positions[0, 0] - call.key_positions[0, 0])

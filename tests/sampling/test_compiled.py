"""Compiled loops against torch: the same bits, on one thread and several, in children and without Numba."""

import multiprocessing
import os
import subprocess
import sys

import pytest
import torch

import mlmc_dropout as md
from mlmc_dropout.sampling import compiled, masks
from testing.zoo import ZOO

pytest.importorskip("numba", reason="the extra [fast] is not installed")

RATES = [0.0, 1.0, 0.1, 0.25, 0.5, 0.77, 0.001, 0.003, 0.999, 0.9985, 1 / 256, 1 / 3]


@pytest.fixture
def drawn_by(monkeypatch):
    """A function that draws with torch ("0") or with the loops ("1")."""

    def draw(wish, function, *arguments):
        monkeypatch.setenv("MLMC_DROPOUT_NUMBA", wish)
        return function(*arguments)

    return draw


def _keys(count):
    return masks.pass_keys(7, 0, [0], range(count))


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("units", [1, 7, 64, 5000])
@pytest.mark.parametrize(("rows", "first_row"), [(1, 0), (5, 1000), (3, torch.tensor([9, 0, 4]))])
def test_compiled_keep_bits_are_those_of_torch(drawn_by, p, units, rows, first_row):
    asked = (masks.bernoulli, _keys(9), units, p, rows, first_row)
    assert torch.equal(drawn_by("1", *asked), drawn_by("0", *asked))


@pytest.mark.parametrize("p", RATES)
def test_compiled_keep_bits_of_several_sites_are_those_of_torch(drawn_by, p):
    sites = [(1, 30, 2, 0), (5, 8, 3, torch.tensor([5, 6, 1])), (2, 1, 1, 4)]
    asked = (masks.bernoulli_of_sites, _keys(40), p, sites)
    for ours, theirs in zip(drawn_by("1", *asked), drawn_by("0", *asked), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("passes", [1, 2, 3, 10, 50, 1500])
@pytest.mark.parametrize(("rows", "first_row"), [(1, 0), (4, 77), (3, torch.tensor([9, 0, 4]))])
def test_compiled_designs_are_those_of_torch(drawn_by, p, passes, rows, first_row):
    asked = (masks.latin_hypercube, _keys(5), passes, 7, p, rows, first_row)
    assert torch.equal(drawn_by("1", *asked), drawn_by("0", *asked))


@pytest.mark.parametrize("p", RATES)
def test_compiled_designs_of_several_sites_are_those_of_torch(drawn_by, p):
    sites = [(tag, 8, 3, torch.tensor([5, 6, 1])) for tag in (1, 5)]
    asked = (masks.designs_of_sites, _keys(40), 12, p, sites)
    for ours, theirs in zip(drawn_by("1", *asked), drawn_by("0", *asked), strict=True):
        assert torch.equal(ours, theirs)


def test_a_rate_whose_bytes_tie_often_is_decided_by_further_bits(drawn_by):
    """Negative control of the equality: without the further bits 0.3 % of the units would differ."""
    p = 77.5 / 256
    bits = drawn_by("1", masks.bernoulli, _keys(64), 4096, p)
    assert abs(bits.double().mean() - (1 - p)) < 5 * (p * (1 - p) / bits.numel()) ** 0.5
    bytes_alone = masks.random_bytes(_keys(64), 4096) >= 77
    assert 0 < (bytes_alone != bits.bool()).double().mean() < 0.004


@pytest.mark.parametrize(("keys", "rows", "units"), [(0, 2, 7), (3, 0, 7), (3, 2, 0), (0, 0, 0)])
@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("wish", ["0", "1"])
def test_nothing_is_drawn_for_no_passes_rows_or_units(drawn_by, wish, keys, rows, units, numbered):
    first_row = torch.arange(rows) if numbered else 4
    one, site = _keys(keys), (5, units, rows, first_row)
    for function, passes in ((masks.bernoulli, ()), (masks.latin_hypercube, (4,)), (masks.latin_hypercube, (50,))):
        drawn = drawn_by(wish, function, one, *passes, units, 0.1, rows, first_row)
        assert drawn.shape == (keys, *passes, rows, units)
    several = drawn_by(wish, masks.bernoulli_of_sites, one, 0.1, [site, site])
    assert [drawn.shape for drawn in several] == 2 * [(keys, rows, units)]
    several = drawn_by(wish, masks.designs_of_sites, one, 4, 0.1, [site, site])
    assert [drawn.shape for drawn in several] == 2 * [(4 * keys, rows, units)]


@pytest.mark.parametrize("function", [masks.bernoulli, masks.latin_hypercube])
def test_threads_may_outnumber_what_there_is_to_draw(drawn_by, monkeypatch, function):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 11)
    monkeypatch.setattr(compiled, "_SHARE", 1)
    asked = (function, _keys(2), *([6] if function is masks.latin_hypercube else []), 5, 0.3)
    assert torch.equal(drawn_by("1", *asked), drawn_by("0", *asked))


@pytest.mark.parametrize(("keys", "units"), [(64, 1 << 14), (1, 1 << 20)])
def test_threads_share_keys_or_words(drawn_by, monkeypatch, keys, units):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for asked in (
        (masks.bernoulli, _keys(keys), units, 0.1),
        (masks.latin_hypercube, _keys(keys), 2, units, 0.1),
    ):
        assert torch.equal(drawn_by("1", *asked), drawn_by("0", *asked))


def _kept():
    return int(masks.bernoulli(_keys(64), 1 << 14, 0.1).numpy().sum())  # torch's own threads do not survive a fork


def _draw_in_child(queue):
    queue.put(_kept())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_threads_of_its_own(drawn_by, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    expected = drawn_by("1", _kept)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_draw_in_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == expected
    finally:
        child.kill()
        child.join()


FORK_WHILE_LOADING = """
import os, signal, threading, time, warnings
import torch
from mlmc_dropout.sampling import compiled, masks

warnings.simplefilter("ignore")  # Python warns of forks beside threads
torch.set_num_threads(1)
keys = masks.pass_keys(7, 0, [0], range(9))
draw = lambda: int(masks.bernoulli(keys, 500, 0.1).sum())
thread = threading.Thread(target=draw)
thread.start()
while not compiled._LOCK.locked():
    time.sleep(0.001)
time.sleep({delay})
loading = compiled._LOCK.locked()
child = os.fork()
if not child:
    signal.alarm(60)
    grandchild = os.fork()
    if not grandchild:
        signal.alarm(60)
    if grandchild:
        os.waitpid(grandchild, 0)
    print(draw(), compiled._loaded() is None, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
thread.join()
print(draw(), compiled._loaded() is None, loading, status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_a_child_that_is_forked_while_a_thread_loads_draws_with_torch(delay, tmp_path):
    """Nothing is compiled yet, so that loading takes seconds: first Numba is imported, then it compiles."""
    environment = {**os.environ, "MLMC_DROPOUT_NUMBA": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", FORK_WHILE_LOADING.format(delay=delay)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    expected = masks.bernoulli(_keys(9), 500, 0.1).sum().item()
    assert run.stdout.splitlines() == 2 * [f"{expected} True"] + [f"{expected} False True 0"], run.stderr


def test_torch_draws_until_loading_pays(monkeypatch):
    monkeypatch.delenv("MLMC_DROPOUT_NUMBA", raising=False)
    monkeypatch.setattr(compiled, "_DRAWN", 0)
    assert compiled.loops(1, torch.device("cpu")) is None
    assert compiled.loops(1 << 40, torch.device("cpu")) is None
    assert compiled.loops(1, torch.device("cpu")) is not None
    assert compiled.loops(1, torch.device("meta")) is None


def test_all_draws_count_as_torch_draws_them(monkeypatch):
    monkeypatch.delenv("MLMC_DROPOUT_NUMBA", raising=False)
    keys, sites = _keys(5), [(tag, 24, 3, 0) for tag in (1, 2)]
    for draw in (
        lambda: [masks.bernoulli(keys, 24, 0.1, 3)],
        lambda: masks.bernoulli_of_sites(keys, 0.1, sites),
        lambda: [masks.latin_hypercube(keys, 4, 24, 0.1, 3)],
        lambda: masks.designs_of_sites(keys, 4, 0.1, sites),
    ):
        monkeypatch.setattr(compiled, "_DRAWN", 0)
        assert sum(drawn.numel() for drawn in draw()) == compiled._DRAWN


@pytest.mark.parametrize("method", ["pooled", "stratified"])
def test_small_models_turn_to_the_loops_too(monkeypatch, method):
    """Their sites are drawn together, a few thousand units at a time."""
    monkeypatch.delenv("MLMC_DROPOUT_NUMBA", raising=False)
    monkeypatch.setattr(compiled, "_DRAWN", 0)
    monkeypatch.setattr(compiled, "_WORTH", 10_000)
    loaded = []
    monkeypatch.setattr(compiled, "_loaded", lambda: loaded.append(1))
    model, x = ZOO["mlp"].make()
    for seed in range(20):
        md.estimate(model, x, method=method, budget=100, seed=seed)
    assert loaded


def test_without_numba_torch_draws():
    """The extra is optional: a process that cannot import Numba draws the same bits."""
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "from mlmc_dropout.sampling import masks\n"
        "print(masks.bernoulli(masks.pass_keys(7, 0, [0], range(9)), 500, 0.1).sum().item())"
    )
    alone = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "MLMC_DROPOUT_NUMBA": "1"}, capture_output=True, text=True
    )
    assert alone.returncode == 0, alone.stderr
    assert int(alone.stdout) == masks.bernoulli(_keys(9), 500, 0.1).sum().item()


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_damaged_machine_code_stops_nothing(kind, tmp_path):
    """Files that a full disk or a power failure left behind: torch draws the same bits."""
    program = (
        "from mlmc_dropout.sampling import compiled, masks\n"
        "print(masks.bernoulli(masks.pass_keys(7, 0, [0], range(9)), 500, 0.1).sum().item())\n"
        "print(masks.latin_hypercube(masks.pass_keys(7, 0, [0], range(9)), 10, 50, 0.1).sum().item())\n"
        "print(compiled._loaded() is None)"
    )
    environment = {**os.environ, "MLMC_DROPOUT_NUMBA": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    said = []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        said.append(run.stdout.split())
        damaged = list(tmp_path.rglob(f"*.{kind}"))
        assert len(damaged) == 2
        for path in damaged:
            path.write_bytes(b"")
    assert [each[-1] for each in said] == ["False", "True"]
    assert said[0][:-1] == said[1][:-1]


def test_nothing_is_compiled_after_loading(monkeypatch):
    """What is called later has the types of what was compiled."""
    monkeypatch.setenv("MLMC_DROPOUT_NUMBA", "1")
    loops = compiled.loops(1, torch.device("cpu"))
    masks.bernoulli(_keys(9), 500, 0.1, 3, torch.tensor([9, 0, 4]))
    masks.latin_hypercube(_keys(9), 10, 50, 0.9, 2, 5)
    assert [len(loop.signatures) for loop in (loops.keep_bits, loops.place_designs)] == [1, 1]

"""The worker processes: limits, order, and their end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lit_reason.errors import ConfigError
from lit_reason.verifier.pool import Pool, _Worker

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ENGINE = """
import os, sys, time

count = 0


def compare(gold, stated):
    global count
    count += 1
    if stated == "hang":
        while True:
            pass
    if stated == "one long step":
        9 ** 9 ** 9 ** 9
    if stated == "sleep":
        time.sleep(60)
    if stated == "exit":
        os._exit(7)
    if stated == "exit well":
        os._exit(0)
    if stated == "leave":
        sys.exit()
    if stated == "eat":
        bytearray(10 ** 12)
    if stated == "hoard":
        kept = []
        while True:
            kept.append("x" * 10 ** 6 + str(len(kept)))
    if stated == "recurse":
        return compare(gold, stated)
    if stated == "raise":
        raise KeyError(gold)
    if stated == "write":
        open(gold, "w")
    if stated == "system":
        os.system(f"touch {gold}")
    if stated == "torch?":
        return "torch" in sys.modules
    if stated == "count":
        return count <= int(gold)
    return gold == stated
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A module that the workers can import: it compares texts, and misbehaves on demand."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "odd_engine.py").write_text(ENGINE)
    sys.path.insert(0, str(folder))
    yield "odd_engine:compare"
    sys.path.remove(str(folder))


@pytest.fixture
def pool(engine):
    pool = Pool(workers=2, time_limit=0.5, memory_limit=64, engine=engine)
    yield pool
    pool.close()


def statuses(pool, *stated, gold="a"):
    return [str(s) for s in pool.run([(gold, s) for s in stated])]


def test_verdicts_come_in_order_whatever_happens_to_their_neighbours(pool):
    trouble = {
        "hang": "timeout",
        "one long step": "timeout",
        "sleep": "timeout",
        "exit": "error",
        "leave": "error",
        "eat": "error",
        "hoard": "error",
        "recurse": "error",
        "raise": "error",
    }
    stated = []
    for text in trouble:
        stated += ["a"] * 9 + [text] + ["b"] * 7
    started = time.perf_counter()
    verdicts = statuses(pool, *stated)
    assert time.perf_counter() - started < 8
    plain = {"a": "correct", "b": "wrong"}
    assert verdicts == [{**plain, **trouble}[text] for text in stated]
    assert statuses(pool, "a", "b") == ["correct", "wrong"]


def test_one_pathological_answer_delays_its_batch_by_its_limit(pool):
    batch = ["a", "b"] * 200
    statuses(pool, "a")  # the workers are there
    started = time.perf_counter()
    statuses(pool, *batch)
    alone = time.perf_counter() - started
    assert statuses(pool, *batch[:50], "hang", *batch[50:]).count("timeout") == 1
    assert time.perf_counter() - started - 2 * alone < 0.5 + 0.5


def test_simple_answers_cost_the_pool_little(pool):
    statuses(pool, "a")
    started = time.perf_counter()
    statuses(pool, *(["a", "b"] * 1000))
    assert 2000 / (time.perf_counter() - started) > 500


def test_long_pairs_and_odd_characters_arrive_as_they_are(pool):
    texts = ["\n", "\x00", "\ud800", "\u202e", '"\\', "é" * 4000, "\ud800" * 4000, "x" * 10**6]
    assert [str(s) for s in pool.run([(t, t) for t in texts * 9])] == ["correct"] * len(texts) * 9
    assert [str(s) for s in pool.run([(t, t + "x") for t in texts])] == ["wrong"] * len(texts)


def test_a_comparison_can_neither_write_nor_start_a_program(pool, tmp_path):
    """A39: not even if a library evaluated what it is given."""
    mark = str(tmp_path / "mark")
    assert statuses(pool, "write", "system", gold=mark) == ["error", "error"]
    assert not Path(mark).exists()


def test_workers_load_no_torch_and_do_not_run_the_script_again(pool):
    assert "torch" in sys.modules
    assert statuses(pool, "torch?") == ["wrong"]


def test_a_worker_gives_its_memory_back_after_its_share(engine):
    pool = Pool(workers=1, recycle_after=3, engine=engine)
    counted = [statuses(pool, "count", gold="3") for _ in range(7)]
    assert counted == [["correct"]] * 7
    pool.close()
    pool = Pool(workers=1, recycle_after=100, engine=engine)
    assert statuses(pool, *["count"] * 4, gold="3")[-1] == "wrong"
    pool.close()


def test_a_killed_worker_is_replaced(pool):
    statuses(pool, "a")
    for member in pool.members:
        os.killpg(member.process.pid, signal.SIGKILL)
    # each loses at most the answer that it was given
    verdicts = statuses(pool, *["a"] * 8)
    assert verdicts.count("correct") >= 6
    assert set(verdicts) <= {"correct", "error"}
    assert statuses(pool, "a") == ["correct"]


def test_an_engine_that_ends_its_worker_as_if_nothing_were_left_is_an_error(pool):
    assert statuses(pool, "a", "exit well", "a") == ["correct", "error", "correct"]


def test_a_worker_that_cannot_start_is_reported(engine, capfd):
    pool = Pool(engine="odd_engine:nothing")
    with pytest.raises(ConfigError, match=r"verifier\.workers=2: a worker ended with code 1"):
        pool.run([("a", "b")])
    assert "nothing" in capfd.readouterr().err
    assert pool.members == []


def test_an_interrupt_ends_the_workers_and_spares_the_next_batch(pool):
    statuses(pool, "a")
    deadline = time.monotonic() + 30
    while not all(member.ready for member in pool.members):  # one may start late
        assert time.monotonic() < deadline
        statuses(pool, "a", "a")
    processes = [member.process for member in pool.members]
    for process in processes:
        os.kill(process.pid, signal.SIGINT)  # as a terminal would
    assert statuses(pool, "a") == ["correct"]

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            statuses(pool, "hang")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert all(process.poll() is not None for process in processes)
    assert statuses(pool, "a", "b") == ["correct", "wrong"]


def test_an_interrupt_of_a_worker_that_is_starting_is_none(engine):
    """As a scheduler sends it, to every process of a job; here before Python runs."""
    pool = Pool(engine=engine)
    started = [pool.spawn() for _ in range(pool.size)]
    for process in started:
        os.kill(process.pid, signal.SIGINT)
    pool.members.extend(_Worker(process) for process in started)
    assert statuses(pool, "a", "b") == ["correct", "wrong"]
    assert [member.process for member in pool.members] == started
    pool.close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_forked_process_has_workers_of_its_own(pool):
    statuses(pool, "a")
    child = os.fork()
    if child == 0:
        good = statuses(pool, "a", "b") == ["correct", "wrong"]
        pool.close()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert statuses(pool, "a", "b") == ["correct", "wrong"]


def family(pid):
    """The process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def gone(pids, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_running(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@LINUX
def test_closing_or_forgetting_a_pool_leaves_no_process(engine):
    """F06."""
    for end in (Pool.close, lambda pool: pool._finalizer()):
        pool = Pool(workers=2, time_limit=0.3, engine=engine)
        statuses(pool, "a", "hang", "exit", "a")
        pids = [pid for member in pool.members for pid in family(member.process.pid)]
        assert len(pids) >= 3  # a worker that was replaced may still be starting
        end(pool)
        assert gone(pids, 5)


SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, {folder!r})
from lit_reason.verifier.pool import Pool, _Worker
print("started", flush=True)
pool = Pool(workers=2, time_limit=60, engine="odd_engine:compare")
pool.run([("a", "a")] * 4)
threading.Thread(target=lambda: pool.run([("a", "hang")]), daemon=True).start()
time.sleep(0.3)
print(*[member.process.pid for member in pool.members], flush=True)
if {forks}:
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
sys.stdin.readline()  # until the test has seen them
{end}
"""


def all_started(workers, count, limit=30):
    """The processes of the workers, once each has its own: one may start late."""
    deadline = time.monotonic() + limit
    while True:
        pids = [pid for worker in workers for pid in family(worker)]
        if len(pids) == count:
            return pids
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)


@LINUX
@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("end", ["time.sleep(60)", "sys.exit(3)", "os._exit(4)"])
def test_the_workers_end_with_their_parent(engine, tmp_path, end, forks):
    """Also busy ones, if the parent cannot say so, and if a child of it keeps their pipes open.

    The script has no main guard.
    """
    folder = sys.path[0]
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(folder=folder, end=end, forks=forks)))
    path = os.pathsep.join(x for x in sys.path if x)
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    with parent:
        assert parent.stdout.readline() == "started\n"
        pids = all_started([int(p) for p in parent.stdout.readline().split()], count=4)
        child = int(parent.stdout.readline()) if forks else None
        parent.stdin.write("\n")
        parent.stdin.flush()
        if "60" in end:
            parent.kill()
        assert parent.stdout.read() == ""
        parent.wait()
    try:
        assert gone(pids, 5)
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)


@LINUX
def test_closing_a_pool_while_a_worker_loads_is_silent(tmp_path, monkeypatch, capfd):
    (tmp_path / "late_engine.py").write_text(
        "import time\ntime.sleep(0.5)\ncompare = lambda gold, stated: True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    process = Pool(engine="late_engine:compare").spawn()
    process.stdin.close()
    process.stdout.close()
    assert process.wait(60) == 0
    assert "Traceback" not in capfd.readouterr().err

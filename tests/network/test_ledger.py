"""The ledger: what was said to be on the disk is read back, whatever happens; damage is refused, with its place."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedasmu.network import failpoint
from fedasmu.network.ledger import Ledger
from fedasmu.network.segment import MARK, Act, Damaged, Segment, packed

RUN = {"run": "r1", "wire": 1}


def numbered(count: int) -> list[Act]:
    return [Act("upload", {"task": n, "time": n / 7}, bytes([n % 256]) * (n * 37 % 500)) for n in range(count)]


def filled(directory: Path, acts: list[Act]) -> Ledger:
    ledger = Ledger(directory, RUN)
    for act in acts:
        ledger.append(act)
        ledger.sync()
    return ledger


def read(directory: Path, first: int = 0) -> list[Act]:
    ledger = Ledger(directory, RUN)
    found = [act for _, act in ledger.replay(first)]
    ledger.close()
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(
            Act,
            st.sampled_from(["start", "fetch", "upload", "lose"]),
            st.dictionaries(st.text(max_size=8), st.integers() | st.floats(allow_nan=False) | st.text(max_size=9)),
            st.binary(max_size=300),
        ),
        max_size=12,
    ),
    st.integers(0, 12),
)
def test_what_was_written_is_read_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, acts: list[Act], first: int
) -> None:
    directory = tmp_path_factory.mktemp("ledger")
    filled(directory, acts).close()
    assert read(directory, min(first, len(acts))) == acts[first:]


def test_it_goes_on_after_a_kill_with_space_allocated_ahead(tmp_path: Path) -> None:
    filled(tmp_path, numbered(5))  # never closed: the zeros of the space ahead are still there
    path = next(tmp_path.glob("*.log"))
    assert path.stat().st_size > 1 << 20
    again = Ledger(tmp_path, RUN)
    assert again.next == 5
    again.append(Act("flush", {}))
    again.close()
    assert read(tmp_path) == [*numbered(5), Act("flush", {})]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_an_act_that_was_not_wholly_written_is_cut_off(tmp_path: Path, cut: int) -> None:
    ledger = filled(tmp_path, numbered(4))
    end = ledger._end
    ledger.append(Act("upload", {"task": 9}, b"x" * 30))  # and the power fails before it is synced
    with next(tmp_path.glob("*.log")).open("r+b") as file:
        file.seek(end + cut)
        file.write(bytes(ledger._end - end - cut))
    assert read(tmp_path) == numbered(4)


def test_pages_that_reached_the_disk_out_of_order_are_a_torn_end_too(tmp_path: Path) -> None:
    """Two acts were written and none synced: the second one alone survives. Neither was ever acknowledged."""
    ledger = filled(tmp_path, numbered(3))
    end = ledger._end
    ledger.append(Act("upload", {"task": 3}, b"first"))
    ledger.append(Act("upload", {"task": 4}, b"second"))
    with next(tmp_path.glob("*.log")).open("r+b") as file:
        file.seek(end + 20)
        file.write(b"\xff\xff\xff")
    assert read(tmp_path) == numbered(3)


@pytest.mark.parametrize("place", [0, 5, 9, 13, 25, 40])
def test_damage_to_what_was_on_the_disk_is_refused_with_its_place(tmp_path: Path, place: int) -> None:
    filled(tmp_path, numbered(6)).close()
    path = next(tmp_path.glob("*.log"))
    start, _ = Segment(path).contents.acts[2]
    data = bytearray(path.read_bytes())
    data[start + place] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(Damaged, match=f"damaged at byte {start}"):
        Ledger(tmp_path, RUN)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_flipped_bit_never_gives_another_act(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("ledger")
    acts = numbered(6)
    filled(directory, acts).close()
    path = next(directory.glob("*.log"))
    content = bytearray(path.read_bytes())
    place = int(data.draw(st.floats(0, 1, exclude_max=True)) * len(content))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        found = read(directory)
    except Damaged:
        return
    assert found == acts[: len(found)]
    assert len(found) >= 5, "only the last act may pass for one that was never wholly written"


def test_a_device_cannot_put_an_act_into_its_upload(tmp_path: Path) -> None:
    """The bytes of a whole act, made without the segment's secret, stand in a body behind a torn place."""
    forged = b"".join(packed(Act("lose", {"task": 1}), durable=1 << 40, salt=0))
    assert MARK in forged
    ledger = filled(tmp_path, numbered(2))
    end = ledger._end
    ledger.append(Act("upload", {"task": 2}, forged))
    with next(tmp_path.glob("*.log")).open("r+b") as file:
        file.seek(end + 4)
        file.write(b"\xff")
    assert read(tmp_path) == numbered(2)


def test_rotating_and_pruning_keep_what_is_still_needed(tmp_path: Path) -> None:
    acts = numbered(9)
    ledger = filled(tmp_path, acts[:4])
    assert ledger.rotate() == 4
    for act in acts[4:7]:
        ledger.append(act)
    assert ledger.rotate() == 7
    for act in acts[7:]:
        ledger.append(act)
    ledger.prune(before=4)
    assert [int(path.stem) for path in sorted(tmp_path.glob("*.log"))] == [4, 7]
    assert [number for number, _ in ledger.replay(5)] == [5, 6, 7, 8]
    with pytest.raises(Damaged, match="are needed"):
        list(ledger.replay(3))
    ledger.close()
    assert read(tmp_path, 4) == acts[4:]


def test_a_segment_that_cannot_begin_leaves_the_one_before_it_in_use(tmp_path: Path) -> None:
    ledger = filled(tmp_path, numbered(3))
    obstacle = tmp_path / f"{3:012d}.log.part"
    obstacle.mkdir()
    with pytest.raises(OSError, match=obstacle.name):
        ledger.rotate()
    ledger.append(Act("flush", {}))
    ledger.close()
    assert read(tmp_path) == [*numbered(3), Act("flush", {})]


def test_what_was_found_is_counted_and_acts_of_one_kind_are_picked(tmp_path: Path) -> None:
    acts = [*numbered(3), Act("skip", {"act": 1}), *numbered(2), Act("skip", {"act": 4})]
    ledger = filled(tmp_path, acts)
    ledger.sync()
    again = Ledger(tmp_path, RUN)
    assert again.size == ledger.size > 0
    assert (again.skipped(0), again.skipped(4)) == ({1, 4}, {4})
    again.append(Act("flush", {}))
    assert [(number, act.kind) for number, act in again.replay(6)] == [(6, "skip"), (7, "flush")]


def test_a_missing_segment_and_a_torn_end_before_the_last_are_refused(tmp_path: Path) -> None:
    ledger = filled(tmp_path, numbered(4))
    ledger.rotate()
    ledger.append(Act("flush", {}))
    ledger.rotate()
    ledger.close()
    first, middle, _ = sorted(tmp_path.glob("*.log"))
    kept = middle.read_bytes()
    middle.unlink()
    with pytest.raises(Damaged, match="acts are missing"):
        read(tmp_path)
    middle.write_bytes(kept)
    first.write_bytes(first.read_bytes()[:-3])
    with pytest.raises(Damaged, match="acts are missing"):
        read(tmp_path)


def test_a_restart_reads_what_it_needs_and_not_all_that_was_kept(tmp_path: Path) -> None:
    ledger = filled(tmp_path, numbered(4))
    ledger.rotate()
    ledger.append(Act("flush", {}))
    ledger.close()
    old, _ = sorted(tmp_path.glob("*.log"))
    old.write_bytes(b"")  # whoever reads it would say so
    again = Ledger(tmp_path, RUN)
    assert [act.kind for _, act in again.replay(4)] == ["flush"]
    assert again.next == 5
    again.close()
    with pytest.raises(Damaged, match="damaged at its beginning"):
        read(tmp_path)


def test_another_runs_ledger_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, numbered(1)).close()
    with pytest.raises(Damaged, match="another run"):
        Ledger(tmp_path, {"run": "r2", "wire": 1})


def test_who_waits_for_the_disk_while_a_segment_begins_is_told(tmp_path: Path) -> None:
    """A checkpoint begins a segment whenever it is due, in the middle of uploads and of a sync."""

    async def busy() -> int:
        ledger, waiting = Ledger(tmp_path, RUN), []
        for number in range(200):
            ledger.append(Act("upload", {"task": number}, bytes(5000)))
            waiting.append(asyncio.create_task(ledger.durable()))
            await asyncio.sleep(0 if number % 2 else 0.001)
            ledger.rotate()
        async with asyncio.timeout(60):
            await asyncio.gather(*waiting)
        ledger.close()
        return len(waiting)

    assert asyncio.run(busy()) == 200
    assert len(read(tmp_path)) == 200


def test_many_replies_wait_for_one_sync(tmp_path: Path) -> None:
    async def busy() -> int:
        ledger = Ledger(tmp_path, RUN)
        syncs = 0
        bring = ledger._bring

        def counted() -> None:
            nonlocal syncs
            syncs += 1
            bring()

        ledger._bring = counted  # type: ignore[method-assign]

        async def one(number: int) -> None:
            ledger.append(Act("upload", {"task": number}, b"x" * 100))
            await ledger.durable()
            assert syncs

        await asyncio.gather(*(one(number) for number in range(200)))
        assert ledger._synced == ledger._end
        await ledger.durable()  # nothing to wait for
        ledger.close()
        return syncs

    assert asyncio.run(busy()) < 20
    assert len(read(tmp_path)) == 200


FULL = """
import resource, sys
from pathlib import Path
from fedasmu.network.ledger import DiskFull, Ledger
from fedasmu.network.segment import Act
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
ledger = Ledger(Path(sys.argv[1]), {"run": "r1", "wire": 1}, step=1 << 18, reserve=1 << 17)
uploads = small = 0
try:
    for _ in range(100):
        ledger.append(Act("upload", {}, bytes(50_000)))
        uploads += 1
except DiskFull:
    assert ledger.full
for _ in range(10):  # the reserve has room for acts without a body
    ledger.append(Act("lose", {"task": 1}))
    small += 1
try:
    ledger.append(Act("upload", {}, bytes(50_000)))
    raise SystemExit("no refusal")
except DiskFull:
    pass
assert ledger.full and not ledger.probe()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert ledger.probe()
ledger.append(Act("upload", {}, bytes(50_000)))  # there is room again
assert not ledger.full
ledger.close()
print(uploads, small)
"""


def test_a_full_disk_refuses_uploads_keeps_room_for_small_acts_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    uploads, small = map(int, done.stdout.split())
    assert uploads >= 15
    acts = read(tmp_path)
    assert [act.kind for act in acts] == ["upload"] * uploads + ["lose"] * small + ["upload"]


DIES = """
import sys
from pathlib import Path
from fedasmu.network.ledger import Ledger
from fedasmu.network.segment import Act
ledger = Ledger(Path(sys.argv[1]), {"run": "r1", "wire": 1})
for number in range(50):
    ledger.append(Act("upload", {"task": number}, b"y" * number))
    ledger.sync()
    print(number, flush=True)
    if number == 20:
        ledger.rotate()
        ledger.prune(21)
"""


@pytest.mark.parametrize("point", ["ledger.write:7", "ledger.written:7", "ledger.synced:7", "ledger.pruned:1"])
def test_at_every_failpoint_what_was_acknowledged_is_there_once(tmp_path: Path, point: str) -> None:
    environment = {**os.environ, "FEDASMU_FAIL": point}
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], capture_output=True, text=True, env=environment)
    assert done.returncode == failpoint.CODE, done.stderr
    told = [int(line) for line in done.stdout.split()]
    first = int(min(path.stem for path in tmp_path.glob("*.log")))
    found = [act.head["task"] for act in read(tmp_path, first)]
    assert found in (told[first:], [*told[first:], len(told)])


def test_a_failing_sync_ends_the_process_at_once(tmp_path: Path) -> None:
    """A pipe cannot be synced: a real error of the operating system, as a dying disk gives one."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom fedasmu.network.ledger import Ledger\n"
        "from fedasmu.network.segment import Act\n"
        "ledger = Ledger(Path(sys.argv[1]), {'run': 'r1'})\nledger.append(Act('flush', {}))\n"
        "os.dup2(os.pipe()[1], ledger._file)\nledger.sync()\nprint('still here')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "the disk failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_a_disk_that_fails_between_two_segments_ends_the_process_before_an_act_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next segment is there, so what followed in the one before would be missing from the count."""
    failures = list[OSError]()
    ledger, acts = Ledger(tmp_path, RUN, failed=failures.append), numbered(3)
    for act in acts:
        ledger.append(act)
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            ledger.rotate()
    assert len(failures) == 1
    assert read(tmp_path) == acts

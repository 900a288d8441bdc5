"""The live view without a terminal: counting, folding, selection of rows, and drawing."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.records import (
    Failure,
    RankFigures,
    RankStatus,
    RunStatus,
    SlowRank,
    State,
    Throughput,
    TrainingProgress,
)
from ipexctl.remote.outcome import Notice
from ipexctl.run.follow_run import RunEnded, RunUpdate
from ipexctl.run.ranks import parse_ranks
from ipexctl.ui.run.end_of_run import progress_text
from ipexctl.ui.run.frame import Frame, shown_rows
from ipexctl.ui.run.state import Controls, FoldedLog, RunState, decode_line
from message_data import missing


def status(ranks: int, state: State = "running", **odd: State) -> RunStatus:
    rows = tuple(
        RankStatus(
            rank, f"node{rank // 4 + 1}", odd.get(f"r{rank}", state), figures=RankFigures(cpu=790.0, rss=2 << 30)
        )
        for rank in range(ranks)
    )
    return RunStatus("k3vx", state, "examples/train.py", "default", (ranks + 3) // 4, ranks, 100.0, ranks=rows)


def drawn(
    screen: RunState, width: int = 80, height: int = 24, now: float = 100.0, encoding: str = "utf-8"
) -> list[list[Segment]]:
    screen.tick(now)
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, force_terminal=True, width=width, height=height, color_system="standard")
    return console.render_lines(Frame(screen).compose(width, height, now), console.options)


def plain(screen: RunState, width: int = 80, height: int = 24, now: float = 100.0) -> list[str]:
    return ["".join(segment.text for segment in line).rstrip() for line in drawn(screen, width, height, now)]


def stream(screen: RunState, now: float = 100.0) -> list[str]:
    lines = plain(screen, now=now)
    start = next(number for number, line in enumerate(lines) if line.endswith("──"))
    return [line for line in lines[start + 1 : -1] if line]


def test_equal_lines_of_many_ranks_are_folded() -> None:
    screen = RunState(status(17))
    for rank in range(16):
        screen.feed(Chunk(rank, "stdout", b"epoch 1\n"))
    screen.feed(Chunk(16, "stdout", b"epoch 2\n"))
    assert stream(screen) == ["[0-15] epoch 1", "[16] epoch 2"]


def test_loss_curve_after_attach_covers_the_whole_history() -> None:
    lines = [f"step {n} loss {4 - 3 * n / 100_000:.4f}\nsaved\nsaved again\n".encode() for n in range(100_000)]
    screen = RunState(status(2))
    for start in range(0, len(lines), 1000):
        for rank in (1, 0):
            screen.feed(Chunk(rank, "stdout", b"".join(lines[start : start + 1000])))
        if start % 10_000 == 0:
            screen.tick(start / 1000)
    screen.tick(101)
    points = screen.figures.curve.points
    quarter = [points[index * (len(points) - 1) // 4] for index in range(5)]
    assert all(abs(value - (4 - 3 * index / 4)) < 0.25 for index, value in enumerate(quarter)), quarter
    assert screen.figures.loss == pytest.approx(1.0, abs=0.001)


def test_torchs_warning_about_nameless_addresses_is_one_line_for_all_ranks() -> None:
    warning = b"[W1124 05:56:%d socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
    screen = RunState(status(3))
    for rank, now in ((0, 100.0), (1, 103.0), (0, 106.0)):
        screen.feed(Chunk(rank, "stderr", warning % rank))
        screen.tick(now)
    screen.feed(Chunk(2, "stderr", b"[W1124 socket.cpp:464] [c10d] The server socket cannot be bound\n"))
    lines = " ".join(stream(screen, 107.0))
    assert lines.count("no names (err=-3)") == 1
    assert "[0-1 err] torch:" in lines
    assert "cannot be retrieved" not in lines
    assert "cannot be bound" in lines
    assert screen.lines == 4


def test_equal_lines_are_folded_only_within_the_time_window() -> None:
    screen = RunState(status(3))
    for rank, now in ((0, 100.0), (1, 100.1), (2, 100.4)):
        screen.feed(Chunk(rank, "stdout", b"epoch 1\n"))
        screen.tick(now)
    assert stream(screen, 100.5) == ["[0-1] epoch 1", "[2] epoch 1"]


def test_equal_warnings_of_ranks_are_one_entry_though_ranks_are_not_equally_fast() -> None:
    warning = b"[rank%d]:[W1125 05:56:%02d.%d00000 reducer.cpp:1457] Warning: find_unused_parameters=True\n"
    screen = RunState(status(3))
    for rank, now in ((0, 100.0), (1, 101.3), (2, 104.0)):
        screen.feed(Chunk(rank, "stderr", warning % (rank, now - 60, rank)))
        screen.feed(Chunk(rank, "stderr", b"of rank %d\n" % rank))
        screen.tick(now)
    shown = " ".join(stream(screen, 104.1))
    assert shown.count("find_unused_parameters") == 1
    assert "[0-2 err] [rank0]:[W1125" in shown
    screen.feed(Chunk(1, "stderr", warning % (1, 46, 9)))
    assert " ".join(stream(screen, 106.0)).count("find_unused_parameters") == 2, "one rank has it twice"


def test_stderr_lines_are_marked_and_not_folded_with_stdout() -> None:
    screen = RunState(status(2))
    screen.feed(Chunk(0, "stdout", b"same\n"))
    screen.feed(Chunk(1, "stderr", b"same\n"))
    assert stream(screen) == ["[0] same", "[1 err] same"]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.floats(0, 0.2)), max_size=40))
def test_folding_keeps_the_order_and_all_lines_of_each_rank(lines: list[tuple[int, str, float]]) -> None:
    folded, now = FoldedLog(), 0.0
    for rank, text, pause in lines:
        now += pause
        folded.close_window(now)
        folded.add(rank, "stdout", text, now)
    for rank in range(4):
        shown = [entry.text for entry in folded.entries if rank in entry.ranks]
        assert shown == [text for who, text, _ in lines if who == rank]


def test_progress_bar_is_shown_in_the_row_of_its_rank_only() -> None:
    screen = RunState(status(2))
    for done in range(0, 60, 10):
        screen.feed(Chunk(1, "stderr", b"\r %d%%|##|" % done))
    row = next(line for line in plain(screen) if line.startswith("   1 "))
    assert row.endswith(" 50%|##|")
    assert stream(screen) == []


def test_incomplete_line_is_shown_only_after_a_delay() -> None:
    screen = RunState(status(1))
    screen.feed(Chunk(0, "stdout", b"loaded\nstep"))
    screen.tick(100.0)
    assert screen.rows[0].last == "loaded"
    screen.feed(Chunk(0, "stdout", b" 7\nreading the data ..."))
    screen.tick(100.1)
    assert screen.rows[0].last == "step 7"
    screen.tick(100.5)
    assert screen.rows[0].last == "reading the data ..."


def test_stopping_view_shows_ctrl_c() -> None:
    screen = RunState(status(2))
    screen.controls.stopping = True
    lines = plain(screen)
    assert "stopping" in lines[1]
    assert missing(lines[-1], "Ctrl-C") == []


def test_backlog_of_unseen_lines_is_shown_until_it_is_gone() -> None:
    rank = RankStatus(0, "a", "running", figures=RankFigures(out_lines=50_000))
    gathered = RunStatus("r", "running", world_size=1, ranks=(rank,))
    screen = RunState(gathered)
    screen.feed(Chunk(0, "stdout", b"line\n" * 1000))
    screen.feed(gathered)
    assert "49,000" in "\n".join(plain(screen))
    screen.feed(Chunk(0, "stdout", b"line\n" * 49_000))
    screen.feed(gathered)
    assert "behind" not in "\n".join(plain(screen))


def test_silent_node0_is_shown_in_the_header() -> None:
    screen = RunState(status(2))
    screen.feed(Chunk(0, "stdout", b"hello\n"))
    assert "no answer" not in plain(screen, now=100.0)[1]
    screen.feed(Notice("trying to reach it again"))
    assert "no answer" not in plain(screen, now=109.0)[1]  # a rank reports every four seconds
    assert "no answer from node0 for 15 s" in plain(screen, now=115.0)[1]
    screen.feed(status(2))
    assert "no answer" not in plain(screen, now=116.0)[1]


def test_output_flood_is_counted_completely_and_shown_in_part() -> None:
    screen = RunState(status(4))
    now = 100.0
    for _ in range(20):
        for rank in range(4):
            screen.feed(Chunk(rank, "stdout", b"x\n" * 5000))
        now += 0.1
        screen.tick(now)
    assert screen.lines == 400_000
    assert screen.left_out == 400_000 - 20 * 500
    assert "390,000" in "\n".join(plain(screen, now=now))


def test_line_rate_is_measured_and_decays_to_zero() -> None:
    screen = RunState(status(1))
    for tenth in range(40):
        screen.feed(Chunk(0, "stdout", b"x\n" * 10))
        screen.tick(100 + tenth / 10)
    assert 80 < screen.rate < 120
    for tenth in range(40, 140):
        screen.tick(100 + tenth / 10)
    assert screen.rate < 1


def test_rows_show_failed_then_active_ranks_and_ranks_of_every_host_if_limited() -> None:
    screen = RunState(status(64, r40="failed", r50="lost"))
    screen.feed(Chunk(63, "stdout", b"busy\n" * 100))
    screen.tick(100.0)
    screen.tick(101.0)
    rows = shown_rows(list(screen.rows.values()), 5)
    assert [row.status.rank for row in rows] == [40, 50, 0, 4, 63]
    text = "\n".join(plain(screen, now=101.0))
    assert "and 57 more: 57 running, 0 lines/s" in text
    assert "62 running, 1 lost, 1 failed" in text


def test_failed_rank_shows_its_exit_code_or_signal() -> None:
    ranks = (RankStatus(0, "a", "failed", exit_code=3), RankStatus(1, "b", "failed", signal=9))
    text = "\n".join(plain(RunState(RunStatus("r", "failed", world_size=2, ranks=ranks))))
    assert "exit 3" in text
    assert "SIGKILL" in text


def test_rank_filter_applies_to_rows_and_lines() -> None:
    screen = RunState(status(4), Controls(parse_ranks("2")))
    for rank in range(4):
        screen.feed(Chunk(rank, "stdout", b"all\nrank %d\n" % rank))
    screen.feed(Notice("a message"))
    text = plain(screen)
    assert [line[:4].strip() for line in text if line.startswith("   ")] == ["2"]
    assert stream(screen) == ["[0-3] all", "[2] rank 2", "ipexctl: a message"]


def test_paused_output_stays_while_new_lines_are_counted() -> None:
    screen = RunState(status(1))
    screen.feed(Chunk(0, "stdout", b"one\n"))
    screen.tick(100.0)
    screen.controls.press(" ")
    assert stream(screen) == ["[0] one"]
    screen.feed(Chunk(0, "stdout", b"two\nthree\n"))
    assert stream(screen) == ["[0] one"]
    assert "held, 2 lines came since" in "\n".join(plain(screen))
    screen.controls.press(" ")
    assert stream(screen) == ["[0] one", "[0] two", "[0] three"]


def test_scrolling_shows_earlier_lines() -> None:
    screen = RunState(status(1))
    screen.feed(Chunk(0, "stdout", b"".join(b"line %d\n" % number for number in range(200))))
    screen.tick(100.0)
    screen.controls.press("page-up")
    assert stream(screen)[-1] == "[0] line 189"
    screen.controls.press("down")
    assert stream(screen)[-1] == "[0] line 190"


def test_header_shows_the_loss_curve_and_the_step() -> None:
    screen = RunState(status(2))
    for step in range(10):
        screen.feed(Chunk(0, "stdout", b"step %d/100 loss=%f\n" % (step, 2 - step / 10)))
    line = plain(screen)[2]
    assert all(part in line for part in ("loss 1.1", "█", "▁", "step 9/100", "━", "9%"))
    line = plain(screen, 60)[3]
    assert "step 9/100" in line
    assert "▁" not in line


def test_header_shows_measured_throughput_in_place_of_the_scripts_own_speed() -> None:
    measured = status(2)._replace(throughput=Throughput(3.25, 410.0, 0.1, "dataloader"))
    assert missing(plain(RunState(measured))[2], "3.25 steps/s 410 samples/s 10 %") == []
    screen = RunState(measured)
    screen.feed(Chunk(0, "stdout", b"step 9/100 77.5 it/s\n"))
    text = "\n".join(plain(screen, 160))
    assert "410 samples/s" in text
    assert "77.5 it/s" not in text.splitlines()[2]


def test_a_number_that_does_not_move_is_shown_with_its_age_and_without_a_speed() -> None:
    moving = status(2)._replace(
        throughput=Throughput(91.0), elapsed=60.0, progress=TrainingProgress(40, 100, 0.5, 60, age=1.0, usual=0.01)
    )
    assert missing("\n".join(plain(RunState(moving), 120)), "step 40/100 0:00 left 91 steps/s") == []
    assert moving.progress is not None
    still = moving._replace(progress=moving.progress._replace(left=None, age=61.0))
    screen = RunState(still)
    text = "\n".join(plain(screen, 120))
    assert "step 40/100, not moved for 61 s" in text
    assert "left" not in text
    assert "steps/s" not in text
    assert "not moved for 65 s" in "\n".join(plain(screen, 120, now=104.0)), "the status is four seconds old"
    assert progress_text(still) == "step 40 of 100, loss 0.5, not moved for 61 s"
    ended = still._replace(state="ok", progress=moving.progress._replace(age=None, left=0))
    assert progress_text(ended) == "step 40 of 100, loss 0.5"
    in_epoch = ended._replace(progress=TrainingProgress(40, 100, 0.5, epoch=2.0, epochs=5.0))
    assert progress_text(in_epoch) == "epoch 2 of 5, step 40 of 100, loss 0.5"


def test_a_host_that_is_not_heard_of_is_named_at_once() -> None:
    cut = status(8)
    rows = tuple(row._replace(figures=row.figures._replace(unheard=12.0)) if row.rank > 3 else row for row in cut.ranks)
    cut = cut._replace(ranks=rows, elapsed=60.0, throughput=Throughput(9.0), progress=TrainingProgress(4, 9, left=5))
    screen = RunState(cut)
    lines = plain(screen, 120)
    assert missing(lines[1], "running node2 not heard of for 12 s") == []
    assert "steps/s" not in "\n".join(lines)
    assert [line.split()[2] for line in lines if line.startswith("   4 ")] == ["unheard"]
    assert progress_text(cut).endswith("node2 not heard of for 12 s")


def test_a_silent_node0_leaves_no_speed() -> None:
    screen = RunState(status(2)._replace(throughput=Throughput(91.0), progress=TrainingProgress(40, 100, left=60)))
    assert "91 steps/s" in "\n".join(plain(screen, now=100.0))
    assert "0:00 left" in "\n".join(plain(screen, now=108.0))
    assert "left" not in "\n".join(plain(screen, now=110.0))


def test_a_long_line_is_titled_by_its_begin_and_a_run_by_its_tag() -> None:
    line = "examples/very/deep/train.py --lr 3e-4 " + "--option-of-a-long-name value " * 5
    screen = RunState(status(2)._replace(script=line), tag="lr 3e-4")
    lines = plain(screen)
    assert lines[0].startswith("╭─ train.py --lr 3e-4 --option-of-a-long-name value")
    assert "run lr 3e-4: 1 node, 2 ranks" in "\n".join(lines)


def test_header_has_a_line_for_the_rank_that_is_slow_now() -> None:
    slow = status(2)._replace(slow=SlowRank(1, "node2", 48.0))
    assert missing(plain(RunState(slow))[2], f"rank 1 on node2 is slow, by 48 % of a step: ipexctl why {slow.id}") == []
    assert "is slow" not in "\n".join(plain(RunState(status(2))))


@pytest.mark.parametrize("width", [76, 80, 100])
@pytest.mark.parametrize("height", [12, 24])
def test_throughput_leaves_the_loss_its_curve_and_the_step_their_room(width: int, height: int) -> None:
    screen = RunState(status(2)._replace(throughput=Throughput(35.5, 6764.0, 0.03, "dataloader")))
    for step in range(10):
        screen.feed(Chunk(0, "stdout", b"epoch 1/3 step %d/100 loss %f\n" % (step, 2 - step / 10)))
    lines = plain(screen, width, height)[:4]
    (line,) = (line for line in lines if "loss" in line)
    assert all(part in line for part in ("loss 1.1", "█", "▁", "epoch 1/3", "step 9/100", "━", "9%"))
    has_line_of_its_own = "35.5 steps/s, 6764 samples/s by DataLoader, 3 % waiting for data" in lines[3]
    assert has_line_of_its_own == (height == 24)
    if height == 12:
        assert "6764 samples/s" in line
        assert "…" not in line


def test_control_sequences_of_ranks_are_removed() -> None:
    screen = RunState(status(1))
    screen.feed(Chunk(0, "stdout", b"\x1b[2J\x1b]0;title\x07a\x07\tb \xff \x1b[31mred\x1b[0m\x1b[A\n"))
    (line,) = stream(screen)
    assert line == "[0] a\ufffd      b \ufffd red"
    assert decode_line(b"\x1b[31mred\x1b[0m") == "\x1b[31mred\x1b[0m"


def test_colors_of_ranks_are_kept_and_the_prefix_color_ends_with_it() -> None:
    screen = RunState(status(1))
    screen.feed(Chunk(0, "stdout", b"a \x1b[31mred\x1b[0m word\n"))
    (line,) = (line for line in drawn(screen) if line[0].text.startswith("[0]"))
    styles = {segment.text.strip(): str(segment.style or "none") for segment in line}
    assert (styles["[0]"], styles["red"], styles["a"], styles["word"]) == ("cyan", "color(1)", "none", "none")


def test_elapsed_time_is_never_negative_if_the_clock_of_node0_is_ahead() -> None:
    screen = RunState(status(1))
    screen.tick(50.0)
    assert screen.elapsed(53.0) == 3.0
    assert RunState(status(1)).elapsed(160.0) == 60.0


def test_last_lines_are_those_of_the_first_failed_rank() -> None:
    screen = RunState(status(2))
    screen.feed(Chunk(0, "stdout", b"fine\n"))
    screen.feed(Chunk(1, "stderr", b"Traceback\nValueError: no\n"))
    failed = RunStatus("r", "failed", world_size=2, first_failure=Failure(1, "b", 1))
    screen.feed(RunEnded(1, failed))
    screen.tick(100.0)
    assert screen.last_lines(9) == ["[1] Traceback", "[1] ValueError: no"]
    assert screen.last_lines(1) == ["[1] ValueError: no"]


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@pytest.mark.parametrize("ranks", [2, 16, 64])
def test_frame_fits_the_screen_and_leaves_space_for_lines(ranks: int, size: tuple[int, int]) -> None:
    screen = RunState(status(ranks))
    for number in range(100):
        screen.feed(Chunk(0, "stdout", b"line %d loss 0.5\n" % number))
    lines = plain(screen, *size)
    assert len(lines) == size[1]
    assert sum(line.startswith("[0] line") for line in lines) >= 8
    assert lines[-2] == "[0] line 99 loss 0.5"
    assert "s  stop" in lines[-1]


EVENTS: st.SearchStrategy[list[RunUpdate]] = st.lists(
    st.one_of(
        st.builds(
            Chunk,
            st.integers(0, 70),
            st.sampled_from(["stdout", "stderr"]),
            st.one_of(st.binary(max_size=40), st.text(max_size=60).map(lambda text: f"{text}\n".encode())),
        ),
        st.builds(Notice, st.text(max_size=200)),
        st.builds(status, st.integers(0, 70), st.sampled_from(["starting", "running", "failed", "lost"])),
    ),
    max_size=12,
)
KEYS = st.lists(st.sampled_from(["/", "1", "x", "enter", "escape", " ", "?", "s", "n", "page-up", "down"]), max_size=5)


@settings(deadline=None)
@given(EVENTS, KEYS, st.integers(1, 200), st.integers(1, 60), st.booleans())
def test_frame_has_the_size_of_the_screen_after_any_events_and_keys(
    events: list[RunUpdate], keys: list[str], width: int, height: int, unicode: bool
) -> None:
    screen = RunState(status(2))
    for event in events:
        screen.feed(event)
    for key in keys:
        screen.controls.press(key)
    lines = drawn(screen, width, height, 101.0, "utf-8" if unicode else "ascii")
    assert len(lines) == height
    for line in lines:
        text = "".join(segment.text for segment in line)
        assert cell_len(text) == width
        assert text.isprintable()


def test_names_of_a_run_are_made_safe() -> None:
    ranks = (RankStatus(0, "n\x9b1", "running"),)
    hostile = RunStatus("r\x1b]", "running", "\u202etrain.py", ranks=ranks, slow=SlowRank(0, "n\r1", 9.0), attempt=1)
    for height in (12, 40):
        lines = plain(RunState(hostile), height=height)
        assert all(map(str.isprintable, lines))
        assert "train.py" in "".join(lines)


@pytest.mark.parametrize(
    ("rss", "shown"), [(0, "0 kB"), (900, "0 kB"), (12_300_000_000, "12.3 GB"), (2 << 30, "2.1 GB")]
)
def test_memory_of_a_rank_is_apart_from_its_last_line(rss: int, shown: str) -> None:
    rank = RankStatus(0, "node1", "running", figures=RankFigures(cpu=790.0, rss=rss))
    screen = RunState(status(1)._replace(ranks=(rank,)))
    screen.feed(Chunk(0, "stdout", b"step 190\n"))
    assert any(f"{shown} step 190" in line for line in plain(screen))

"""When devices start and when the server aggregates."""

from __future__ import annotations

from fedasmu.schedule import Periodic, Rounds
from fedasmu.settings.config import Pacing


def test_a_round_starts_its_whole_cohort_at_once_and_only_when_the_last_is_over() -> None:
    rounds = Rounds(cohort=4)
    assert rounds.vacancies(busy=0, waiting=0) == 4
    assert [rounds.vacancies(busy, waiting) for busy, waiting in ((1, 0), (0, 1), (3, 1))] == [0, 0, 0]


def test_a_round_is_ready_when_nobody_is_left_in_it() -> None:
    rounds = Rounds(cohort=4)
    assert [rounds.ready(waiting, busy) for waiting, busy in ((0, 0), (3, 1), (3, 0), (4, 0))] == [
        False,
        False,
        True,
        True,
    ]


def test_a_timer_starts_up_to_count_while_there_is_room() -> None:
    timer = Periodic(count=3, limit=10)
    assert [timer.vacancies(busy, 0) for busy in (0, 7, 8, 9, 10)] == [3, 3, 2, 1, 0]


def test_a_timer_that_found_its_limit_exceeded_starts_nobody() -> None:
    assert Periodic(count=3, limit=10).vacancies(12, 0) == 0


def test_a_buffer_aggregates_when_it_is_full() -> None:
    assert [Periodic(1, 10, buffer=3).ready(waiting, 5) for waiting in (1, 2, 3)] == [False, False, True]
    assert Periodic(1, 10).ready(1, 9)


def test_only_the_timer_is_timed() -> None:
    assert Periodic(1, 1).timed
    assert not Rounds(1).timed


def test_both_readings_of_the_paper_are_presets() -> None:
    assert (Pacing().period, Pacing().count, Pacing().max_in_flight) == (5.0, 1, 0.1)
    table = Pacing(preset="table")
    assert (table.period, table.count) == (10.0, 10)
    assert Pacing.model_validate({"preset": "table", "count": 3}).count == 3


def test_the_limit_is_a_share_of_the_fleet_or_a_number() -> None:
    assert Pacing(max_in_flight=0.1).pace(100).limit == 10
    assert Pacing(max_in_flight=10).pace(100).limit == 10
    assert Pacing(max_in_flight=1.0).pace(7).limit == 7
    assert Pacing(max_in_flight=0.001).pace(100).limit == 1  # never nobody
    assert Pacing(max_in_flight=500).pace(100).limit == 100  # never more than there are

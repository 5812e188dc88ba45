"""When devices were there: windows that begin and end with signs of life."""

from __future__ import annotations

from fedasmu.network.presence import Presence


def test_a_device_that_is_silent_for_long_was_away() -> None:
    presence = Presence(silence=60.0)
    for device, now in ((1, 5.0), (2, 6.0), (1, 50.0), (1, 110.0), (1, 171.0), (1, 180.0)):
        presence.sign(device, now)
    assert sorted(presence.windows(190.0)) == [(1, 5.0, 110.0), (1, 171.0, 190.0), (2, 6.0, 6.0)]
    assert len(presence) == 3
    assert presence.alive(180.0, 60.0) == 1
    assert presence.alive(180.0, 200.0) == 2


def test_another_process_goes_on_with_the_windows() -> None:
    before, after = Presence(60.0), Presence(60.0)
    for now in (0.0, 50.0, 200.0):
        before.sign(3, now)
    after.restore(before.windows(200.0))
    after.sign(3, 240.0)  # a stopped server ages nothing: that was no absence
    assert after.windows(240.0) == [(3, 0.0, 50.0), (3, 200.0, 240.0)]

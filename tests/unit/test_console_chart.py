"""The curves of the console."""

from __future__ import annotations

import re

from pgqpy.ui._chart import HEIGHT, WIDTH, sparkline


def test_an_hour_is_drawn_with_few_points_and_its_peaks() -> None:
    rates = [(float(second), 0.0) for second in range(3601)]
    rates[1800] = (1800.0, 70.0)
    drawn = sparkline(rates, 3600, "<rate>")
    found = re.search('<polyline points="(.*)"', drawn)
    assert found is not None
    bottom = HEIGHT - 1
    assert found[1] == f"0,{bottom} 59,{bottom} 60,1 61,{bottom} {WIDTH},{bottom}"
    assert "<title>&lt;rate&gt;</title>" in drawn


def test_one_point_is_no_curve() -> None:
    assert sparkline([(1.0, 1.0)], 3600, "rate") == ""

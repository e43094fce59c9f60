"""Tables of text, and number formats."""

import torch

from toytrans.inspection.table import matrix, number


def test_numbers_are_short_and_zero_means_zero():
    shown = [number(x) for x in (0.0, -0.0, 0.001, -0.001, 1.5, -3.4028e38, -1e9, -65504)]
    assert shown == ["0", "0", "0.00", "0.00", "1.50", "-3.4e38", "-1e9", "-65504.00"]
    assert [number(x) for x in (float("-inf"), float("nan"))] == ["-inf", "nan"]


def test_wide_tensors_are_cut_with_a_notice() -> None:
    values = torch.arange(600.0).view(20, 30)
    rows = [f"r{i}" for i in range(20)]
    table = matrix("1", "x", values, rows, summaries={"sum": values.sum(-1)}, first=24)
    assert table.shape == "(20, 30), 8 more rows, 24 more columns"
    assert table.columns == ["d25", "d26", "d27", "d28", "d29", "d30", "|      sum"]
    assert table.rows[1] == ("r1", [*(f"{x}.00" for x in range(54, 60)), "|  1335.00"])
    whole = matrix("1", "x", values[:2, :3], ["a", "b"], ["k1", "k2", "k3"])
    assert whole.shape == "(2, 3)" and whole.columns == ["k1", "k2", "k3"]

"""The records of a training, which a notebook shows as a curve."""

from typing import TYPE_CHECKING, Any

from toytrans.errors import UserError
from toytrans.figures import drawn
from toytrans.html import html_table
from toytrans.training.run import NOT_MEASURED, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("step", "loss", "lr", "grad_norm", "valid_exact_match", "valid_loss")
MOST_ROWS = 12


def _shown(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.4g}"


class Records(list[Record]):
    """Records in order: plain dicts."""

    def column(self, key: str) -> tuple[list[int], list[Any]]:
        """Steps and values of the records that have a key."""
        having = [record for record in self if record.get(key) is not None]
        return [record["step"] for record in having], [record[key] for record in having]

    def __repr__(self) -> str:
        if not self:
            return "no records"
        shown = ", ".join(
            f"{key} {values[-1]:.4g}" for key in COLUMNS if (values := self.column(key)[1])
        )
        return f"{len(self)} records, the last values: {shown}"

    def _repr_html_(self) -> str:
        try:
            return self._curve() if self else self._table()
        except UserError:  # matplotlib is an extra
            return self._table()

    def _table(self) -> str:
        """Some records, evenly spread, with the last."""
        stride = -(-len(self) // MOST_ROWS) or 1
        rows = [
            (str(record["step"]), [_shown(record[k]) if k in record else "" for k in COLUMNS[1:]])
            for record in self[::-1][::stride][::-1]
        ]
        return html_table(f"{len(self)} records", COLUMNS[1:], rows)

    def _curve(self) -> str:
        """Loss and exact match over steps, as SVG."""

        def draw(figure: "Figure") -> None:
            left, right = figure.subplots(1, 2)
            for key, label in (("loss", "training"), ("valid_loss", "validation")):
                left.plot(*self.column(key), label=label, marker="." if "valid" in key else "")
            left.set(xlabel="step", ylabel="loss, nats per token")
            if any(loss > 0 for line in left.lines for loss in line.get_ydata()):
                left.set_yscale("log")
            left.legend()
            right.plot(*self.column("valid_exact_match"), marker=".")
            right.set(xlabel="step", ylabel="exact match, validation", ylim=(-0.05, 1.05))

        picture = drawn((7, 2.6), draw).decode()
        return picture[picture.index("<svg") :]

"""Read the results of the pipeline, from the topic with the Kafka client and from the lake with pyarrow, and show them as a table and as bars."""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from penstock.cli.output import print_table
from penstock.client import At, Cluster, Consumer, list_offsets, watermarks

_BAR_WIDTH: Final = 40


@dataclass(frozen=True, slots=True)
class Sale:
    """One row of the result: a product in a window."""

    window: str
    product: str
    orders: int
    revenue: float


def from_topic(bootstrap: str, topic: str) -> list[Sale]:
    """Everything that the pipeline has written to the topic so far."""
    sales: list[Sale] = []
    with Cluster(bootstrap) as cluster:
        places = [(topic, partition.index) for partition in cluster.topic(topic).partitions]
        ends = watermarks(cluster, places)
        consumer = Consumer(cluster)
        starts = list_offsets(cluster, dict.fromkeys(places, At.EARLIEST))
        consumer.assign({place: found.offset for place, found in starts.items()})
        while any(consumer.positions[place] < ends[place][1] for place in places):
            for record in consumer.poll():
                row = json.loads(record.value or b"{}")
                window = datetime.fromisoformat(row["window_start"]).strftime("%H:%M:%S")
                sales.append(Sale(window, row["product"], row["orders"], row["revenue"]))
    return sorted(sales, key=lambda sale: (sale.window, sale.product))


def orders_in_lake(folder: Path) -> int | None:
    """How many orders the Parquet files count; None while one of them is being written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return sum(sum(pq.read_table(file)["orders"].to_pylist()) for file in folder.glob("*.parquet"))
    except (pa.ArrowInvalid, OSError):
        return None


def show_products(sales: list[Sale]) -> None:
    """A table by product, the best seller first."""
    orders: dict[str, int] = defaultdict(int)
    revenue: dict[str, float] = defaultdict(float)
    for sale in sales:
        orders[sale.product] += sale.orders
        revenue[sale.product] += sale.revenue
    names = sorted(orders, key=lambda name: -revenue[name])
    print_table(
        [{"product": name, "orders": orders[name], "revenue": round(revenue[name], 2)} for name in names],
        ["product", "orders", "revenue"],
    )


def show_windows(sales: list[Sale]) -> None:
    """Revenue by window, as bars."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    revenue: dict[str, float] = defaultdict(float)
    for sale in sales:
        revenue[sale.window] += sale.revenue
    most = max(revenue.values(), default=1.0) or 1.0
    block = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(justify="left", no_wrap=True)
    for window, amount in sorted(revenue.items()):
        bar = block * max(1, round(amount / most * _BAR_WIDTH))
        table.add_row(window, f"{amount:,.2f}", Text(bar, style="green"))
    Console(file=sys.stdout, highlight=False, width=80).print(table)

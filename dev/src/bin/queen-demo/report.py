"""Reads the demo's lake with DuckDB: partition, then queue, glob and expected count of each queue."""

import sys

import duckdb

COLUMNS = (
    "{partition: 'VARCHAR', \"offset\": 'BIGINT', transactionId: 'VARCHAR',"
    " ts: 'TIMESTAMPTZ', payload: 'JSON'}"
)


def source(glob):
    return f"read_json('{glob}', format = 'newline_delimited', columns = {COLUMNS})"


partition, *rest = sys.argv[1:]
queues = [rest[i : i + 3] for i in range(0, len(rest), 3)]
lake = duckdb.connect()
lake.execute("SET TimeZone = 'UTC'")

print(f"{'queue':<10}{'records':>10}{'partitions':>12}")
differs = False
for queue, glob, expected in queues:
    records, partitions = lake.execute(
        f"SELECT count(*), count(DISTINCT partition) FROM {source(glob)}"
    ).fetchone()
    print(f"{queue:<10}{records:>10,}{partitions:>12,}")
    if records != int(expected):
        print(f"{queue}: {int(expected):,} were pushed")
        differs = True

queue, glob, _ = queues[0]
print(f"\n{queue} of {partition}, in order:")
history = lake.execute(
    f"""
    SELECT "offset", strftime(ts, '%H:%M:%S.%f'), payload->>'$.order', payload->>'$.status',
           (payload->>'$.total.cents')::INT / 100
    FROM {source(glob)} WHERE partition = ? ORDER BY "offset"
    """,
    [partition],
).fetchall()
for offset, time, order, status, total in history[:10]:
    print(f"  @{offset:<4}{time}  order {order}  {status:<10}{total:>9.2f} EUR")
if len(history) > 10:
    print(f"  … {len(history) - 10} more")
offsets = [row[0] for row in history]
if not offsets or offsets != list(range(len(offsets))):
    print(f"the offsets of {partition} are not 0, 1, 2, …: {offsets}")
    differs = True
sys.exit(differs)

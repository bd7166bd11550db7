"""Reads each object of a lake with each reader, and says what became of the payloads.

    readers.py TASK            every reader, as JSON: {reader: {label: outcome}}
    readers.py TASK READER N   one reader, from label N on, a line of JSON for each

TASK is a JSON file: {"labels": [...], "jsonl": {label: [path, [payload text, ...]]},
"parquet": {label: [path, [payload text, ...]]}}.
"""

import json
import subprocess
import sys
import threading
from decimal import Decimal

ENVELOPE = """columns = {partition: 'VARCHAR', "offset": 'BIGINT', transactionId: 'VARCHAR',
    ts: 'TIMESTAMP', payload: 'JSON'}"""


def duckdb_parquet(path):
    import duckdb

    return [row[0] for row in duckdb.sql(f'SELECT payload FROM read_parquet({path!r})').fetchall()]


def pyarrow_parquet(path):
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path, partitioning=None).column("payload").to_pylist()


def polars_parquet(path):
    import polars

    return polars.read_parquet(path, hive_partitioning=False)["payload"].to_list()


def pandas_parquet(path):
    import pandas

    column = pandas.read_parquet(path, partitioning=None)["payload"]
    return [None if pandas.isna(value) else value for value in column]


def duckdb_json(path):
    import duckdb

    query = f"SELECT payload::VARCHAR FROM read_json({path!r}, format = 'nd', {ENVELOPE})"
    return [row[0] for row in duckdb.sql(query).fetchall()]


def duckdb_inferred(path):
    import duckdb

    query = f"SELECT payload, typeof(payload) FROM read_json({path!r}, format = 'nd')"
    rows = duckdb.sql(query).fetchall()
    return [loads(value) if kind == "JSON" and value is not None else value for value, kind in rows]


def pandas_jsonl(path):
    import pandas

    column = pandas.read_json(path, lines=True, dtype=False)["payload"]
    is_nan = lambda value: isinstance(value, float) and value != value
    return [None if is_nan(value) else value for value in column]


def polars_jsonl(path):
    import polars

    return polars.read_ndjson(path, infer_schema_length=None)["payload"].to_list()


def pyarrow_jsonl(path):
    import pyarrow.json

    options = pyarrow.json.ReadOptions(block_size=32 << 20)
    return pyarrow.json.read_json(path, read_options=options).column("payload").to_pylist()


# Reader: how, of which format, and as what payloads come back.
READERS = {
    "Parquet, DuckDB": (duckdb_parquet, "parquet", "text"),
    "Parquet, PyArrow": (pyarrow_parquet, "parquet", "text"),
    "Parquet, Polars": (polars_parquet, "parquet", "text"),
    "Parquet, pandas": (pandas_parquet, "parquet", "text"),
    "DuckDB `JSON`": (duckdb_json, "jsonl", "json"),
    "DuckDB": (duckdb_inferred, "jsonl", "value"),
    "pandas": (pandas_jsonl, "jsonl", "value"),
    "Polars": (polars_jsonl, "jsonl", "value"),
    "PyArrow": (pyarrow_jsonl, "jsonl", "value"),
}


def loads(text):
    return json.loads(text, parse_float=Decimal)


def equal_numbers(got, wanted):
    return Decimal(repr(got) if isinstance(got, float) else got) == wanted


def near_numbers(got, wanted):
    got, wanted = float(got), float(wanted)
    return got == wanted or abs(got - wanted) < 1e-12 * abs(wanted)


def same(got, wanted, numbers=equal_numbers):
    """Whether a reader's value is the JSON value `wanted`. What a struct has more is null: it is
    the field of another record."""
    if isinstance(wanted, dict):
        if not isinstance(got, dict) or not wanted.keys() <= got.keys():
            return False
        return all(same(value, wanted.get(key), numbers) for key, value in got.items())
    if isinstance(wanted, list):
        listed = isinstance(got, (list, tuple)) and len(got) == len(wanted)
        return listed and all(same(one, other, numbers) for one, other in zip(got, wanted))
    if isinstance(wanted, bool) or wanted is None or isinstance(wanted, str):
        return type(got) is type(wanted) and got == wanted
    if isinstance(got, (int, float, Decimal)) and not isinstance(got, bool):
        return numbers(got, wanted)
    return False


def compared(got, expected, what):
    """What became of the payloads `expected`, of which a reader made `got`."""
    if what == "text":
        # Only a JSON null is no text.
        return "same" if got == [None if text == "null" else text for text in expected] else "changed"
    if what == "json":
        if got == expected:
            return "same"
        got = [None if text is None else loads(text) for text in got]
    wanted = [loads(text) for text in expected]
    if same(got, wanted):
        return "same"
    return "rounded" if same(got, wanted, near_numbers) else "changed"


def outcome(reader, path, expected):
    read, _, what = READERS[reader]
    try:
        got = read(path)
    except Exception as error:
        print(f"{reader}: {path[-60:]}: {str(error)[:300]}", file=sys.stderr)
        return "refused"
    found = compared(got, expected, what)
    if found != "same":
        shown = " ".join(str(got).split())[:200]
        print(f"{reader}: {path[-60:]}: {found}: {shown}", file=sys.stderr)
    return found


def one(task, reader, start):
    for label in task["labels"][start:]:
        path, expected = task[READERS[reader][1]][label]
        print(json.dumps(outcome(reader, path, expected)), flush=True)


def every(task, name):
    outcomes = {}
    for reader in READERS:
        found = []
        # A reader that dies of one object goes on with the next.
        while len(found) < len(task["labels"]):
            command = [sys.executable, __file__, name, reader, str(len(found))]
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            found += [json.loads(line) for line in ended.stdout.splitlines()]
            if len(found) < len(task["labels"]):
                if ended.returncode > 0:
                    sys.exit(f"{reader} cannot be run")
                found.append("crash")
        outcomes[reader] = dict(zip(task["labels"], found))
    print(json.dumps(outcomes))


def main():
    with open(sys.argv[1]) as file:
        task = json.load(file)
    if len(sys.argv) == 2:
        every(task, sys.argv[1])
    else:
        one(task, sys.argv[2], int(sys.argv[3]))


def with_deep_recursion(main):
    """Runs `main` so that deep nesting is the reader's limit and not this program's."""
    sys.setrecursionlimit(100_000)
    threading.stack_size(1 << 29)
    failed = []

    def guarded():
        try:
            main()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


if __name__ == "__main__":
    with_deep_recursion(main)

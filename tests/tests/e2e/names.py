"""Reads the names in every queue's Parquet objects with each reader.

Arguments: the sink's folder, and JSON: {queue as keys spell it: [[partition, transaction id], ...]
by partition}."""

import glob
import json
import sys
from urllib.parse import unquote

import duckdb
import pandas
import polars
import pyarrow.parquet

COLUMNS = ["partition", "transaction_id"]


def rows(columns):
    """Rows of two columns, by partition (bytes)."""
    return sorted(map(list, zip(*columns)), key=lambda row: row[0].encode())


def with_pyarrow(paths):
    tables = [pyarrow.parquet.ParquetFile(path).read(COLUMNS) for path in paths]
    table = pyarrow.concat_tables(tables)
    return [table[column].to_pylist() for column in COLUMNS]


def with_pandas(paths):
    table = pandas.concat(pandas.read_parquet(path, partitioning=None) for path in paths)
    return [list(table[column]) for column in COLUMNS]


def with_polars(paths):
    table = polars.read_parquet(paths, hive_partitioning=False)
    return [table[column].to_list() for column in COLUMNS]


def with_duckdb(paths):
    relation = duckdb.read_parquet(paths, hive_partitioning=False)
    return list(zip(*relation.project(", ".join(COLUMNS)).fetchall()))


folder, expected = sys.argv[1], json.loads(sys.argv[2])
for queue, records in expected.items():
    paths = sorted(glob.glob(f"{folder}/queue={queue}/**/*.parquet", recursive=True))
    for read in [with_duckdb, with_pyarrow, with_polars, with_pandas]:
        found = rows(read(paths))
        if found != records:
            sys.exit(f"{queue} {read.__name__}: {found} and not {records}")
    metadata = pyarrow.parquet.ParquetFile(paths[0]).metadata.metadata
    if metadata[b"queen.queue"].decode() != unquote(queue):
        sys.exit(f"the file of {queue} says {metadata}")

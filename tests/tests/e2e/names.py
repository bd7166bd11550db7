"""Reads the partition names of every queue's Parquet objects with each reader.

Arguments: the sink's folder, and JSON: {queue as keys spell it: [partition, ...] in order}."""

import glob
import json
import sys
from urllib.parse import unquote

import duckdb
import pandas
import polars
import pyarrow.parquet

folder, expected = sys.argv[1], json.loads(sys.argv[2])
for queue, names in expected.items():
    paths = sorted(glob.glob(f"{folder}/queue={queue}/**/*.parquet", recursive=True))
    relation = duckdb.read_parquet(paths, hive_partitioning=False)
    read = {
        "DuckDB": [row[0] for row in relation.project("partition").fetchall()],
        "PyArrow": [
            name
            for path in paths
            for name in pyarrow.parquet.ParquetFile(path).read()["partition"].to_pylist()
        ],
        "Polars": polars.read_parquet(paths, hive_partitioning=False)["partition"].to_list(),
        "pandas": [
            name
            for path in paths
            for name in pandas.read_parquet(path, partitioning=None)["partition"]
        ],
    }
    for reader, found in read.items():
        if sorted(found, key=lambda name: name.encode()) != names:
            sys.exit(f"{reader} reads other partitions of {queue}: {found} and not {names}")
    metadata = pyarrow.parquet.ParquetFile(paths[0]).metadata.metadata
    if metadata[b"queen.queue"].decode() != unquote(queue):
        sys.exit(f"the file of {queue} says {metadata}")

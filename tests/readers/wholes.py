"""Reads a whole queue of a lake with each reader, as it comes: one tuple for each record, of queue,
dt, hour, partition, offset, transaction id, commit time, payload.

`lake` has `folder` and `extension`; `keys` is a pattern of keys below the folder. A payload is
JSON text in `Text`, else the value that the reader made of it.
"""

import glob
import json
import os
import re
from urllib.parse import unquote


class Text(str):
    """A payload as JSON text."""


def texts(rows):
    return [(*row[:-1], None if row[-1] is None else Text(row[-1])) for row in rows]


def paths(lake, keys):
    return sorted(glob.glob(f"{lake['folder']}/{keys}"))


def hive(path):
    """Queue, day and hour of a path, for readers that do not read them."""
    return map(unquote, re.search(r"queue=([^/]+)/dt=([^/]+)/hour=([^/]+)/", path).groups())


class DuckDB:
    ENVELOPE = """{partition: 'VARCHAR', "offset": 'BIGINT', transactionId: 'VARCHAR',
        ts: 'TIMESTAMPTZ', payload: 'JSON'}"""

    def __init__(self):
        import duckdb

        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")

    def jsonl(self, lake, keys):
        return texts(
            self.connection.execute(
                f"""SELECT queue, dt, hour, partition, "offset", transactionId,
                    epoch_us(ts), payload
                FROM read_json($1, format = 'newline_delimited', columns = {self.ENVELOPE},
                    hive_partitioning = true)""",
                [f"{lake['folder']}/{keys}"],
            ).fetchall()
        )

    def parquet(self, lake, keys):
        return texts(
            self.connection.execute(
                """SELECT queue, dt, hour, partition, "offset", transaction_id,
                    epoch_us(ts), payload
                FROM read_parquet($1, hive_partitioning = true)""",
                [f"{lake['folder']}/{keys}"],
            ).fetchall()
        )


class PyArrow:
    COLUMNS = ["queue", "dt", "hour", "partition", "offset"]

    def jsonl(self, lake, keys):
        import pyarrow
        import pyarrow.json

        rows = []
        for path in paths(lake, keys):
            # The name says how it is compressed.
            table = pyarrow.json.read_json(pyarrow.input_stream(path))
            columns = table.select(["partition", "offset", "transactionId", "ts", "payload"])
            rows += [(*hive(path), *row.values()) for row in columns.to_pylist()]
        return rows

    def parquet(self, lake, keys):
        import pyarrow.dataset

        table = pyarrow.dataset.dataset(
            paths(lake, keys), partitioning="hive", partition_base_dir=lake["folder"]
        ).to_table()
        columns = table.select([*self.COLUMNS, "transaction_id", "ts", "payload"])
        return texts(tuple(row.values()) for row in columns.to_pylist())


class Polars:
    def jsonl(self, lake, keys):
        import polars

        pattern = f"{lake['folder']}/{keys}"
        table = polars.scan_ndjson(pattern, infer_schema_length=None, include_file_paths="path")
        columns = ["path", "partition", "offset", "transactionId", "ts", "payload"]
        rows = table.select(columns).collect().rows()
        return [(*hive(row[0]), *row[1:]) for row in rows]

    def parquet(self, lake, keys):
        import polars

        table = polars.scan_parquet(f"{lake['folder']}/{keys}", hive_partitioning=True)
        columns = [*PyArrow.COLUMNS, "transaction_id", "ts", "payload"]
        return texts(table.select(columns).collect().rows())


class Pandas:
    def jsonl(self, lake, keys):
        import pandas

        rows = []
        for path in paths(lake, keys):
            table = pandas.read_json(path, lines=True, dtype=False, convert_dates=False)
            table = table[["partition", "offset", "transactionId", "ts", "payload"]]
            rows += [
                (*hive(path), *row[:-1], None if row[-1] != row[-1] else row[-1])
                for row in table.itertuples(index=False, name=None)
            ]
        return rows

    def parquet(self, lake, keys):
        import pandas

        table = pandas.read_parquet(lake["folder"], filters=[("queue", "=", queue_of(keys))])
        table = table[[*PyArrow.COLUMNS, "transaction_id", "ts", "payload"]]
        if "*" not in keys:
            one = pandas.read_parquet(f"{lake['folder']}/{keys}", partitioning=None)
            table = one.assign(**dict(zip(["queue", "dt", "hour"], hive(keys))))[table.columns]
        rows = table.itertuples(index=False, name=None)
        return texts((*row[:-1], None if row[-1] != row[-1] else row[-1]) for row in rows)


def queue_of(keys):
    return unquote(keys.split("/")[0].removeprefix("queue="))


class ClickHouse:
    ENVELOPE = (
        "partition String, offset Int64, transactionId String, ts DateTime64(6, ''UTC''),"
        " payload Nullable(String)"
    )

    def __init__(self):
        import chdb

        self.chdb = chdb

    def query(self, columns, source):
        answer = self.chdb.query(
            f"SELECT {columns} FROM {source} SETTINGS max_threads = 1,"
            " output_format_json_quote_64bit_integers = 0",
            "JSONCompactEachRow",
        )
        return [json.loads(line) for line in str(answer).split("\n") if line]

    def jsonl(self, lake, keys):
        source = f"file('{lake['folder']}/{keys}', 'JSONEachRow', '{self.ENVELOPE}')"
        columns = "decodeURLComponent(queue), dt, hour, partition, offset, transactionId, ts, payload"
        return texts(self.query(columns, source))

    def parquet(self, lake, keys):
        source = f"file('{lake['folder']}/{keys}', 'Parquet')"
        columns = "decodeURLComponent(queue), dt, hour, partition, offset, transaction_id, ts, payload"
        return texts(self.query(columns, source))


class Spark:
    ENVELOPE = "partition STRING, offset BIGINT, transactionId STRING, ts TIMESTAMP, payload STRING"

    def __init__(self):
        self.session = spark_session()

    def rows(self, table, transaction_id):
        table = table.selectExpr(
            # A name is read byte for character.
            "decode(encode(queue, 'ISO-8859-1'), 'UTF-8')",
            "dt",
            "hour",
            "partition",
            "offset",
            transaction_id,
            "unix_micros(ts)",
            "payload",
        )
        return texts(table.collect())

    def jsonl(self, lake, keys):
        read = self.session.read.schema(self.ENVELOPE).option("mode", "FAILFAST")
        table = read.option("basePath", lake["folder"]).json(f"{lake['folder']}/{keys}")
        return self.rows(table, "transactionId")

    def parquet(self, lake, keys):
        read = self.session.read.option("basePath", lake["folder"])
        return self.rows(read.parquet(f"{lake['folder']}/{keys}"), "transaction_id")


def spark_session():
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


READERS = {
    "DuckDB": DuckDB,
    "PyArrow": PyArrow,
    "Polars": Polars,
    "pandas": Pandas,
    "ClickHouse": ClickHouse,
    "Spark": Spark,
}

"""What a reader makes of payloads that are hard on it: `hard.py TASK READER N` prints a line of
JSON for each, from the N-th on."""

import json
import os
import sys

import wholes

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../tests/e2e"))
import readers


def clickhouse(select):
    import chdb

    answer = chdb.query(f"SELECT {select} SETTINGS max_threads = 1", "JSONEachRow")
    return [json.loads(line)["payload"] for line in str(answer).split("\n") if line]


def clickhouse_string(path):
    source = f"file('{path}', 'JSONEachRow', '{wholes.ClickHouse.ENVELOPE}')"
    return clickhouse(f"payload FROM {source}")


def clickhouse_inferred(path):
    return clickhouse(f"payload FROM file('{path}', 'JSONEachRow')")


def clickhouse_parquet(path):
    return clickhouse(f"payload FROM file('{path}', 'Parquet')")


sessions = []


def spark():
    if not sessions:
        sessions.append(wholes.spark_session())
    return sessions[0].read.option("mode", "FAILFAST")


def spark_string(path):
    rows = spark().schema(wholes.Spark.ENVELOPE).json(path).select("payload").collect()
    return [row[0] for row in rows]


def spark_variant(path):
    schema = wholes.Spark.ENVELOPE.replace("payload STRING", "payload VARIANT")
    rows = spark().schema(schema).json(path).selectExpr("to_json(payload)").collect()
    return [row[0] for row in rows]


def spark_inferred(path):
    rows = spark().json(path).select("payload").collect()
    return [row.asDict(recursive=True)["payload"] for row in rows]


def spark_parquet(path):
    return [row[0] for row in spark().parquet(path).select("payload").collect()]


# Column: how it is read, of which lake, and as what payloads come back. `word` is the text of a
# string and the JSON text of everything else.
READERS = {
    "ClickHouse `String`": (clickhouse_string, "jsonl-none-per-partition", "word"),
    "ClickHouse": (clickhouse_inferred, "jsonl-none-per-partition", "value"),
    "Spark `VARIANT`": (spark_variant, "jsonl-none-per-partition", "json"),
    "Spark `STRING`": (spark_string, "jsonl-none-per-partition", "word"),
    "Spark": (spark_inferred, "jsonl-none-per-partition", "value"),
    "Parquet, ClickHouse": (clickhouse_parquet, "parquet-zstd-per-partition", "text"),
    "Parquet, Spark": (spark_parquet, "parquet-zstd-per-partition", "text"),
}


def of_words(got, expected):
    """Strings back in their quotes, so that what is left is JSON text."""
    wanted = [readers.loads(text) for text in expected]
    pairs = zip(got, wanted, strict=True)
    quoted = [json.dumps(word) if isinstance(value, str) else word for word, value in pairs]
    return [json.dumps(None) if word is None else word for word in quoted]


def outcome(reader, path, expected):
    read, _, what = READERS[reader]
    try:
        got = read(path)
        if what == "word":
            got, what = of_words(got, expected), "json"
        return readers.compared(got, expected, what)
    except Exception as error:
        print(f"{reader}: {path[-60:]}: {str(error)[:300]}", file=sys.stderr)
        return "refused"


def main():
    with open(sys.argv[1]) as file:
        task = json.load(file)
    reader, start = sys.argv[2], int(sys.argv[3])
    [lake] = [lake for lake in task["lakes"] if lake["name"] == READERS[reader][1]]
    for label, _ in task["labels"][start:]:
        expected = [row[5] for row in task["records"] if row[:2] == [task["payloads"], label]]
        if lake["format"] == "jsonl":
            expected = [text.replace("\r", " ").replace("\n", " ") for text in expected]
        keys = f"queue={task['payloads']}/dt=*/hour=*/*-p-{label}.{lake['extension']}"
        [path] = wholes.paths(lake, keys)
        print(json.dumps(outcome(reader, path, expected)), flush=True)


if __name__ == "__main__":
    readers.with_deep_recursion(main)

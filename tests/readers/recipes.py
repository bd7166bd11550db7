"""Runs the examples of the lake reference: `recipes.py TASK REFERENCE N` runs the N-th over the
loopback S3 server, or over its folder where a reader would need what it would have to download."""

import json
import os
import re
import subprocess
import sys

BUCKET = "my-lake/queen/default"
HOST = f"https://{BUCKET.replace('/', '.s3.eu-central-1.amazonaws.com/', 1)}"


def examples(reference):
    """(what runs it, code) of each block that is marked to be run."""
    with open(reference) as file:
        text = file.read()
    found = re.findall(r"<!-- run(?:: (\w+))? -->\n```(\w+)\n(.*?)```", text, re.DOTALL)
    return [(mark or {"sql": "duckdb"}.get(language, language), code) for mark, language, code in found]


def values(counts):
    """Rows of a result of any of the readers."""
    for rows in ("fetchall", "rows", "collect"):
        if hasattr(counts, rows):
            return [tuple(row) for row in getattr(counts, rows)()]
    if hasattr(counts, "to_pylist"):
        return [tuple(row.values()) for row in counts.to_pylist()]
    return list(counts.itertuples(index=False, name=None))


def run(runner, code, task):
    format_ = "parquet-zstd" if "parquet" in code.lower() else "jsonl-zstd"
    [lake] = [lake for lake in task["lakes"] if lake["name"] == f"{format_}-merged"]
    store = task["s3"]
    if runner == "duckdb":
        import duckdb

        return duckdb.sql(code.replace(f"s3://{BUCKET}", lake["folder"])).fetchall()
    if runner == "clickhouse":
        import chdb

        code = code.replace(HOST, f"{store['endpoint']}/{store['bucket']}/{lake['key']}")
        code = code.replace("AKIAEXAMPLE", store["accessKey"])
        code = code.replace("a-secret-of-your-own", store["secretKey"])
        answer = str(chdb.query(code, "JSONCompactEachRow"))
        return [json.loads(line) for line in answer.split("\n") if line]
    scope = {}
    if runner == "spark":
        import wholes

        scope["spark"] = wholes.spark_session()
        code = code.replace(f"s3a://{BUCKET}", lake["folder"])
    if runner == "folder":
        code = code.replace(f"s3://{BUCKET}", lake["folder"])
    os.environ |= {
        "AWS_ENDPOINT_URL": store["endpoint"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": store["region"],
        "AWS_DEFAULT_REGION": store["region"],
        "AWS_ACCESS_KEY_ID": store["accessKey"],
        "AWS_SECRET_ACCESS_KEY": store["secretKey"],
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    exec(code.replace(BUCKET, f"{store['bucket']}/{lake['key']}"), scope)
    return values(scope["counts"])


def check(task, reference):
    """What is wrong with the examples; says of each what it found."""
    wanted = {}
    for queue, *_, ts, _ in task["records"]:
        if queue == "orders":
            place = (queue, ts[:10], ts[11:13])
            wanted[place] = wanted.get(place, 0) + 1
    wrong = []
    all_of_them = examples(reference)
    if len(all_of_them) < 10:
        wrong.append(f"only {len(all_of_them)} examples are found in the reference")
    print("The examples of docs/lake.md:\n")
    for number, (runner, code) in enumerate(all_of_them):
        command = [sys.executable, __file__, os.path.abspath(sys.argv[1]), reference, str(number)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        name = re.search(r"import (\w+)", code)
        name = f"{name[1] if name else runner}, {'Parquet' if 'parquet' in code.lower() else 'JSON lines'}"
        if ended.returncode != 0:
            wrong.append(f"example {name}: {ended.stderr[-600:]}")
            continue
        rows = json.loads(ended.stdout.splitlines()[-1])
        found = {(row[0], row[1], f"{int(row[2]):02}"): row[3] for row in rows}
        print(f"  {name:<24}{sum(found.values()):>8,}", flush=True)
        if found != wanted:
            wrong.append(f"example {name} counts {found} and not {wanted}")
    return wrong


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        task = json.load(file)
    rows = run(*examples(sys.argv[2])[int(sys.argv[3])], task)
    print(json.dumps([[*map(str, row[:3]), int(row[3])] for row in rows]))

"""One reader over every lake of a task: `read.py TASK READER` prints a line of JSON for each."""

import datetime
import hashlib
import json
import sys
import time

import wholes
from wholes import Text


def canonical(payload):
    """A payload's value as text. A field that is null and one that is not there are the same:
    readers that make a struct of the payloads cannot tell them apart."""

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(value[key]) for key in sorted(value) if value[key] is not None}
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return value

    value = json.loads(payload) if isinstance(payload, Text) else payload
    return json.dumps(plain(value), ensure_ascii=False)


def micros(time):
    """Microseconds since the epoch."""
    if isinstance(time, int):
        return time
    if isinstance(time, str):
        time = datetime.datetime.fromisoformat(time.replace("Z", "+00:00"))
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.timezone.utc)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return (time - epoch) // datetime.timedelta(microseconds=1)


def plain(row):
    queue, dt, hour, partition, offset, transaction_id, ts, payload = row
    return (
        str(queue), str(dt), f"{int(hour):02}", partition, int(offset), transaction_id, micros(ts),
        canonical(payload),
    )  # fmt: skip


def digest(rows):
    text = "\n".join(map(repr, sorted(rows)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def expected(task, queue):
    rows = []
    for of, partition, offset, transaction_id, ts, payload in task["records"]:
        if of == queue:
            row = (queue, ts[:10], ts[11:13], partition, offset, transaction_id, ts, Text(payload))
            rows.append(plain(row))
    return rows


def in_order(rows):
    keys = [(row[3].encode(), row[6], row[4]) for row in rows]
    return keys == sorted(keys)


def report(task, lake, read):
    """What a reader finds in one lake: its figures, and what differs from what was pushed."""
    found, wanted, differs, ordered = [], [], [], True
    for queue, spelled in zip(task["queues"], task["spelled"]):
        if queue == task["payloads"]:
            continue
        of_queue = f"queue={spelled}/dt=*/hour=*/*.{lake['extension']}"
        rows = [plain(row) for row in read(lake, of_queue)]
        found += rows
        wanted += expected(task, queue)
        largest = max(wholes.paths(lake, of_queue), key=lambda path: len(open(path, "rb").read()))
        of_one = [plain(row) for row in read(lake, largest.removeprefix(lake["folder"] + "/"))]
        ordered &= in_order(of_one) and len(of_one) > 1
    if digest(found) != digest(wanted):
        differs.append("records")
        odd = sorted(set(found) ^ set(wanted))
        print(f"{lake['name']}: {len(odd)} differ, such as {odd[:2]}", file=sys.stderr)
    if not ordered:
        differs.append("order")
    nulls = sum(row[7] == "null" for row in found)
    return {"records": len(found), "nulls": nulls, "ordered": ordered, "digest": digest(found),
            "differs": differs}  # fmt: skip


def main():
    with open(sys.argv[1]) as file:
        task = json.load(file)
    reader = wholes.READERS[sys.argv[2]]()
    for lake in task["lakes"]:
        begin = time.monotonic()
        try:
            outcome = report(task, lake, getattr(reader, lake["format"]))
        except Exception as error:
            outcome = {"refused": " ".join(str(error).split())[:300]}
        outcome |= {"lake": lake["name"], "seconds": time.monotonic() - begin}
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()

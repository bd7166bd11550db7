"""Lets every reader read every lake of a task, and prints what they found: `run.py TASK`.

Ends with 1 when a reader does not find what was pushed, when one makes of a hard payload what the
lake reference does not say, or when an example of the reference does not count what it should.
"""

import json
import os
import subprocess
import sys
import time

import hard
import recipes
import wholes

HERE = os.path.dirname(os.path.abspath(__file__))
REFERENCE = os.path.join(HERE, "../../docs/lake.md")
# Longest time for one reader over every lake, in seconds.
LIMIT = 600


def lines_of(script, *arguments):
    """The lines of JSON that a script of this folder prints, whatever it ends with."""
    command = [sys.executable, os.path.join(HERE, script), *arguments]
    with open(os.path.join(os.path.dirname(sys.argv[1]), "logs", "readers.log"), "a") as log:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=LIMIT)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def whole_lakes(name, task):
    print(f"\n{'reader':<11}{'lake':<30}{'records':>8}{'nulls':>7}  {'order':<6}{'digest':<14}{'s':>5}")
    wrong = []
    for reader in wholes.READERS:
        found = {one["lake"]: one for one in lines_of("read.py", name, reader)}
        for lake in task["lakes"]:
            one = found.get(lake["name"], {"refused": "the reader died of it"})
            place = f"{reader:<11}{lake['name']:<30}"
            if "refused" in one:
                print(f"{place} {one['refused']}")
                wrong.append(f"{reader} does not read {lake['name']}")
                continue
            order = "yes" if one["ordered"] else "no"
            print(
                f"{place}{one['records']:>8,}{one['nulls']:>7}  {order:<6}{one['digest']:<14}"
                f"{one['seconds']:>5.1f}",
                flush=True,
            )
            if one["differs"]:
                wrong.append(f"{reader} reads {lake['name']} with other {', '.join(one['differs'])}")
    return wrong


def hard_payloads(name, task):
    outcomes = {}
    for reader in hard.READERS:
        found = []
        # A reader that dies of one object goes on with the next.
        while len(found) < len(task["labels"]):
            found += lines_of("hard.py", name, reader, str(len(found)))
            if len(found) < len(task["labels"]):
                found.append("crash")
        outcomes[reader] = found
    columns = [reader for reader in hard.READERS if not reader.startswith("Parquet")]
    table = f"| Payload | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}\n"
    for number, (_, what) in enumerate(task["labels"]):
        table += f"| {what} | {' | '.join(outcomes[reader][number] for reader in columns)} |\n"
    print(f"\nPayloads in JSON lines, each alone in an object:\n\n{table}")
    wrong = []
    for reader in outcomes.keys() - set(columns):
        for (label, _), outcome in zip(task["labels"], outcomes[reader]):
            if outcome != "same":
                wrong.append(f"{reader} reads the payload {label}: {outcome}")
    with open(REFERENCE) as file:
        if table not in file.read():
            wrong.append("docs/lake.md does not have this table")
    return wrong


def main():
    begin = time.monotonic()
    name = os.path.abspath(sys.argv[1])
    with open(name) as file:
        task = json.load(file)
    wrong = whole_lakes(name, task) + hard_payloads(name, task) + recipes.check(task, REFERENCE)
    for one in wrong:
        print(f"WRONG: {one}")
    if not wrong:
        print(f"Every reader finds what was pushed. {time.monotonic() - begin:.0f} s.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

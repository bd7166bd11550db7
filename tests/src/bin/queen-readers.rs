//! Writes the same log as a lake in each format, compression and layout, with real processes, and
//! lets every reader read all of them: `tests/readers/run.py` prints what they found.
//!
//! Ends with 0 when every reader finds what was pushed, or fails as the lake reference says.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use queen_dev::payloads::{in_a_line, payloads};
use queen_dev::{
    Event, Ledger, Pushed, S3Server, Sink, SinkOptions, Stack, StackOptions, WAIT, encode_name,
    eventually, python, verify,
};
use queen_e2e::settled;
use serde_json::{Value, json};
use tokio::process::Command;

/// Where the lakes and the logs stay, from the folder in which the program is started.
const FOLDER: &str = ".readers";
/// Tells a former run's folder from one that belongs to somebody else.
const MARKER: &str = "made-by-queen-readers";

/// Records of the shapes that users push.
const ORDERS: &str = "orders";
const ORDER_EVENTS: usize = 2_000;
const CUSTOMERS: usize = 40;
/// Windows, at least, that the orders are written in.
const WINDOWS: usize = 3;
/// Names that a key has to spell otherwise. They and the names of the sinks are short: the S3 server
/// keeps a file for each key whose name is the key in base64, and has no room for one over 164 bytes.
const ODD_QUEUE: &str = "a/b=% \u{1f980}";
const ODD_PARTITIONS: [&str; 8] = [
    "a/b",
    "..",
    "x=y",
    "100%",
    "two words",
    "\u{1f980} é",
    "a%2Fb",
    "?#&+\"'\\",
];
/// Payloads that are hard on readers, one partition each.
const PAYLOADS: &str = "payloads";

/// Format, variable and value of its compression, and the extension of its objects.
const FORMATS: [(&str, &str, &str, &str); 5] = [
    ("jsonl", "QUEEN_S3_COMPRESSION", "none", "jsonl"),
    ("jsonl", "QUEEN_S3_COMPRESSION", "gzip", "jsonl.gz"),
    ("jsonl", "QUEEN_S3_COMPRESSION", "zstd", "jsonl.zst"),
    ("parquet", "QUEEN_S3_PARQUET_CODEC", "snappy", "parquet"),
    ("parquet", "QUEEN_S3_PARQUET_CODEC", "zstd", "parquet"),
];
const LAYOUTS: [&str; 2] = ["merged", "per-partition"];

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = tokio::select! {
        outcome = run() => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted; everything is stopped")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nmake readers failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let dir = fresh_folder(Path::new(FOLDER))?;
    println!("Starting the database, an S3 server and the broker …");
    let stack = Stack::start(StackOptions {
        dir: Some(dir.clone()),
        ..StackOptions::default()
    })
    .await?;
    let task = write_lakes(&stack).await?;
    let file = dir.join("task.json");
    std::fs::write(&file, task.to_string()).context("write the readers' task")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("readers/run.py");
    let status = Command::new(python())
        .args([&script, &file])
        .kill_on_drop(true)
        .status()
        .await
        .with_context(|| format!("run {}; make readers installs it", python().display()))?;
    ensure!(status.success(), "the readers' run ended with {status}");
    Ok(())
}

/// Pushes every event, lets a sink for each shape of a lake write them, proves the lakes, and tells
/// what readers have to find where.
async fn write_lakes(stack: &Stack) -> Result<Value> {
    let queues = [ORDERS, ODD_QUEUE, PAYLOADS];
    for queue in queues {
        stack.client().configure(queue).await?;
    }
    let mut lakes = Vec::new();
    for (format, variable, compression, extension) in FORMATS {
        for layout in LAYOUTS {
            let mut options = SinkOptions::new(&queues.join(","))
                .with("QUEEN_S3_FORMAT", format)
                .with(variable, compression)
                .with("QUEEN_S3_LAYOUT", layout);
            let name = format!("{format}-{compression}-{layout}");
            options.name = format!("{format}-{compression}-{}", &layout[..1]);
            options.instance.clone_from(&name);
            let sink = stack.sink(&options)?;
            lakes.push(Shape {
                name,
                sink,
                options,
                format,
                extension,
            });
        }
    }
    let mut pushed = Vec::new();
    for part in orders().chunks(ORDER_EVENTS / WINDOWS) {
        pushed.extend(stack.client().push_all(part.to_vec(), |_| {}).await?);
        // So that a lake has several objects, and readers several schemas to make one of.
        for shape in &lakes {
            shape.holds(stack, &[ORDERS], pushed.len()).await?;
        }
    }
    pushed.extend(stack.client().push_all(odd_names(), |_| {}).await?);
    for (label, _, texts) in payloads() {
        // In one call, so that they are in one segment and one object.
        let events = (0..)
            .zip(&texts)
            .map(|(n, text)| event(PAYLOADS, label, n, text));
        pushed.extend(stack.client().push(events.collect()).await?);
    }
    println!(
        "{} records are pushed; {} sinks write them …",
        pushed.len(),
        lakes.len()
    );
    for shape in &lakes {
        shape.holds(stack, &queues, pushed.len()).await?;
        shape.prove(stack, &queues, &pushed).await?;
    }

    // Every lake was proven; the plainest of them says at what time each record was committed.
    let plain = stack.lake(&lakes[0].options.name);
    let mut records = Vec::new();
    for queue in queues {
        for record in plain.records(queue)? {
            let pushed = pushed.iter().find(|one| {
                (&*one.event.queue, &one.event.partition, one.offset)
                    == (queue, &record.partition, record.offset)
            });
            let text = &pushed
                .context("a record that was not pushed")?
                .event
                .payload;
            records.push(json!([
                queue,
                record.partition,
                record.offset,
                record.transaction_id,
                record.ts,
                &**text
            ]));
        }
    }
    ensure!(
        records.len() == pushed.len(),
        "the expected records are not those that were pushed"
    );
    let spelled: Vec<_> = queues.map(encode_name).into();
    let labels: Vec<_> = payloads()
        .into_iter()
        .map(|(label, what, _)| [label, what])
        .collect();
    Ok(json!({
        "lakes": lakes.iter().map(|shape| shape.told(stack)).collect::<Vec<_>>(), "records": records, "queues": queues, "spelled": spelled, "labels": labels,
        "payloads": PAYLOADS, "folder": stack.dir(),
        "s3": {"endpoint": stack.s3.endpoint(), "region": S3Server::REGION, "bucket": Stack::BUCKET,
            "accessKey": stack.s3.access_key(), "secretKey": stack.s3.secret_key()},
    }))
}

/// A lake of one shape, and the sink that writes it.
struct Shape {
    /// Format, compression and layout.
    name: String,
    sink: Sink,
    options: SinkOptions,
    format: &'static str,
    extension: &'static str,
}

impl Shape {
    /// Waits until the manifests of `queues` tell of `count` records.
    async fn holds(&self, stack: &Stack, queues: &[&str], count: usize) -> Result<()> {
        let lake = stack.lake(&self.options.name);
        let written = async || {
            let mut records = 0;
            for queue in queues {
                let manifests = lake.manifests(queue)?;
                records += manifests
                    .iter()
                    .filter_map(|m| m["records"].as_u64())
                    .sum::<u64>();
            }
            Ok((records >= count as u64).then_some(()))
        };
        eventually(WAIT, written).await.with_context(|| {
            format!(
                "{} is not written:{}",
                self.options.name,
                self.sink.logs().tail()
            )
        })
    }

    /// Holds the lake to what was pushed, so that a reader that finds something else is wrong.
    async fn prove(&self, stack: &Stack, queues: &[&str], pushed: &[Pushed]) -> Result<()> {
        let sink = &self.options.name;
        if self.format == "jsonl" {
            for queue in queues {
                let mut log = Ledger::default();
                for one in pushed.iter().filter(|one| one.event.queue == *queue) {
                    let payload = in_a_line(&one.event.payload);
                    log.insert(&one.event.partition, one.offset, Arc::from(payload))?;
                }
                settled(&stack.lake(sink), queue, &log).await?;
            }
        }
        let logs = stack.dir().join("logs");
        verify(
            &stack.variables(&self.options),
            &logs,
            &format!("verify-{sink}"),
        )
        .await
    }

    /// What a reader has to know of it.
    fn told(&self, stack: &Stack) -> Value {
        let sink = &self.options.name;
        json!({"name": self.name, "format": self.format, "extension": self.extension,
            "folder": stack.lake(sink).folder(), "key": format!("{}/{sink}", Stack::PREFIX)})
    }
}

fn event(queue: &str, partition: &str, number: usize, payload: &str) -> Event {
    Event {
        queue: queue.into(),
        partition: partition.into(),
        transaction_id: format!("{partition}-{number}"),
        payload: Arc::from(payload),
    }
}

/// Orders: a field that is there in some records only, one that is null in some, text that is
/// empty or not ASCII, and now and then no body at all.
fn orders() -> Vec<Event> {
    let order = |number: usize| {
        let partition = format!("customer-{:03}", number % CUSTOMERS);
        let note = ["null", "\"\"", "\"two\\nlines, \\u00e9 é 🦀\""][number % 3];
        let gift = if number.is_multiple_of(7) {
            r#","gift":true"#
        } else {
            ""
        };
        let body = format!(
            r#"{{"order":{number},"total":{{"cents":{},"currency":"EUR"}},"weight":{}.5,"items":["tea","pot"],"note":{note}{gift}}}"#,
            number * 37,
            number % 9,
        );
        let body = if number % 50 == 49 { "null" } else { &body };
        event(ORDERS, &partition, number, body)
    };
    (0..ORDER_EVENTS).map(order).collect()
}

fn odd_names() -> Vec<Event> {
    let of_one = |partition| {
        (0..3).map(move |n| event(ODD_QUEUE, partition, n, &format!(r#"{{"order":{n}}}"#)))
    };
    ODD_PARTITIONS.into_iter().flat_map(of_one).collect()
}

/// An empty folder for the lakes and the logs; a former run's is replaced.
fn fresh_folder(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        ensure!(
            folder.join(MARKER).exists(),
            "{} exists and is no former run's; move it away",
            folder.display()
        );
        std::fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    std::fs::write(folder.join(MARKER), "")?;
    folder.canonicalize().context(FOLDER)
}

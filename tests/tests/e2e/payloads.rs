//! Payloads and names that are hard on readers, through the whole chain: broker, sink, readers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use queen_dev::payloads::{in_a_line, payloads};
use queen_dev::{
    Event, Lake, Ledger, SinkOptions, StoreKind, WAIT, encode_name, eventually, python,
};
use queen_e2e::settled;
use serde_json::{Value, json};

use crate::stack_at;

const QUEUE: &str = "payloads";

/// For each partition the path of its one object in `lake`, and the payloads that must be there.
fn objects(lake: &Lake, stored: fn(&str) -> String) -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    for object in lake.objects(QUEUE)? {
        let path = lake.bucket().join(&object.key).display().to_string();
        let (label, _, texts) = payloads()
            .into_iter()
            .find(|(label, ..)| object.key.contains(&format!("-p-{}.", encode_name(label))))
            .with_context(|| format!("{} is of no partition", object.key))?;
        let texts: Vec<String> = texts.iter().map(|text| stored(text)).collect();
        let before = found.insert(label.to_owned(), json!([path, texts]));
        ensure!(before.is_none(), "{label} has two objects");
    }
    Ok(found)
}

fn run_readers(folder: &Path, task: &Value) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
    let file = folder.join("task.json");
    std::fs::write(&file, task.to_string())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/readers.py");
    let output = Command::new(python())
        .args([&script, &file])
        .output()
        .with_context(|| format!("run {}; scripts/setup run makes it", python().display()))?;
    let told = String::from_utf8_lossy(&output.stderr);
    eprintln!("{told}");
    ensure!(output.status.success(), "the readers cannot be run: {told}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The table of the lake reference, from what the readers did.
fn table(outcomes: &BTreeMap<String, BTreeMap<String, String>>) -> Result<String> {
    const COLUMNS: [&str; 5] = ["DuckDB `JSON`", "DuckDB", "pandas", "Polars", "PyArrow"];
    let mut text = format!("| Payload | {} |\n", COLUMNS.join(" | "));
    let _ = writeln!(text, "| --- |{}", " --- |".repeat(COLUMNS.len()));
    for (label, what, _) in payloads() {
        let _ = write!(text, "| {what} |");
        for column in COLUMNS {
            let outcome = outcomes.get(column).and_then(|found| found.get(label));
            let _ = write!(text, " {} |", outcome.context("a reader said nothing")?);
        }
        text.push('\n');
    }
    Ok(text)
}

#[tokio::test]
async fn every_payload_comes_back_from_every_reader_as_the_lake_reference_tells() -> Result<()> {
    comes_back(StoreKind::S3s).await
}

/// A test of its own: readers take their time.
#[tokio::test]
async fn so_does_every_payload_that_went_to_moto() -> Result<()> {
    comes_back(StoreKind::Moto).await
}

async fn comes_back(store: StoreKind) -> Result<()> {
    let stack = stack_at(store, &[QUEUE]).await?;
    let mut sinks = Vec::new();
    for format in ["jsonl", "parquet"] {
        let mut options = SinkOptions::new(QUEUE)
            .with("QUEEN_S3_FORMAT", format)
            .with("QUEEN_S3_LAYOUT", "per-partition")
            .with("QUEEN_S3_COMPRESSION", "none");
        options.name = format.into();
        options.instance = format!("sink-{format}");
        sinks.push(stack.sink(&options)?);
    }
    let mut log = Ledger::default();
    for (label, _, texts) in payloads() {
        let event = |(number, text): (usize, &String)| Event {
            queue: QUEUE.into(),
            partition: label.into(),
            transaction_id: format!("{label}-{number}"),
            payload: Arc::from(text.as_str()),
        };
        // In one call, so that they are in one segment and one object.
        let events = texts.iter().enumerate().map(event).collect();
        for pushed in stack.client().push(events).await? {
            let payload = Arc::from(in_a_line(&pushed.event.payload));
            log.insert(label, pushed.offset, payload)?;
        }
    }
    // JSONL, byte for byte.
    settled(&stack.lake("jsonl"), QUEUE, &log).await?;
    let parquet = stack.lake("parquet");
    let written = async || {
        let manifests = parquet.manifests(QUEUE)?;
        let records: u64 = manifests.iter().filter_map(|m| m["records"].as_u64()).sum();
        Ok((records == log.len() as u64).then_some(()))
    };
    eventually(WAIT, written).await?;

    let labels: Vec<&str> = payloads().iter().map(|(label, ..)| *label).collect();
    let task = json!({"labels": labels, "jsonl": objects(&stack.lake("jsonl"), in_a_line)?,
        "parquet": objects(&parquet, str::to_owned)?});
    let outcomes = run_readers(stack.dir(), &task)?;
    for reader in ["DuckDB", "PyArrow", "Polars", "pandas"] {
        for (label, outcome) in &outcomes[&format!("Parquet, {reader}")] {
            ensure!(
                outcome == "same",
                "{reader} reads {label} from Parquet: {outcome}"
            );
        }
    }
    let table = table(&outcomes)?;
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/lake.md");
    let reference = std::fs::read_to_string(reference)?;
    ensure!(
        reference.contains(&table),
        "docs/lake.md tells something else than the readers do:\n{table}"
    );
    Ok(())
}

/// Names that keys have to spell otherwise.
const NAMES: [&str; 9] = [
    "a/b",
    "..",
    ".",
    "x=y",
    "100%",
    "two words",
    "\u{1f980} é",
    "a%2Fb",
    "?#&+\"'\\",
];

#[tokio::test]
async fn every_name_comes_back_from_every_reader_whatever_keys_make_of_it() -> Result<()> {
    is_named(StoreKind::S3s).await
}

#[tokio::test]
async fn so_does_every_name_at_moto() -> Result<()> {
    is_named(StoreKind::Moto).await
}

async fn is_named(store: StoreKind) -> Result<()> {
    let stack = stack_at(store, &NAMES).await?;
    let mut sinks = Vec::new();
    for format in ["jsonl", "parquet"] {
        let mut options = SinkOptions::new(&NAMES.join(","))
            .with("QUEEN_S3_FORMAT", format)
            .with("QUEEN_S3_COMPRESSION", "none");
        options.name = format.into();
        options.instance = format!("sink-{format}");
        sinks.push(stack.sink(&options)?);
    }
    let long = "ü".repeat(127) + "x";
    assert_eq!(long.len(), 255);
    let partitions: Vec<&str> = NAMES.into_iter().chain([long.as_str(), " "]).collect();
    let transaction_id = |partition: &str, queue: &str| format!("{partition}\n\"{queue}");
    let mut expected: BTreeMap<String, Vec<(&str, String)>> = BTreeMap::new();
    for queue in NAMES {
        let event = |partition: &&str| Event {
            queue: queue.into(),
            partition: (*partition).into(),
            transaction_id: transaction_id(partition, queue),
            payload: Arc::from("1"),
        };
        let pushed = stack
            .client()
            .push(partitions.iter().map(event).collect())
            .await?;
        let log = Ledger::of(&pushed, queue)?;
        settled(&stack.lake("jsonl"), queue, &log).await?;
        let mut names = partitions.clone();
        names.sort_unstable();
        let records = names
            .into_iter()
            .map(|name| (name, transaction_id(name, queue)));
        expected.insert(encode_name(queue), records.collect());
    }
    let lake = stack.lake("parquet");
    for queue in NAMES {
        let written = async || {
            let manifests = lake.manifests(queue)?;
            let records: u64 = manifests.iter().filter_map(|m| m["records"].as_u64()).sum();
            Ok((records == partitions.len() as u64).then_some(()))
        };
        eventually(WAIT, written).await?;
    }
    const READ: &str = include_str!("names.py");
    let folder = lake.folder().display().to_string();
    let output = Command::new(python())
        .args(["-c", READ, &folder, &serde_json::to_string(&expected)?])
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{told}");
    Ok(())
}

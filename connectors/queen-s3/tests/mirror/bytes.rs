//! The bytes of objects: one set of them for each format, compression and layout, whatever the
//! way that the records came.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use proptest::prelude::*;
use queen_protocol::kv::{Expiry, KvOperation};
use queen_s3::broker::Name;
use queen_s3::compute::Compute;
use queen_s3::lake::{Align, Compression, Format, Layout, Shape};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::answers::Form;
use crate::bucket::MemoryBucket;
use crate::log::{Limits, Log};
use crate::sink::{Options, SINK, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

/// Every format with every compression that it has.
pub const ENCODINGS: [(Format, Compression); 5] = [
    (Format::Jsonl, Compression::Zstd),
    (Format::Jsonl, Compression::Gzip),
    (Format::Jsonl, Compression::None),
    (Format::Parquet, Compression::Zstd),
    (Format::Parquet, Compression::Snappy),
];

/// Every way in which objects can be made, but for their alignment.
fn shapes() -> Vec<Shape> {
    let shape = |layout| {
        move |(format, compression)| Shape {
            format,
            compression,
            layout,
            align: Align::Hour,
        }
    };
    let merged = ENCODINGS.into_iter().map(shape(Layout::Merged));
    merged
        .chain(ENCODINGS.into_iter().map(shape(Layout::PerPartition)))
        .collect()
}

fn payload(partition: &str, offset: i64) -> String {
    match offset % 7 {
        0 => "null".to_owned(),
        1 => format!("{{\r\n  \"n\": {offset},\n\"list\": [1, 2.50 ,3e2]}}"),
        2 => format!("\"\\u00e9 \\ud83d\\ude00 \\\"{offset}\\\" \\/ é\""),
        3 => "\"\\ud800\"".to_owned(),
        4 => format!("12345678901234567890123456789012345678{:02}", offset % 100),
        _ => format!(
            "{{\"n\":{offset},\"pad\":\"{}\"}}",
            "xyz".repeat(partition.len() * (offset as usize % 40))
        ),
    }
}

/// Two whole hours of a log, over names that keys must escape.
fn history(log: &Log) {
    log.create("orders");
    let odd = ["a/b c", "..", "=%", "ü \u{1f980}", "line\nbreak"].map(str::to_owned);
    let long = "ä".repeat(127);
    let names = odd.into_iter().chain([long]);
    for (index, name) in (0_i64..).zip(names.chain((0..30).map(|number| format!("p-{number:02}"))))
    {
        for segment in 0..12 {
            let ts = TEN + (segment * 599 + index * 7) * SECOND;
            let records = 1 + (index * segment % 17) as u32;
            log.write("orders", &Name::from(&*name), ts, records);
        }
    }
}

/// How the records of one run come.
#[derive(Clone, Debug)]
struct Way {
    concurrency: usize,
    limits: Limits,
    form: Form,
    /// What the times of the calls, and with them the order of the answers, follow from.
    seed: u64,
    compute: Compute,
    /// Whether the first window is redone from an intent.
    redo: bool,
    /// Whether objects go up in parts.
    multipart: bool,
}

impl Way {
    fn plain() -> Self {
        Self {
            concurrency: 4,
            limits: Limits::default(),
            form: Form::Json,
            seed: 1,
            compute: Compute::InPlace,
            redo: false,
            multipart: false,
        }
    }
}

/// Leaves the intent of the window `[TEN, TEN + HOUR)` behind, over a pointer at `committed`.
pub fn interrupted(log: &Log, shape: Shape, committed: i64) {
    let put = |document: &str, value| {
        let key = format!("s3:{SINK}:orders:{document}");
        KvOperation::put("queen-s3", &key, value, Expiry::Forever).expect("an expiry of the wire")
    };
    let pointer = json!({"k": 0, "tEnd": committed, "manifest": "", "records": 0, "bytes": 0,
        "committedAtMs": 0, "lineage": "l"});
    let intent = json!({"k": 1, "tStart": TEN, "tEnd": TEN + HOUR, "format": shape.format,
        "compression": shape.compression, "layout": shape.layout, "align": shape.align,
        "lineage": "l", "writer": "queen-s3/test"});
    log.kv(&[put("committed", pointer), put("intent", intent)])
        .expect("a batch of the API");
}

/// The two windows' objects.
fn objects(shape: Shape, way: &Way) -> BTreeMap<String, Bytes> {
    in_virtual_time(async {
        let log = Log::new(TEN + 2 * HOUR + 10 * SECOND, payload);
        history(&log);
        log.limit(way.limits);
        log.answer_in(way.form);
        if way.redo {
            interrupted(&log, shape, 0);
        }
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.settings.shape = shape;
        options.settings.fetch_concurrency = way.concurrency;
        options.settings.max_window = std::time::Duration::from_secs(3_600);
        options.compute = way.compute;
        options.seed = way.seed;
        if way.multipart {
            options.settings.multipart_threshold_bytes = 1;
        }
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        eventually("two windows", || committed(&log, "orders").0 == 2).await;
        sink.stop().await;
        bucket.data()
    })
}

fn digest(objects: &BTreeMap<String, Bytes>) -> String {
    let mut hash = Sha256::new();
    for (key, content) in objects {
        hash.update(key.as_bytes());
        hash.update([0]);
        hash.update(Sha256::digest(content));
    }
    hex::encode(hash.finalize())
}

fn plain(number: usize) -> &'static BTreeMap<String, Bytes> {
    static PLAIN: OnceLock<Vec<OnceLock<BTreeMap<String, Bytes>>>> = OnceLock::new();
    let all = PLAIN.get_or_init(|| vec![OnceLock::new(); shapes().len()]);
    all[number].get_or_init(|| objects(shapes()[number], &Way::plain()))
}

#[test]
fn the_bytes_of_every_format_compression_and_layout_are_these() {
    let mut listing = String::new();
    for (number, shape) in shapes().into_iter().enumerate() {
        let objects = plain(number);
        let bytes: usize = objects.values().map(Bytes::len).sum();
        let _ = writeln!(
            listing,
            "{} {} {}: {} objects, {bytes} bytes, {}",
            shape.format,
            shape.compression,
            shape.layout,
            objects.len(),
            digest(objects)
        );
    }
    insta::assert_snapshot!(listing);
}

fn any_way() -> impl Strategy<Value = Way> {
    let limits = (
        prop::sample::select(vec![1, 7, 100, 10_000]),
        prop::sample::select(vec![20, 500, 100_000]),
        prop::sample::select(vec![1, 5, 1_000]),
        any::<bool>(),
    );
    let limits = limits.prop_map(|(entry_records, call_records, page, strict)| Limits {
        entry_records,
        call_records,
        page,
        strict,
    });
    let compute = prop::sample::select(vec![Compute::InPlace, Compute::Offloaded]);
    let ways = (
        1_usize..=8,
        limits,
        prop::sample::select(Form::ALL.to_vec()),
        any::<u64>(),
        compute,
        any::<(bool, bool)>(),
    );
    ways.prop_map(
        |(concurrency, limits, form, seed, compute, (redo, multipart))| Way {
            concurrency,
            limits,
            form,
            seed,
            compute,
            redo,
            multipart,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_way_in_which_the_records_come_changes_a_byte(
        number in 0..shapes().len(),
        way in any_way(),
    ) {
        prop_assert!(objects(shapes()[number], &way) == *plain(number));
    }
}

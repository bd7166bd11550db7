//! Payloads, names, and the bytes of fetch answers.

use std::fmt::Write as _;

use queen_s3::broker::{FetchRequest, Name};
use queen_s3::time::Micros;
use uuid::Uuid;

use super::describe::{described, lz4};
use super::dice::Dice;
use super::log::{Log, NewRecord, Segment};

/// Padding from which on payloads are mostly long, bytes.
const LONG: usize = 1_000;

/// Names of partitions: plain ones and such as keys must escape.
pub fn partition_name(number: i64) -> Name {
    match number {
        1 => Name::from("Default"),
        2 => Name::from("..."),
        3 => Name::from("kunde/42 \"ü\"\n"),
        4 => Name::from("\u{1f980}"),
        _ => Name::from(format!("p-{number}")),
    }
}

/// A record with a payload that is easy to spoil; long ones are padded with `pad` bytes.
pub fn record(dice: &mut Dice, number: u64, pad: usize) -> NewRecord {
    let kinds = if pad > LONG { 4..=6 } else { 0..=9 };
    let payload = match dice.between(*kinds.start(), *kinds.end()) {
        0 => "null".to_owned(),
        1 => format!("{{\"n\":{number},\"big\":12345678901234567890.12345678901234567890}}"),
        2 => format!("{{\r\n  \"n\": {number},\n  \"list\": [1, 2 ,3]\n}}"),
        3 => format!("\"text \\u00e9 \\\"{number}\\\" é\""),
        4 => number.to_string(),
        5 => format!("{{\"n\":{number},\"pad\":\"{}\"}}", "x".repeat(pad)),
        _ => format!("{{\"n\":{number}}}"),
    };
    let transaction_id = match dice.between(0, 59) {
        0..=9 => "same".to_owned(),
        10 => format!("t\"\\{number}\n"),
        _ => format!("t-{number}"),
    };
    NewRecord {
        transaction_id: transaction_id.into(),
        payload: payload.into(),
    }
}

/// What a fetch may answer at most.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// Records per entry.
    pub entry_records: usize,
    /// Records that come first in a call whatever their size.
    pub least: usize,
    /// Records per call.
    pub call_records: usize,
    /// Whether to answer unknown fields as well.
    pub extra: bool,
    /// Whether a segment among those answered cannot be read.
    pub damaged: bool,
}

/// How a fetch is answered.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// JSON text.
    Json,
    /// Compressed segments.
    Segments,
    /// The same, with descriptions of their blocks, half of which are of LZ4.
    Described,
}

/// What an answer names as the lives of its partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Those that were read.
    Lives,
    /// This.
    Foreign(u128),
    /// Nothing.
    Nothing,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What its body is.
    pub form: Form,
    /// Its body.
    pub body: Vec<u8>,
    /// Whether a segment of it cannot be read.
    pub damaged: bool,
    /// Whether the body tells the lives that were read.
    pub tells_lives: bool,
    /// By entry, the life that was read.
    pub lives: Vec<Option<u128>>,
}

/// What a partition answers to one entry of a fetch.
struct Found<'a> {
    bounds: (i64, i64),
    life: Option<Uuid>,
    error: Option<&'static str>,
    /// Each with the number of its first records that are not answered, and of those that are.
    segments: Vec<(&'a Segment, usize, usize)>,
}

/// Finds what `request` is answered: by the record, or in whole segments, as brokers do whose
/// answers are rendered or are not. Also whether a record or an error is there, which is what ends
/// a long poll.
fn find<'a>(
    log: &'a Log,
    request: &FetchRequest,
    limits: FetchLimits,
    whole: bool,
) -> (Vec<Found<'a>>, bool) {
    let mut budget = limits.call_records;
    let mut least = limits.least;
    let mut settled = false;
    let mut entries = Vec::new();
    for entry in &request.entries {
        let Some(queue) = log.living(&request.queue) else {
            entries.push(Found {
                bounds: (0, 0),
                life: None,
                error: Some("UNKNOWN_TOPIC_OR_PARTITION"),
                segments: Vec::new(),
            });
            settled = true;
            continue;
        };
        let partition = queue.partitions.get(&entry.partition);
        let bounds = partition.map_or((0, 0), |found| (found.log_start, found.next));
        let inside = (bounds.0..=bounds.1).contains(&entry.offset);
        let mut segments = Vec::new();
        if let Some(partition) = partition.filter(|_| inside) {
            let mut left = limits.entry_records;
            let mut stored = 0;
            let from = partition
                .segments
                .partition_point(|segment| segment.end() <= entry.offset);
            for segment in partition.segments.range(from..) {
                let skipped = usize::try_from(entry.offset - segment.first).unwrap_or(0);
                let there = segment.records.len() - skipped;
                let fits = stored + segment.stored <= entry.max_bytes as usize;
                let room = if fits { left.min(budget) } else { 0 };
                let room = room.max(least);
                let taken = if whole && room > 0 {
                    there
                } else {
                    there.min(room)
                };
                if taken == 0 {
                    break;
                }
                segments.push((segment, skipped, taken));
                least = least.saturating_sub(taken);
                settled = true;
                left = left.saturating_sub(taken);
                budget = budget.saturating_sub(taken);
                stored += segment.stored;
                if taken < there {
                    break;
                }
            }
        }
        settled |= !inside;
        entries.push(Found {
            bounds,
            life: partition.map(|found| found.id),
            error: (!inside).then_some("OFFSET_OUT_OF_RANGE"),
            segments,
        });
    }
    (entries, settled)
}

/// The answer to `request`, and whether it holds a record or an error.
pub fn fetch_answer(
    log: &Log,
    request: &FetchRequest,
    limits: FetchLimits,
    (form, named): (Form, Named),
) -> (Answer, bool) {
    let whole = matches!(form, Form::Segments | Form::Described);
    let (mut found, settled) = find(log, request, limits, whole);
    let life = |found: &Found<'_>| found.life.map(|life| life.as_u128());
    let lives = found.iter().map(life).collect();
    for found in &mut found {
        found.life = match named {
            Named::Lives => found.life,
            Named::Foreign(life) => found.life.map(|_| Uuid::from_u128(life)),
            Named::Nothing => None,
        };
    }
    let body = match form {
        Form::Segments => {
            let version = if named == Named::Nothing { 1 } else { 2 };
            segments_body(request, &found, limits, version)
        }
        Form::Described => segments_body(request, &found, limits, 4),
        Form::Json => json_body(request, &found, limits).into_bytes(),
    };
    let answer = Answer {
        form,
        body,
        // In an entry, the one in the middle of those answered.
        damaged: limits.damaged && found.iter().any(|found| !found.segments.is_empty()),
        tells_lives: named == Named::Lives,
        lives,
    };
    (answer, settled)
}

fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

fn json_body(request: &FetchRequest, found: &[Found<'_>], limits: FetchLimits) -> String {
    let mut damaged = limits.damaged;
    let mut body = String::from(if limits.extra {
        "{\"took\":1,\"entries\":["
    } else {
        "{\"entries\":["
    });
    for (index, (entry, found)) in request.entries.iter().zip(found).enumerate() {
        let _ = write!(
            body,
            "{}{{\"queue\":{},\"partition\":{},\"records\":[",
            if index > 0 { "," } else { "" },
            quote(&request.queue),
            quote(&entry.partition)
        );
        let mut error = found.error;
        let mut separator = "";
        for (number, (segment, skipped, taken)) in found.segments.iter().enumerate() {
            if damaged && number + 1 == found.segments.len().div_ceil(2) {
                (damaged, error) = (false, Some("UNREADABLE"));
                break;
            }
            let records = (segment.first..).zip(&segment.records);
            for (offset, record) in records.skip(*skipped).take(*taken) {
                let _ = write!(
                    body,
                    "{separator}{{\"offset\":{offset},\"transactionId\":{},\"payload\":{},\"ts\":\"{}\"}}",
                    quote(&record.transaction_id),
                    record.payload,
                    Micros(segment.ts)
                );
                separator = ",";
            }
        }
        let (start, end) = found.bounds;
        let _ = write!(body, "],\"highWatermark\":{end},\"logStartOffset\":{start}");
        if let Some(life) = found.life {
            let _ = write!(body, ",\"id\":\"{life}\"");
        }
        if let Some(error) = error {
            let _ = write!(body, ",\"error\":\"{error}\"");
        }
        body.push('}');
    }
    body.push_str("]}");
    body
}

fn segments_body(
    request: &FetchRequest,
    found: &[Found<'_>],
    limits: FetchLimits,
    version: u8,
) -> Vec<u8> {
    let mut damaged = limits.damaged;
    let mut body = b"QSEG".to_vec();
    body.push(version);
    number(&mut body, request.entries.len());
    for (entry, found) in request.entries.iter().zip(found) {
        for name in [&*request.queue, &*entry.partition] {
            let length = u16::try_from(name.len()).expect("a name of the simulation is short");
            body.extend_from_slice(&length.to_le_bytes());
            body.extend_from_slice(name.as_bytes());
        }
        let (start, end) = found.bounds;
        body.extend_from_slice(&end.to_le_bytes());
        body.extend_from_slice(&start.to_le_bytes());
        if version > 1 {
            body.extend_from_slice(found.life.unwrap_or_default().as_bytes());
        }
        for (number, (segment, ..)) in found.segments.iter().enumerate() {
            let breaks = damaged && number + 1 == found.segments.len().div_ceil(2);
            damaged &= !breaks;
            let described = version > 2;
            let whole = &segment.bodies[usize::from(described)];
            match breaks {
                true => body.extend(segment_body(segment, true, described)),
                false => body.extend(whole.get_or_init(|| segment_body(segment, false, described))),
            }
        }
        let error = found.error.unwrap_or_default();
        body.extend_from_slice(&[0, error.len() as u8]);
        body.extend_from_slice(error.as_bytes());
    }
    body
}

/// A whole segment. A damaged one is shorter than it says. Where it has a description, every other of those
/// has the checksum of what is there.
fn segment_body(segment: &Segment, damaged: bool, with_description: bool) -> Vec<u8> {
    let records = segment.records.iter().map(|record| {
        let payload = match &*record.payload {
            "null" => "",
            payload => payload,
        };
        (quote(&record.transaction_id), payload)
    });
    let records: Vec<(String, &str)> = records.collect();
    let mut content = vec![1];
    for (id, payload) in &records {
        number(&mut content, id.len());
        number(&mut content, payload.len());
        content.extend_from_slice(id.as_bytes());
        content.extend_from_slice(payload.as_bytes());
    }
    let there = if damaged {
        content.len() / 2
    } else {
        content.len()
    };
    let compress = |content: &[u8]| match segment.ts % 2 {
        1 if with_description => lz4(content),
        _ => zstd::bulk::compress(content, 1).expect("room in memory"),
    };
    let mut block = compress(&content[..there]);
    if with_description {
        let told = match segment.first % 2 {
            0 => compress(&content),
            _ => block.clone(),
        };
        let texts = records.iter().map(|(id, payload)| (id.as_str(), *payload));
        block = described(texts, &block, &told);
    }
    let mut body = vec![1];
    body.extend_from_slice(&segment.first.to_le_bytes());
    body.extend_from_slice(&segment.ts.to_le_bytes());
    number(&mut body, segment.records.len());
    number(&mut body, content.len());
    number(&mut body, block.len());
    body.extend_from_slice(&block);
    body
}

fn number(body: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("a segment of the simulation is small");
    body.extend_from_slice(&number.to_le_bytes());
}

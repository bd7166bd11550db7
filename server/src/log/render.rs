//! The answer of a fetch, rendered straight from decompressed blocks.

use std::time::Instant;

use uuid::Uuid;

use crate::http::json;
use crate::limits::{FETCH_CALL_RENDERED_BYTES, FETCH_RECORDS_PER_ENTRY};
use crate::log::codec::{Damage, Records, decompress};
use crate::log::complaints::Complaints;
use crate::log::seal::{Place, SealKey, opened};
use crate::timestamp::Timestamp;

/// A segment as the database gave it; `B` holds its compressed block.
#[derive(Debug, Clone)]
pub struct StoredSegment<B> {
    /// Offset of its first record.
    pub base_offset: i64,
    /// Its commit time.
    pub ts: Timestamp,
    /// Length of the block before compression.
    pub raw_bytes: usize,
    /// Number of records.
    pub records: usize,
    /// Payload lengths added up, an empty payload counting 1.
    pub payload_bytes: u64,
    /// The compressed block.
    pub block: B,
}

impl<B> StoredSegment<B> {
    /// The offset after its last record.
    pub fn end(&self) -> i64 {
        self.base_offset + self.records as i64
    }
}

/// What one entry is answered with.
#[derive(Debug)]
pub struct EntryAnswer<B> {
    /// Queue as asked.
    pub queue: String,
    /// Partition as asked, or the default.
    pub partition: String,
    /// Offset asked for: records below it are left out.
    pub offset: i64,
    /// Next offset to be assigned.
    pub watermark: i64,
    /// Oldest offset kept.
    pub log_start: i64,
    /// Life of the partition that was read, if it was ever made.
    pub life: Option<Uuid>,
    /// Marker instead of records.
    pub error: Option<&'static str>,
    /// Segments to render, in order.
    pub segments: Vec<StoredSegment<B>>,
}

impl<B> EntryAnswer<B> {
    /// Where `segment` belongs, for the key that it may be sealed with.
    pub fn place(&self, tenant: Uuid, segment: &StoredSegment<B>) -> Place<'_> {
        Place {
            tenant,
            queue: &self.queue,
            partition: &self.partition,
            records: segment.records,
            raw_bytes: segment.raw_bytes,
        }
    }
}

/// Marker of an entry whose segment cannot be read.
pub const UNREADABLE: &str = "UNREADABLE";

static COMPLAINTS: Complaints = Complaints::new();

/// Reports a segment that cannot be read, now and then; answers the marker of its entry.
pub fn unreadable<B>(
    entry: &EntryAnswer<B>,
    segment: &StoredSegment<B>,
    damage: &Damage,
) -> &'static str {
    if let Some(suppressed) = COMPLAINTS.worth_a_line(damage, Instant::now()) {
        tracing::error!(
            queue = entry.queue,
            partition = entry.partition,
            base_offset = segment.base_offset,
            error = %damage,
            suppressed,
            "a segment cannot be read; its readers wait in front of it"
        );
    }
    UNREADABLE
}

/// A rendered answer.
#[derive(Debug)]
pub struct Rendered {
    /// The body.
    pub body: Vec<u8>,
    /// Payload bytes in it, an empty payload counting 1.
    pub payload_bytes: u64,
    /// Records in it.
    pub records: u64,
    /// Whether an entry carries an error.
    pub failed: bool,
}

/// Renders `entries` of `tenant` up to the limits of a call. `key` opens what is sealed.
pub fn render<B: AsRef<[u8]>>(
    entries: &[EntryAnswer<B>],
    tenant: Uuid,
    key: Option<&SealKey>,
) -> Rendered {
    let expected: usize = entries
        .iter()
        .flat_map(|entry| &entry.segments)
        .map(|segment| segment.raw_bytes + segment.records * 80)
        .sum();
    let mut renderer = Renderer {
        out: Vec::with_capacity(expected.min(FETCH_CALL_RENDERED_BYTES) + entries.len() * 160 + 16),
        raw: Vec::new(),
        opened: Vec::new(),
        tenant,
        key,
        payload_bytes: 0,
        records: 0,
        full: false,
    };
    let mut failed = false;
    renderer.out.extend_from_slice(b"{\"entries\":[");
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            renderer.out.push(b',');
        }
        failed |= renderer.entry(entry);
    }
    renderer.out.extend_from_slice(b"]}");
    Rendered {
        body: renderer.out,
        payload_bytes: renderer.payload_bytes,
        records: renderer.records,
        failed,
    }
}

struct Renderer<'a> {
    out: Vec<u8>,
    raw: Vec<u8>,
    opened: Vec<u8>,
    tenant: Uuid,
    key: Option<&'a SealKey>,
    payload_bytes: u64,
    records: u64,
    /// The call's rendered bytes are spent.
    full: bool,
}

impl Renderer<'_> {
    /// Whether the entry carries an error.
    fn entry<B: AsRef<[u8]>>(&mut self, entry: &EntryAnswer<B>) -> bool {
        let mut digits = itoa::Buffer::new();
        self.out.extend_from_slice(b"{\"queue\":");
        json::write_string(&mut self.out, &entry.queue);
        self.out.extend_from_slice(b",\"partition\":");
        json::write_string(&mut self.out, &entry.partition);
        self.out.extend_from_slice(b",\"records\":[");
        let mut error = entry.error;
        let mut taken = 0;
        for segment in &entry.segments {
            if self.full || taken == FETCH_RECORDS_PER_ENTRY {
                break;
            }
            if let Err(damage) = self.segment(entry, segment, &mut taken) {
                error = Some(unreadable(entry, segment, &damage));
                break;
            }
        }
        self.out.extend_from_slice(b"],\"highWatermark\":");
        self.out
            .extend_from_slice(digits.format(entry.watermark).as_bytes());
        self.out.extend_from_slice(b",\"logStartOffset\":");
        self.out
            .extend_from_slice(digits.format(entry.log_start).as_bytes());
        if let Some(life) = entry.life {
            self.out.extend_from_slice(b",\"id\":\"");
            let mut text = Uuid::encode_buffer();
            let text = life.hyphenated().encode_lower(&mut text);
            self.out.extend_from_slice(text.as_bytes());
            self.out.push(b'"');
        }
        if let Some(error) = error {
            self.out.extend_from_slice(b",\"error\":\"");
            self.out.extend_from_slice(error.as_bytes());
            self.out.push(b'"');
        }
        self.out.push(b'}');
        error.is_some()
    }

    fn segment<B: AsRef<[u8]>>(
        &mut self,
        entry: &EntryAnswer<B>,
        segment: &StoredSegment<B>,
        taken: &mut usize,
    ) -> Result<(), Damage> {
        let place = entry.place(self.tenant, segment);
        let mut raw = std::mem::take(&mut self.raw);
        let outcome = opened(segment.block.as_ref(), place, self.key, &mut self.opened)
            .and_then(|frame| decompress(frame, segment.raw_bytes, &mut raw))
            .and_then(|()| self.records(&raw, segment, entry.offset, taken));
        self.raw = raw;
        outcome
    }

    fn records<B>(
        &mut self,
        raw: &[u8],
        segment: &StoredSegment<B>,
        from: i64,
        taken: &mut usize,
    ) -> Result<(), Damage> {
        // Counted before anything is rendered: a block with a record too few or too many gives
        // every later record a wrong offset.
        if Records::new(raw)?.try_fold(0, |count, record| record.map(|_| count + 1))?
            != segment.records
        {
            return Err(Damage::Record);
        }
        let mut digits = itoa::Buffer::new();
        let tail = format!(",\"ts\":\"{}\"}}", segment.ts);
        for (offset, record) in (segment.base_offset..).zip(Records::new(raw)?) {
            let record = record?;
            if offset < from {
                continue;
            }
            if *taken == FETCH_RECORDS_PER_ENTRY {
                break;
            }
            let payload = if record.payload.is_empty() {
                b"null"
            } else {
                record.payload
            };
            let length = 80 + record.id.len() + payload.len() + tail.len();
            if self.records > 0 && self.out.len() + length > FETCH_CALL_RENDERED_BYTES {
                self.full = true;
                break;
            }
            self.out.extend_from_slice(if *taken == 0 {
                b"{\"offset\":"
            } else {
                b",{\"offset\":"
            });
            self.out.extend_from_slice(digits.format(offset).as_bytes());
            self.out.extend_from_slice(b",\"transactionId\":");
            self.out.extend_from_slice(record.id);
            self.out.extend_from_slice(b",\"payload\":");
            self.out.extend_from_slice(payload);
            self.out.extend_from_slice(tail.as_bytes());
            *taken += 1;
            self.records += 1;
            self.payload_bytes += record.payload.len().max(1) as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::log::codec::BlockWriter;
    use crate::log::frame::Compression;

    use super::*;

    pub fn segment(base_offset: i64, payloads: &[&str]) -> StoredSegment<Vec<u8>> {
        segment_in(Compression::Lz4, base_offset, payloads)
    }

    pub fn segment_in(
        compression: Compression,
        base_offset: i64,
        payloads: &[&str],
    ) -> StoredSegment<Vec<u8>> {
        let mut writer = BlockWriter::new(compression);
        for (index, payload) in payloads.iter().enumerate() {
            writer.push(format!("\"t{index}\"").as_bytes(), payload.as_bytes());
        }
        let block = writer.finish().expect("memory");
        StoredSegment {
            base_offset,
            ts: Timestamp::from_micros(1_788_516_221_918_204),
            raw_bytes: block.raw_bytes,
            records: block.records,
            payload_bytes: block.payload_bytes as u64,
            block: block.bytes,
        }
    }

    pub fn entry(offset: i64, segments: Vec<StoredSegment<Vec<u8>>>) -> EntryAnswer<Vec<u8>> {
        EntryAnswer {
            queue: "o\"q".into(),
            partition: "eu".into(),
            offset,
            watermark: 44,
            log_start: 12,
            life: None,
            error: None,
            segments,
        }
    }

    #[test]
    fn the_answer_has_the_shape_of_the_published_types() {
        let mut unknown = entry(0, vec![]);
        unknown.error = Some("UNKNOWN_TOPIC_OR_PARTITION");
        let entries = [
            entry(
                42,
                vec![segment(41, &["1", "{\"a\":2}"]), segment(43, &["null"])],
            ),
            unknown,
        ];
        let rendered = render(&entries, Uuid::nil(), None);
        let answer: queen_protocol::FetchResponse =
            serde_json::from_slice(&rendered.body).expect("a fetch answer");
        assert_eq!(
            serde_json::to_string(&answer).expect("JSON").into_bytes(),
            rendered.body
        );
        let records = &answer.entries[0].records;
        assert_eq!(
            records
                .iter()
                .map(|record| record.offset)
                .collect::<Vec<_>>(),
            [42, 43]
        );
        assert_eq!(records[0].ts, "2026-09-04T10:03:41.918204Z");
        assert_eq!(records[0].transaction_id, "t1");
        assert!(answer.entries[1].is_unknown_partition());
        assert!(rendered.failed);
        assert_eq!((rendered.records, rendered.payload_bytes), (2, 11));
    }

    #[test]
    fn an_entry_tells_the_life_that_it_is_of_as_a_listing_does() {
        let mut lives = entry(42, vec![]);
        lives.life = Some(Uuid::from_u128(0xa1));
        let rendered = render(&[lives, entry(42, vec![])], Uuid::nil(), None);
        let answer: serde_json::Value = serde_json::from_slice(&rendered.body).expect("JSON");
        let entries = &answer["entries"];
        assert_eq!(entries[0]["id"], "00000000-0000-0000-0000-0000000000a1");
        assert!(entries[1].get("id").is_none());
        // Clients that do not know the field read on.
        let known: queen_protocol::FetchResponse =
            serde_json::from_slice(&rendered.body).expect("a fetch answer");
        assert_eq!(known.entries[0].high_watermark, 44);
    }

    #[test]
    fn a_damaged_segment_ends_its_entry_and_says_so() {
        let mut damaged = segment(1, &["2"]);
        damaged.block.remove(0);
        let rendered = render(
            &[entry(
                0,
                vec![segment(0, &["1"]), damaged, segment(2, &["3"])],
            )],
            Uuid::nil(),
            None,
        );
        let answer: queen_protocol::FetchResponse =
            serde_json::from_slice(&rendered.body).expect("a fetch answer");
        assert_eq!(answer.entries[0].records.len(), 1);
        assert_eq!(answer.entries[0].error.as_deref(), Some(UNREADABLE));
    }

    #[test]
    fn segments_that_all_lack_their_key_are_a_line_and_not_one_each() {
        use std::io::Read;

        let key = SealKey::parse(&"07".repeat(32)).expect("a key");
        let sealed = |offset| {
            let mut segment = segment(offset, &["1"]);
            let whole = entry(0, vec![]);
            let place = whole.place(Uuid::nil(), &segment);
            segment.block = key.seal(&segment.block, place).expect("short");
            segment
        };
        let entries: Vec<_> = (0..1_000).map(|n| entry(n, vec![sealed(n)])).collect();
        let (mut written, writer) = std::io::pipe().expect("a pipe");
        // A pipe holds little.
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            written.read_to_string(&mut text).map(|_| text)
        });
        let subscriber = tracing_subscriber::fmt()
            .with_writer(std::sync::Arc::new(writer))
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..2 {
                assert!(render(&entries, Uuid::nil(), None).failed);
            }
        });
        let text = reading.join().expect("it ends").expect("UTF-8");
        let lines: Vec<&str> = text.lines().collect();
        assert!((1..=2).contains(&lines.len()), "{lines:#?}");
        assert!(
            lines[0].contains("QUEEN_ENCRYPTION_KEY is unset"),
            "{}",
            lines[0]
        );
    }

    #[test]
    fn a_segment_with_another_count_of_records_is_damaged() {
        let mut wrong = segment(0, &["1", "2"]);
        wrong.records = 3;
        let rendered = render(&[entry(0, vec![wrong])], Uuid::nil(), None);
        assert!(rendered.failed && rendered.records == 0);
    }

    #[test]
    fn an_entry_ends_at_its_records() {
        let payloads = vec!["1"; FETCH_RECORDS_PER_ENTRY];
        let rendered = render(
            &[entry(
                5,
                vec![segment(0, &payloads), segment(10_000, &payloads)],
            )],
            Uuid::nil(),
            None,
        );
        assert_eq!(rendered.records, FETCH_RECORDS_PER_ENTRY as u64);
    }
}

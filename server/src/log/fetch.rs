//! `fetch`: reads of many partitions from absolute offsets, with a long poll.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::admission::Lane;
use crate::broker::Broker;
use crate::error::ApiError;
use crate::http::json;
use crate::limits::{
    FETCH_CALL_RENDERED_BYTES, FETCH_CALL_STORED_BYTES, FETCH_ENTRIES, FETCH_ENTRY_BYTES_DEFAULT,
    FETCH_ENTRY_BYTES_MAX, FETCH_RECHECK, FETCH_RECORDS_PER_ENTRY, FETCH_WAIT_MAX,
    INLINE_WORK_BYTES,
};
use crate::log::changed::UNKNOWN;
use crate::log::render::{EntryAnswer, Rendered, StoredSegment, render};
use crate::log::seal::{SealKey, Vault};
use crate::log::transfer::{SEGMENTS, Version, pack};
use crate::name::{DEFAULT_PARTITION, PartitionName, check_name};
use crate::session::{Session, read_again};

/// Marker of an offset outside of the log; the bounds come with it.
pub const OFFSET_OUT_OF_RANGE: &str = "OFFSET_OUT_OF_RANGE";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    entries: Vec<Entry<'a>>,
    #[serde(default)]
    max_wait_ms: Option<u64>,
    #[serde(default)]
    min_bytes: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    queue: String,
    #[serde(borrow, default)]
    partition: Option<PartitionName<'a>>,
    offset: i64,
    #[serde(default)]
    max_bytes: Option<i64>,
}

/// A checked request, column by column as the database takes it.
#[derive(Debug, Default)]
pub struct FetchRequest {
    queues: Vec<String>,
    partitions: Vec<String>,
    offsets: Vec<i64>,
    max_bytes: Vec<i64>,
    wait: Duration,
    min_bytes: u64,
    /// How the answer is to be written.
    pub form: Form,
}

/// How a fetch is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// JSON, record by record.
    #[default]
    Json,
    /// Compressed blocks, for clients that ask for [`SEGMENTS`].
    Segments(Version),
}

impl Form {
    /// The best form that `Accept` headers ask for: segments where one names them.
    pub fn accepted<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let ranges = accept.flat_map(|header| header.split(','));
        let versions = ranges.filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let (mut version, mut weight) = (None, None);
            for part in parts {
                version = version.or_else(|| part.strip_prefix("version=")?.parse::<u8>().ok());
                weight = weight.or_else(|| part.strip_prefix("q=")?.parse::<f32>().ok());
            }
            // A weight of 0 means "not this".
            let named = name.eq_ignore_ascii_case(SEGMENTS) && weight != Some(0.0);
            // A client that reads a later version reads those before it.
            named.then_some(match version {
                Some(2) => Version::WithLives,
                Some(3) => Version::Described,
                Some(4..) => Version::Stored,
                _ => Version::Plain,
            })
        });
        versions.max().map_or(Self::Json, Self::Segments)
    }

    /// The answer's media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Segments(_) => SEGMENTS,
        }
    }

    fn write(self, look: &Look, tenant: Uuid, key: Option<&SealKey>) -> Rendered {
        match self {
            Self::Json => render(&look.entries, tenant, key),
            Self::Segments(version) => pack(&look.entries, version, tenant, key),
        }
    }
}

/// Parses and checks a request body.
///
/// # Errors
///
/// `400` for a malformed body, too many entries, a bad name or a negative offset.
pub fn parse(body: &[u8]) -> Result<FetchRequest, ApiError> {
    let request: Request<'_> = json::parse(body)?;
    if request.entries.len() > FETCH_ENTRIES {
        return Err(ApiError::coded(
            "too_many_entries",
            format!(
                "entries: {} of them, at most {FETCH_ENTRIES} a call",
                request.entries.len()
            ),
        ));
    }
    let mut parsed = FetchRequest {
        wait: request
            .max_wait_ms
            .map_or(Duration::ZERO, Duration::from_millis)
            .min(FETCH_WAIT_MAX),
        // No answer could hold more.
        min_bytes: u64::try_from(request.min_bytes.unwrap_or(1))
            .unwrap_or(0)
            .min(FETCH_CALL_RENDERED_BYTES as u64),
        ..FetchRequest::default()
    };
    for (index, entry) in request.entries.into_iter().enumerate() {
        let partition = entry
            .partition
            .map_or_else(|| DEFAULT_PARTITION.to_owned(), |name| name.0.into_owned());
        check_name(&entry.queue, format_args!("entries[{index}].queue"))?;
        check_name(&partition, format_args!("entries[{index}].partition"))?;
        if entry.offset < 0 {
            return Err(ApiError::bad_request(format!(
                "entries[{index}].offset: {} is negative; bounds come with every answer",
                entry.offset
            )));
        }
        parsed.queues.push(entry.queue);
        parsed.partitions.push(partition);
        parsed.offsets.push(entry.offset);
        parsed.max_bytes.push(
            entry
                .max_bytes
                .unwrap_or(FETCH_ENTRY_BYTES_DEFAULT)
                .clamp(1, FETCH_ENTRY_BYTES_MAX),
        );
    }
    Ok(parsed)
}

/// Answers a fetch, parking it while there is nothing to answer.
///
/// While parked it holds neither a database session nor a slot.
///
/// # Errors
///
/// `503` or `500` from the database, `503` when the broker stops before the first look.
pub async fn fetch(
    broker: &Broker,
    tenant: Uuid,
    request: FetchRequest,
) -> Result<Rendered, ApiError> {
    let deadline = Instant::now() + request.wait;
    let may_park = !request.wait.is_zero() && request.min_bytes > 0;
    let registration = may_park.then(|| {
        let names = request.queues.iter().zip(&request.partitions);
        broker.waiters.register(
            tenant,
            names.map(|(queue, part)| (queue.as_str(), part.as_str())),
        )
    });
    let mut empty: Option<Look> = None;
    let mut tried = Tried::default();
    let mut unreadable = false;
    loop {
        let over = || Instant::now() >= deadline || broker.stopping.is_cancelled();
        let mut look = match empty.take() {
            // A write would have woken it: what was seen last still holds.
            Some(look) if over() => look,
            _ => read_again(|| look(broker, tenant, &request)).await?,
        };
        let Some(registration) = &registration else {
            return finish(look, request.form, tenant, &broker.vault).await;
        };
        let ends = over() || look.failed || look.full || unreadable;
        if ends || look.payload_bytes >= request.min_bytes {
            let rendered = finish(look, request.form, tenant, &broker.vault).await?;
            // The first segment may begin below the offset asked for, so only what is rendered
            // tells whether there is enough.
            if ends || rendered.failed || rendered.payload_bytes >= request.min_bytes {
                return Ok(rendered);
            }
        } else if look.stored_bytes == 0 {
            // While it is parked it holds nothing that was read.
            empty = Some(look);
        } else {
            tried.leave_new(&mut look);
            unreadable = finish(look, request.form, tenant, &broker.vault)
                .await?
                .failed;
            if unreadable {
                // Read again: what was left of it is no answer.
                continue;
            }
        }
        let recheck = deadline.min(Instant::now() + FETCH_RECHECK);
        tokio::select! {
            () = registration.woken() => {}
            () = broker.stopping.cancelled() => {}
            () = tokio::time::sleep_until(recheck) => {}
        }
    }
}

/// What was opened while the call waits for more, so that it is opened once: by entry, the life and the
/// offset after the last segment.
#[derive(Default)]
struct Tried(Vec<(Option<Uuid>, i64)>);

impl Tried {
    /// Leaves those segments in `look` that were not opened before.
    fn leave_new(&mut self, look: &mut Look) {
        self.0.resize(look.entries.len(), (None, 0));
        for (tried, entry) in self.0.iter_mut().zip(&mut look.entries) {
            let before = if tried.0 == entry.life { tried.1 } else { 0 };
            let end = entry.segments.last().map_or(before, StoredSegment::end);
            *tried = (entry.life, end.max(before));
            entry.segments.retain(|segment| segment.end() > before);
        }
    }
}

/// A row of a read, kept as it came over the wire: its block is not copied.
struct BlockRow(Row);

/// Where [`BlockRow`] finds its block.
const BLOCK_COLUMN: usize = 9;

impl AsRef<[u8]> for BlockRow {
    fn as_ref(&self) -> &[u8] {
        self.0.get(BLOCK_COLUMN)
    }
}

/// What one read of the database found.
struct Look {
    entries: Vec<EntryAnswer<BlockRow>>,
    /// Payload bytes of the segments found, at least those that will be rendered.
    payload_bytes: u64,
    stored_bytes: usize,
    failed: bool,
    /// An entry found more than it may return: waiting would not bring more.
    full: bool,
}

async fn look(broker: &Broker, tenant: Uuid, request: &FetchRequest) -> Result<Look, ApiError> {
    let slot = broker.lanes.enter(Lane::Pop).await?;
    let client = broker.database.client(slot).await?;
    read(&client, tenant, request).await
}

async fn read(client: &Session, tenant: Uuid, request: &FetchRequest) -> Result<Look, ApiError> {
    const READ: &str = "
        SELECT entry, known, watermark, log_start, base_offset, ts, records, raw_bytes,
               payload_bytes, block, life
        FROM queen.fetch($1, $2, $3, $4, $5, $6, $7, $8, true)";
    let statement = client.prepare_cached(READ).await?;
    let rows = client
        .query(
            &statement,
            &[
                &tenant,
                &request.queues,
                &request.partitions,
                &request.offsets,
                &request.max_bytes,
                &FETCH_CALL_STORED_BYTES,
                &(FETCH_CALL_RENDERED_BYTES as i64),
                &(FETCH_RECORDS_PER_ENTRY as i64),
            ],
        )
        .await?;
    let mut look = Look {
        entries: Vec::with_capacity(request.queues.len()),
        payload_bytes: 0,
        stored_bytes: 0,
        failed: false,
        full: false,
    };
    for row in rows {
        let Some(base_offset) = row.get::<_, Option<i64>>(4) else {
            look.bounds(request, row.get(1), (row.get(2), row.get(3)), row.get(10));
            continue;
        };
        look.stored_bytes += row.get::<_, &[u8]>(BLOCK_COLUMN).len();
        let payload_bytes = row.get::<_, i64>(8).unsigned_abs();
        look.payload_bytes += payload_bytes;
        let segment = StoredSegment {
            base_offset,
            ts: row.get(5),
            records: row.get::<_, i32>(6).unsigned_abs() as usize,
            raw_bytes: row.get::<_, i32>(7).unsigned_abs() as usize,
            payload_bytes,
            block: BlockRow(row),
        };
        if let Some(entry) = look.entries.last_mut() {
            entry.segments.push(segment);
        }
    }
    look.full = look.entries.iter().any(|entry| {
        entry
            .segments
            .last()
            .is_some_and(|last| last.end() < entry.watermark)
    });
    Ok(look)
}

impl Look {
    /// Begins the next entry.
    fn bounds(
        &mut self,
        request: &FetchRequest,
        known: bool,
        (watermark, log_start): (i64, i64),
        life: Option<Uuid>,
    ) {
        let index = self.entries.len();
        let offset = request.offsets[index];
        let error = if !known {
            Some(UNKNOWN)
        } else if offset < log_start || offset > watermark {
            Some(OFFSET_OUT_OF_RANGE)
        } else {
            None
        };
        self.failed |= error.is_some();
        self.entries.push(EntryAnswer {
            queue: request.queues[index].clone(),
            partition: request.partitions[index].clone(),
            offset,
            watermark,
            log_start,
            life,
            error,
            segments: Vec::new(),
        });
    }
}

async fn finish(look: Look, form: Form, tenant: Uuid, vault: &Vault) -> Result<Rendered, ApiError> {
    let key = vault.key().cloned();
    if look.stored_bytes <= INLINE_WORK_BYTES {
        return Ok(form.write(&look, tenant, key.as_deref()));
    }
    let rendering = tokio::task::spawn_blocking(move || form.write(&look, tenant, key.as_deref()));
    Ok(rendering.await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_come_only_to_who_names_them() {
        for (accept, form) in [
            (None, Form::Json),
            (Some("*/*"), Form::Json),
            (Some("application/json"), Form::Json),
            (
                Some("Application/vnd.queen.segments;q=1, application/json;q=0.5"),
                Form::Segments(Version::Plain),
            ),
            (
                Some("application/json, application/vnd.queen.segments"),
                Form::Segments(Version::Plain),
            ),
            (
                Some("application/vnd.queen.segments;version=1"),
                Form::Segments(Version::Plain),
            ),
            (
                Some("application/vnd.queen.segments;version=2, application/json;q=0.9"),
                Form::Segments(Version::WithLives),
            ),
            (
                Some("application/vnd.queen.segments;version=3"),
                Form::Segments(Version::Described),
            ),
            (
                Some("application/vnd.queen.segments; q=0.5; version=5"),
                Form::Segments(Version::Stored),
            ),
            (
                Some("application/vnd.queen.segments;version=2;q=0"),
                Form::Json,
            ),
            (Some("application/vnd.queen.segments-2"), Form::Json),
            (
                Some("application/vnd.queen.segments; q=0.0, */*"),
                Form::Json,
            ),
        ] {
            assert_eq!(Form::accepted(accept.into_iter()), form, "{accept:?}");
        }
    }

    #[test]
    fn limits_and_defaults_are_applied() {
        let request = parse(
            br#"{"entries":[{"queue":"q","offset":0},{"queue":"q","partition":7,"offset":1,"maxBytes":99999999},
                 {"queue":"q","offset":0,"maxBytes":-1}],"maxWaitMs":99999999}"#,
        )
        .expect("a request");
        assert_eq!(request.partitions, ["Default", "7", "Default"]);
        assert_eq!(
            request.max_bytes,
            [FETCH_ENTRY_BYTES_DEFAULT, FETCH_ENTRY_BYTES_MAX, 1]
        );
        assert_eq!((request.wait, request.min_bytes), (FETCH_WAIT_MAX, 1));
    }

    #[test]
    fn a_wrong_request_is_refused_and_says_where() {
        for (body, place) in [
            (
                r#"{"entries":[{"queue":"q","offset":-1}]}"#,
                "entries[0].offset",
            ),
            (
                r#"{"entries":[{"queue":"q","offset":"1"}]}"#,
                "entries[0].offset",
            ),
            (
                r#"{"entries":[{"queue":"q","offset":1},{"queue":"","offset":0}]}"#,
                "entries[1].queue",
            ),
            (
                r#"{"entries":[{"queue":"q","offset":0}],"maxWaitMs":-5}"#,
                "maxWaitMs",
            ),
            (
                r#"{"entries":[{"queue":"q","partition":true,"offset":0}]}"#,
                "partition",
            ),
            ("{", "line 1"),
        ] {
            let error = parse(body.as_bytes()).expect_err(body).to_string();
            assert!(error.contains(place), "{body}: {error}");
        }
        let many = vec![r#"{"queue":"q","offset":0}"#; FETCH_ENTRIES + 1].join(",");
        assert!(parse(format!(r#"{{"entries":[{many}]}}"#).as_bytes()).is_err());
    }
}

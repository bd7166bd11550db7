//! What the key/value store and the bucket hold: documents, manifests, checkpoints, lines, keys.

use std::io::Cursor;

use queen_s3::decode::{Lines, ReadError};
use queen_s3::gaps::{Gaps, count, subtract};
use queen_s3::lake::checkpoint::Checkpoint;
use queen_s3::lake::documents::{CommitPointer, Intent, LeaseDocument};
use queen_s3::lake::keys::{LakeKeys, decode_name, encode_name};
use queen_s3::lake::manifest::Manifest;
use queen_s3::lake::{Align, Compression};
use queen_s3::limits::{ENCODED_NAME_BYTES, INTENT_GAPS_BYTES, KEY_BYTES};
use queen_s3::time::Micros;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Verdict, ensure};

fn keys() -> LakeKeys {
    LakeKeys::new("queen", "default", "or/ders")
}

/// Reads `value` as the document `T` and writes it again: what was there must be there.
fn rewritten<T>(value: &Value) -> Result<Option<T>, String>
where
    T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let Ok(document) = serde_json::from_value::<T>(value.clone()) else {
        return Ok(None);
    };
    let written = serde_json::to_value(&document).map_err(|error| error.to_string())?;
    let fields = value.as_object().ok_or("a document that is no object")?;
    for (name, field) in fields {
        // Null stands for a default, which is written, or for nothing, which is not.
        let kept = field.is_null() || written[name] == *field;
        ensure(kept, || {
            format!("{name} was {field} and is {}", written[name])
        })?;
    }
    let again: T = serde_json::from_value(written).map_err(|error| error.to_string())?;
    ensure(again == document, || {
        format!("{document:?} becomes {again:?}")
    })?;
    Ok(Some(document))
}

pub fn documents(body: &[u8]) -> Result<Verdict, String> {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return Ok(Verdict::Refused);
    };
    let intent = rewritten::<Intent>(&value)?;
    let pointer = rewritten::<CommitPointer>(&value)?;
    let lease = rewritten::<LeaseDocument>(&value)?;
    if let Some(intent) = &intent {
        let shape = intent.shape(Align::Hour);
        let key = keys().data(intent.bounds(), shape, Some("a partition"));
        ensure(key.len() <= KEY_BYTES, || format!("the key {key}"))?;
        let gaps = Gaps::of(intent);
        for range in gaps.lost.iter().chain(&gaps.late) {
            ensure(0 <= range.from && range.from <= range.to, || {
                format!("{range:?}")
            })?;
        }
        let left = subtract(gaps.lost.clone(), &gaps.late);
        ensure(count(&left) <= count(&gaps.lost), || format!("{left:?}"))?;
        let mut other = intent.clone();
        other.other.clear();
        gaps.write(&mut other);
        let written = Value::Object(other.other).to_string().len();
        let most = INTENT_GAPS_BYTES + 100;
        ensure(written <= most, || format!("{written} bytes of gaps"))?;
    }
    match intent.is_some() || pointer.is_some() || lease.is_some() {
        true => Ok(Verdict::Accepted),
        false => Ok(Verdict::Refused),
    }
}

pub fn manifest(body: &[u8]) -> Result<Verdict, String> {
    let Ok(manifest) = serde_json::from_slice::<Manifest>(body) else {
        return Ok(Verdict::Refused);
    };
    let written = serde_json::to_vec(&manifest).map_err(|error| error.to_string())?;
    let again: Manifest = serde_json::from_slice(&written).map_err(|error| error.to_string())?;
    ensure(again == manifest, || {
        format!("{manifest:?} becomes {again:?}")
    })?;
    for range in manifest.lost.iter().chain(&manifest.late) {
        let holds = range.holds(&range.partition, range.from);
        ensure(holds == (range.count() > 0), || format!("{range:?}"))?;
    }
    let left = subtract(manifest.lost.clone(), &manifest.late);
    ensure(count(&left) <= count(&manifest.lost), || {
        format!("{left:?}")
    })?;
    let key = keys().data(manifest.bounds(), manifest.shape(), None);
    ensure(key.len() <= KEY_BYTES, || format!("the key {key}"))?;
    Ok(Verdict::Accepted)
}

fn same_again(mut checkpoint: Checkpoint) -> Result<Verdict, String> {
    checkpoint.positions.sort();
    let sane = checkpoint
        .positions
        .iter()
        .all(|position| position.offset >= 0);
    ensure(sane, || format!("{checkpoint:?}"))?;
    let object = checkpoint
        .clone()
        .encode()
        .map_err(|error| error.to_string())?;
    let again = Checkpoint::decode(&object).map_err(|error| error.to_string())?;
    ensure(again == checkpoint, || {
        format!("{checkpoint:?} becomes {again:?}")
    })?;
    Ok(Verdict::Accepted)
}

/// The JSON text of a checkpoint, in a frame that is whole.
pub fn checkpoint(text: &[u8]) -> Result<Verdict, String> {
    let object = zstd::encode_all(text, 1).map_err(|error| error.to_string())?;
    let Ok(checkpoint) = Checkpoint::decode(&object) else {
        return Ok(Verdict::Refused);
    };
    // A Value takes no invalid UTF-8 where nothing is read either.
    let Ok(value) = serde_json::from_slice::<Value>(text) else {
        return same_again(checkpoint);
    };
    let positions = value["positions"].as_array().ok_or("no positions")?;
    let same = positions.len() == checkpoint.positions.len()
        && positions
            .iter()
            .zip(checkpoint.positions.iter())
            .all(|(value, read)| value[0] == read.partition && value[1] == read.offset);
    ensure(same, || format!("{value} is {checkpoint:?}"))?;
    same_again(checkpoint)
}

/// The object itself.
pub fn checkpoint_frame(object: &[u8]) -> Result<Verdict, String> {
    match Checkpoint::decode(object) {
        Ok(checkpoint) => same_again(checkpoint),
        Err(_) => Ok(Verdict::Refused),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    partition: String,
    offset: i64,
    #[serde(rename = "transactionId")]
    _transaction_id: IgnoredAny,
    ts: String,
    #[serde(rename = "payload")]
    _payload: IgnoredAny,
}

pub fn lines(object: &[u8]) -> Result<Verdict, String> {
    let read = Lines::new(Compression::None, Cursor::new(object));
    let mut lines = read.map_err(|error| error.to_string())?;
    for line in object.split_inclusive(|byte| *byte == b'\n') {
        let whole = line.strip_suffix(b"\n");
        let expected = whole
            .and_then(|line| serde_json::from_slice::<Line>(line).ok())
            .and_then(|line| {
                let ts = Micros::parse(&line.ts).ok()?;
                (ts.to_string() == line.ts).then_some((line.partition, line.offset, ts))
            });
        let found = match lines.next_record() {
            Ok(found) => found.ok_or("the records end before the lines do")?,
            Err(ReadError::Line { detail, .. }) => {
                ensure(expected.is_none(), || format!("refused: {detail}"))?;
                return Ok(Verdict::Refused);
            }
            Err(error) => return Err(error.to_string()),
        };
        let seen = (
            found.seen.partition.to_owned(),
            found.seen.offset,
            found.seen.ts,
        );
        ensure(Some(&seen) == expected.as_ref(), || {
            format!("{seen:?} is {expected:?}")
        })?;
        ensure(whole == Some(&*found.line), || "another line".into())?;
    }
    match lines.next_record() {
        Ok(None) => Ok(Verdict::Accepted),
        other => Err(format!("after the last line: {other:?}")),
    }
}

/// A key of a bucket that others write to as well.
pub fn keys_of(key: &str) -> Result<bool, String> {
    let keys = keys();
    let mut known = false;
    for (k, again) in [
        (
            keys.manifest_k(key),
            keys.manifest_k(key).map(|k| keys.manifest(k)),
        ),
        (
            keys.checkpoint_k(key),
            keys.checkpoint_k(key).map(|k| keys.checkpoint(k)),
        ),
    ] {
        known |= k.is_some();
        ensure(again.is_none_or(|again| again == key), || {
            format!("{key} is of {k:?}")
        })?;
    }
    if let Some(k) = keys.data_k(key) {
        known = true;
        let named = key.starts_with(&keys.data_directory()) && key.contains(&format!("w-{k:010}-"));
        ensure(named, || format!("{key} is of {k}"))?;
    }
    Ok(known)
}

pub fn keys_and_names(bytes: &[u8]) -> Result<Verdict, String> {
    let text = String::from_utf8_lossy(bytes);
    let mut known = keys_of(&text)?;
    if let Some(raw) = decode_name(&text) {
        known = true;
        ensure(encode_name(&raw) == text, || format!("{text} is {raw:?}"))?;
    }
    let encoded = encode_name(&text);
    let segment = encoded.len() <= ENCODED_NAME_BYTES
        && !encoded.contains('/')
        && encoded != "."
        && encoded != "..";
    ensure(segment, || format!("{text:?} is spelled {encoded}"))?;
    let back = decode_name(&encoded);
    let hashed = encoded.contains('~');
    ensure(hashed || back.as_deref() == Some(&*text), || {
        format!("{text:?} is spelled {encoded}, which is {back:?}")
    })?;
    match known {
        true => Ok(Verdict::Accepted),
        false => Ok(Verdict::Refused),
    }
}

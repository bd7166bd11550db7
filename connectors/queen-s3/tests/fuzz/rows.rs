//! Parquet objects, as `verify` and a redo read what lies under a key of the lake.

use std::io::{Seek, Write};
use std::sync::Mutex;

use queen_s3::decode::{Columns, ReadError, Rows};
use queen_s3::limits::{
    MIB, PARQUET_DICTIONARY_MOST_BYTES, PARQUET_NUMBERS_MOST_BYTES, PARQUET_TEXTS_MOST_BYTES,
    ROW_GROUP_RECORDS,
};

use super::{Verdict, ensure};

/// What a text of a dictionary takes beside its bytes, as it is kept while rows are read.
const TEXT_BYTES: usize = 32;
/// What the largest page of each column and a dictionary of shortest names take, and as much again
/// as any input for what they are read with.
const MOST_BYTES: usize = 3 * PARQUET_TEXTS_MOST_BYTES
    + 2 * PARQUET_NUMBERS_MOST_BYTES
    + PARQUET_DICTIONARY_MOST_BYTES / 4 * TEXT_BYTES
    + 64 * MIB;
/// Least bytes of a row group: five chunks and what the footer says of them.
const GROUP_BYTES: usize = 100;

/// Each record of `object`, as it is told.
fn read(object: &[u8], columns: Columns) -> Result<Vec<String>, ReadError> {
    let mut file = tempfile::tempfile()?;
    file.write_all(object)?;
    file.rewind()?;
    let mut rows = Rows::new(file, columns)?;
    let mut told = Vec::new();
    while let Some(found) = rows.next_record()? {
        let seen = found.seen;
        told.push(format!("{} {} {}", seen.partition, seen.offset, seen.ts));
    }
    Ok(told)
}

pub fn read_or_refused(object: &[u8]) -> Result<Verdict, String> {
    let outcomes = Mutex::new(Vec::new());
    let counted = allocation_counter::measure(|| {
        for columns in [Columns::Identity, Columns::All] {
            let outcome = read(object, columns);
            outcomes.lock().expect("no holder panics").push(outcome);
        }
    });
    ensure(counted.bytes_max <= MOST_BYTES as u64, || {
        format!("it takes {} bytes", counted.bytes_max)
    })?;
    let mut outcomes = outcomes.into_inner().expect("no holder panics");
    let (all, identity) = (outcomes.pop(), outcomes.pop());
    let (Some(all), Some(identity)) = (all, identity) else {
        return Err("it was read once".to_owned());
    };
    for error in [&all, &identity]
        .into_iter()
        .filter_map(|read| read.as_ref().err())
    {
        let said = error.to_string();
        ensure(said.len() < 2_000, || format!("a long error: {said}"))?;
    }
    let (Ok(all), Ok(identity)) = (all, identity) else {
        return Ok(Verdict::Refused);
    };
    ensure(all == identity, || "two readings differ".to_owned())?;
    let most = object.len() / GROUP_BYTES * ROW_GROUP_RECORDS;
    ensure(all.len() <= most, || format!("{} rows", all.len()))?;
    Ok(Verdict::Accepted)
}

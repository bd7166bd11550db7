//! The rows of the key/value store, in SQL.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::error::ApiError;
use crate::limits::{KV_LOCK_BUCKETS, KV_PAGE_BYTES, LOCK_CLASS_KV};
use crate::session::Transaction;
use crate::timestamp::Timestamp;

/// A live key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// JSON text.
    pub value: String,
    /// Version.
    pub version: i64,
    /// When it ends, if it does.
    pub expires_at: Option<Timestamp>,
    /// When it was written.
    pub updated_at: Timestamp,
}

/// A key within a namespace.
pub type Name = (String, String);

/// Takes the locks of `names` until the transaction ends. All batches take them in one order, so
/// none waits in a circle, and absent keys are locked like present ones.
pub async fn lock(tx: &Transaction<'_>, tenant: Uuid, names: &[Name]) -> Result<(), ApiError> {
    const LOCK: &str = "SELECT count(pg_advisory_xact_lock($1, b)) FROM unnest($2::int4[]) AS b";
    let mut buckets: Vec<i32> = names.iter().map(|name| bucket(tenant, name)).collect();
    buckets.sort_unstable();
    buckets.dedup();
    let statement = tx.prepare_cached(LOCK).await?;
    tx.query_one(&statement, &[&LOCK_CLASS_KV, &buckets])
        .await?;
    Ok(())
}

/// The same on every broker, whatever it was built with.
fn bucket(tenant: Uuid, (ns, key): &Name) -> i32 {
    let mut hash = Sha256::new();
    hash.update(tenant.as_bytes());
    hash.update(ns.as_bytes());
    // No namespace holds a NUL.
    hash.update([0]);
    hash.update(key.as_bytes());
    let [a, b, c, d, e, f, g, h, ..] = <[u8; 32]>::from(hash.finalize());
    (u64::from_be_bytes([a, b, c, d, e, f, g, h]) % KV_LOCK_BUCKETS) as i32
}

/// The database's clock, and `count` new versions in rising order.
pub async fn clock_and_versions(
    tx: &Transaction<'_>,
    count: usize,
) -> Result<(Timestamp, Vec<i64>), ApiError> {
    const TAKE: &str = "
        SELECT clock_timestamp(),
               ARRAY(SELECT nextval('queen.kv_version') FROM generate_series(1, $1::int4))";
    let statement = tx.prepare_cached(TAKE).await?;
    // Fewer than the operations of a batch.
    let row = tx.query_one(&statement, &[&(count as i32)]).await?;
    Ok((row.get(0), row.get(1)))
}

/// Reads keys, the expired ones included.
pub async fn load(
    tx: &Transaction<'_>,
    tenant: Uuid,
    names: &[Name],
) -> Result<Vec<(Name, Row)>, ApiError> {
    const LOAD: &str = "
        SELECT k.ns, k.key, k.value, k.version, k.expires_at, k.updated_at
        FROM unnest($2::text[], $3::text[]) AS w (ns, key)
        JOIN queen.kv k ON k.tenant = $1 AND k.ns = w.ns AND k.key = w.key";
    let (namespaces, keys): (Vec<&str>, Vec<&str>) = names
        .iter()
        .map(|(ns, key)| (ns.as_str(), key.as_str()))
        .unzip();
    let statement = tx.prepare_cached(LOAD).await?;
    let rows = tx.query(&statement, &[&tenant, &namespaces, &keys]).await?;
    Ok(rows
        .iter()
        .map(|row| {
            let found = Row {
                value: row.get(2),
                version: row.get(3),
                expires_at: row.get(4),
                updated_at: row.get(5),
            };
            ((row.get(0), row.get(1)), found)
        })
        .collect())
}

/// A page of keys. `value` is `None` when only keys were asked for.
#[derive(Debug)]
pub struct PageRow {
    /// The key.
    pub key: String,
    /// JSON text.
    pub value: Option<String>,
    /// Version.
    pub version: i64,
    /// When it ends, if it does.
    pub expires_at: Option<Timestamp>,
    /// When it was written.
    pub updated_at: Timestamp,
}

/// Which page to read.
#[derive(Debug, Clone, Copy)]
pub struct PageQuery<'a> {
    /// Namespace.
    pub ns: &'a str,
    /// Not empty.
    pub prefix: &'a str,
    /// Exclusive; the empty text is below every key.
    pub after: &'a str,
    /// Rows at most.
    pub limit: i64,
    /// Leaves values out.
    pub keys_only: bool,
}

/// Reads a page in byte order, and whether there is more behind it.
pub async fn page(
    tx: &Transaction<'_>,
    tenant: Uuid,
    now: Timestamp,
    query: PageQuery<'_>,
) -> Result<(Vec<PageRow>, bool), ApiError> {
    // One row more than asked tells whether there are more. The running sum is over at most that
    // many rows.
    const PAGE: &str = "
        SELECT key, value, version, expires_at, updated_at
        FROM (
            SELECT c.*, sum(octet_length(c.value)) OVER (ORDER BY c.key) - coalesce(octet_length(c.value), 0) AS before
            FROM (
                SELECT k.key, CASE WHEN $7::bool THEN NULL ELSE k.value END AS value, k.version,
                       k.expires_at, k.updated_at
                FROM queen.kv k
                WHERE k.tenant = $1 AND k.ns = $2 AND k.key >= $3 AND k.key > $4
                  AND ($5::text IS NULL OR k.key < $5)
                  AND (k.expires_at IS NULL OR k.expires_at > $8::timestamptz)
                ORDER BY k.key LIMIT $6::int8 + 1
            ) c
        ) p
        WHERE coalesce(p.before, 0) < $9::int8
        ORDER BY key";
    let statement = tx.prepare_cached(PAGE).await?;
    let rows = tx
        .query(
            &statement,
            &[
                &tenant,
                &query.ns,
                &query.prefix,
                &query.after,
                &end_of_prefix(query.prefix),
                &query.limit,
                &query.keys_only,
                &now,
                &KV_PAGE_BYTES,
            ],
        )
        .await?;
    let mut bytes = 0;
    let mut page: Vec<PageRow> = rows
        .iter()
        .map(|row| PageRow {
            key: row.get(0),
            value: row.get(1),
            version: row.get(2),
            expires_at: row.get(3),
            updated_at: row.get(4),
        })
        .inspect(|row| bytes += row.value.as_ref().map_or(0, String::len) as i64)
        .collect();
    let more = page.len() as i64 > query.limit || bytes >= KV_PAGE_BYTES;
    page.truncate(query.limit as usize);
    Ok((page, more))
}

/// The least text above everything with this prefix, in byte order, if there is one.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        // UTF-8 sorts as its code points do; the gap of the surrogates is stepped over.
        let next = (last as u32 + 1..=char::MAX as u32).find_map(char::from_u32);
        if let Some(next) = next {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

/// Writes rows and removes keys.
pub async fn write(
    tx: &Transaction<'_>,
    tenant: Uuid,
    puts: &[(&Name, &Row)],
    deletes: &[&Name],
) -> Result<(), ApiError> {
    const PUT: &str = "
        INSERT INTO queen.kv (tenant, ns, key, value, version, expires_at, updated_at)
        SELECT $1, w.*
        FROM unnest($2::text[], $3::text[], $4::text[], $5::int8[], $6::timestamptz[], $7::timestamptz[]) AS w
        ON CONFLICT (tenant, ns, key) DO UPDATE
        SET value = excluded.value, version = excluded.version,
            expires_at = excluded.expires_at, updated_at = excluded.updated_at";
    const DELETE: &str = "
        DELETE FROM queen.kv k USING unnest($2::text[], $3::text[]) AS w (ns, key)
        WHERE k.tenant = $1 AND k.ns = w.ns AND k.key = w.key";
    if !puts.is_empty() {
        let statement = tx.prepare_cached(PUT).await?;
        let mut namespaces = Vec::with_capacity(puts.len());
        let mut keys = Vec::with_capacity(puts.len());
        let mut values = Vec::with_capacity(puts.len());
        let mut versions = Vec::with_capacity(puts.len());
        let mut expires = Vec::with_capacity(puts.len());
        let mut updated = Vec::with_capacity(puts.len());
        for ((ns, key), row) in puts {
            namespaces.push(ns.as_str());
            keys.push(key.as_str());
            values.push(row.value.as_str());
            versions.push(row.version);
            expires.push(row.expires_at);
            updated.push(row.updated_at);
        }
        tx.execute(
            &statement,
            &[
                &tenant,
                &namespaces,
                &keys,
                &values,
                &versions,
                &expires,
                &updated,
            ],
        )
        .await?;
    }
    if !deletes.is_empty() {
        let statement = tx.prepare_cached(DELETE).await?;
        let (namespaces, keys): (Vec<&str>, Vec<&str>) = deletes
            .iter()
            .map(|(ns, key)| (ns.as_str(), key.as_str()))
            .unzip();
        tx.execute(&statement, &[&tenant, &namespaces, &keys])
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_above_everything_with_it_and_nothing_else() {
        for (prefix, end) in [
            ("s3:", Some("s3;")),
            ("a\u{d7ff}", Some("a\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
        ] {
            assert_eq!(end_of_prefix(prefix).as_deref(), end);
        }
    }
}

//! Cursors of `partitions/changed`: opaque to clients, checked when they come back.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use uuid::Uuid;

use crate::timestamp::Timestamp;

/// Bytes of the check kept in a cursor.
const CHECK_BYTES: usize = 12;
const BY_NAME: u8 = b'n';
const BY_WRITE: u8 = b'w';

/// The last partition of a page, in the order of its mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    /// Without `since`: by name.
    Name(String),
    /// With `since`: by last write, then name.
    Write(Timestamp, String),
}

/// Makes and checks cursors. Brokers on one database share the key.
#[derive(Clone)]
pub struct CursorKey(Uuid);

impl CursorKey {
    /// The key that the database holds.
    pub fn new(key: Uuid) -> Self {
        Self(key)
    }

    /// The cursor of `position` within `queue` of `tenant`.
    pub fn seal(&self, tenant: Uuid, queue: &str, position: &Position) -> String {
        let mut body = Vec::with_capacity(64);
        match position {
            Position::Name(name) => {
                body.push(BY_NAME);
                body.extend_from_slice(name.as_bytes());
            }
            Position::Write(at, name) => {
                body.push(BY_WRITE);
                body.extend_from_slice(&at.micros().to_be_bytes());
                body.extend_from_slice(name.as_bytes());
            }
        }
        let check = self.check(tenant, queue, &body);
        let mut sealed = check[..CHECK_BYTES].to_vec();
        sealed.extend_from_slice(&body);
        URL_SAFE_NO_PAD.encode(sealed)
    }

    /// Reads a cursor back. `None` for one that [`seal`](Self::seal) did not give for this queue.
    pub fn open(&self, tenant: Uuid, queue: &str, cursor: &str) -> Option<Position> {
        let sealed = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (check, body) = sealed.split_at_checked(CHECK_BYTES)?;
        if check != &self.check(tenant, queue, body)[..CHECK_BYTES] {
            return None;
        }
        let (&mode, rest) = body.split_first()?;
        match mode {
            BY_NAME => Some(Position::Name(String::from_utf8(rest.to_vec()).ok()?)),
            BY_WRITE => {
                let (micros, name) = rest.split_first_chunk::<8>()?;
                let at = Timestamp::from_micros(i64::from_be_bytes(*micros));
                Some(Position::Write(at, String::from_utf8(name.to_vec()).ok()?))
            }
            _ => None,
        }
    }

    fn check(&self, tenant: Uuid, queue: &str, body: &[u8]) -> [u8; 32] {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()) else {
            unreachable!("HMAC takes a key of any length");
        };
        mac.update(tenant.as_bytes());
        mac.update(&(queue.len() as u64).to_be_bytes());
        mac.update(queue.as_bytes());
        mac.update(body);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_opens_only_for_its_own_queue_and_unchanged() {
        let key = CursorKey::new(Uuid::new_v4());
        let tenant = Uuid::new_v4();
        for position in [
            Position::Name("ключ".into()),
            Position::Write(Timestamp::from_micros(1_788_516_221_918_204), "p".into()),
        ] {
            let cursor = key.seal(tenant, "orders", &position);
            assert_eq!(key.open(tenant, "orders", &cursor), Some(position));
            assert_eq!(key.open(tenant, "clicks", &cursor), None);
            assert_eq!(key.open(Uuid::new_v4(), "orders", &cursor), None);
            assert_eq!(
                CursorKey::new(Uuid::new_v4()).open(tenant, "orders", &cursor),
                None
            );
            assert_eq!(key.open(tenant, "orders", &cursor[1..]), None);
            assert_eq!(key.open(tenant, "orders", &format!("{cursor}AA")), None);
        }
        assert_eq!(key.open(tenant, "orders", "n|cust-0002"), None);
    }
}

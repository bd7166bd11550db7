//! Encryption at rest: blocks are sealed after compression and opened before decompression.
//!
//! ```text
//! u8 'Q' | u8 1 | key id, 4 | salt, 16 | nonce, 12 | AES-256-GCM of the open block, tag last
//! ```
//!
//! Each block has a key of its own, HMAC-SHA256 of the salt under the broker's key: the number of
//! blocks that one key may seal under random nonces does not bound the log. The associated data
//! names tenant, queue, partition and lengths, so that a block opens only where it was written.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aes_gcm::aead::rand_core::RngCore;
use aes_gcm::aead::{AeadInPlace, KeyInit, OsRng};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use uuid::Uuid;

use crate::limits::KNOWN_ENCRYPTED_QUEUES;
use crate::log::codec::Damage;

/// No open block begins with this byte.
const MARK: u8 = b'Q';
const LAYOUT: u8 = 1;
const KEY_ID_BYTES: usize = 4;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = 2 + KEY_ID_BYTES + SALT_BYTES + NONCE_BYTES;
const KEY_BYTES: usize = 32;

/// Where a block belongs.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Tenant of the queue.
    pub tenant: Uuid,
    /// Queue.
    pub queue: &'a str,
    /// Partition.
    pub partition: &'a str,
    /// Records in the block.
    pub records: usize,
    /// Its length before compression.
    pub raw_bytes: usize,
}

impl Place<'_> {
    fn associated_data(&self) -> Vec<u8> {
        let mut data = Vec::with_capacity(40 + self.queue.len() + self.partition.len());
        data.extend_from_slice(self.tenant.as_bytes());
        data.extend_from_slice(&(self.records as u64).to_be_bytes());
        data.extend_from_slice(&(self.raw_bytes as u64).to_be_bytes());
        data.extend_from_slice(&(self.queue.len() as u64).to_be_bytes());
        data.extend_from_slice(self.queue.as_bytes());
        data.extend_from_slice(self.partition.as_bytes());
        data
    }
}

/// The broker's key.
#[derive(Clone)]
pub struct SealKey {
    key: [u8; KEY_BYTES],
    id: [u8; KEY_ID_BYTES],
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

impl SealKey {
    /// Reads 32 bytes in hexadecimal digits or base64; `None` when `text` is neither.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let bytes = if text.len() == 2 * KEY_BYTES {
            hex(text)?
        } else {
            let digits = text.trim_end_matches('=');
            STANDARD_NO_PAD
                .decode(digits)
                .or_else(|_| URL_SAFE_NO_PAD.decode(digits))
                .ok()?
        };
        let key: [u8; KEY_BYTES] = bytes.try_into().ok()?;
        let [a, b, c, d, ..] = derive(&key, b"queen key id", &[]);
        Some(Self {
            key,
            id: [a, b, c, d],
        })
    }

    /// Seals an open block.
    ///
    /// # Errors
    ///
    /// [`Damage::Seal`] for a block beyond the cipher's limit of 64 GiB, which no body reaches.
    pub fn seal(&self, block: &[u8], place: Place<'_>) -> Result<Vec<u8>, Damage> {
        let mut sealed = Vec::with_capacity(HEAD_BYTES + block.len() + TAG_BYTES);
        sealed.extend_from_slice(&[MARK, LAYOUT]);
        sealed.extend_from_slice(&self.id);
        let mut random = [0; SALT_BYTES + NONCE_BYTES];
        OsRng.fill_bytes(&mut random);
        sealed.extend_from_slice(&random);
        sealed.extend_from_slice(block);
        let (salt, nonce) = random.split_at(SALT_BYTES);
        let tag = self
            .cipher(salt)
            .encrypt_in_place_detached(
                Nonce::from_slice(nonce),
                &place.associated_data(),
                &mut sealed[HEAD_BYTES..],
            )
            .map_err(|_| Damage::Seal)?;
        sealed.extend_from_slice(&tag);
        Ok(sealed)
    }

    /// What goes into hashes of ids that are to be compared but not guessed.
    pub fn id_secret(&self) -> [u8; 32] {
        derive(&self.key, b"queen transaction id", &[])
    }

    fn open(&self, sealed: &[u8], place: Place<'_>, out: &mut Vec<u8>) -> Result<(), Damage> {
        let (head, rest) = sealed.split_at_checked(HEAD_BYTES).ok_or(Damage::Seal)?;
        let (body, tag) = rest
            .len()
            .checked_sub(TAG_BYTES)
            .map(|end| rest.split_at(end))
            .ok_or(Damage::Seal)?;
        let (mark, head) = head.split_at(2);
        if mark != [MARK, LAYOUT] {
            return Err(Damage::Seal);
        }
        let (id, random) = head.split_at(KEY_ID_BYTES);
        if id != self.id {
            return Err(Damage::OtherKey);
        }
        let (salt, nonce) = random.split_at(SALT_BYTES);
        out.clear();
        out.extend_from_slice(body);
        self.cipher(salt)
            .decrypt_in_place_detached(
                Nonce::from_slice(nonce),
                &place.associated_data(),
                out,
                Tag::from_slice(tag),
            )
            .map_err(|_| Damage::Seal)
    }

    fn cipher(&self, salt: &[u8]) -> Aes256Gcm {
        Aes256Gcm::new(&derive(&self.key, b"queen segment", salt).into())
    }
}

fn derive(key: &[u8; KEY_BYTES], purpose: &[u8], salt: &[u8]) -> [u8; KEY_BYTES] {
    let mut mac = match <Hmac<Sha256> as Mac>::new_from_slice(key) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes keys of any length"),
    };
    mac.update(purpose);
    mac.update(salt);
    mac.finalize().into_bytes().into()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let bytes = digits?
        .chunks_exact(2)
        .map(|pair| (pair[0] * 16 + pair[1]) as u8)
        .collect();
    Some(bytes)
}

/// Whether a stored block is sealed.
pub fn is_sealed(block: &[u8]) -> bool {
    block.first() == Some(&MARK)
}

/// Opens a block as it is stored, sealed or not; `out` is room for an
/// opened one.
///
/// # Errors
///
/// [`Damage::NoKey`], [`Damage::OtherKey`], or [`Damage::Seal`] for a block that was changed or
/// belongs elsewhere.
pub fn opened<'a>(
    block: &'a [u8],
    place: Place<'_>,
    key: Option<&SealKey>,
    out: &'a mut Vec<u8>,
) -> Result<&'a [u8], Damage> {
    if !is_sealed(block) {
        return Ok(block);
    }
    key.ok_or(Damage::NoKey)?.open(block, place, out)?;
    Ok(out)
}

/// The key, and the queues that are known to be encrypted: a push to one of them is sealed before
/// the database has to ask for it.
#[derive(Debug, Default)]
pub struct Vault {
    key: Option<Arc<SealKey>>,
    encrypted: Mutex<HashSet<(Uuid, String)>>,
}

impl Vault {
    /// A vault with this key, or none.
    pub fn new(key: Option<SealKey>) -> Self {
        Self {
            key: key.map(Arc::new),
            encrypted: Mutex::default(),
        }
    }

    /// The key.
    pub fn key(&self) -> Option<&Arc<SealKey>> {
        self.key.as_ref()
    }

    /// Remembers an encrypted queue.
    pub fn learn(&self, tenant: Uuid, queue: String) {
        let mut known = self
            .encrypted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Forgetting costs one more question to the database per queue.
        if known.len() >= KNOWN_ENCRYPTED_QUEUES {
            known.clear();
        }
        known.insert((tenant, queue));
    }

    /// Forgets that these queues are encrypted.
    pub fn forget(&self, tenant: Uuid, queues: &[String]) {
        let mut known = self
            .encrypted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for queue in queues {
            known.remove(&(tenant, queue.clone()));
        }
    }

    /// Those of `queues` that are known to be encrypted.
    pub fn known(&self, tenant: Uuid, queues: &[String]) -> HashSet<String> {
        let known = self
            .encrypted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            return HashSet::new();
        }
        queues
            .iter()
            .filter(|queue| known.contains(&(tenant, (*queue).clone())))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn place<'a>(queue: &'a str, partition: &'a str) -> Place<'a> {
        Place {
            tenant: Uuid::from_u128(1),
            queue,
            partition,
            records: 1,
            raw_bytes: 5,
        }
    }

    #[test]
    fn a_key_is_the_same_in_hexadecimal_and_base64() {
        let keys: Vec<_> = [
            HEX,
            &HEX.to_uppercase(),
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            " AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\n",
        ]
        .iter()
        .map(|text| SealKey::parse(text).expect(text).key)
        .collect();
        assert!(keys.iter().all(|key| *key == keys[0] && key[31] == 31));
        for wrong in [
            "",
            "abc",
            &HEX[2..],
            &format!("{}zz", &HEX[2..]),
            "AAECAwQF",
        ] {
            assert!(SealKey::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_block_opens_where_it_was_written_with_the_key_it_was_sealed_with() {
        let key = SealKey::parse(HEX).expect("a key");
        let other = SealKey::parse(&HEX.replace("00", "ff")).expect("a key");
        let here = place("q", "p");
        let sealed = key.seal(b"frame", here).expect("short");
        assert_ne!(sealed, key.seal(b"frame", here).expect("short"));
        assert!(!sealed.windows(5).any(|bytes| bytes == b"frame"));
        let mut out = Vec::new();
        assert_eq!(
            opened(&sealed, here, Some(&key), &mut out),
            Ok(&b"frame"[..])
        );
        assert_eq!(opened(b"(frame", here, None, &mut out), Ok(&b"(frame"[..]));
        assert_eq!(opened(&sealed, here, None, &mut out), Err(Damage::NoKey));
        assert_eq!(
            opened(&sealed, here, Some(&other), &mut out),
            Err(Damage::OtherKey)
        );
        for elsewhere in [
            place("q", "p2"),
            place("qp", ""),
            Place { records: 2, ..here },
            Place {
                tenant: Uuid::from_u128(2),
                ..here
            },
        ] {
            assert_eq!(
                opened(&sealed, elsewhere, Some(&key), &mut out),
                Err(Damage::Seal)
            );
        }
        for at in 1..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(opened(&changed, here, Some(&key), &mut out).is_err());
            assert!(opened(&sealed[..at], here, Some(&key), &mut out).is_err());
        }
    }
}

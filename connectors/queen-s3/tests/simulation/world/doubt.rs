//! Uploads whose answer counted other parts than were sent: nobody may name one in a manifest who has
//! not seen since that it is right.

use std::collections::BTreeMap;

use queen_s3::lake::manifest::Manifest;

use super::World;
use super::objects::Object;
use super::scenario::ETags;

/// What processes were told wrong, by process and key, and the ETag that would be right.
#[derive(Debug, Default)]
pub struct Doubts {
    open: BTreeMap<(String, String), String>,
    /// How often a store counted wrong.
    pub met: u64,
}

/// What a store says of an upload that it completed.
pub enum Counted {
    /// What its parts are.
    Right,
    /// Other parts than it has; this ETag would be right.
    Wrong(String),
}

/// Completes an upload as a store does that counts its parts wrong now and then: in the answer alone,
/// or in the ETag that it keeps as well.
pub fn counted(world: &World, object: &mut Object) -> Counted {
    let wrong = world.with(|state| {
        // Other ETags show no count.
        let may = !state.calm && world.scenario.etags == ETags::Plain;
        let wrong = may && state.own.chance(world.scenario.error_rate);
        let keeps = wrong && state.own.chance(0.5);
        state.doubts.met += u64::from(wrong);
        wrong.then_some(keeps)
    });
    let Some(keeps) = wrong else {
        return Counted::Right;
    };
    let right = object.etag.clone();
    if keeps && let Some((digest, _)) = right.split_once('-') {
        object.etag = format!("{digest}-10001");
    }
    Counted::Wrong(right)
}

impl Doubts {
    /// Process `who` was told that the object under `key` has other parts than it sent.
    pub fn begin(&mut self, who: &str, key: &str, right: String) {
        self.open.insert((who.to_owned(), key.to_owned()), right);
    }

    /// Process `who` sent the object under `key` again, or read it.
    pub fn end(&mut self, who: &str, key: &str) {
        self.open.remove(&(who.to_owned(), key.to_owned()));
    }

    /// Process `who` sees this ETag at `key`.
    pub fn seen(&mut self, who: &str, key: &str, etag: &str) {
        let at = (who.to_owned(), key.to_owned());
        if self.open.get(&at).is_some_and(|right| right == etag) {
            self.open.remove(&at);
        }
    }

    /// Whether `who` may put `content`, if it is a manifest.
    pub fn manifest(&self, who: &str, content: &[u8]) -> Result<(), String> {
        let of_process = |key: &String| self.open.contains_key(&(who.to_owned(), key.clone()));
        if self.open.is_empty() {
            return Ok(());
        }
        let manifest = serde_json::from_slice::<Manifest>(content).ok();
        let named = manifest.into_iter().flat_map(|manifest| manifest.objects);
        match named.map(|object| object.key).find(of_process) {
            Some(key) => Err(format!(
                "{who} names {key} in a manifest, and all that it knows is that its parts are others"
            )),
            None => Ok(()),
        }
    }
}

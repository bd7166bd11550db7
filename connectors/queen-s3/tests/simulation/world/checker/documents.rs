//! What must hold of each write to the lease, the intent and the commit pointer.

use super::*;

/// The document of a write is guarded by the lease, in the same batch and before it.
pub(super) fn fenced(operations: &[KvOperation], index: usize) -> Verdict {
    let guarded = |operation: &KvOperation| {
        operation.required == Some(true)
            && (operation.expect.is_some() || operation.op == KvOpKind::PutIfAbsent)
    };
    let lease = &operations[0];
    let key = lease.key.as_deref().unwrap_or_default();
    let holds = index > 0
        && key.ends_with(":lease")
        && lease.op == KvOpKind::Put
        && lease.expect.is_some_and(|version| version > 0)
        && guarded(lease)
        && guarded(&operations[index]);
    must!(
        holds,
        "a document was written without the fence: {operations:?}"
    );
    Ok(())
}

pub(super) fn lease(operation: &KvOperation, ttl_s: i64) -> Verdict {
    if operation.op == KvOpKind::Delete {
        must!(
            operation.expect.is_some_and(|version| version > 0),
            "a lease is deleted unseen"
        );
        return Ok(());
    }
    let document: LeaseDocument = read(operation)?;
    must!(!document.instance.is_empty(), "a lease without an instance");
    must!(
        !document.incarnation.is_empty(),
        "a lease without an incarnation"
    );
    must!(
        operation.ttl_seconds == Some(ttl_s),
        "a lease lives {:?} s instead of {ttl_s}",
        operation.ttl_seconds
    );
    let guarded = operation.expect.is_some() || operation.op == KvOpKind::PutIfAbsent;
    must!(guarded, "a lease is written blindly");
    Ok(())
}

pub(super) fn read<T: DeserializeOwned>(operation: &KvOperation) -> Result<T, String> {
    serde_json::from_value(operation.value.clone().unwrap_or_default())
        .map_err(|source| format!("the document {:?} does not read: {source}", operation.key))
}

impl Lake {
    /// Whether another lake's manifest lies where the next one of this lake is to be. One that lies
    /// further on, where the key/value store has come back older, is not met yet.
    pub(super) fn is_barred(&self) -> bool {
        let next = self.pointer.as_ref().map_or(0, |pointer| pointer.k) + 1;
        let next = spelling::manifest(&self.queue, next);
        self.foreign.as_ref() == Some(&next)
    }

    /// What there is of the window under way that whoever begins to read meets.
    pub(super) fn under_way(&self) -> Option<Situation> {
        let k = self.pointer.as_ref()?.k + 1;
        self.intents.get(&k)?;
        let objects = self.windows.get(&k).is_some_and(|keys| !keys.is_empty());
        Some(match (self.manifests.contains_key(&k), objects) {
            (true, _) => Situation::Uncommitted,
            (false, true) => Situation::HalfUp,
            (false, false) => Situation::Begun,
        })
    }

    /// A lease row that stands is only ever written by the instance that it names. Answers the one that
    /// the row before named.
    pub(super) fn holder(&mut self, operation: &KvOperation) -> Result<Option<String>, String> {
        if operation.op == KvOpKind::Delete {
            return Ok(self.holder.take());
        }
        let document: LeaseDocument = read(operation)?;
        let stood = operation.expect.is_some_and(|version| version > 0);
        if let Some(holder) = self.holder.as_ref().filter(|_| stood) {
            must!(
                *holder == document.instance,
                "the lease of {} is taken from {holder} by {}",
                self.queue,
                document.instance
            );
        }
        Ok(self.holder.replace(document.instance))
    }

    pub(super) fn shape(&self, k: u64) -> Option<Shape> {
        self.intents.get(&k).map(|intent| intent.shape(Align::Hour))
    }

    pub(super) fn lineage(&mut self, lineage: Option<&str>, of: &str) -> Verdict {
        let Some(lineage) = lineage.filter(|lineage| !lineage.is_empty()) else {
            return Err(format!("{of} of {} has no lineage", self.queue));
        };
        let known = self.lineage.get_or_insert_with(|| lineage.to_owned());
        must!(
            known == lineage,
            "{of} of {} changes the lineage",
            self.queue
        );
        Ok(())
    }

    pub(super) fn intent(&mut self, intent: Intent, log: &Log) -> Verdict {
        let queue = self.queue.clone();
        self.lineage(intent.lineage.as_deref(), "an intent")?;
        let Some(pointer) = &self.pointer else {
            return Err(format!("an intent of {queue} before its first pointer"));
        };
        let (k, start, end) = (intent.k, intent.t_start, intent.t_end);
        must!(
            k == pointer.k + 1,
            "intent {k} of {queue} after window {}",
            pointer.k
        );
        must!(
            start >= pointer.t_end,
            "intent {k} of {queue} starts below the pointer's end"
        );
        must!(start < end, "intent {k} of {queue} is empty");
        must!(
            end <= log.promised(),
            "intent {k} of {queue} ends at {end}, past every safeTime (last {})",
            log.promised()
        );
        let Some(align) = intent.align else {
            return Err(format!("intent {k} of {queue} has no align"));
        };
        must!(
            Micros(end) <= align.bucket_end(Micros(start)),
            "intent {k} of {queue} straddles a bucket of align {align}"
        );
        if let Some(former) = self.intents.get(&k) {
            must!(
                former.bounds() == intent.bounds()
                    && former.shape(Align::Hour) == intent.shape(Align::Hour),
                "intent {k} of {queue} changes from {former:?} to {intent:?}"
            );
        }
        self.closed = self.closed.max(end);
        self.intents.insert(k, intent);
        Ok(())
    }

    pub(super) fn commit(
        &mut self,
        pointer: CommitPointer,
        log: &mut Log,
        objects: &Objects,
        sight: Option<&Sight>,
    ) -> Verdict {
        let queue = self.queue.clone();
        self.lineage(pointer.lineage.as_deref(), "a pointer")?;
        let Some(former) = self.pointer.clone() else {
            if let Some((k, newest)) = self.manifests.last_key_value() {
                let own = (pointer.k, pointer.t_end, &*pointer.manifest);
                let expected = (*k, newest.t_end, &*spelling::manifest(&queue, *k));
                must!(
                    own == expected,
                    "{queue} goes on at {own:?} instead of its newest window {expected:?}"
                );
                self.pointer = Some(pointer);
                return Ok(());
            }
            must!(
                pointer.k == 0,
                "the first pointer of {queue} is at window {}",
                pointer.k
            );
            must!(
                pointer.manifest.is_empty(),
                "the first pointer of {queue} has a manifest"
            );
            must!(
                pointer.t_end <= log.promised(),
                "{queue} starts at {} past every safeTime",
                pointer.t_end
            );
            self.start = Some(pointer.t_end);
            self.closed = self.closed.max(pointer.t_end);
            self.pointer = Some(pointer);
            return Ok(());
        };
        must!(
            pointer.t_end > former.t_end || pointer.k > former.k,
            "the pointer of {queue} does not move forward: {former:?} to {pointer:?}"
        );
        must!(
            pointer.t_end <= log.promised(),
            "the pointer of {queue} passes every safeTime"
        );
        if pointer.k == former.k {
            must!(
                !self.intents.contains_key(&(pointer.k + 1)),
                "the pointer of {queue} moves idly with intent {} pending",
                pointer.k + 1
            );
        } else {
            self.commit_window(&former, &pointer, objects)?;
        }
        let (from, to) = (former.t_end, pointer.t_end);
        self.tiled((from, to), pointer.k, pointer.k > former.k, log, sight)?;
        self.closed = self.closed.max(to);
        self.pointer = Some(pointer);
        Ok(())
    }

    fn commit_window(
        &self,
        former: &CommitPointer,
        pointer: &CommitPointer,
        objects: &Objects,
    ) -> Verdict {
        let (queue, k) = (&self.queue, pointer.k);
        must!(
            k == former.k + 1,
            "the pointer of {queue} jumps from {} to {k}",
            former.k
        );
        let Some(intent) = self.intents.get(&k) else {
            return Err(format!(
                "window {k} of {queue} is committed without an intent"
            ));
        };
        must!(
            intent.t_end == pointer.t_end,
            "window {k} of {queue} is not its intent's"
        );
        let key = spelling::manifest(queue, k);
        must!(
            pointer.manifest == key,
            "window {k} of {queue} names manifest {}",
            pointer.manifest
        );
        must!(
            objects.visible.contains_key(&key),
            "window {k} of {queue} has no manifest"
        );
        let Some(manifest) = self.manifests.get(&k) else {
            return Err(format!("window {k} of {queue} has no manifest"));
        };
        must!(
            (manifest.records, manifest.bytes) == (pointer.records, pointer.bytes),
            "the pointer of window {k} of {queue} has other figures than its manifest"
        );
        Ok(())
    }

    /// Every record with `from <= ts < to` is in window `k`, is named as lost, or went before the
    /// committer's reading state knew of it.
    fn tiled(
        &mut self,
        (from, to): (i64, i64),
        k: u64,
        window: bool,
        log: &mut Log,
        sight: Option<&Sight>,
    ) -> Verdict {
        let Some(found) = log.queues.get_mut(&self.queue) else {
            return Ok(());
        };
        let mut unnamed = Vec::new();
        let knows = |life, offset| sight.is_some_and(|sight: &Sight| sight.knows(life, offset));
        // Without ids nobody can say for sure how long a life was that has ended, nor which one an
        // offset is of that several had.
        let tells = |key: &RecordKey, life| {
            let lives = found.lives.get(&(key.1.clone(), key.2));
            self.ids
                || (lives.is_some_and(|lives| lives.len() == 1) && !found.ended.contains(&life))
        };
        let none = BTreeSet::new();
        let keys = self.windows.get(&k).filter(|_| window).unwrap_or(&none);
        for (key, truth) in found
            .truth
            .range((from, "".into(), i64::MIN)..(to, "".into(), i64::MIN))
        {
            let why = match &truth.placed {
                Some(object) if keys.contains(object) => continue,
                // It goes into a later window, or is in a former one.
                _ if truth.broken || truth.excused => continue,
                Some(_) => "not in what was",
                None if truth.announced => continue,
                None if !truth.deleted => "not in what was",
                None => {
                    let owed = knows(truth.life, key.2)
                        && tells(key, truth.life)
                        && !sight.is_some_and(|sight| sight.has_mistaken(truth.life));
                    unnamed.extend(owed.then(|| key.clone()));
                    continue;
                }
            };
            return Err(format!(
                "record {key:?} of {} is {why} committed as [{from}, {to}), window {k}: {truth:?}",
                self.queue
            ));
        }
        for key in unnamed {
            let life = found.truth.get(&key).map(|truth| truth.life);
            let handed_on = sight
                .zip(life)
                .is_some_and(|(sight, life)| sight.was_handed_on(life, key.2));
            must!(
                found.name_instead(&key, |ts, truth| ts < to && knows(truth.life, key.2))
                    || handed_on && found.names_another(&key),
                "record {key:?} of {} was deleted, is known to have been there, and is not named as \
                 lost in what was committed as [{from}, {to}), window {k}",
                self.queue
            );
        }
        Ok(())
    }
}

//! What must hold of each object that becomes visible: data, manifests, checkpoints.

use std::collections::HashSet;

use super::*;
use crate::world::log::{Queue, Truth};

impl Lake {
    pub(super) fn data(
        &mut self,
        key: &str,
        (k, start, end): (u64, i64, i64),
        content: &Bytes,
        former: Option<&Bytes>,
        log: &mut Log,
        count: u64,
    ) -> Verdict {
        if let Some(former) = former {
            must!(
                former == content,
                "the visible object {key} changes its content"
            );
            return Ok(());
        }
        let Some(intent) = self.intents.get(&k) else {
            return Err(format!("{key} became visible before its intent"));
        };
        must!(
            (intent.t_start, intent.t_end) == (start, end),
            "{key} has other bounds than its intent"
        );
        let shape = intent.shape(Align::Hour);
        let records =
            lines(content, &self.queue, shape).map_err(|source| format!("{key}: {source}"))?;
        let partition = match (shape.layout, records.first()) {
            (Layout::PerPartition, Some(first)) => Some(first.key.1.to_string()),
            _ => None,
        };
        must!(!records.is_empty(), "{key} holds no record");
        let spelled = spelling::data(&self.roots, k, start, end, shape, partition.as_deref());
        must!(key == spelled, "{key} should be spelled {spelled}");
        let Some(queue) = log.queues.get_mut(&self.queue) else {
            return Err(format!("{key} of a queue that does not exist"));
        };
        let held: HashSet<&RecordKey> = records.iter().map(|line| &line.key).collect();
        let at: Arc<str> = key.into();
        let mut before: Option<(&[u8], u64, i64)> = None;
        for line in &records {
            let Some(truth) = queue.truth.get_mut(&line.key) else {
                return Err(format!(
                    "{key} holds {:?}, which the log never showed",
                    line.key
                ));
            };
            // Log order: segments as they appeared, offsets within.
            let place = (line.key.1.as_bytes(), truth.order, line.key.2);
            must!(
                before.is_none_or(|before| before < place),
                "{key} is not in order at {:?}",
                line.key
            );
            before = Some(place);
            must!(
                line.key.0 < end && (line.key.0 >= start || truth.broken),
                "{key} holds {:?}, which is outside of its window",
                line.key
            );
            must!(
                partition.as_deref().is_none_or(|name| name == &*line.key.1),
                "{key} holds {:?}, which is of another partition",
                line.key
            );
            let expected = expected_body(&line.key, truth, shape.format);
            must!(
                line.body == expected,
                "{key} holds {:?} instead of {expected:?}",
                line.body
            );
            if let Some(other) = &truth.placed {
                return Err(format!("{:?} is in {other} and in {key}", line.key));
            }
            let truth = if truth.announced {
                must!(
                    queue.name_another(&line.key),
                    "{key} holds {:?}, which was called lost",
                    line.key
                );
                queue.truth.get_mut(&line.key).expect("it was there above")
            } else {
                truth
            };
            truth.placed = Some(Arc::clone(&at));
            truth.placed_at = count;
            // It may have come late and be excused already: a redo knows it from the intent.
            truth.excused = false;
        }
        let range = (start, "".into(), i64::MIN)..(end, "".into(), i64::MIN);
        let missing = queue.truth.range(range).find(|(record, truth)| {
            !truth.deleted
                && !truth.broken
                && !truth.excused
                && partition.as_deref().is_none_or(|name| name == &*record.1)
                && !held.contains(*record)
        });
        if let Some((record, truth)) = missing {
            return Err(format!("{key} misses {record:?}: {truth:?}"));
        }
        drop(held);
        self.windows.entry(k).or_default().insert(at);
        self.objects.insert(
            key.to_owned(),
            records.into_iter().map(|line| line.key).collect(),
        );
        Ok(())
    }

    /// Whether an object of the window under way lacks a late record that belongs into it and is
    /// still there to be read.
    pub(super) fn contradicted(&self, queue: &Queue) -> bool {
        let Some(pointer) = &self.pointer else {
            return false;
        };
        let k = pointer.k + 1;
        let (Some(intent), Some(keys)) = (self.intents.get(&k), self.windows.get(&k)) else {
            return false;
        };
        let belongs = |record: &RecordKey| {
            let truth = queue.truth.get(record);
            (pointer.t_end..intent.t_end).contains(&record.0)
                && truth.is_some_and(|truth| !truth.deleted && truth.placed.is_none())
        };
        let has_an_object = |partition: &str| {
            let held = keys.iter().filter_map(|key| self.objects.get(&**key));
            let mut first = held.filter_map(|records| records.first());
            first.any(|record| intent.layout == Layout::Merged || &*record.1 == partition)
        };
        !self.manifests.contains_key(&k)
            && self
                .broken
                .iter()
                .any(|record| belongs(record) && has_an_object(&record.1))
    }

    pub(super) fn manifest(
        &mut self,
        (key, k): (&str, u64),
        content: &Bytes,
        again: bool,
        log: &mut Log,
        objects: &Objects,
        sight: &Sight,
    ) -> Verdict {
        let manifest: Manifest =
            serde_json::from_slice(content).map_err(|source| format!("{key}: {source}"))?;
        if again && let Some(former) = self.manifests.get(&k) {
            let same = Manifest {
                committed_at: former.committed_at.clone(),
                ..manifest.clone()
            };
            must!(
                same == *former,
                "manifest {key} changes from {former:?} to {manifest:?}"
            );
            return Ok(());
        }
        self.lineage(Some(&manifest.lineage), "a manifest")?;
        let Some(intent) = self.intents.get(&k) else {
            return Err(format!("manifest {key} before its intent"));
        };
        let pointer = self
            .pointer
            .as_ref()
            .ok_or("a manifest without a pointer")?;
        must!(
            k == pointer.k + 1,
            "manifest {key} after window {}",
            pointer.k
        );
        let named = (&*manifest.sink, &*manifest.queue, manifest.k);
        must!(
            named == (spelling::SINK, &*self.queue, k),
            "manifest {key} names {named:?}"
        );
        let bounds = (manifest.t_start, manifest.t_end, manifest.prev_t_end);
        must!(
            bounds == (intent.t_start, intent.t_end, pointer.t_end),
            "manifest {key} has bounds {bounds:?}"
        );
        let shape = Shape {
            format: manifest.format,
            compression: manifest.compression,
            layout: manifest.layout,
            align: manifest.align,
        };
        must!(
            Some(shape) == self.shape(k),
            "manifest {key} has another shape than its intent"
        );
        must!(
            manifest.committed_at.parse::<jiff::Timestamp>().is_ok(),
            "manifest {key} has committedAt {}",
            manifest.committed_at
        );
        self.manifest_objects(key, &manifest, objects)?;
        for range in &manifest.lost {
            announce(range, key, &self.queue, log, sight)?;
        }
        self.manifest_late(key, &manifest)?;
        self.manifests.insert(k, manifest);
        Ok(())
    }

    /// `late` names exactly the records below the window's start.
    fn manifest_late(&self, key: &str, manifest: &Manifest) -> Verdict {
        let named: BTreeSet<(&str, i64)> = manifest
            .late
            .iter()
            .flat_map(|range| (range.from..=range.to).map(|offset| (&*range.partition, offset)))
            .collect();
        let held: BTreeSet<(&str, i64)> = manifest
            .objects
            .iter()
            .filter_map(|object| self.objects.get(&object.key))
            .flatten()
            .filter(|(ts, _, _)| *ts < manifest.t_start)
            .map(|(_, partition, offset)| (&**partition, *offset))
            .collect();
        must!(
            named == held,
            "manifest {key} calls {named:?} late, and {held:?} are"
        );
        Ok(())
    }

    fn manifest_objects(&self, key: &str, manifest: &Manifest, objects: &Objects) -> Verdict {
        let none = BTreeSet::new();
        let visible = self.windows.get(&manifest.k).unwrap_or(&none);
        let listed: BTreeSet<Arc<str>> = manifest
            .objects
            .iter()
            .map(|object| object.key.as_str().into())
            .collect();
        must!(
            listed == *visible && listed.len() == manifest.objects.len(),
            "manifest {key} lists {listed:?} of {visible:?}"
        );
        let (mut records, mut bytes, mut partitions) = (0, 0, BTreeSet::new());
        let (mut least, mut greatest) = (None::<i64>, None::<i64>);
        for object in &manifest.objects {
            let (Some(content), Some(held)) = (
                objects.visible.get(&object.key),
                self.objects.get(&object.key),
            ) else {
                return Err(format!("manifest {key} before its object {}", object.key));
            };
            let figures = (object.bytes, object.records, &*object.sha256);
            let digest = hex::encode(Sha256::digest(&content.bytes));
            must!(
                figures == (content.bytes.len() as u64, held.len() as u64, &*digest),
                "manifest {key} has figures {figures:?} of {}",
                object.key
            );
            let told = (
                object.partition.as_deref(),
                object.first_offset,
                object.last_offset,
            );
            let of = match manifest.layout {
                Layout::Merged => (None, None, None),
                Layout::PerPartition => (
                    held.first().map(|record| &*record.1),
                    held.first().map(|record| record.2),
                    held.last().map(|record| record.2),
                ),
            };
            must!(
                told == of,
                "manifest {key} says {told:?} of {} instead of {of:?}",
                object.key
            );
            records += object.records;
            bytes += object.bytes;
            for (ts, partition, _) in held {
                partitions.insert(partition);
                least = Some(least.map_or(*ts, |known| known.min(*ts)));
                greatest = Some(greatest.map_or(*ts, |known| known.max(*ts)));
            }
        }
        let totals = (manifest.records, manifest.bytes, manifest.partitions);
        must!(
            totals == (records, bytes, partitions.len() as u64),
            "manifest {key} has totals {totals:?} instead of {records}, {bytes}, {}",
            partitions.len()
        );
        must!(
            (manifest.min_ts, manifest.max_ts) == (least, greatest),
            "manifest {key} has times {:?} to {:?} instead of {least:?} to {greatest:?}",
            manifest.min_ts,
            manifest.max_ts
        );
        Ok(())
    }

    pub(super) fn checkpoint(&self, key: &str, k: u64, content: &Bytes) -> Verdict {
        let text = zstd::decode_all(&content[..]).map_err(|source| format!("{key}: {source}"))?;
        let document: Value =
            serde_json::from_slice(&text).map_err(|source| format!("{key}: {source}"))?;
        must!(
            document["k"].as_u64() == Some(k),
            "{key} is of window {}",
            document["k"]
        );
        let names: Option<Vec<&str>> = document["positions"].as_array().map(|positions| {
            positions
                .iter()
                .filter_map(|position| position[0].as_str())
                .collect()
        });
        let sorted = names.is_some_and(|names| names.is_sorted());
        must!(sorted, "{key} is not sorted by name");
        Ok(())
    }
}

/// Marks what a manifest calls lost; every offset of it must have been deleted. One that is in an
/// earlier window, or was named before, may be named again by a reading state that began later: it
/// cannot tell which of the deleted offsets another one had dealt with. A range tells no lives
/// apart: it speaks of one that the writer knows, `sight`, and which of these shows later.
fn announce(range: &OffsetRange, key: &str, queue: &str, log: &mut Log, sight: &Sight) -> Verdict {
    let Some(found) = log.queues.get_mut(queue) else {
        return Ok(());
    };
    let name: queen_s3::broker::Name = range.partition.as_str().into();
    for offset in range.from..=range.to {
        let lives = found.lives.get(&(name.clone(), offset));
        let lives = lives.map_or(&[][..], Vec::as_slice);
        let deleted: Vec<(i64, &Truth)> = lives
            .iter()
            .filter_map(|ts| Some((*ts, found.truth.get(&(*ts, name.clone(), offset))?)))
            .filter(|(_, truth)| truth.deleted && truth.placed_at <= sight.made_at)
            .collect();
        let unnamed = |(_, truth): &&(i64, &Truth)| truth.placed.is_none() && !truth.announced;
        let known = |(_, truth): &&(i64, &Truth)| sight.knows(truth.life, offset);
        let meant = deleted
            .iter()
            .find(|found| unnamed(found) && known(found))
            .or_else(|| deleted.iter().find(unnamed))
            .or(deleted.first());
        let Some((ts, _)) = meant.copied() else {
            return Err(format!(
                "manifest {key} calls {offset} of {range:?} lost, and it is not: {:?}",
                lives
                    .iter()
                    .map(|ts| found.truth.get(&(*ts, name.clone(), offset)))
                    .collect::<Vec<_>>()
            ));
        };
        if let Some(truth) = found.truth.get_mut(&(ts, name.clone(), offset)) {
            truth.announced = true;
        }
    }
    Ok(())
}

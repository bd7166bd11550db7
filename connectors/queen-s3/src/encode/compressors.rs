//! Compressors of Zstandard frames, used again from object to object: one holds tens of megabytes
//! that cost more to touch for the first time than to compress a small object.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zstd::stream::raw::{CParameter, Encoder, Operation};

use super::ObjectSpec;
use crate::limits::{SPARE_COMPRESSORS, ZSTD_JOB_BYTES, ZSTD_LEVEL};

static SPARE: Mutex<Vec<Encoder<'static>>> = Mutex::new(Vec::new());

/// What becomes of a compressor when its object has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// It waits for the next one.
    Kept,
    /// It gives its memory up, as the object was large and memory is short.
    Dropped,
}

impl Afterwards {
    /// How it is for the compressor of an object.
    pub(super) fn of(spec: &ObjectSpec) -> Self {
        if spec.workers > 1 || spec.record_bytes <= u64::from(ZSTD_JOB_BYTES) {
            Self::Kept
        } else {
            Self::Dropped
        }
    }
}

fn spare() -> MutexGuard<'static, Vec<Encoder<'static>>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A compressor of one frame of `content_bytes`. Its bytes are the same for every number of workers
/// from 1 up, and others without any, so there is always one.
pub(super) fn take(content_bytes: u64, workers: u32) -> io::Result<Encoder<'static>> {
    let kept = spare().pop();
    let mut encoder = match kept {
        Some(encoder) => encoder,
        None => fresh()?,
    };
    encoder.set_parameter(CParameter::NbWorkers(workers.max(1)))?;
    encoder.set_pledged_src_size(Some(content_bytes))?;
    Ok(encoder)
}

/// Keeps a compressor whose frame has ended. One whose frame was given up is dropped instead.
pub(super) fn give_back(mut encoder: Encoder<'static>) {
    if encoder.reinit().is_err() {
        return;
    }
    let mut spare = spare();
    if spare.len() < SPARE_COMPRESSORS {
        spare.push(encoder);
    }
}

/// Gives the memory of those that wait up.
pub fn give_up() {
    spare().clear();
}

fn fresh() -> io::Result<Encoder<'static>> {
    let mut encoder = Encoder::new(ZSTD_LEVEL)?;
    encoder.set_parameter(CParameter::JobSize(ZSTD_JOB_BYTES))?;
    // One-shot decoders need the size, and the checksum tells a reader of a damaged object.
    encoder.set_parameter(CParameter::ContentSizeFlag(true))?;
    encoder.set_parameter(CParameter::ChecksumFlag(true))?;
    Ok(encoder)
}

#[cfg(test)]
mod tests {
    use zstd::stream::raw::{InBuffer, OutBuffer};

    use super::*;

    /// Lines that compress as events do, and differ by `seed`.
    fn lines(seed: u64, bytes: usize) -> Vec<u8> {
        let mut lines = Vec::with_capacity(bytes + 100);
        let mut state = seed;
        while lines.len() < bytes {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let line = format!("{{\"device\":{},\"value\":{state}}}\n", state % 1_000);
            lines.extend_from_slice(line.as_bytes());
        }
        lines
    }

    fn frame(encoder: &mut Encoder<'static>, content: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; zstd::zstd_safe::compress_bound(content.len())];
        let mut output = OutBuffer::around(&mut frame[..]);
        let mut input = InBuffer::around(content);
        while input.pos() < content.len() {
            encoder.run(&mut input, &mut output).expect("it compresses");
        }
        while encoder.finish(&mut output, true).expect("it ends") > 0 {}
        let length = output.pos();
        frame.truncate(length);
        frame
    }

    #[test]
    fn what_a_compressor_did_before_changes_no_byte() {
        let mut used = fresh().expect("memory");
        for (seed, bytes, workers) in [(1, 20 << 20, 2), (2, 300, 1), (3, 9 << 20, 1), (4, 0, 2)] {
            let content = lines(seed, bytes);
            let length = content.len() as u64;
            let mut new = fresh().expect("memory");
            for encoder in [&mut used, &mut new] {
                let workers = CParameter::NbWorkers(workers);
                encoder.set_parameter(workers).expect("a parameter");
                encoder.set_pledged_src_size(Some(length)).expect("a size");
            }
            assert!(
                frame(&mut used, &content) == frame(&mut new, &content),
                "the object of {bytes} bytes differs"
            );
            used.reinit().expect("it begins anew");
        }
    }

    #[test]
    fn the_compressor_of_a_large_object_is_given_up_where_memory_is_short() {
        let spec = |record_bytes, workers| ObjectSpec {
            format: crate::lake::Format::Jsonl,
            compression: crate::lake::Compression::Zstd,
            queue: "orders".to_owned(),
            record_bytes,
            part_bytes: crate::limits::PART_BYTES,
            workers,
        };
        let (small, large) = (1_000, u64::from(ZSTD_JOB_BYTES) + 1);
        for (spec, afterwards) in [
            (spec(small, 1), Afterwards::Kept),
            (spec(large, 1), Afterwards::Dropped),
            (spec(large, 2), Afterwards::Kept),
        ] {
            assert_eq!(Afterwards::of(&spec), afterwards, "{spec:?}");
        }
    }

    #[test]
    fn compressors_wait_for_the_next_object_up_to_a_limit() {
        let taken = [(); SPARE_COMPRESSORS + 1].map(|()| take(0, 1).expect("memory"));
        for mut encoder in taken {
            frame(&mut encoder, b"");
            give_back(encoder);
        }
        // Other tests of this process take and give back, too.
        assert!((1..=SPARE_COMPRESSORS).contains(&spare().len()));
        give_up();
        assert!(spare().len() < SPARE_COMPRESSORS);
    }
}

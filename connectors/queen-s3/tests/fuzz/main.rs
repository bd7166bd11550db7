//! Foreign bytes: whatever a broker, a store, a lake or an environment says, the sink reads it as
//! another reader does or refuses it, and nothing of it grows without bound.
//!
//! Each target has a corpus in `tests/corpus`, replayed as it is and then changed at random from
//! one seed. `make fuzz SECONDS=60` goes on for longer, from another seed every time; what it finds
//! goes into the corpus.

mod answers;
mod configuration;
#[path = "../simulation/world/describe.rs"]
mod describe;
mod fetch;
mod lake;
mod mutation;
mod rows;
mod segments;
mod store;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use queen_s3::record::{Chunk, Damaged, Unpacked};
use queen_s3::time::Micros;

use self::mutation::Mutator;

/// Where the corpora are.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
/// Where inputs that break a property are left.
const FOUND: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/fuzz");
/// The seed of the ordinary run.
const SEED: u64 = 1;
/// Longest input that is made; a bound of the work, not of what is read.
const INPUT_BYTES: usize = 64 * 1024;

/// A record as it was read: offset, `ts`, id between its quotes, payload.
type Told = (i64, Micros, Vec<u8>, Vec<u8>);

/// The records of `chunk`.
fn told(chunk: &Chunk) -> Result<Vec<Told>, Damaged> {
    let mut told = Vec::new();
    chunk.each(&mut Unpacked::default(), |record| {
        let texts = (record.transaction_id.to_vec(), record.payload.to_vec());
        told.push((record.offset, record.ts, texts.0, texts.1));
        Ok::<_, Damaged>(())
    })?;
    Ok(told)
}

/// What is asked of a target: to read an input, and to say what is wrong with how it was read.
type Property = fn(&[u8]) -> Result<Verdict, String>;

/// What became of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Accepted,
    Refused,
}

/// Replays the corpus of `target` and then `runs` changes of it, or as many as QUEEN_FUZZ_SECONDS
/// leave time for.
fn fuzz(target: &str, runs: u32, property: Property) {
    let corpus = corpus(target);
    for (name, input) in &corpus {
        let verdict = hold(target, input, property);
        // A name says what must become of its input.
        let expected = match name.starts_with("refused-") {
            true => Verdict::Refused,
            false => Verdict::Accepted,
        };
        assert_eq!(verdict, expected, "{target}/{name}");
    }
    let seconds = number("QUEEN_FUZZ_SECONDS");
    let seed = number("QUEEN_FUZZ_SEED").unwrap_or(SEED);
    let inputs: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    let mut mutator = Mutator::new(seed, &inputs, INPUT_BYTES);
    let (begin, mut done, mut accepted) = (Instant::now(), 0_u32, 0_u32);
    let goes_on = |done: u32| match seconds {
        Some(seconds) => begin.elapsed() < Duration::from_secs(seconds),
        None => done < runs,
    };
    while goes_on(done) {
        let input = mutator.next_input();
        if hold(target, &input, property) == Verdict::Accepted {
            accepted += 1;
        }
        done += 1;
    }
    println!("{target}: seed {seed}, {done} inputs, {accepted} accepted");
    // Changes that nothing accepts would prove little about what is accepted.
    assert!(
        accepted > done / 100,
        "{target}: {accepted} of {done} accepted"
    );
    assert!(accepted < done, "{target}: nothing is refused");
}

/// Checks `property` of one input; one that breaks it is kept in a file.
fn hold(target: &str, input: &[u8], property: Property) -> Verdict {
    let wrong = match catch_unwind(AssertUnwindSafe(|| property(input))) {
        Ok(Ok(verdict)) => return verdict,
        Ok(Err(wrong)) => wrong,
        Err(_) => "it panicked".into(),
    };
    let file = Path::new(FOUND).join(target);
    let kept = fs::create_dir_all(FOUND).and_then(|()| fs::write(&file, input));
    panic!(
        "{target}: {wrong}\nthe input is in {} ({kept:?}): {}",
        file.display(),
        String::from_utf8_lossy(&input[..input.len().min(2_000)])
    );
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(CORPUS).join(target);
    let mut corpus: Vec<(String, Vec<u8>)> = fs::read_dir(&folder)
        .expect("a folder of inputs")
        .map(|entry| {
            let path = entry.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            (name.into_owned(), fs::read(&path).expect("an input"))
        })
        .collect();
    corpus.sort();
    assert!(!corpus.is_empty(), "{} is empty", folder.display());
    corpus
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty())?;
    let number = value.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{variable}={value:?} is no whole number")))
}

/// What a property is broken by.
fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

#[test]
fn fetch_answers_are_read_as_serde_json_reads_them() {
    fuzz("fetch", 20_000, fetch::as_serde_json_reads_it);
}

#[test]
fn segments_are_read_whole_or_refused() {
    fuzz("segments", 20_000, segments::whole_or_refused);
}

#[test]
fn the_content_of_a_block_is_read_as_it_is_laid_out() {
    fuzz("segment-content", 20_000, segments::content_as_laid_out);
}

#[test]
fn discovery_answers_are_read_as_the_published_types_read_them() {
    fuzz("changed", 20_000, answers::discovery);
}

#[test]
fn key_value_answers_are_read_as_the_published_types_read_them() {
    fuzz("kv", 20_000, answers::key_value);
}

#[test]
fn lists_of_queues_are_read_as_serde_json_reads_them() {
    fuzz("queues", 10_000, answers::queues);
}

#[test]
fn documents_keep_every_field_when_they_are_written_again() {
    fuzz("documents", 20_000, lake::documents);
}

#[test]
fn manifests_are_the_same_when_they_are_written_again() {
    fuzz("manifest", 10_000, lake::manifest);
}

#[test]
fn checkpoints_are_the_same_when_they_are_written_again() {
    fuzz("checkpoint", 10_000, lake::checkpoint);
}

#[test]
fn a_damaged_frame_of_a_checkpoint_is_refused_or_decodes_within_its_bound() {
    fuzz("checkpoint-frame", 10_000, lake::checkpoint_frame);
}

#[test]
fn lines_of_an_object_are_read_as_serde_json_reads_them() {
    fuzz("lines", 10_000, lake::lines);
}

#[test]
fn parquet_objects_are_read_in_bounded_memory_or_refused() {
    fuzz("rows", 5_000, rows::read_or_refused);
}

#[test]
fn keys_spell_one_name_each() {
    fuzz("keys", 20_000, lake::keys_and_names);
}

#[test]
fn a_configuration_is_taken_whole_or_refused_by_name_and_tells_no_secret() {
    fuzz("configuration", 5_000, configuration::taken_or_refused);
}

#[test]
fn answers_of_a_store_are_taken_for_what_they_say_or_refused_in_a_few_words() {
    fuzz("store", 1_000, store::taken_or_refused);
}

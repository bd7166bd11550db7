//! The engine's behaviour, one sentence a test. Instants are seconds on the broker's clock.

use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use super::*;
use crate::broker::{EntryError, FetchedEntry, ListedPartition};
use crate::lake::checkpoint::Position;
use crate::memory::MemoryBudget;
use crate::record::{Batch, RecordIndex};

const GUARD: i64 = 5;
const AGE: i64 = 60;

fn at(seconds: i64) -> Micros {
    Micros(seconds * Micros::PER_SECOND)
}

fn policy() -> Policy {
    Policy {
        align: Align::Hour,
        target_bytes: 10_000,
        max_window_us: AGE * Micros::PER_SECOND,
        guard_us: GUARD * Micros::PER_SECOND,
    }
}

fn engine(committed: i64) -> Engine {
    Engine::new(policy(), at(committed))
}

fn listed(name: &str, log_start: i64, last_offset: i64, id: Option<u128>) -> ListedPartition {
    ListedPartition {
        name: name.into(),
        id: id.map(Uuid::from_u128),
        last_offset,
        log_start,
    }
}

fn pass(engine: &mut Engine, safe: i64, partitions: &[ListedPartition]) {
    run_pass(engine, safe, partitions, false);
}

fn run_pass(engine: &mut Engine, safe: i64, partitions: &[ListedPartition], full: bool) {
    engine.begin_pass(full);
    engine.page_asked();
    engine.page(at(safe), partitions);
    engine.end_pass();
}

fn request(engine: &mut Engine, name: &str) -> ReadRequest {
    let reads = engine.next_reads(100);
    let mut wanted = None;
    for read in reads {
        if &*read.name == name {
            wanted = Some(read);
        } else {
            engine.unread(&read);
        }
    }
    wanted.unwrap_or_else(|| panic!("{name} is ready to be read"))
}

fn entry(records: u32, high_watermark: i64) -> FetchedEntry {
    FetchedEntry {
        records: 0..records,
        high_watermark,
        log_start: 0,
        error: None,
    }
}

/// A batch of records `(offset, ts in seconds)`, each with a payload of 100 bytes.
fn batch(records: &[(i64, i64)], budget: &Arc<MemoryBudget>) -> Arc<Batch> {
    let mut body = b"id".to_vec();
    body.resize(102, b'1');
    let index = records
        .iter()
        .map(|(offset, seconds)| RecordIndex {
            offset: *offset,
            ts: at(*seconds),
            transaction_id_start: 0,
            transaction_id_len: 2,
            payload_start: 2,
            payload_len: 100,
        })
        .collect();
    Batch::new(Bytes::from(body), index, budget)
}

/// Reads `records` of `name`, whose watermark is then `high_watermark`.
fn read(
    engine: &mut Engine,
    name: &str,
    records: &[(i64, i64)],
    high_watermark: i64,
) -> ReadResult {
    let request = request(engine, name);
    let batch = batch(records, &MemoryBudget::new(usize::MAX));
    engine.read(
        &request,
        &batch,
        &entry(records.len() as u32, high_watermark),
    )
}

fn window(engine: &mut Engine) -> ClosedWindow {
    match engine.close(Press::None) {
        Some(Close::Window(window)) => window,
        other => panic!("a window closes, not {other:?}"),
    }
}

fn offsets(window: &ClosedWindow) -> Vec<(String, Vec<i64>)> {
    let all = |chunks: &Vec<crate::record::Chunk>| {
        chunks
            .iter()
            .flat_map(|c| c.records().iter().map(|r| r.offset))
            .collect()
    };
    window
        .partitions
        .iter()
        .map(|(name, chunks)| (name.to_string(), all(chunks)))
        .collect()
}

#[test]
fn nothing_closes_before_a_pass_is_complete() {
    let mut engine = engine(1_000);
    engine.begin_pass(false);
    engine.page_asked();
    engine.page(at(5_000), &[listed("a", 0, -1, None)]);
    assert!(engine.close(Press::Memory).is_none());
}

#[test]
fn a_window_closes_at_its_age_and_holds_what_lies_below_the_guarded_safe_time() {
    let mut engine = engine(1_000);
    pass(
        &mut engine,
        1_010,
        &[listed("b", 0, 1, None), listed("a", 0, 0, None)],
    );
    read(&mut engine, "a", &[(0, 1_004)], 1);
    read(&mut engine, "b", &[(0, 1_003), (1, 1_008)], 2);
    assert!(engine.close(Press::None).is_none(), "it is young and small");
    pass(&mut engine, 1_010 + AGE, &[]);
    pass(&mut engine, 1_010 + AGE, &[listed("a", 0, 1, None)]);
    read(&mut engine, "a", &[(1, 1_010 + AGE - GUARD)], 2);
    let window = window(&mut engine);
    assert_eq!(
        offsets(&window),
        [("a".to_owned(), vec![0]), ("b".to_owned(), vec![0, 1])],
        "by name, without the record at the bound"
    );
    assert_eq!(window.t_start, at(1_000));
    assert_eq!(window.t_end, at(1_010 + AGE - GUARD));
    assert_eq!(window.prev_t_end, at(1_000));
}

#[test]
fn a_partition_that_is_behind_bounds_the_window_by_the_last_record_read_of_it() {
    let mut engine = engine(1_000);
    pass(
        &mut engine,
        1_010,
        &[listed("a", 0, 4, None), listed("b", 0, 0, None)],
    );
    read(&mut engine, "b", &[(0, 1_009)], 1);
    pass(&mut engine, 1_010 + AGE, &[]);
    assert!(
        engine.close(Press::Memory).is_none(),
        "nothing of a is read yet"
    );
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 5);
    let window = window(&mut engine);
    assert_eq!(
        window.t_end,
        at(1_002),
        "an unread record of a may share its last ts"
    );
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0])]);
}

#[test]
fn a_window_ends_as_late_as_the_size_target_allows() {
    let mut engine = engine(1_000);
    let records: Vec<(i64, i64)> = (0..100).map(|n| (n, 1_100 + n)).collect();
    pass(&mut engine, 2_000, &[listed("a", 0, 99, None)]);
    read(&mut engine, "a", &records, 100);
    let window = window(&mut engine);
    assert!(
        window.record_bytes <= 10_000,
        "{} bytes",
        window.record_bytes
    );
    let one_record = 200;
    assert!(
        window.record_bytes + one_record > 10_000,
        "one more would not fit"
    );
    assert_eq!(engine.cut(), window.t_end);
}

#[test]
fn records_of_one_instant_stay_together_whatever_the_size_target() {
    let mut engine = engine(1_000);
    let mut records: Vec<(i64, i64)> = (0..200).map(|n| (n, 1_100)).collect();
    records.push((200, 1_200));
    pass(&mut engine, 2_000, &[listed("a", 0, 200, None)]);
    read(&mut engine, "a", &records, 201);
    let window = window(&mut engine);
    assert_eq!(window.partitions[0].1[0].range.len(), 200);
    assert!(window.t_end > at(1_100) && window.t_end <= at(1_200));
}

#[test]
fn a_window_stays_within_the_hour_of_its_first_record() {
    let mut engine = engine(3_000);
    pass(&mut engine, 9_000, &[listed("a", 0, 1, None)]);
    read(&mut engine, "a", &[(0, 3_700), (1, 7_300)], 2);
    let first = window(&mut engine);
    assert_eq!(
        (first.t_start, first.t_end),
        (at(3_600), at(7_200)),
        "the hour is complete"
    );
    assert_eq!(first.prev_t_end, at(3_000));
    assert!(engine.close(Press::None).is_none(), "the next hour is not");
}

#[test]
fn without_alignment_a_window_still_starts_no_earlier_than_the_hour_of_its_first_record() {
    let mut engine = Engine::new(
        Policy {
            align: Align::None,
            ..policy()
        },
        at(0),
    );
    pass(&mut engine, 20_000, &[listed("a", 0, 1, None)]);
    read(&mut engine, "a", &[(0, 7_300), (1, 12_000)], 2);
    pass(&mut engine, 20_000 + AGE, &[]);
    let window = window(&mut engine);
    assert_eq!(
        (window.t_start, window.t_end),
        (at(7_200), at(20_000 + AGE - GUARD))
    );
    assert_eq!(window.prev_t_end, at(0));
}

#[test]
fn the_pointer_moves_over_a_stretch_without_records_at_the_windows_age() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[]);
    assert!(engine.close(Press::None).is_none());
    pass(&mut engine, 1_010 + AGE, &[]);
    match engine.close(Press::None) {
        Some(Close::Idle(t_end)) => assert_eq!(t_end, at(1_010 + AGE - GUARD)),
        other => panic!("the pointer moves, not {other:?}"),
    }
    assert!(engine.close(Press::None).is_none(), "once an age");
}

#[test]
fn records_below_the_cut_are_skipped_when_reading_begins_and_never_taken_for_late() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 2, None)]);
    read(&mut engine, "a", &[(0, 998), (1, 999), (2, 1_000)], 3);
    pass(&mut engine, 1_010 + AGE, &[]);
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![2])]);
    assert_eq!(window.late, []);
}

#[test]
fn a_record_below_the_cut_that_appears_later_is_kept_and_named_late() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 0, None)]);
    read(&mut engine, "a", &[(0, 1_001)], 1);
    pass(&mut engine, 1_010 + AGE, &[listed("a", 0, 1, None)]);
    read(&mut engine, "a", &[(1, 1_005)], 2);
    let first = window(&mut engine);
    pass(&mut engine, 1_020 + AGE, &[listed("a", 0, 2, None)]);
    read(&mut engine, "a", &[(2, 1_006)], 3);
    pass(&mut engine, 1_020 + 3 * AGE, &[]);
    let second = window(&mut engine);
    assert_eq!(second.t_start, first.t_end);
    assert_eq!(offsets(&second), [("a".to_owned(), vec![2])]);
    assert_eq!(
        second.late,
        [OffsetRange {
            partition: "a".into(),
            from: 2,
            to: 2
        }]
    );
}

#[test]
fn offsets_that_retention_took_unread_are_lost_and_reading_goes_on() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 9, None)]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 10);
    let out = request(&mut engine, "a");
    let empty = batch(&[], &MemoryBudget::new(0));
    let answer = FetchedEntry {
        records: 0..0,
        high_watermark: 10,
        log_start: 5,
        error: Some(EntryError::OffsetOutOfRange),
    };
    assert_eq!(engine.read(&out, &empty, &answer), ReadResult::Progress);
    // The other way of learning it.
    pass(&mut engine, 1_010 + AGE, &[listed("a", 7, 9, None)]);
    read(&mut engine, "a", &[(7, 1_007), (8, 1_008), (9, 1_009)], 10);
    let window = window(&mut engine);
    let lost = |from, to| OffsetRange {
        partition: "a".into(),
        from,
        to,
    };
    assert_eq!(window.lost, [lost(2, 4), lost(5, 6)]);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0, 1, 7, 8, 9])]);
}

#[test]
fn a_loss_without_records_still_makes_a_window() {
    let mut engine = engine(7_000);
    pass(&mut engine, 7_010, &[listed("a", 0, 0, None)]);
    read(&mut engine, "a", &[(0, 6_000)], 1);
    pass(&mut engine, 7_020, &[listed("a", 5, 4, None)]);
    pass(&mut engine, 7_020 + AGE, &[]);
    let window = window(&mut engine);
    assert!(window.partitions.is_empty());
    assert_eq!(
        window.lost,
        [OffsetRange {
            partition: "a".into(),
            from: 1,
            to: 4
        }]
    );
}

#[test]
fn a_new_life_is_read_from_its_start_even_if_it_was_misread_as_the_former_one() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 1, Some(1))]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 2);
    pass(&mut engine, 1_011, &[listed("a", 0, 3, Some(1))]);
    // Deleted and made again in between: offsets 2 and 3 are of the new life.
    read(&mut engine, "a", &[(2, 1_022), (3, 1_023)], 4);
    pass(&mut engine, 1_030 + AGE, &[listed("a", 0, 3, Some(2))]);
    assert!(
        engine.close(Press::None).is_none(),
        "the new life is unread"
    );
    read(
        &mut engine,
        "a",
        &[(0, 1_020), (1, 1_021), (2, 1_022), (3, 1_023)],
        4,
    );
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0, 1, 0, 1, 2, 3])]);
    assert_eq!(
        window.lost,
        [OffsetRange {
            partition: "a".into(),
            from: 2,
            to: 3
        }]
    );
}

#[test]
fn an_answer_about_a_former_life_is_void() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 1, Some(1))]);
    let old = request(&mut engine, "a");
    pass(&mut engine, 1_020, &[listed("a", 0, 0, Some(2))]);
    let records = batch(&[(0, 1_001), (1, 1_002)], &MemoryBudget::new(0));
    assert_eq!(
        engine.read(&old, &records, &entry(2, 2)),
        ReadResult::Nothing
    );
    assert_eq!(engine.buffered_bytes(), 0);
    assert_eq!(request(&mut engine, "a").offset, 0);
}

#[test]
fn without_ids_a_new_life_shows_by_a_last_offset_below_what_was_read() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 2, None)]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002), (2, 1_003)], 3);
    pass(&mut engine, 1_020, &[listed("a", 0, 0, None)]);
    assert_eq!(request(&mut engine, "a").offset, 0);
}

#[test]
fn a_page_asked_for_before_a_partition_was_read_says_nothing_of_its_life() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 0, None)]);
    engine.begin_pass(false);
    engine.page_asked();
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002), (2, 1_003)], 3);
    engine.page(at(1_011), &[listed("a", 0, 0, None)]);
    engine.end_pass();
    assert!(
        !engine.has_ready(),
        "it is read to its watermark and not born again"
    );
}

#[test]
fn a_partition_that_a_full_pass_does_not_name_has_ended() {
    let mut engine = engine(1_000);
    pass(
        &mut engine,
        1_010,
        &[listed("a", 0, 4, None), listed("b", 0, 0, None)],
    );
    read(&mut engine, "a", &[(0, 1_001)], 5);
    read(&mut engine, "b", &[(0, 1_002)], 1);
    run_pass(&mut engine, 1_010 + AGE, &[listed("b", 0, 0, None)], true);
    let window = window(&mut engine);
    assert_eq!(
        offsets(&window),
        [("a".to_owned(), vec![0]), ("b".to_owned(), vec![0])]
    );
    assert_eq!(
        window.lost,
        [OffsetRange {
            partition: "a".into(),
            from: 1,
            to: 4
        }]
    );
    run_pass(&mut engine, 1_011 + AGE, &[listed("b", 0, 0, None)], true);
    assert_eq!(engine.tracked(), 1);
}

#[test]
fn an_answer_that_contradicts_the_last_pass_waits_for_a_full_one() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 4, None)]);
    let out = request(&mut engine, "a");
    let empty = batch(&[], &MemoryBudget::new(0));
    let answer = FetchedEntry {
        records: 0..0,
        high_watermark: 0,
        log_start: 0,
        error: None,
    };
    assert!(matches!(
        engine.read(&out, &empty, &answer),
        ReadResult::Suspect(_)
    ));
    assert!(!engine.has_ready());
    assert_eq!(engine.begin_pass(false), PassRequest { since: None });
    engine.page_asked();
    engine.page(at(1_011), &[listed("a", 0, 4, None)]);
    engine.end_pass();
    assert!(engine.has_ready(), "the pass named it again");
}

#[test]
fn an_empty_answer_below_the_watermark_proves_nothing() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 4, None)]);
    assert_eq!(read(&mut engine, "a", &[], 5), ReadResult::Nothing);
    pass(&mut engine, 1_010 + AGE, &[]);
    assert!(engine.close(Press::Memory).is_none());
    assert!(engine.has_ready());
}

#[test]
fn what_is_shed_is_what_lies_furthest_ahead_and_it_is_read_again() {
    let budget = MemoryBudget::new(1_000_000);
    let mut engine = engine(1_000);
    pass(
        &mut engine,
        1_100,
        &[listed("a", 0, 3, None), listed("b", 0, 1, None)],
    );
    read(
        &mut engine,
        "a",
        &[(0, 1_001), (1, 1_002), (2, 1_050), (3, 1_051)],
        4,
    );
    read(&mut engine, "b", &[(0, 1_003), (1, 1_052)], 2);
    let before = engine.buffered_bytes();
    assert!(engine.shed(500, &budget) > 0);
    assert!(engine.buffered_bytes() < before);
    assert_eq!(request(&mut engine, "b").offset, 1);
    let again = request(&mut engine, "a");
    assert_eq!(again.offset, 2);
    pass(&mut engine, 1_100 + AGE, &[]);
    let window = window(&mut engine);
    assert_eq!(
        window.t_end,
        at(1_050),
        "no unread record goes below what was dropped"
    );
    assert_eq!(
        offsets(&window),
        [("a".to_owned(), vec![0, 1]), ("b".to_owned(), vec![0])]
    );
}

#[test]
fn the_earliest_instant_is_never_shed_but_can_be_streamed() {
    let budget = MemoryBudget::new(1);
    let mut engine = engine(1_000);
    pass(&mut engine, 1_100, &[listed("a", 0, 3, None)]);
    read(&mut engine, "a", &[(0, 1_050), (1, 1_050)], 4);
    assert_eq!(engine.shed(u64::MAX, &budget), 0);
    assert_eq!(engine.oversized(), Some((at(1_000), at(1_050).on(1))));
}

#[test]
fn a_stop_finishes_a_window_only_when_it_is_worth_it() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 0, None)]);
    read(&mut engine, "a", &[(0, 1_001)], 1);
    pass(&mut engine, 1_015, &[]);
    assert!(
        engine.close(Press::Drain).is_none(),
        "small, and open for five seconds"
    );
    pass(&mut engine, 1_020, &[]);
    assert!(engine.close(Press::Drain).is_some(), "open for ten seconds");
}

#[test]
fn incremental_passes_ask_from_a_little_below_what_is_known() {
    let mut engine = engine(1_000);
    assert_eq!(
        engine.begin_pass(false),
        PassRequest {
            since: Some(at(998))
        }
    );
    engine.page_asked();
    engine.page(at(1_010), &[]);
    engine.end_pass();
    assert_eq!(
        engine.begin_pass(false),
        PassRequest {
            since: Some(at(1_008))
        }
    );
    assert_eq!(engine.begin_pass(true), PassRequest { since: None });
}

#[test]
fn a_safe_time_that_falls_does_not_take_back_what_was_answered() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_100, &[]);
    pass(&mut engine, 1_050, &[]);
    assert_eq!(engine.safe_time(), Some(at(1_100)));
}

#[test]
fn a_long_log_is_probed_and_not_read_from_its_start() {
    let mut engine = engine(1_000_000);
    pass(&mut engine, 1_000_010, &[listed("a", 0, 999_999, None)]);
    let mut probes = 0;
    while engine.wants_probes() {
        let probe = engine.next_probes(10).remove(0);
        probes += 1;
        let record = (probe.offset, probe.offset);
        engine.read(
            &probe,
            &batch(&[record], &MemoryBudget::new(0)),
            &entry(1, 1_000_000),
        );
    }
    assert!(probes < 30);
    assert!(request(&mut engine, "a").offset >= 999_000);
}

fn position(name: &str, offset: i64, id: Option<u128>) -> Position {
    Position {
        partition: name.into(),
        offset,
        id: id.map(Uuid::from_u128),
    }
}

#[test]
fn a_checkpoint_names_the_first_offset_in_no_window() {
    let mut engine = engine(1_000);
    pass(
        &mut engine,
        1_010,
        &[listed("b", 0, 2, None), listed("a", 0, 0, Some(7))],
    );
    read(&mut engine, "b", &[(0, 1_001), (1, 1_002), (2, 1_009)], 3);
    read(&mut engine, "a", &[(0, 1_003)], 1);
    pass(&mut engine, 1_010 + AGE, &[listed("b", 0, 3, None)]);
    read(&mut engine, "b", &[(3, 1_010 + AGE)], 4);
    window(&mut engine);
    assert_eq!(
        engine.checkpoint(),
        [position("a", 1, Some(7)), position("b", 3, None)]
    );
}

#[test]
fn a_range_lost_and_in_no_manifest_yet_holds_the_checkpoint_back() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 0, None)]);
    read(&mut engine, "a", &[(0, 1_001)], 1);
    pass(&mut engine, 1_011, &[listed("a", 5, 6, None)]);
    read(&mut engine, "a", &[(5, 1_005), (6, 1_006)], 7);
    assert_eq!(
        engine.checkpoint()[0].offset,
        0,
        "the first record is in no window either"
    );
    pass(&mut engine, 1_011 + AGE, &[]);
    window(&mut engine);
    assert_eq!(engine.checkpoint()[0].offset, 7);
}

#[test]
fn a_restored_position_is_trusted_after_the_record_before_it_was_seen() {
    let mut engine = engine(1_000);
    engine.restore(vec![position("a", 500_000, None)]);
    pass(&mut engine, 1_010, &[listed("a", 0, 500_000, None)]);
    read(
        &mut engine,
        "a",
        &[(499_999, 999), (500_000, 1_001)],
        500_001,
    );
    pass(&mut engine, 1_010 + AGE, &[]);
    assert_eq!(
        offsets(&window(&mut engine)),
        [("a".to_owned(), vec![500_000])]
    );
}

#[test]
fn a_restored_position_that_is_too_far_is_looked_for_again() {
    let mut engine = engine(1_000);
    engine.restore(vec![position("a", 500_000, None)]);
    pass(&mut engine, 1_010, &[listed("a", 0, 500_000, None)]);
    read(
        &mut engine,
        "a",
        &[(499_999, 1_001), (500_000, 1_001)],
        500_001,
    );
    assert!(engine.wants_probes());
    assert_eq!(engine.buffered_bytes(), 0);
}

#[test]
fn a_restored_position_below_the_log_start_means_a_loss_unless_what_follows_is_committed() {
    for (first_ts, lost) in [(1_005, 1), (999, 0)] {
        let mut engine = engine(1_000);
        engine.restore(vec![position("a", 10, None)]);
        pass(&mut engine, 1_010, &[listed("a", 20, 20, None)]);
        read(&mut engine, "a", &[(20, first_ts)], 21);
        assert_eq!(engine.take_lost().len(), lost);
    }
}

#[test]
fn a_restored_position_of_a_former_life_is_not_used() {
    let mut engine = engine(1_000);
    engine.restore(vec![position("a", 10, Some(1)), position("b", 10, None)]);
    pass(
        &mut engine,
        1_010,
        &[listed("a", 0, 20, Some(2)), listed("b", 0, 3, None)],
    );
    assert_eq!(request(&mut engine, "a").offset, 0);
    assert_eq!(request(&mut engine, "b").offset, 0);
}

#[test]
fn partitions_that_did_not_move_keep_their_restored_positions_without_a_request() {
    let mut engine = engine(1_000);
    engine.restore(vec![position("a", 10, None), position("b", 20, None)]);
    pass(&mut engine, 1_010, &[]);
    assert!(!engine.has_ready());
    assert_eq!(
        engine.checkpoint(),
        [position("a", 10, None), position("b", 20, None)]
    );
}

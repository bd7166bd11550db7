//! What passes and answers mean.

use super::*;

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
        life: None,
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
fn an_answer_that_contradicts_the_last_pass_waits_for_a_full_one() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 4, None)]);
    let out = request(&mut engine, "a");
    let empty = batch(&[], &MemoryBudget::new(0));
    let answer = FetchedEntry {
        records: 0..0,
        high_watermark: 0,
        log_start: 0,
        life: None,
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
        &[listed("a", 0, 3, Some(1)), listed("b", 0, 1, Some(2))],
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
fn a_safe_time_that_falls_costs_lag_and_takes_nothing_back() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_100, &[]);
    pass(&mut engine, 1_050, &[]);
    assert_eq!(engine.safe_time(), Some(at(1_050)));
    assert!(engine.close(Press::Memory).is_none());
    assert_eq!(engine.cut(), at(1_000));
}

#[test]
fn a_page_does_not_move_a_partition_that_a_fetch_is_out_for() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 9, None)]);
    let out = request(&mut engine, "a");
    pass(&mut engine, 1_010 + AGE, &[listed("a", 5, 9, None)]);
    let records: Vec<_> = (0..10).map(|n| (n, 1_001 + n)).collect();
    engine.read(
        &out,
        &batch(&records, &MemoryBudget::new(0)),
        &entry(10, 10),
    );
    let window = window(&mut engine);
    assert_eq!(window.lost, []);
    assert_eq!(offsets(&window)[0].1.len(), 10);
}

#[test]
fn a_hole_within_an_answer_is_never_read_over() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 4, None)]);
    let answer = read(&mut engine, "a", &[(0, 1_001), (1, 1_002), (4, 1_003)], 5);
    assert!(matches!(answer, ReadResult::Suspect(_)));
    assert_eq!(engine.buffered_bytes(), 0);
}

#[test]
fn a_record_whose_ts_falls_goes_into_no_window_before_what_precedes_it() {
    let mut engine = engine(1_000);
    pass(
        &mut engine,
        1_010,
        &[listed("a", 0, 0, None), listed("b", 0, 0, None)],
    );
    read(&mut engine, "a", &[(0, 1_050)], 1);
    read(&mut engine, "b", &[(0, 1_040)], 1);
    pass(&mut engine, 1_011, &[listed("a", 0, 1, None)]);
    read(&mut engine, "a", &[(1, 1_020)], 2);
    pass(&mut engine, 1_045 + GUARD, &[]);
    pass(&mut engine, 1_045 + GUARD, &[]);
    let Some(Close::Window(first)) = engine.close(Press::Memory) else {
        panic!("a window closes");
    };
    assert_eq!(offsets(&first), [("b".to_owned(), vec![0])]);
    pass(&mut engine, 1_050 + 2 * AGE, &[]);
    let second = window(&mut engine);
    assert_eq!(offsets(&second), [("a".to_owned(), vec![0, 1])]);
    assert_eq!(
        second.late,
        [OffsetRange {
            partition: "a".into(),
            from: 1,
            to: 1
        }]
    );
    assert_eq!(engine.buffered_bytes(), 0);
}

#[test]
fn a_partition_that_a_full_pass_did_not_know_is_new_and_its_late_records_are_kept() {
    let mut engine = engine(1_000);
    run_pass(&mut engine, 1_010, &[], true);
    pass(&mut engine, 1_010 + AGE, &[listed("new", 0, 1, None)]);
    read(&mut engine, "new", &[(0, 990), (1, 1_020)], 2);
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("new".to_owned(), vec![0, 1])]);
    assert_eq!(
        window.late,
        [OffsetRange {
            partition: "new".into(),
            from: 0,
            to: 0
        }]
    );
}

#[test]
fn offsets_that_were_shown_and_vanish_from_the_end_hold_nothing_up() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 9, None)]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 10);
    pass(&mut engine, 1_010 + AGE, &[listed("a", 0, 1, None)]);
    // Only a look at the last record tells that it is the same life.
    read(&mut engine, "a", &[], 2);
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0, 1])]);
    assert_eq!(
        window.lost,
        [OffsetRange {
            partition: "a".into(),
            from: 2,
            to: 9
        }]
    );
}

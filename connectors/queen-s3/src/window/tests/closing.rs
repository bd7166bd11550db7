//! When a window closes, at which bound, and with what.

use super::*;

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

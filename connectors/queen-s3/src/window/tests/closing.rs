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
    assert_eq!(engine.cut(), at(1_000));
    let window = window(&mut engine);
    assert_eq!(
        offsets(&window),
        [("a".to_owned(), vec![0]), ("b".to_owned(), vec![0, 1])],
        "by name, without the record at the bound"
    );
    assert_eq!(window.t_start, at(1_000));
    assert_eq!(window.t_end, at(1_010 + AGE - GUARD));
    assert_eq!(engine.cut(), window.t_end);
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
    assert_eq!(engine.cut(), first.t_end);
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
    assert_eq!(engine.cut(), window.t_end);
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

/// An engine in its first ten seconds, which has read a record of so many payload bytes.
fn small_and_young(payload: usize) -> Engine {
    let policy = Policy {
        target_bytes: u64::MAX,
        ..policy()
    };
    let mut engine = Engine::new(policy, at(1_000));
    pass(&mut engine, 1_010, &[listed("a", 0, 0, None)]);
    let request = request(&mut engine, "a");
    let index = RecordIndex {
        offset: 0,
        ts: at(1_001),
        transaction_id_start: 0,
        transaction_id_len: 0,
        payload_start: 0,
        payload_len: u32::try_from(payload).expect("a test's payload is short"),
    };
    let body = Bytes::from(vec![b'1'; payload]);
    let batch = Batch::new(
        body,
        vec![index],
        Ids::Escaped,
        &MemoryBudget::new(usize::MAX),
    );
    engine.read(&request, &batch, &entry(1, 1));
    engine
}

#[test]
fn a_stop_finishes_a_window_of_a_mebibyte_to_the_byte() {
    let envelope = small_and_young(1).buffered_bytes() - 1;
    for (bytes, worth) in [((1 << 20) - 1, false), (1 << 20, true)] {
        let mut engine = small_and_young((bytes - envelope) as usize);
        assert_eq!(engine.buffered_bytes(), bytes);
        assert_eq!(engine.close(Press::Drain).is_some(), worth, "{bytes}");
    }
}

#[test]
fn a_stop_counts_all_that_is_buffered_and_finishes_what_is_settled_of_it() {
    let mut engine = small_and_young(1);
    // At the bound: it is not settled yet.
    pass(&mut engine, 1_011, &[listed("a", 0, 19_999, None)]);
    let records: Vec<(i64, i64)> = (1..20_000).map(|n| (n, 1_011)).collect();
    read(&mut engine, "a", &records, 20_000);
    pass(&mut engine, 1_011, &[]);
    match engine.close(Press::Drain) {
        Some(Close::Window(window)) => assert_eq!(offsets(&window), [("a".into(), vec![0])]),
        other => panic!("a window closes, not {other:?}"),
    }
}

#[test]
fn a_stop_finishes_a_window_that_has_been_open_for_ten_seconds_of_the_brokers_clock() {
    for (open_us, worth) in [(9_999_999, false), (10_000_000, true)] {
        let mut engine = small_and_young(1);
        engine.begin_pass(false);
        engine.page_asked();
        engine.page(Micros(at(1_010).0 + open_us), &[]);
        engine.end_pass();
        assert_eq!(engine.close(Press::Drain).is_some(), worth, "{open_us}");
    }
    // However long it has been open, there is nothing to finish in it.
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[]);
    pass(&mut engine, 1_030, &[]);
    assert!(engine.close(Press::Drain).is_none());
}

#[test]
fn a_stop_finishes_a_window_that_alone_knows_of_lives_that_are_over() {
    const FIRST: i64 = 1_001;
    for read_first in [0, 4] {
        let mut engine = engine(1_000);
        pass(&mut engine, 1_010, &[listed("a", 0, 9, None)]);
        if read_first > 0 {
            let records: Vec<_> = (0..read_first).map(|n| (n, FIRST + n)).collect();
            read(&mut engine, "a", &records, 10);
        }
        // Young and small.
        run_pass(&mut engine, 1_012, &[], true);
        let window = match engine.close(Press::Drain) {
            Some(Close::Window(window)) => window,
            other => panic!("a window closes, not {other:?}"),
        };
        let read: Vec<i64> = (0..read_first).collect();
        let held = offsets(&window).pop().map(|(_, held)| held);
        assert_eq!(held.unwrap_or_default(), read);
        let lost = OffsetRange {
            partition: "a".into(),
            from: read_first,
            to: 9,
        };
        assert_eq!(window.lost, [lost]);
    }
}

#[test]
fn a_stop_finishes_a_window_with_records_of_a_life_that_is_over() {
    for over in [false, true] {
        let mut engine = engine(1_000);
        pass(&mut engine, 1_010, &[listed("a", 0, 0, Some(1))]);
        read(&mut engine, "a", &[(0, 1_001)], 1);
        let id = if over { 2 } else { 1 };
        run_pass(&mut engine, 1_012, &[listed("a", 0, 0, Some(id))], true);
        if over {
            let later = request(&mut engine, "a");
            answer(&mut engine, &later, &[(0, 1_011)], 1);
        }
        let window = match engine.close(Press::Drain) {
            Some(Close::Window(window)) => Some(offsets(&window)),
            None => None,
            idle => panic!("a window closes, not {idle:?}"),
        };
        let expected = over.then(|| vec![("a".to_owned(), vec![0])]);
        assert_eq!(window, expected);
    }
}

#[test]
fn a_window_is_full_once_it_could_close_and_its_size_is_reached() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_100, &[listed("a", 0, 9, None)]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 10);
    assert!(!engine.is_full(), "it is small");
    engine.policy.target_bytes = engine.buffered_bytes();
    assert!(!engine.is_full(), "an unread record may share the last ts");
    read(&mut engine, "a", &[(2, 1_003), (3, 1_004)], 10);
    assert!(engine.is_full());
    let buffered = engine.buffered_bytes();
    assert!(window(&mut engine).record_bytes < buffered);
    assert!(!engine.is_full(), "the rest is small again");
}

#[test]
fn a_whole_hour_is_full_when_more_than_a_window_is_buffered() {
    let mut engine = engine(1_000);
    pass(&mut engine, 9_000, &[listed("a", 0, 3, None)]);
    read(&mut engine, "a", &[(0, 1_001), (1, 4_000)], 4);
    engine.policy.target_bytes = engine.buffered_bytes() + 1;
    assert!(!engine.is_full(), "much may come before it has to wait");
    read(&mut engine, "a", &[(2, 8_000), (3, 8_001)], 4);
    assert!(engine.is_full());
}

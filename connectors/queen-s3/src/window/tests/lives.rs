//! Partitions that end, and those that come back under their name.

use super::*;

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
fn without_ids_a_longer_life_shows_by_the_record_before_the_position() {
    let mut engine = engine(1_000);
    let before = written(listed("a", 0, 1, None), 1_002);
    pass(&mut engine, 1_010, &[before]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 2);
    let after = written(listed("a", 0, 3, None), 1_023);
    pass(&mut engine, 1_030, std::slice::from_ref(&after));
    let on = request(&mut engine, "a");
    assert_eq!(on.offset, 1);
    answer(&mut engine, &on, &[(1, 1_021), (2, 1_022), (3, 1_023)], 4);
    pass(&mut engine, 1_030 + AGE, &[after]);
    assert!(
        engine.close(Press::None).is_none(),
        "the new life is unread"
    );
    let records = [(0, 1_020), (1, 1_021), (2, 1_022), (3, 1_023)];
    read(&mut engine, "a", &records, 4);
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0, 1, 0, 1, 2, 3])]);
    assert!(window.lost.is_empty());
}

#[test]
fn without_ids_a_life_as_long_as_the_former_is_looked_at_because_it_was_written_to() {
    let mut engine = engine(1_000);
    let before = written(listed("a", 0, 1, None), 1_002);
    pass(&mut engine, 1_010, &[before]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 2);
    assert!(!engine.has_ready());
    let after = written(listed("a", 0, 1, None), 1_021);
    pass(&mut engine, 1_010 + AGE, &[after]);
    // What it may hold unread lies above what was read.
    assert_eq!(window(&mut engine).t_end, at(1_002));
    let proof = request(&mut engine, "a");
    assert_eq!(proof.offset, 1);
    answer(&mut engine, &proof, &[(1, 1_021)], 2);
    assert_eq!(request(&mut engine, "a").offset, 0);
}

#[test]
fn without_ids_a_partition_that_was_written_to_and_lives_on_costs_one_look() {
    let mut engine = engine(1_000);
    let before = written(listed("a", 0, 1, None), 1_001);
    pass(&mut engine, 1_010, &[before]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002), (2, 1_003)], 3);
    let after = written(listed("a", 0, 2, None), 1_003);
    pass(&mut engine, 1_010 + AGE, &[after]);
    let proof = request(&mut engine, "a");
    answer(&mut engine, &proof, &[(2, 1_003)], 3);
    assert!(!engine.has_ready());
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0, 1, 2])]);
}

#[test]
fn without_ids_an_answer_from_before_the_doubt_does_not_settle_it() {
    let mut engine = engine(1_000);
    pass(
        &mut engine,
        1_010,
        &[written(listed("a", 0, 1, None), 1_002)],
    );
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 2);
    for last in [1_004, 1_006] {
        let page = [written(listed("a", 0, 1, None), last)];
        pass(&mut engine, 1_020, &page);
    }
    let proof = request(&mut engine, "a");
    pass(
        &mut engine,
        1_021,
        &[written(listed("a", 0, 1, None), 1_015)],
    );
    answer(&mut engine, &proof, &[(1, 1_002)], 2);
    assert!(engine.has_ready(), "it may be another life since");
}

#[test]
fn without_ids_a_partition_that_is_back_after_a_full_pass_is_looked_at() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 1, None)]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 2);
    run_pass(&mut engine, 1_011, &[], true);
    pass(&mut engine, 1_030, &[listed("a", 0, 1, None)]);
    let proof = request(&mut engine, "a");
    answer(&mut engine, &proof, &[(1, 1_021)], 2);
    read(&mut engine, "a", &[(0, 1_020), (1, 1_021)], 2);
    pass(&mut engine, 1_030 + AGE, &[]);
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0, 1, 0, 1])]);
    assert!(window.lost.is_empty());
}

#[test]
fn without_ids_an_answer_without_room_for_a_new_record_is_followed_by_a_request_for_that_alone() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 3, None)]);
    read(&mut engine, "a", &[(0, 1_001), (1, 1_002)], 4);
    let both = request(&mut engine, "a");
    assert_eq!(both.offset, 1);
    let result = answer(&mut engine, &both, &[(1, 1_002)], 4);
    assert_eq!(result, ReadResult::Nothing);
    let alone = request(&mut engine, "a");
    assert_eq!(alone.offset, 2);
    answer(&mut engine, &alone, &[(2, 1_003)], 4);
    assert_eq!(request(&mut engine, "a").offset, 2);
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
fn a_restored_position_of_a_former_life_is_not_used() {
    let mut engine = engine(1_000);
    engine.restore(&Positions::from_iter([
        position("a", 10, Some(1)),
        position("b", 10, None),
    ]));
    pass(
        &mut engine,
        1_010,
        &[listed("a", 0, 20, Some(2)), listed("b", 0, 3, None)],
    );
    assert_eq!(request(&mut engine, "a").offset, 0);
    assert_eq!(request(&mut engine, "b").offset, 0);
}

#[test]
fn what_a_manifest_names_of_a_former_life_does_not_hide_a_loss_of_the_next() {
    let mut engine = engine(1_000);
    engine.restore(&Positions::from_iter([position("a", 10, Some(1))]));
    engine.note_named(&[OffsetRange {
        partition: "a".into(),
        from: 0,
        to: 20,
    }]);
    pass(&mut engine, 1_010, &[listed("a", 0, 9, Some(2))]);
    run_pass(&mut engine, 1_011, &[], true);
    let lost: Vec<_> = engine.take_lost();
    assert_eq!((lost[0].from, lost[0].to), (0, 9));
}

#[test]
fn what_was_read_of_a_queue_that_is_gone_goes_into_a_window_that_names_the_rest_as_lost() {
    let mut engine = engine(1_000);
    engine.restore(&Positions::from_iter([position("b", 4, None)]));
    let all = [listed("a", 0, 4, None), listed("b", 0, 6, None)];
    pass(&mut engine, 1_010, &all);
    read(&mut engine, "a", &[(0, 1_005), (1, 1_006)], 5);
    engine.queue_gone(at(1_009));
    assert!(!engine.is_drained());
    assert!(engine.close(Press::None).is_none());
    assert!(
        engine.close(Press::Gone).is_none(),
        "what was read is not settled yet"
    );
    engine.queue_gone(at(1_020));
    let Some(Close::Window(window)) = engine.close(Press::Gone) else {
        panic!("a window closes");
    };
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0, 1])]);
    let lost: Vec<_> = window
        .lost
        .iter()
        .map(|range| (&*range.partition, range.from, range.to))
        .collect();
    assert_eq!(lost, [("b", 4, 6), ("a", 2, 4)]);
    assert!(engine.is_drained());
    assert!(engine.close(Press::Gone).is_none());
}

#[test]
fn a_queue_that_is_back_is_read_from_the_cut_on() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 0, Some(1))]);
    engine.queue_gone(at(1_020));
    assert!(matches!(engine.close(Press::Gone), Some(Close::Window(_))));
    pass(&mut engine, 1_030, &[listed("a", 0, 1, Some(2))]);
    read(&mut engine, "a", &[(0, 1_014), (1, 1_021)], 2);
    pass(&mut engine, 1_030 + AGE, &[]);
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![1])]);
    assert!(window.late.is_empty() && window.lost.is_empty());
}

/// A partition of ten records that is read up to offset 2 when another life of it answers.
fn ended_by_an_answer() -> (Engine, ReadRequest) {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 9, Some(1))]);
    let first = request(&mut engine, "a");
    answer_of(&mut engine, &first, &[(0, 1_001), (1, 1_002)], 10, Some(1));
    let out = request(&mut engine, "a");
    pass(&mut engine, 1_010 + AGE, &[]);
    (engine, out)
}

fn range(from: i64, to: i64) -> OffsetRange {
    OffsetRange {
        partition: "a".into(),
        from,
        to,
    }
}

#[test]
fn an_answer_of_another_life_is_not_read_and_what_it_ends_is_lost_in_the_window_that_waited_for_it()
{
    let (mut engine, out) = ended_by_an_answer();
    let later = 1_010 + AGE;
    answer_of(&mut engine, &out, &[(2, later), (3, later)], 4, Some(2));
    let Some(Close::Window(window)) = engine.close(Press::Memory) else {
        panic!("what lies below the frontier can be closed");
    };
    // What was to be read lies above what was read.
    assert_eq!(window.t_end, at(1_002));
    assert!(window.lost.is_empty(), "{:?}", window.lost);
    // The next pass names the life, which is read from its start.
    pass(&mut engine, later + 1, &[listed("a", 0, 3, Some(2))]);
    let all = [(0, later), (1, later), (2, later), (3, later)];
    let first = request(&mut engine, "a");
    answer_of(&mut engine, &first, &all, 4, Some(2));
    pass(&mut engine, later + AGE, &[]);
    let window = self::window(&mut engine);
    assert_eq!(window.lost, [range(2, 9)]);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![1, 0, 1, 2, 3])]);
}

#[test]
fn a_page_from_before_an_answer_of_another_life_does_not_speak_for_the_former() {
    let (mut engine, out) = ended_by_an_answer();
    engine.begin_pass(false);
    engine.page_asked();
    answer_of(&mut engine, &out, &[(2, 1_069)], 3, Some(2));
    engine.page(at(1_071), &[listed("a", 0, 19, Some(1))]);
    engine.end_pass();
    assert!(!engine.has_ready());
    pass(&mut engine, 1_072, &[listed("a", 0, 2, Some(2))]);
    assert_eq!(engine.take_lost(), [range(2, 19)]);
}

#[test]
fn a_short_life_that_answers_ends_the_former_without_a_full_pass() {
    let (mut engine, out) = ended_by_an_answer();
    let gone = FetchedEntry {
        life: Some(Uuid::from_u128(2)),
        error: Some(EntryError::OffsetOutOfRange),
        ..entry(0, 1)
    };
    let empty = batch(&[], &MemoryBudget::new(0));
    let result = engine.read(&out, &empty, &gone);
    assert!(matches!(result, ReadResult::Suspect(_)));
    assert!(engine.begin_pass(false).since.is_some());
    engine.page_asked();
    engine.page(at(1_071), &[listed("a", 0, 0, Some(2))]);
    engine.end_pass();
    assert_eq!(engine.take_lost(), [range(2, 9)]);
}

#[test]
fn a_life_that_is_over_when_the_next_pass_asks_what_moved_takes_a_full_one_to_name_the_former() {
    let (mut engine, out) = ended_by_an_answer();
    answer_of(&mut engine, &out, &[(2, 1_069)], 3, Some(2));
    assert!(engine.begin_pass(false).since.is_some());
    engine.page_asked();
    engine.page(at(1_071), &[]);
    engine.end_pass();
    assert!(!engine.has_ready() && engine.take_lost().is_empty());
    assert!(engine.begin_pass(false).since.is_none());
    engine.page_asked();
    engine.page(at(1_072), &[]);
    engine.end_pass();
    assert_eq!(engine.take_lost(), [range(2, 9)]);
    assert!(engine.begin_pass(false).since.is_some());
}

#[test]
fn the_end_that_an_answer_of_the_known_life_shows_counts_for_what_is_lost_of_it() {
    let (mut engine, out) = ended_by_an_answer();
    answer_of(&mut engine, &out, &[(2, 1_003)], 15, Some(1));
    let out = request(&mut engine, "a");
    answer_of(&mut engine, &out, &[(3, 1_069)], 4, Some(2));
    pass(&mut engine, 1_072, &[listed("a", 0, 3, Some(2))]);
    assert_eq!(engine.take_lost(), [range(3, 14)]);
}

#[test]
fn what_was_read_of_a_life_that_an_answer_ended_is_not_dropped_for_room() {
    let (mut engine, out) = ended_by_an_answer();
    answer_of(&mut engine, &out, &[(2, 1_069)], 3, Some(2));
    assert_eq!(engine.shed(u64::MAX, &MemoryBudget::new(0)), 0);
    pass(&mut engine, 1_072, &[listed("a", 0, 2, Some(2))]);
    assert_eq!(engine.shed(u64::MAX, &MemoryBudget::new(0)), 0);
}

#[test]
fn a_position_is_not_looked_for_in_another_life() {
    let mut engine = engine(1_000);
    engine.restore(&Positions::from_iter([position("a", 10, Some(1))]));
    pass(&mut engine, 1_010, &[listed("a", 0, 20, Some(1))]);
    let probe = engine.next_probes(1).remove(0);
    assert_eq!(probe.offset, 9);
    answer_of(&mut engine, &probe, &[(9, 999)], 12, Some(2));
    assert!(engine.next_probes(1).is_empty() && !engine.has_ready());
    pass(&mut engine, 1_011, &[listed("a", 0, 11, Some(2))]);
    assert!(!engine.wants_probes());
    assert_eq!(engine.take_lost(), [range(10, 20)]);
}

#[test]
fn nothing_is_lost_where_answers_name_what_no_listing_knows() {
    let mut engine = engine(1_000);
    let page = [listed("a", 0, 3, Some(1))];
    pass(&mut engine, 1_010, &page);
    let first = request(&mut engine, "a");
    let result = answer_of(&mut engine, &first, &[(0, 1_001)], 4, Some(100));
    assert!(matches!(result, ReadResult::Suspect(_)));
    assert!(!engine.has_ready());
    // No window passes it, and a page that is asked for later says that it lives on.
    pass(&mut engine, 1_010 + AGE, &page);
    assert!(engine.close(Press::Memory).is_none());
    for offset in 0..4 {
        let next = request(&mut engine, "a");
        let records = [(offset, 1_001 + offset)];
        let other = 101 + u128::try_from(offset).expect("it is not negative");
        let result = answer_of(&mut engine, &next, &records, 4, Some(other));
        assert_eq!(result, ReadResult::Progress);
    }
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0, 1, 2, 3])]);
    assert!(window.lost.is_empty(), "{:?}", window.lost);
    // Later lives are told by listings alone, and no other partition has to wait for a page.
    pass(
        &mut engine,
        1_072,
        &[listed("a", 0, 0, Some(2)), listed("b", 0, 0, Some(3))],
    );
    assert_eq!(request(&mut engine, "a").offset, 0);
    let next = request(&mut engine, "b");
    let result = answer_of(&mut engine, &next, &[(0, 1_071)], 1, Some(105));
    assert_eq!(result, ReadResult::Progress);
}

#[test]
fn an_answer_from_before_a_page_told_the_life_does_not_end_it() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 0, None)]);
    let old = request(&mut engine, "a");
    let page = [listed("a", 0, 3, Some(2))];
    pass(&mut engine, 1_011, &page);
    let result = answer_of(&mut engine, &old, &[(0, 1_001)], 1, Some(1));
    assert_eq!(result, ReadResult::Nothing);
    let next = request(&mut engine, "a");
    let all = [(0, 1_003), (1, 1_003), (2, 1_003), (3, 1_004)];
    answer_of(&mut engine, &next, &all, 4, Some(2));
    pass(&mut engine, 1_010 + AGE, &page);
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0, 1, 2, 3])]);
    assert!(window.lost.is_empty(), "{:?}", window.lost);
}

#[test]
fn where_listings_come_without_ids_since_the_record_before_the_position_decides() {
    for (before, goes_on_at) in [(1_002, 1), (1_069, 0)] {
        let (mut engine, out) = ended_by_an_answer();
        answer_of(&mut engine, &out, &[(2, 1_069)], 10, Some(2));
        let page = [listed("a", 0, 9, None)];
        run_pass(&mut engine, 1_071, &page, false);
        assert!(!engine.has_ready());
        run_pass(&mut engine, 1_072, &page, true);
        let proof = request(&mut engine, "a");
        assert_eq!(proof.offset, 1);
        answer_of(&mut engine, &proof, &[(1, before)], 10, Some(2));
        assert_eq!(request(&mut engine, "a").offset, goes_on_at);
        assert_eq!(engine.take_lost().is_empty(), before == 1_002);
    }
}

#[test]
fn a_partition_that_never_stops_beginning_lives_holds_no_window_back() {
    let mut engine = engine(1_000);
    let mut safe = 1_010;
    let mut life = 1;
    pass(&mut engine, safe, &[listed("a", 0, 0, Some(life))]);
    let mut windows = 0;
    while safe < 1_010 + 10 * AGE {
        let out = request(&mut engine, "a");
        answer_of(&mut engine, &out, &[(0, safe + 2)], 1, Some(life + 1));
        life += 2;
        safe += 5;
        pass(&mut engine, safe, &[listed("a", 0, 0, Some(life))]);
        if let Some(Close::Window(window)) = engine.close(Press::None) {
            assert!(window.t_end >= at(safe - 2 * GUARD));
            windows += 1;
        }
    }
    assert!(windows >= 8, "{windows} windows");
}

#[test]
fn a_life_that_may_have_been_there_at_a_page_without_ids_is_not_taken_to_be_new() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 0, 0, Some(1))]);
    read(&mut engine, "a", &[(0, 1_001)], 1);
    pass(&mut engine, 1_011, &[listed("a", 0, 0, Some(2))]);
    let out = request(&mut engine, "a");
    answer_of(&mut engine, &out, &[(0, 1_012)], 1, Some(3));
    pass(&mut engine, 1_060, &[listed("a", 0, 0, None)]);
    pass(&mut engine, 1_010 + AGE, &[listed("a", 0, 0, Some(3))]);
    assert!(engine.close(Press::Memory).is_none());
}

#[test]
fn what_is_buffered_of_lives_that_are_over_is_lost_to_who_reads_the_log_again() {
    let ended = |engine: &mut Engine| {
        engine.lose_former_lives();
        engine.take_lost()
    };
    // A full pass does not name it, or it was made again and is not read yet, or it is.
    let (mut engine, _) = ended_by_an_answer();
    run_pass(&mut engine, 1_080, &[], true);
    assert_eq!(ended(&mut engine), [range(2, 9), range(0, 1)]);
    let (mut engine, _) = ended_by_an_answer();
    assert!(ended(&mut engine).is_empty());
    pass(&mut engine, 1_080, &[listed("a", 0, 1, Some(2))]);
    assert_eq!(ended(&mut engine), [range(2, 9), range(0, 1)]);
    let first = request(&mut engine, "a");
    answer_of(&mut engine, &first, &[(0, 1_069), (1, 1_070)], 2, Some(2));
    assert_eq!(ended(&mut engine), [range(0, 1)]);
}

#[test]
fn a_page_is_to_tell_whether_what_is_buffered_of_a_life_in_doubt_can_be_read_again() {
    let (mut engine, out) = ended_by_an_answer();
    assert!(!engine.waits_for_lives());
    answer_of(&mut engine, &out, &[(2, 1_069)], 3, Some(2));
    assert!(engine.waits_for_lives());
    pass(&mut engine, 1_080, &[listed("a", 0, 2, Some(2))]);
    assert!(!engine.waits_for_lives());
    // What is buffered now is of a life that is over for certain.
    let out = request(&mut engine, "a");
    answer_of(&mut engine, &out, &[(0, 1_069)], 3, Some(3));
    assert!(!engine.waits_for_lives());
}

//! Where reading begins: searches and checkpoints.

use super::*;

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
        checkpoint(&engine),
        [("a".to_owned(), 1, Some(7)), ("b".to_owned(), 3, None)]
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
        checkpoint(&engine)[0].1,
        0,
        "the first record is in no window either"
    );
    pass(&mut engine, 1_011 + AGE, &[]);
    window(&mut engine);
    assert_eq!(checkpoint(&engine)[0].1, 7);
}

#[test]
fn a_restored_position_is_trusted_after_the_record_before_it_was_seen() {
    let mut engine = engine(1_000);
    engine.restore(&Positions::from_iter([position("a", 500_000, None)]));
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
    engine.restore(&Positions::from_iter([position("a", 500_000, None)]));
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
        engine.restore(&Positions::from_iter([position("a", 10, None)]));
        pass(&mut engine, 1_010, &[listed("a", 20, 20, None)]);
        read(&mut engine, "a", &[(20, first_ts)], 21);
        assert_eq!(engine.take_lost().len(), lost);
    }
}

#[test]
fn a_long_new_life_below_a_restored_position_holds_the_window_until_it_is_read() {
    let mut engine = engine(1_000);
    engine.restore(&Positions::from_iter([position("a", 5_000, Some(1))]));
    pass(&mut engine, 1_010, &[listed("a", 0, 1_000, Some(2))]);
    pass(&mut engine, 1_010 + 2 * AGE, &[]);
    assert!(engine.close(Press::None).is_none());
    assert!(engine.wants_probes());
}

#[test]
fn partitions_that_did_not_move_keep_their_restored_positions_without_a_request() {
    let mut engine = engine(1_000);
    engine.restore(&Positions::from_iter([
        position("a", 10, None),
        position("b", 20, None),
    ]));
    pass(&mut engine, 1_010, &[]);
    assert!(!engine.has_ready());
    assert_eq!(
        checkpoint(&engine),
        [("a".to_owned(), 10, None), ("b".to_owned(), 20, None)]
    );
}

#[test]
fn an_emptied_log_is_a_loss_unless_it_was_last_written_to_before_the_committed_end() {
    for (written_at, lost) in [(None, 1), (Some(998), 1), (Some(997), 0)] {
        let mut engine = engine(1_000);
        engine.restore(&Positions::from_iter([position("a", 10, None)]));
        let emptied = ListedPartition {
            last_write_at: written_at.map(at),
            ..listed("a", 20, 19, None)
        };
        run_pass(&mut engine, 1_010, &[emptied], true);
        assert!(!engine.has_ready());
        assert_eq!(engine.take_lost().len(), lost, "written at {written_at:?}");
        assert_eq!(checkpoint(&engine), [("a".to_owned(), 20, None)]);
    }
}

#[test]
fn a_partition_that_was_not_written_to_since_the_committed_end_is_neither_searched_nor_read() {
    let mut engine = engine(1_000);
    engine.restore(&Positions::from_iter([position("a", 10, None)]));
    let quiet = [
        written(listed("a", 0, 5_000, None), 997),
        written(listed("b", 0, 5_000, None), 997),
    ];
    run_pass(&mut engine, 1_010, &quiet, true);
    assert!(!engine.has_ready() && !engine.wants_probes());
    pass(&mut engine, 1_010, &[listed("b", 0, 5_001, None)]);
    read(&mut engine, "b", &[(5_001, 1_011)], 5_002);
    pass(&mut engine, 1_010 + AGE, &[]);
    assert_eq!(
        offsets(&window(&mut engine)),
        [("b".to_owned(), vec![5_001])]
    );
}

#[test]
fn a_doubtful_loss_whose_log_is_emptied_is_settled() {
    for (written_at, lost) in [(1_005, vec![(10, 29)]), (997, vec![])] {
        let mut engine = engine(1_000);
        engine.restore(&Positions::from_iter([position("a", 10, None)]));
        pass(&mut engine, 1_010, &[listed("a", 20, 29, None)]);
        assert!(engine.wants_probes());
        let emptied = written(listed("a", 30, 29, None), written_at);
        run_pass(&mut engine, 1_011, &[emptied], true);
        assert!(!engine.wants_probes());
        let ranges: Vec<_> = engine
            .take_lost()
            .iter()
            .map(|range| (range.from, range.to))
            .collect();
        assert_eq!(ranges, lost);
    }
}

#[test]
fn what_goes_while_a_position_is_searched_is_lost_unless_it_was_below_the_committed_end() {
    for (ts, lost) in [(1_001, vec![(0, 39)]), (999, vec![])] {
        let mut engine = engine(1_000);
        pass(&mut engine, 1_010, &[listed("a", 0, 999, None)]);
        assert!(
            engine.wants_probes(),
            "too much is in doubt to be read through"
        );
        pass(&mut engine, 1_010, &[listed("a", 40, 999, None)]);
        while engine.wants_probes() {
            let probe = engine.next_probes(1).remove(0);
            let seen = if probe.offset == 40 { ts } else { 1_002 };
            let batch = batch(&[(probe.offset, seen)], &MemoryBudget::new(usize::MAX));
            engine.read(&probe, &batch, &entry(1, 1_000));
            engine.unread(&probe);
        }
        let ranges: Vec<_> = engine
            .take_lost()
            .iter()
            .map(|range| (range.from, range.to))
            .collect();
        assert_eq!(ranges, lost);
    }
}

#[test]
fn what_comes_to_a_partition_that_was_met_empty_is_new_however_old_it_is() {
    let mut engine = engine(1_000);
    pass(&mut engine, 1_010, &[listed("a", 24, 23, None)]);
    pass(&mut engine, 1_010, &[listed("a", 24, 24, None)]);
    read(&mut engine, "a", &[(24, 900)], 25);
    pass(&mut engine, 1_010 + AGE, &[]);
    let window = window(&mut engine);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![24])]);
    assert_eq!(window.late.len(), 1);
}

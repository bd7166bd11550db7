use super::*;

/// A session that has read `a` 0..=5, `b` 0..=1 and the first life of `c` 0..=3, and closed a window of it.
fn session() -> (Engine, ClosedWindow) {
    let mut engine = engine(0);
    let lists = [
        listed("a", 0, 5, Some(1)),
        listed("b", 0, 1, None),
        listed("c", 0, 3, Some(3)),
    ];
    pass(&mut engine, 1_010, &lists);
    let second = |offset| (offset, 1_000 + offset);
    read(&mut engine, "a", &[0, 1, 2, 3, 4, 5].map(second), 6);
    read(&mut engine, "b", &[0, 1].map(second), 2);
    read(&mut engine, "c", &[0, 1, 2, 3].map(second), 4);
    pass(&mut engine, 1_010 + AGE, &[]);
    let window = window(&mut engine);
    (engine, window)
}

fn ranges(lost: &[OffsetRange]) -> Vec<(&str, i64, i64)> {
    let mut ranges: Vec<_> = lost
        .iter()
        .map(|range| (range.partition.as_str(), range.from, range.to))
        .collect();
    ranges.sort_unstable();
    ranges
}

fn positions(left: &Left) -> Vec<(&str, i64)> {
    let unwritten = left.unwritten.iter().chain(&left.uncertain);
    let read = left.positions.iter();
    let mut positions: Vec<_> = read
        .map(|position| (position.partition, position.offset))
        .chain(unwritten.map(|held| (&*held.partition, held.from)))
        .collect();
    positions.sort_unstable();
    positions
}

#[test]
fn what_a_window_had_is_lost_where_it_is_gone_and_read_where_it_is_there() {
    let (_, window) = session();
    let mut again = engine(0);
    again.recall(window.remembered);
    let lists = [
        listed("a", 4, 9, Some(1)),
        listed("b", 0, 1, None),
        listed("c", 0, 1, Some(4)),
    ];
    run_pass(&mut again, 2_000, &lists, true);
    let lost = again.take_lost();
    assert_eq!(ranges(&lost), [("a", 0, 3), ("c", 0, 3)]);
    let unread = again.unread_partitions(&[]);
    let from: Vec<_> = unread
        .iter()
        .map(|one| (&*one.partition, one.position))
        .collect();
    assert_eq!(from, [("a", 4), ("b", 0), ("c", 0)]);
}

#[test]
fn what_a_window_had_of_a_queue_that_is_gone_is_lost() {
    let (_, window) = session();
    assert!(!window.remembered.is_empty());
    let mut again = engine(0);
    again.recall(window.remembered);
    again.queue_gone(at(2_000));
    let lost = again.take_lost();
    assert_eq!(ranges(&lost), [("a", 0, 5), ("b", 0, 1), ("c", 0, 3)]);
}

#[test]
fn windows_ahead_lower_the_positions_that_are_left_and_other_lives_are_gone() {
    let (mut former, ahead) = session();
    // Its id is told now, and `c` lives another life.
    let lists = [listed("b", 0, 2, Some(2)), listed("c", 0, 0, Some(4))];
    pass(&mut former, 1_020 + AGE, &lists);
    let left = former.left([ahead.remembered]);
    assert_eq!(positions(&left), [("a", 0), ("b", 0), ("c", 0)]);
    assert_eq!(ranges(&left.gone), [("c", 0, 3)]);
    let none = former.left([]);
    assert_eq!(positions(&none), [("a", 6), ("b", 2), ("c", 0)]);
    assert!(none.gone.is_empty());
}

#[test]
fn what_is_left_goes_on_as_a_checkpoint_does() {
    let (mut former, _) = session();
    let left = former.left([]);
    let mut next = engine(1_010 + AGE - GUARD);
    next.go_on(left);
    // A record came late below the cut, and one above it.
    pass(&mut next, 1_100 + AGE, &[listed("a", 0, 7, Some(1))]);
    read(&mut next, "a", &[(5, 1_005), (6, 1_006), (7, 1_090)], 8);
    pass(&mut next, 1_200 + AGE, &[]);
    let window = window(&mut next);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![7])]);
    assert!(window.late.is_empty() && window.lost.is_empty());
}

#[test]
fn what_a_manifest_names_already_is_not_named_again() {
    let (mut former, window) = session();
    let mut left = former.left([window.remembered.clone()]);
    let range = |from, to| OffsetRange {
        partition: "a".to_owned(),
        from,
        to,
    };
    left.gone = vec![range(0, 9), range(5, 12)];
    let mut next = engine(1_010 + AGE - GUARD);
    next.note_named(&[range(0, 3)]);
    next.go_on(left);
    assert_eq!(ranges(&next.take_lost()), [("a", 4, 9), ("a", 5, 12)]);
}

#[test]
fn what_a_manifest_names_of_a_former_life_hides_no_loss_of_the_present_one() {
    for left in [left_half_read(), session().0.left([])] {
        let mut next = engine(1_010 + AGE - GUARD);
        next.note_named(&[OffsetRange {
            partition: "a".to_owned(),
            from: 0,
            to: 99,
        }]);
        next.go_on(left);
        pass(&mut next, 1_100 + AGE, &[listed("a", 0, 40, Some(1))]);
        pass(&mut next, 1_200 + AGE, &[listed("a", 0, 0, Some(2))]);
        let lost = next.take_lost();
        let last = lost.iter().map(|range| range.to).max();
        assert_eq!(last, Some(40), "{lost:?}");
    }
}

#[test]
fn what_was_read_of_a_life_that_is_over_is_gone() {
    let mut former = engine(0);
    pass(&mut former, 1_010, &[listed("a", 0, 5, Some(1))]);
    let records = [0, 1, 2, 3, 4, 5].map(|offset| (offset, 1_000 + offset));
    read(&mut former, "a", &records, 6);
    pass(&mut former, 1_020, &[listed("a", 0, 0, Some(2))]);
    let left = former.left([]);
    assert_eq!(ranges(&left.gone), [("a", 0, 5)]);
    assert_eq!(positions(&left), [("a", 0)]);
}

/// What a session leaves that has read `a` 0..=9 of 0..=29 and written 0..=5 of it.
fn left_half_read() -> Left {
    let mut former = engine(0);
    pass(&mut former, 1_010, &[listed("a", 0, 29, Some(1))]);
    let records: Vec<_> = (0..10).map(|offset| (offset, 1_000 + offset)).collect();
    read(&mut former, "a", &records, 30);
    pass(&mut former, 1_010 + AGE, &[]);
    let window = window(&mut former);
    assert_eq!(offsets(&window)[0].1.len(), 9);
    former.left([])
}

#[test]
fn what_was_known_to_be_there_is_lost_with_the_queue() {
    let mut next = engine(1_009);
    next.go_on(left_half_read());
    assert!(next.is_expecting());
    next.queue_gone(at(2_000));
    assert_eq!(ranges(&next.take_lost()), [("a", 9, 29)]);
}

#[test]
fn what_was_known_to_be_there_is_lost_with_its_life_and_no_window_closes_before_that_is_told() {
    let mut next = engine(1_009);
    next.go_on(left_half_read());
    pass(&mut next, 2_000, &[]);
    pass(&mut next, 2_000 + AGE, &[]);
    assert!(next.close(Press::None).is_none(), "it may be there");
    pass(&mut next, 2_010 + AGE, &[listed("a", 0, 0, Some(2))]);
    read(&mut next, "a", &[(0, 2_000)], 1);
    pass(&mut next, 2_020 + 2 * AGE, &[]);
    let window = window(&mut next);
    assert_eq!(ranges(&window.lost), [("a", 9, 29)]);
    assert_eq!(offsets(&window), [("a".to_owned(), vec![0])]);
}

#[test]
fn what_was_known_to_be_there_is_read_where_it_is_and_handed_on_until_then() {
    let mut next = engine(1_009);
    next.go_on(left_half_read());
    let mut last = engine(1_009);
    last.go_on(next.left([]));
    pass(&mut last, 2_000, &[listed("a", 9, 29, Some(1))]);
    let records: Vec<_> = (9..30).map(|offset| (offset, 1_000 + offset)).collect();
    read(&mut last, "a", &records, 30);
    pass(&mut last, 2_000 + AGE, &[]);
    let window = window(&mut last);
    assert_eq!(offsets(&window)[0].1, (9..30).collect::<Vec<_>>());
    assert!(window.lost.is_empty() && window.late.is_empty());
}

#[test]
fn a_full_pass_tells_of_what_a_session_left_that_was_looking_for_its_place() {
    for (lists, lost) in [
        (vec![], vec![("a", 0, 999)]),
        (vec![listed("a", 0, 5, Some(2))], vec![("a", 0, 999)]),
        (vec![listed("a", 0, 1_999, Some(1))], vec![]),
        (vec![listed("a", 1_000, 999, Some(1))], vec![("a", 0, 999)]),
    ] {
        let mut former = engine(1_000);
        pass(&mut former, 1_010, &[listed("a", 0, 999, Some(1))]);
        assert!(former.is_seeking());
        let left = former.left([]);
        let mut next = engine(1_000);
        next.go_on(left);
        assert!(next.is_expecting());
        assert_eq!(next.begin_pass(false).since, None, "a full one");
        run_pass(&mut next, 1_020, &lists, true);
        assert_eq!(ranges(&next.take_lost()), lost);
        assert!(next.begin_pass(false).since.is_some());
        assert_eq!(next.is_seeking(), lost.is_empty());
    }
}

#[test]
fn what_a_window_had_of_a_life_that_is_known_to_be_over_is_gone() {
    let (mut former, window) = session();
    let lists = [listed("b", 0, 2, Some(2)), listed("c", 0, 0, Some(4))];
    pass(&mut former, 1_020 + AGE, &lists);
    let had = former.outlived(window.remembered);
    let mut again = engine(0);
    again.recall(had);
    again.go_on(former.left([]));
    // The life of `b` was told meanwhile: another id is another life.
    let lists = [
        listed("a", 0, 5, Some(1)),
        listed("b", 0, 0, Some(5)),
        listed("c", 0, 0, Some(4)),
    ];
    run_pass(&mut again, 2_000, &lists, true);
    assert_eq!(ranges(&again.take_lost()), [("b", 0, 2), ("c", 0, 3)]);
}

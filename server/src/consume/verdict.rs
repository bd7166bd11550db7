//! What an ack does to a cursor: a function of both, without input or output.

use uuid::Uuid;

/// The outcome that a consumer reports for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done; and with it every earlier record of the partition.
    Completed,
    /// To be redelivered, and counted; a dead letter when that was once too often.
    Failed,
    /// To be redelivered, without counting.
    Retry,
    /// A dead letter at once.
    DeadLetter,
}

impl Status {
    /// Reads the wire's word: none at all means completed, an unknown one failed.
    pub fn parse(word: Option<&str>) -> Self {
        match word {
            None | Some("completed" | "success" | "acked" | "ok") => Self::Completed,
            Some("retry") => Self::Retry,
            Some("dlq") => Self::DeadLetter,
            Some(_) => Self::Failed,
        }
    }
}

/// A cursor as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Everything below is settled.
    pub next: i64,
    /// Who holds a lease, if anyone does; it may have ended.
    pub lease: Option<Uuid>,
    /// Whether that lease still holds.
    pub live: bool,
    /// End of what was taken last.
    pub lease_to: i64,
    /// The record that failed last, and how often in a row.
    pub failed: Option<i64>,
    /// How often.
    pub failures: i32,
}

/// One acknowledgment, its record looked up.
#[derive(Debug, Clone)]
pub struct Item {
    /// The lease it names: `Err` when it is not one that this broker gives.
    pub lease: Option<Result<Uuid, ()>>,
    /// What is reported.
    pub status: Status,
    /// Where records with its transaction id stand among those taken last, ascending.
    pub offsets: Vec<i64>,
}

/// What an acknowledgment came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It counts.
    Done,
    /// It had been settled before.
    Noop,
    /// The record became a dead letter.
    DeadLetter,
    /// It does not count, and why.
    Refused(&'static str),
}

/// The lease that an acknowledgment names does not hold.
pub const NO_LEASE: &str = "invalid or expired lease";
/// A rejection names no lease, and one holds: it may be another consumer's, who works on the record.
pub const NAMELESS: &str = "a lease holds on this partition: name it (leaseId) to reject";
/// The record is none of those that the group took last from the partition.
pub const UNRESOLVABLE: &str =
    "unresolvable transactionId: not among the records this group took last from this partition";
/// A rejection of a record below the cursor.
pub const COMMITTED: &str = "already committed: the group has moved past this record";
/// A completion behind a rejection.
pub const CLAMPED: &str =
    "not committed: an earlier record of this partition is redelivered, and this one after it";

/// Where a cursor goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The new position.
    pub next: i64,
    /// Whether the lease is given back.
    pub release: bool,
    /// Whether a record is to be redelivered.
    pub redeliver: bool,
    /// The record that failed last.
    pub failed: Option<i64>,
    /// How often in a row.
    pub failures: i32,
    /// Records that become dead letters, with the index of their item and how often they failed.
    pub dead: Vec<(i64, usize, i32)>,
}

/// Applies `items`, in the order of their records, to `cursor`. A record that failed more than
/// `limit` times becomes a dead letter; without a limit none does by itself.
///
/// A completion settles every earlier record too. The first rejection stands: nothing at or behind
/// it is settled, whatever else `items` say. Both are what Queen's clients build on.
pub fn settle(cursor: &Cursor, limit: Option<i32>, items: &[Item]) -> (Change, Vec<Verdict>) {
    let mut verdicts = vec![Verdict::Done; items.len()];
    let mut placed: Vec<(i64, usize)> = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match place(cursor, item, &placed) {
            Ok(offset) => placed.push((offset, index)),
            Err(verdict) => verdicts[index] = verdict,
        }
    }
    placed.sort_unstable();

    let mut change = Change {
        next: cursor.next,
        release: false,
        redeliver: false,
        failed: cursor.failed,
        failures: cursor.failures,
        dead: Vec::new(),
    };
    for (offset, index) in placed {
        let status = items[index].status;
        if change.redeliver {
            if matches!(status, Status::Completed | Status::DeadLetter) {
                verdicts[index] = Verdict::Refused(CLAMPED);
            }
            continue;
        }
        match status {
            Status::Completed => change.next = offset + 1,
            Status::DeadLetter => {
                let failures = if change.failed == Some(offset) {
                    change.failures
                } else {
                    0
                };
                change.bury(offset, index, failures, &mut verdicts);
            }
            Status::Retry => {
                change.release = true;
                change.redeliver = true;
            }
            Status::Failed => {
                let failures = if change.failed == Some(offset) {
                    change.failures.saturating_add(1)
                } else {
                    1
                };
                change.release = true;
                if limit.is_some_and(|limit| failures > limit) {
                    change.bury(offset, index, failures, &mut verdicts);
                } else {
                    change.redeliver = true;
                    change.failed = Some(offset);
                    change.failures = failures;
                }
            }
        }
    }
    if change.failed.is_some_and(|failed| failed < change.next) {
        change.failed = None;
        change.failures = 0;
    }
    change.release |= change.next > cursor.next && change.next >= cursor.lease_to;
    (change, verdicts)
}

impl Change {
    fn bury(&mut self, offset: i64, index: usize, failures: i32, verdicts: &mut [Verdict]) {
        self.next = offset + 1;
        self.dead.push((offset, index, failures));
        verdicts[index] = Verdict::DeadLetter;
    }

    /// Whether anything about `cursor` changes.
    pub fn moves(&self, cursor: &Cursor) -> bool {
        self.release
            || self.next != cursor.next
            || self.failed != cursor.failed
            || self.failures != cursor.failures
    }
}

/// The record that an acknowledgment means, if it can still be settled.
fn place(cursor: &Cursor, item: &Item, placed: &[(i64, usize)]) -> Result<i64, Verdict> {
    if let Some(lease) = item.lease
        && !(cursor.live && lease.is_ok() && lease.ok() == cursor.lease)
    {
        return Err(Verdict::Refused(NO_LEASE));
    }
    // A rejection gives the lease back. Who does not name the one that holds may be someone whose own
    // has ended.
    if item.lease.is_none()
        && matches!(item.status, Status::Failed | Status::Retry)
        && cursor.live
        && cursor.lease.is_some()
    {
        return Err(Verdict::Refused(NAMELESS));
    }
    // An id that was pushed more than once stands for its records one after the other.
    let open = item
        .offsets
        .iter()
        .find(|&&offset| offset >= cursor.next && placed.iter().all(|(other, _)| *other != offset));
    match open {
        Some(&offset) => Ok(offset),
        None if item.offsets.is_empty() => Err(Verdict::Refused(UNRESOLVABLE)),
        None if item.status == Status::Completed => Err(Verdict::Noop),
        None => Err(Verdict::Refused(COMMITTED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Uuid = Uuid::from_u128(7);

    /// Offsets 10 to 14 are taken.
    fn cursor() -> Cursor {
        Cursor {
            next: 10,
            lease: Some(LEASE),
            live: true,
            lease_to: 15,
            failed: None,
            failures: 0,
        }
    }

    fn item(status: Status, offset: i64) -> Item {
        Item {
            lease: Some(Ok(LEASE)),
            status,
            offsets: vec![offset],
        }
    }

    #[test]
    fn a_completion_settles_what_is_before_it_and_the_last_one_gives_the_lease_back() {
        let (change, verdicts) = settle(&cursor(), Some(3), &[item(Status::Completed, 12)]);
        assert_eq!((change.next, change.release), (13, false));
        assert_eq!(verdicts, [Verdict::Done]);
        let (change, _) = settle(&cursor(), Some(3), &[item(Status::Completed, 14)]);
        assert_eq!((change.next, change.release), (15, true));
    }

    #[test]
    fn the_first_rejection_stands_whatever_the_order_of_the_items() {
        let items = [
            item(Status::Completed, 14),
            item(Status::Failed, 11),
            item(Status::Completed, 10),
            item(Status::Failed, 12),
        ];
        let (change, verdicts) = settle(&cursor(), Some(3), &items);
        assert_eq!(
            (change.next, change.release, change.redeliver),
            (11, true, true)
        );
        assert_eq!((change.failed, change.failures), (Some(11), 1));
        assert_eq!(
            verdicts,
            [
                Verdict::Refused(CLAMPED),
                Verdict::Done,
                Verdict::Done,
                Verdict::Done
            ]
        );
    }

    #[test]
    fn a_rejection_commits_nothing_that_was_not_reported() {
        let (change, _) = settle(&cursor(), Some(3), &[item(Status::Retry, 12)]);
        assert_eq!((change.next, change.release), (10, true));
        assert_eq!((change.failed, change.failures), (None, 0));
    }

    #[test]
    fn a_record_becomes_a_dead_letter_when_it_failed_more_often_than_the_limit() {
        let mut cursor = cursor();
        for failures in 1..=2 {
            let (change, verdicts) = settle(&cursor, Some(2), &[item(Status::Failed, 10)]);
            assert_eq!((change.next, change.failures), (10, failures));
            assert_eq!(verdicts, [Verdict::Done]);
            (cursor.failed, cursor.failures) = (change.failed, change.failures);
        }
        let (change, verdicts) = settle(&cursor, Some(2), &[item(Status::Failed, 10)]);
        assert_eq!((change.next, change.release), (11, true));
        assert_eq!(change.dead, [(10, 0, 3)]);
        assert_eq!((change.failed, change.failures), (None, 0));
        assert_eq!(verdicts, [Verdict::DeadLetter]);
        let (change, _) = settle(&cursor, None, &[item(Status::Failed, 10)]);
        assert_eq!((change.next, change.failures), (10, 3));
    }

    #[test]
    fn a_dead_letter_by_request_keeps_the_lease_for_the_rest() {
        let (change, verdicts) = settle(&cursor(), Some(3), &[item(Status::DeadLetter, 10)]);
        assert_eq!((change.next, change.release), (11, false));
        assert_eq!(verdicts, [Verdict::DeadLetter]);
    }

    #[test]
    fn a_lease_must_hold_but_need_not_be_named() {
        let mut ended = cursor();
        ended.live = false;
        let mut other = item(Status::Completed, 10);
        other.lease = Some(Ok(Uuid::from_u128(8)));
        let mut forged = item(Status::Completed, 10);
        forged.lease = Some(Err(()));
        let mut nameless = item(Status::Completed, 10);
        nameless.lease = None;
        let refused = Verdict::Refused(NO_LEASE);
        for (cursor, item, verdict) in [
            (&ended, item(Status::Completed, 10), refused),
            (&cursor(), other, refused),
            (&cursor(), forged, refused),
            (&ended, nameless, Verdict::Done),
        ] {
            assert_eq!(settle(cursor, Some(3), &[item]).1, [verdict]);
        }
    }

    #[test]
    fn a_rejection_that_names_no_lease_gives_none_back() {
        for status in [Status::Failed, Status::Retry] {
            let mut nameless = item(status, 10);
            nameless.lease = None;
            let (change, verdicts) = settle(&cursor(), Some(3), std::slice::from_ref(&nameless));
            assert_eq!(verdicts, [Verdict::Refused(NAMELESS)]);
            assert!(!change.moves(&cursor()));
            let mut ended = cursor();
            ended.live = false;
            assert_eq!(settle(&ended, Some(3), &[nameless]).1, [Verdict::Done]);
        }
    }

    #[test]
    fn what_is_settled_is_a_noop_to_complete_and_refused_to_reject() {
        let mut cursor = cursor();
        cursor.next = 12;
        for (status, verdict) in [
            (Status::Completed, Verdict::Noop),
            (Status::Failed, Verdict::Refused(COMMITTED)),
            (Status::DeadLetter, Verdict::Refused(COMMITTED)),
        ] {
            let (change, verdicts) = settle(&cursor, Some(3), &[item(status, 11)]);
            assert_eq!(verdicts, [verdict]);
            assert!(!change.moves(&cursor));
        }
        let mut ghost = item(Status::Completed, 0);
        ghost.offsets.clear();
        let (change, verdicts) = settle(&cursor, Some(3), &[ghost]);
        assert_eq!(verdicts, [Verdict::Refused(UNRESOLVABLE)]);
        assert!(!change.moves(&cursor));
    }

    #[test]
    fn an_id_that_was_pushed_twice_stands_for_its_records_in_turn() {
        let mut twice = item(Status::Completed, 0);
        twice.offsets = vec![10, 13];
        let (change, _) = settle(&cursor(), Some(3), &[twice.clone()]);
        assert_eq!(change.next, 11);
        let (change, _) = settle(&cursor(), Some(3), &[twice.clone(), twice]);
        assert_eq!(change.next, 14);
    }
}

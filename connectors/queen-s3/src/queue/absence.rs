//! When a queue counts as gone: a broker or a gateway that slips for a moment must not make records
//! lost.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{QUEUE_GONE_AFTER, QUEUE_GONE_ANSWERS};

/// Answers, one after the other, that a queue is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absence {
    since: Instant,
    last: Instant,
    answers: u32,
}

impl Absence {
    /// One more such answer after `former`, none between that said otherwise; they are asked for every
    /// `interval`. Those far apart do not add up.
    pub(super) fn answered(former: Option<Self>, interval: Duration) -> Self {
        let now = Instant::now();
        let near = |former: &Self| now - former.last <= interval * 2 + QUEUE_GONE_AFTER / 4;
        let former = former.filter(near);
        Self {
            since: former.map_or(now, |former| former.since),
            last: now,
            answers: former.map_or(0, |former| former.answers) + 1,
        }
    }

    /// Whether they have said so for long enough.
    pub(super) fn is_certain(&self) -> bool {
        self.last - self.since >= QUEUE_GONE_AFTER && self.answers >= QUEUE_GONE_ANSWERS
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    /// Takes answers in, each so long after the one before.
    async fn answers(pauses: &[Duration]) -> Absence {
        let mut absence = Absence::answered(None, INTERVAL);
        for pause in pauses {
            advance(*pause).await;
            absence = Absence::answered(Some(absence), INTERVAL);
        }
        absence
    }

    #[tokio::test(start_paused = true)]
    async fn it_takes_two_minutes_and_three_answers() {
        let twelve = answers(&[INTERVAL; 12]).await;
        assert!(twelve.is_certain());
        let eleven = answers(&[INTERVAL; 11]).await;
        assert!(!eleven.is_certain());
        // With passes as far apart as that, a second answer would do.
        let apart = Duration::from_secs(120);
        let first = Absence::answered(None, apart);
        advance(apart).await;
        let second = Absence::answered(Some(first), apart);
        assert!(!second.is_certain());
        advance(apart).await;
        assert!(Absence::answered(Some(second), apart).is_certain());
    }

    #[tokio::test(start_paused = true)]
    async fn answers_far_apart_do_not_add_up() {
        let mut pauses = [INTERVAL; 12];
        pauses[6] = Duration::from_secs(51);
        let interrupted = answers(&pauses).await;
        assert!(!interrupted.is_certain());
    }
}

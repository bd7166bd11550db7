//! `/health` and `/status`.

use std::time::{Duration, Instant};

use crate::support::{Fixture, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_stopped_is_told_of_in_less_time_than_a_session_is_given() {
    /// Both wait 2 s for the database, and the machine may be busy.
    const TOLD: Duration = Duration::from_secs(4);
    let fixture = Fixture::start().await;
    assert_eq!(fixture.get("/health").await.status, 200);
    let frozen = fixture.postgres.freeze().unwrap();
    // First a session that was answered of late, then those that are asked, then new ones.
    for _ in 0..3 {
        let begun = Instant::now();
        let (health, status) = tokio::join!(fixture.get("/health"), fixture.get("/status"));
        let took = begun.elapsed();
        assert!(took < TOLD, "{took:?}");
        assert_eq!(health.status, 503, "{}", health.text);
        assert_eq!(status.json()["database"]["connected"], false);
    }
    drop(frozen);
    until(|| async { fixture.get("/health").await.status == 200 }).await;
}

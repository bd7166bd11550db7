//! A database whose clock is stepped while the broker works on it.

use std::path::{Path, PathBuf};

use private_postgres::{Options, PrivatePostgres};
use queen::timestamp::Timestamp;

use crate::support::{Fixture, until};

const HOUR: i64 = 3_600;

/// The library that shows a process another time; `scripts/setup test` installs it.
fn library() -> PathBuf {
    if let Some(named) = std::env::var_os("LIBFAKETIME").filter(|name| !name.is_empty()) {
        return named.into();
    }
    let folders = std::fs::read_dir("/usr/lib").unwrap().flatten();
    folders
        .map(|folder| folder.path().join("faketime/libfaketime.so.1"))
        .find(|library| library.is_file())
        .expect("libfaketime is missing: run scripts/setup test, or name it in LIBFAKETIME")
}

/// A database and a broker whose common clock is off by the seconds that a file says.
struct Stepped {
    fixture: Fixture,
    session: tokio_postgres::Client,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Stepped {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let file = folder.path().join("clock");
        write(&file, 0);
        let mut options = Options::throwaway();
        for (name, value) in [
            ("LD_PRELOAD", library().to_str().unwrap()),
            ("FAKETIME_TIMESTAMP_FILE", file.to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ] {
            options.environment.push((name.into(), value.into()));
        }
        let postgres = PrivatePostgres::start(options).unwrap();
        let fixture = Fixture::on(postgres, &[]).await;
        let session = fixture.session().await;
        Self {
            fixture,
            session,
            file,
            _folder: folder,
        }
    }

    async fn clock(&self) -> Timestamp {
        let row = self.session.query_one("SELECT clock_timestamp()", &[]);
        row.await.unwrap().get(0)
    }

    /// Sets the clock off by `seconds`, and sees that the database took it.
    async fn step(&self, seconds: i64) {
        let before = self.clock().await;
        write(&self.file, seconds);
        until(|| async { (self.clock().await.micros() - before.micros()).abs() > HOUR * 500_000 })
            .await;
    }

    async fn safe_time(&self) -> Timestamp {
        let answer = self.fixture.changed(r#"{"entries":[]}"#).await;
        Timestamp::parse(&answer.safe_time).unwrap()
    }

    /// `ts` of every segment of a partition, in the order of the offsets.
    async fn timestamps(&self, partition: &str) -> Vec<Timestamp> {
        let sql =
            "SELECT s.ts FROM queen.segments s JOIN queen.partitions p ON p.id = s.partition_id
                   WHERE p.name = $1 ORDER BY s.base_offset";
        let rows = self.session.query(sql, &[&partition]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

fn write(file: &Path, seconds: i64) {
    // Renamed, so that nobody reads half of it.
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{seconds:+}\n")).unwrap();
    std::fs::rename(new, file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_an_hour_moves_no_ts_back() {
    let stepped = Stepped::start().await;
    stepped.fixture.push("q", "p", &["0"]).await;
    stepped.step(-HOUR).await;
    for payload in ["1", "2"] {
        stepped.fixture.push("q", "p", &[payload]).await;
    }
    let within = stepped.timestamps("p").await;
    assert_eq!(within.len(), 3);
    assert!(within.is_sorted(), "{within:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_an_hour_brings_nothing_below_an_answered_safe_time() {
    let stepped = Stepped::start().await;
    stepped.fixture.push("q", "p", &["0"]).await;
    let answered = stepped.safe_time().await;
    stepped.step(-HOUR).await;
    assert!(stepped.clock().await < answered);
    stepped.fixture.push("q", "p", &["1"]).await;
    stepped.fixture.push("q", "new", &["2"]).await;
    stepped.fixture.push("other", "new", &["3"]).await;
    for partition in ["p", "new"] {
        let last = *stepped.timestamps(partition).await.last().unwrap();
        assert!(last >= answered, "{partition}: {last} below {answered}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn safe_time_goes_on_once_a_clock_that_stepped_ahead_is_set_right() {
    let stepped = Stepped::start().await;
    stepped.fixture.push("q", "p", &["0"]).await;
    stepped.step(HOUR).await;
    let ahead = stepped.safe_time().await;
    stepped.fixture.push("q", "p", &["1"]).await;
    stepped.step(0).await;
    // What it said holds: nothing falls below it, and it says no more until the clock is there.
    stepped.fixture.push("q", "p", &["2"]).await;
    stepped.fixture.push("q", "new", &["3"]).await;
    let again = stepped.safe_time().await;
    let within = stepped.timestamps("p").await;
    assert!(within.is_sorted(), "{within:?}");
    let new = stepped.timestamps("new").await;
    assert!(new[0] >= ahead && new[0] >= again, "{new:?}");
}

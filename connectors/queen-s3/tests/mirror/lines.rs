//! What is logged, and how often.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use queen_s3::broker::Name;
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use crate::bucket::{Do, MemoryBucket};
use crate::log::Log;
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const MINUTE: Duration = Duration::from_secs(60);

/// Of one subscriber alone `tracing` asks the thread that comes to a line first, and another test's
/// thread, which has none, would settle for all that nobody wants it.
static ANOTHER: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

/// What this thread logs.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Everything from now on, until the guard is dropped.
    pub fn start() -> (Self, DefaultGuard) {
        LazyLock::force(&ANOTHER);
        let lines = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(lines.clone())
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    /// The lines that hold `part`.
    pub fn with(&self, part: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().filter(|line| line.contains(part));
        lines.map(str::to_owned).collect()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn a_log() -> Arc<Log> {
    Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string())
}

#[test]
fn a_degraded_safe_time_is_logged_once_for_all_queues_and_stalls_none() {
    in_virtual_time(async {
        let (lines, _guard) = Lines::start();
        let (log, bucket) = (a_log(), Arc::<MemoryBucket>::default());
        let queues = ["clicks", "orders"];
        for queue in queues {
            log.create(queue);
            log.write(queue, &Name::from("p"), TEN, 1);
        }
        log.degrade(true);
        let sink = Sink::start(&log, &bucket, &queues, &Options::new());
        for queue in queues {
            eventually("a window", || committed(&log, queue).0 == 1).await;
        }
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let said = lines.with("safeTime");
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].contains("GRANT pg_read_all_stats"), "{said:?}");
        log.degrade(false);
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let said = lines.with("safeTime");
        assert_eq!(said.len(), 2, "{said:#?}");
        assert!(said[1].contains("whole again"), "{said:?}");
        sink.stop().await;
    });
}

#[test]
fn a_loss_is_counted_each_time_and_logged_once_a_minute() {
    in_virtual_time(async {
        let (lines, _guard) = Lines::start();
        let (log, bucket) = (a_log(), Arc::<MemoryBucket>::default());
        let name = Name::from("p");
        log.create("orders");
        log.write("orders", &name, TEN, 1);
        let mut options = Options::new();
        options.settings.max_window = Duration::from_secs(1);
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        eventually("a window", || committed(&log, "orders").0 == 1).await;
        let status = sink.status.queue("orders");
        let lost = || status.lost.load(Relaxed);
        let lose = async |times: u64| {
            let before = lost();
            for time in 1..=times {
                // Written and deleted between two looks.
                log.write("orders", &name, log.now(), 3);
                log.delete("orders", &name);
                eventually("the loss", || lost() == before + 3 * time).await;
            }
        };
        lose(3).await;
        let said = lines.with("deleted before they were read");
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(
            said[0].contains("queue=orders") && said[0].contains("lost=3"),
            "{said:?}"
        );
        tokio::time::sleep(Duration::from_secs(60)).await;
        lose(1).await;
        let said = lines.with("deleted before they were read");
        assert_eq!(said.len(), 2, "{said:#?}");
        assert!(said[1].contains("suppressed=2"), "{said:?}");
        let manifests = bucket.manifests("orders");
        let named = manifests.iter().filter(|one| one["lost"][0].is_object());
        assert_eq!(named.count(), 4, "each window names its own");

        // It goes on committing.
        let written = log.now();
        log.write("orders", &name, written, 1);
        eventually("the record", || committed(&log, "orders").1 > written).await;
        sink.stop().await;
    });
}

#[test]
fn a_bucket_that_refuses_for_an_hour_is_a_line_a_minute_at_most() {
    in_virtual_time(async {
        let (lines, _guard) = Lines::start();
        let (log, bucket) = (a_log(), Arc::<MemoryBucket>::default());
        log.create("orders");
        log.write("orders", &Name::from("p"), TEN, 1);
        bucket.plan(|asked| match asked.operation {
            "put" => Do::Refuse(503, "SlowDown", Some(Duration::from_secs(1))),
            _ => Do::Go,
        });
        let sink = Sink::start(&log, &bucket, &["orders"], &Options::new());
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let said = lines.with("the bucket failed");
        assert!((30..=61).contains(&said.len()), "{} lines", said.len());
        assert!(said[0].contains("HTTP 503 SlowDown"), "{said:?}");
        sink.kill();
    });
}

#[test]
fn a_store_of_documents_that_is_away_for_an_hour_is_a_line_a_minute_and_waited_for() {
    in_virtual_time(async {
        let (lines, _guard) = Lines::start();
        let (log, bucket) = (a_log(), Arc::<MemoryBucket>::default());
        log.create("orders");
        log.write("orders", &Name::from("p"), TEN, 1);
        let sink = Sink::start(&log, &bucket, &["orders"], &Options::new());
        eventually("a window", || committed(&log, "orders").0 == 1).await;
        log.hang_up(true);
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let said = lines.with("could not be written");
        assert!((30..=61).contains(&said.len()), "{} lines", said.len());
        assert!(
            said[0].contains("lease=\"s3:main:orders:lease\""),
            "{said:?}"
        );
        log.hang_up(false);
        let written = log.now();
        log.write("orders", &Name::from("p"), written, 1);
        eventually("its record", || committed(&log, "orders").1 > written).await;
        sink.stop().await;
    });
}

const POINTER: &str = "s3:main:orders:committed";

#[test]
fn a_stopped_queue_is_an_error_when_it_stops_and_then_once_a_minute() {
    in_virtual_time(async {
        let (log, bucket) = (a_log(), Arc::<MemoryBucket>::default());
        log.create("orders");
        log.write("orders", &Name::from("p"), TEN, 1);
        let mut options = Options::new();
        options.settings.lease_ttl = Duration::from_secs(1);
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        eventually("a window", || committed(&log, "orders").0 == 1).await;
        sink.stop().await;
        let pointer = log.take_away(POINTER);

        let (lines, _guard) = Lines::start();
        let errors = || lines.with("ERROR");
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        eventually("the stop", || errors().len() == 1).await;
        assert!(errors()[0].contains("queen-s3 adopt"), "{:?}", errors());
        tokio::time::sleep(10 * MINUTE).await;
        let said = errors();
        assert!((8..=11).contains(&said.len()), "{} lines", said.len());
        assert!(said[1].contains("suppressed="), "{:?}", said[1]);
        assert_eq!(lines.with("queue claimed").len(), 1);

        // Another reason is told at once.
        let before = errors().len();
        let mut theirs = pointer.clone();
        theirs["lineage"] = "theirs".into();
        log.put_back(POINTER, theirs);
        eventually("the reason", || !lines.with("another lake").is_empty()).await;
        tokio::time::sleep(MINUTE / 2).await;
        assert_eq!(errors().len(), before + 1);

        // So is the end of it, and the next stop.
        log.put_back(POINTER, pointer.clone());
        eventually("it goes on", || !lines.with("it goes on").is_empty()).await;
        tokio::time::sleep(MINUTE / 4).await;
        assert_eq!(lines.with("it goes on").len(), 1);
        let mut theirs = pointer;
        theirs["lineage"] = "theirs".into();
        log.put_back(POINTER, theirs);
        log.write("orders", &Name::from("p"), log.now(), 1);
        eventually("the stop", || errors().len() == before + 2).await;
        sink.kill();
    });
}

#[test]
fn a_queue_that_is_not_there_is_a_line_and_one_more_when_it_is() {
    in_virtual_time(async {
        let (lines, _guard) = Lines::start();
        let (log, bucket) = (a_log(), Arc::<MemoryBucket>::default());
        log.create("orders");
        log.write("orders", &Name::from("p"), TEN, 1);
        let sink = Sink::start(&log, &bucket, &["orders", "odrers"], &Options::new());
        let (gone, there) = ("does not exist", "is there now");
        eventually("the line", || !lines.with(gone).is_empty()).await;
        tokio::time::sleep(30 * MINUTE).await;
        let said = lines.with(gone);
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(
            said[0].contains("queue=odrers") && said[0].contains("once a minute"),
            "{said:?}"
        );
        assert_eq!(lines.with("queue claimed").len(), 2);
        assert!(lines.with(there).is_empty(), "nothing of one that is there");

        log.create("odrers");
        eventually("it is there", || !lines.with(there).is_empty()).await;
        assert!(lines.with(there)[0].contains("queue=odrers"));
        tokio::time::sleep(10 * MINUTE).await;
        // Both go, and come back.
        log.deny(true);
        eventually("both are gone", || lines.with(gone).len() == 3).await;
        tokio::time::sleep(30 * MINUTE).await;
        log.deny(false);
        eventually("both are back", || lines.with(there).len() == 3).await;
        tokio::time::sleep(30 * MINUTE).await;
        assert_eq!((lines.with(gone).len(), lines.with(there).len()), (3, 3));
        assert_eq!(lines.with("queue claimed").len(), 2);
        sink.stop().await;
    });
}

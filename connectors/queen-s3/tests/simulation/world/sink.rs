//! Starts the shipped queue tasks in a simulated process.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use queen_s3::broker::Name;
use queen_s3::compute::Compute;
use queen_s3::config::{CrashPoint, Start as StartAt};
use queen_s3::lake::Shape;
use queen_s3::observe::status::Status;
use queen_s3::ownership::Identity;
use queen_s3::queue::{self, Context, Settings};
use queen_s3::retry::Jitter;
use tokio_util::sync::CancellationToken;

use super::process::Start;
use super::spelling::{PREFIX, SINK};

/// Runs a sink until it is told to stop.
pub async fn run(start: Start, stop: CancellationToken) {
    let Start {
        link,
        clock,
        configuration,
        instance,
        seed,
    } = start;
    let scenario = link.world.scenario.clone();
    let settings = Settings {
        prefix: PREFIX.to_owned(),
        sink: SINK.to_owned(),
        shape: Shape {
            format: configuration.format,
            compression: configuration.compression,
            layout: configuration.layout,
            align: configuration.align,
        },
        start: if scenario.earliest {
            StartAt::Earliest
        } else {
            StartAt::Latest
        },
        target_bytes: configuration.target,
        max_window: configuration.max_window,
        checkpoint_every: configuration.checkpoint_every,
        fetch_concurrency: configuration.fetch_concurrency,
        discovery_interval: configuration.discovery_interval,
        safe_guard: configuration.guard,
        lease_ttl: Duration::from_secs(u64::try_from(scenario.lease_ttl_s).unwrap_or(1)),
        multipart_threshold_bytes: configuration.multipart_threshold,
        part_bytes: scenario.part_bytes,
        crash_at: CrashPoint::Never,
    };
    let context = Arc::new(Context {
        broker: Arc::new(link.clone()),
        bucket: Arc::new(link.clone()),
        clock: Arc::new(clock),
        budget: Arc::clone(&link.budget),
        status: Arc::new(Status::default()),
        jitter: Jitter::new(seed),
        identity: Identity {
            instance,
            incarnation: format!("{seed:016x}"),
        },
        compute: Compute::InPlace,
        settings,
    });
    let queues = scenario.queues.iter().map(|name| {
        queue::run(
            Arc::clone(&context),
            Name::from(&**name),
            None,
            stop.clone(),
        )
    });
    join_all(queues).await;
}

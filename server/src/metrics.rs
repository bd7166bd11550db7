//! Counters and gauges for `/metrics`.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::admission::Lanes;

/// Labels of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The route's pattern, or `unknown`.
    pub route: String,
    /// HTTP status.
    pub status: u16,
}

/// Labels of a duration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    /// The route's pattern, or `unknown`.
    pub route: String,
}

/// Everything the broker counts.
pub struct Metrics {
    registry: Registry,
    /// Requests answered.
    pub requests: Family<RequestLabels, Counter>,
    /// Seconds until a request was answered, parking included.
    pub duration: Family<RouteLabels, Histogram, fn() -> Histogram>,
    /// Records stored by push.
    pub pushed_records: Counter,
    /// Payload bytes stored by push.
    pub pushed_bytes: Counter,
    /// Records answered by fetch.
    pub fetched_records: Counter,
    /// Payload bytes answered by fetch.
    pub fetched_bytes: Counter,
    /// Records given to consumers.
    pub popped_records: Counter,
    /// Payload bytes given to consumers.
    pub popped_bytes: Counter,
    /// Records that groups have settled.
    pub settled_records: Counter,
    /// Records that became dead letters.
    pub dead_letters: Counter,
    /// Batches that a lost precondition rolled back.
    pub kv_rolled_back: Counter,
    /// Records that retention deleted.
    pub expired_records: Counter,
    /// Empty partitions that retention removed.
    pub removed_partitions: Counter,
    /// Fetches that may park.
    pub parked: Gauge,
    /// Open client connections.
    pub open_connections: Gauge,
    /// Database sessions in use.
    pub connections: Gauge,
    /// 1 when the last `safeTime` was degraded.
    pub safe_time_degraded: Gauge,
    /// The last `safeTime`, seconds since the epoch.
    pub safe_time: Gauge<f64, AtomicU64>,
}

fn seconds() -> Histogram {
    Histogram::new([
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    ])
}

impl Metrics {
    /// All at zero; what the lanes measure is with them.
    pub fn new(lanes: &Lanes) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("queen"),
            requests: Family::default(),
            duration: Family::new_with_constructor(seconds),
            pushed_records: Counter::default(),
            pushed_bytes: Counter::default(),
            fetched_records: Counter::default(),
            fetched_bytes: Counter::default(),
            popped_records: Counter::default(),
            popped_bytes: Counter::default(),
            settled_records: Counter::default(),
            dead_letters: Counter::default(),
            kv_rolled_back: Counter::default(),
            expired_records: Counter::default(),
            removed_partitions: Counter::default(),
            parked: Gauge::default(),
            open_connections: Gauge::default(),
            connections: Gauge::default(),
            safe_time_degraded: Gauge::default(),
            safe_time: Gauge::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("requests", "Requests answered", metrics.requests.clone());
        registry.register(
            "request_duration_seconds",
            "Time until a request was answered, parking included",
            metrics.duration.clone(),
        );
        registry.register(
            "pushed_records",
            "Records stored",
            metrics.pushed_records.clone(),
        );
        registry.register(
            "pushed_bytes",
            "Payload bytes stored",
            metrics.pushed_bytes.clone(),
        );
        registry.register(
            "fetched_records",
            "Records read by fetch",
            metrics.fetched_records.clone(),
        );
        registry.register(
            "fetched_bytes",
            "Payload bytes read by fetch",
            metrics.fetched_bytes.clone(),
        );
        for (name, help, counter) in [
            (
                "popped_records",
                "Records given to consumers",
                &metrics.popped_records,
            ),
            (
                "popped_bytes",
                "Payload bytes given to consumers",
                &metrics.popped_bytes,
            ),
            (
                "settled_records",
                "Records that groups have settled",
                &metrics.settled_records,
            ),
            (
                "dead_letters",
                "Records that became dead letters",
                &metrics.dead_letters,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "kv_rolled_back",
            "Key/value batches that a lost precondition rolled back",
            metrics.kv_rolled_back.clone(),
        );
        registry.register(
            "expired_records",
            "Records that retention deleted",
            metrics.expired_records.clone(),
        );
        registry.register(
            "removed_partitions",
            "Empty partitions that retention removed",
            metrics.removed_partitions.clone(),
        );
        registry.register(
            "fetches_parked",
            "Fetches that may park",
            metrics.parked.clone(),
        );
        registry.register(
            "http_connections",
            "Open client connections",
            metrics.open_connections.clone(),
        );
        registry.register(
            "database_connections_in_use",
            "Database sessions in use",
            metrics.connections.clone(),
        );
        registry.register(
            "safe_time_degraded",
            "1 when sessions were hidden from the last safeTime",
            metrics.safe_time_degraded.clone(),
        );
        registry.register(
            "safe_time_seconds",
            "The last safeTime, in seconds since the epoch",
            metrics.safe_time.clone(),
        );
        lanes.register(registry);
        metrics
    }

    /// The text exposition.
    ///
    /// # Errors
    ///
    /// None in practice: text is written into memory.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    use super::*;

    #[test]
    fn every_metric_is_on_the_page() {
        let config = Config::from_lookup(|_| None::<String>).expect("defaults");
        let lanes = Lanes::new(&config.lanes, config.database.connections);
        let text = Metrics::new(&lanes).encode().expect("memory");
        let page = include_str!("../../docs/broker.md");
        let mut kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        assert!(kinds.clone().count() > 15, "{text}");
        let missing = kinds.find(|kind| {
            let (name, kind) = kind.split_once(' ').unwrap_or((kind, ""));
            let suffix = if kind == "counter" { "_total" } else { "" };
            !page.contains(&format!("`{name}{suffix}`"))
        });
        assert_eq!(missing, None, "docs/broker.md lacks it");
    }
}

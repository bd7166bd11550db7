//! The metrics of the sink, in the Prometheus text format.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::status::{Histogram, QueueStatus, Status};
use crate::clock::Clock;
use crate::lake::Format;
use crate::memory::MemoryBudget;
use crate::time::Micros;

/// `Content-Type` of the exposition: text format, version 0.0.4.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Renders the metrics from what the running parts report.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// Metrics over `status` and `budget`; `format` is the configured one, whose byte counter
    /// exists from the first scrape.
    pub fn new(
        status: Arc<Status>,
        budget: Arc<MemoryBudget>,
        clock: Arc<dyn Clock>,
        format: Format,
    ) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Exposition {
            status,
            budget,
            clock,
            format,
        }));
        Self { registry }
    }

    /// The exposition as of now.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

struct Exposition {
    status: Arc<Status>,
    budget: Arc<MemoryBudget>,
    clock: Arc<dyn Clock>,
    format: Format,
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposition").finish_non_exhaustive()
    }
}

const NO_LABELS: [(&str, &str); 0] = [];

type Queues = [(String, Arc<QueueStatus>)];

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let queues = self.status.queues();
        let mut out = Families {
            encoder: &mut encoder,
            queues: &queues,
        };
        let now = Micros(self.clock.wall_ms().saturating_mul(Micros::PER_MILLI));

        out.gauge_per_queue(
            "queen_s3_lag_seconds",
            "Wall-clock time minus the end of the last committed window.",
            // A queue that is not there has no log to be behind.
            |status| {
                let end = status.t_end().filter(|_| status.present.load(Relaxed));
                end.map(|end| seconds_since(end, now))
            },
        )?;
        out.gauge(
            "queen_s3_safe_lag_seconds",
            "Wall-clock time minus the broker's safeTime.",
            self.status
                .safe_time(self.clock.boottime())
                .map(|safe| seconds_since(safe, now)),
        )?;
        out.counter_per_queue(
            "queen_s3_windows_committed",
            "Windows committed.",
            |status| &status.windows,
        )?;
        out.counter_per_queue(
            "queen_s3_records_written",
            "Records written to objects of committed windows.",
            |status| &status.records,
        )?;
        self.encode_bytes(&mut out)?;
        out.counter_per_queue(
            "queen_s3_records_lost",
            "Records that retention deleted before the sink read them.",
            |status| &status.lost,
        )?;
        out.counter_per_queue(
            "queen_s3_records_late",
            "Records that the broker showed below the end of a committed window.",
            |status| &status.late,
        )?;
        out.histogram(
            "queen_s3_window_records",
            "Records per committed window.",
            &self.status.window_records,
        )?;
        out.histogram(
            "queen_s3_window_bytes",
            "Object bytes per committed window.",
            &self.status.window_bytes,
        )?;
        out.gauge(
            "queen_s3_buffer_bytes",
            "Memory that buffered records hold across every queue, compressed where they came so, against QUEEN_S3_MEMORY_MB.",
            Some(self.budget.buffered()),
        )?;
        self.encode_fetches(&mut out)?;
        out.gauge_per_queue(
            "queen_s3_discovery_partitions",
            "Partitions that the last discovery pass returned.",
            |status| Some(status.discovered.load(Relaxed)),
        )?;
        let requests = self.status.s3_requests();
        out.counters(
            "queen_s3_s3_requests",
            "S3 API requests by operation and HTTP status, 0 when no answer came.",
            requests.iter().map(|&(op, code, count)| {
                ([("op", op.to_owned()), ("code", code.to_string())], count)
            }),
        )?;
        out.counters(
            "queen_s3_commit_precondition_lost",
            "Key/value batches that a lost precondition rolled back.",
            [(NO_LABELS, self.status.preconditions_lost.load(Relaxed))],
        )?;
        out.gauge_per_queue(
            "queen_s3_checkpoint_age_windows",
            "Windows committed since the last position checkpoint.",
            |status| Some(status.checkpoint_age.load(Relaxed)),
        )?;
        out.gauge_per_queue(
            "queen_s3_queue_stopped",
            "1 while the queue is stopped by an error that needs an operator, else 0.",
            |status| Some(u64::from(status.stopped.load(Relaxed))),
        )
    }
}

impl Exposition {
    /// The configured format's counter always exists, the other one's once a redo wrote it.
    fn encode_bytes(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let samples = out.queues.iter().flat_map(|(queue, status)| {
            let counts = [
                (Format::Jsonl, status.jsonl_bytes.load(Relaxed)),
                (Format::Parquet, status.parquet_bytes.load(Relaxed)),
            ];
            let known = counts
                .into_iter()
                .filter(|&(format, n)| n > 0 || format == self.format);
            known.map(|(format, count)| {
                (
                    [("queue", queue.as_str()), ("format", format.as_str())],
                    count,
                )
            })
        });
        out.counters(
            "queen_s3_bytes_written",
            "Object bytes of committed windows, after compression.",
            samples.collect::<Vec<_>>(),
        )
    }

    fn encode_fetches(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let samples = out.queues.iter().flat_map(|(queue, status)| {
            let counts = [
                ("ok", status.fetches_ok.load(Relaxed)),
                ("error", status.fetches_failed.load(Relaxed)),
            ];
            counts.map(|(result, count)| ([("queue", queue.as_str()), ("result", result)], count))
        });
        out.counters(
            "queen_s3_fetch_calls",
            "Fetch calls by result.",
            samples.collect::<Vec<_>>(),
        )
    }
}

/// Writes metric families. The encoder appends `_total` to the names of counters.
struct Families<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    queues: &'a Queues,
}

impl Families<'_, '_> {
    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, count) in samples {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
        }
        Ok(())
    }

    fn counter_per_queue(
        &mut self,
        name: &str,
        help: &str,
        counter: impl Fn(&QueueStatus) -> &AtomicU64,
    ) -> fmt::Result {
        let samples = self.queues.iter();
        self.counters(
            name,
            help,
            samples.map(|(queue, status)| {
                ([("queue", queue.as_str())], counter(status).load(Relaxed))
            }),
        )
    }

    fn gauge<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        value: Option<V>,
    ) -> fmt::Result {
        let mut metric = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        value.map_or(Ok(()), |value| metric.encode_gauge(&value))
    }

    fn gauge_per_queue<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(&QueueStatus) -> Option<V>,
    ) -> fmt::Result {
        let mut family = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (queue, status) in self.queues {
            if let Some(value) = value(status) {
                family
                    .encode_family(&[("queue", queue.as_str())])?
                    .encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> fmt::Result {
        let (bounds, counts, sum) = histogram.snapshot();
        let count = counts.iter().sum();
        let buckets: Vec<(f64, u64)> = bounds
            .iter()
            .map(|bound| *bound as f64)
            .zip(counts)
            .collect();
        let mut metric = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(sum as f64, count, &buckets, None)
    }
}

fn seconds_since(instant: Micros, now: Micros) -> f64 {
    now.0.saturating_sub(instant.0) as f64 / Micros::PER_SECOND as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Noon;

    impl Clock for Noon {
        fn boottime(&self) -> Duration {
            Duration::ZERO
        }

        fn wall_ms(&self) -> i64 {
            1_788_523_200_000
        }
    }

    fn rendered(status: &Arc<Status>, budget: &Arc<MemoryBudget>, format: Format) -> String {
        let clock = Arc::new(Noon);
        Metrics::new(Arc::clone(status), Arc::clone(budget), clock, format)
            .render()
            .expect("a String takes everything")
    }

    #[test]
    fn every_metric_is_there_with_its_name_type_help_and_labels() {
        let status = Arc::new(Status::default());
        let budget = MemoryBudget::new(1 << 20);
        let _held = budget.hold(4_096);
        status.set_safe_time(Micros(1_788_523_194_500_000), Duration::ZERO);
        status.preconditions_lost.store(1, Relaxed);
        status.window_records.observe(250);
        status.window_bytes.observe(70_000);
        status.s3_request("put", 200);
        status.s3_request("put", 200);
        status.s3_request("multipart_complete", 503);
        status.s3_request("get", 0);
        let orders = status.queue("orders");
        orders.committed(Micros(1_788_523_140_000_000), 0, Duration::ZERO);
        for (counter, value) in [
            (&orders.windows, 3),
            (&orders.records, 750),
            (&orders.jsonl_bytes, 9_000),
            (&orders.parquet_bytes, 8),
            (&orders.lost, 4),
            (&orders.late, 5),
            (&orders.fetches_ok, 11),
            (&orders.fetches_failed, 2),
            (&orders.discovered, 64),
            (&orders.checkpoint_age, 6),
        ] {
            counter.store(value, Relaxed);
        }
        insta::assert_snapshot!(rendered(&status, &budget, Format::Jsonl));
    }

    #[test]
    fn a_queue_that_never_committed_has_counters_at_zero_and_no_lag() {
        let status = Arc::new(Status::default());
        status.queue("a\"b\\");
        let text = rendered(&status, &MemoryBudget::new(1), Format::Parquet);
        assert!(
            text.contains("queen_s3_windows_committed_total{queue=\"a\\\"b\\\\\"} 0\n"),
            "{text}"
        );
        assert!(
            text.contains(",format=\"parquet\"} 0\n") && !text.contains("jsonl"),
            "{text}"
        );
        assert!(!text.contains("queen_s3_lag_seconds{"), "{text}");
        assert!(!text.contains("\nqueen_s3_safe_lag_seconds"), "{text}");
    }
}

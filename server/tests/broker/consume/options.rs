//! What a queue's options are said to be is what is done.

use std::collections::BTreeSet;

use queen::retention::pass;

use super::*;

const VARIABLES: &[(&str, &str)] = &[
    ("QUEEN_RETENTION_INTERVAL_MS", "3600000"),
    (
        "QUEEN_ENCRYPTION_KEY",
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    ),
];

/// What shows the value of an option.
#[derive(Debug, Clone, Copy)]
enum Sign {
    /// A pop's lease ends so many seconds after it.
    Lease,
    /// A rejected record is due so many milliseconds after it.
    Pause,
    /// A record becomes a dead letter with the failure after so many.
    Failures,
    /// A record that fails for the fourth time becomes a dead letter.
    Dies,
    /// A record is seen so many seconds after its push.
    Delay,
    /// An id counts for so many seconds after its push.
    Window,
    /// What is pushed is stored encrypted.
    Sealed,
    /// Segments older than so many seconds go, settled or not.
    Age,
    /// So do those that are settled, and no others.
    SettledAge,
    /// A segment of ten days goes.
    Expires,
    /// A segment of one day is held.
    Held,
    /// A pop by this finds the queue.
    Found,
    /// None: it is kept and answered.
    None,
}

/// An option, its sign, another value than its default, and what has to be set beside it to see either.
fn options() -> Vec<(&'static str, Sign, Value, Value)> {
    let day = 86_400;
    vec![
        ("leaseTime", Sign::Lease, json!(60), json!({})),
        ("retryDelay", Sign::Pause, json!(30_000), json!({})),
        ("retryLimit", Sign::Failures, json!(1), json!({})),
        ("deadLetterQueue", Sign::Dies, json!(false), json!({})),
        ("dlqAfterMaxRetries", Sign::Dies, json!(false), json!({})),
        ("delayedProcessing", Sign::Delay, json!(600), json!({})),
        ("dedupWindowSeconds", Sign::Window, json!(60), json!({})),
        ("encryptionEnabled", Sign::Sealed, json!(true), json!({})),
        (
            "retentionEnabled",
            Sign::Expires,
            json!(true),
            json!({"retentionSeconds": day}),
        ),
        (
            "retentionSeconds",
            Sign::Age,
            json!(day),
            json!({"retentionEnabled": true}),
        ),
        (
            "completedRetentionSeconds",
            Sign::SettledAge,
            json!(day),
            json!({"retentionEnabled": true}),
        ),
        ("maxWaitTimeSeconds", Sign::Age, json!(day), json!({})),
        (
            "retentionSinkHold",
            Sign::Held,
            json!("lake"),
            json!({"retentionEnabled": true, "retentionSeconds": 60}),
        ),
        (
            "retentionSinkHoldMaxSeconds",
            Sign::Age,
            json!(day),
            json!({"retentionEnabled": true, "retentionSeconds": 60, "retentionSinkHold": "lake"}),
        ),
        ("namespace", Sign::Found, json!("billing"), json!({})),
        ("task", Sign::Found, json!("billing"), json!({})),
        ("priority", Sign::None, json!(7), json!({})),
        ("ttl", Sign::None, json!(7), json!({})),
        ("maxSize", Sign::None, json!(7), json!({})),
        ("windowBuffer", Sign::None, json!(7), json!({})),
        ("minPopWaitTime", Sign::None, json!(7), json!({})),
    ]
}

/// A queue of the test's own, with one record.
struct Probe<'f> {
    fixture: &'f Fixture,
    session: &'f tokio_postgres::Client,
    option: &'static str,
    queue: String,
}

impl Probe<'_> {
    async fn push(&self, id: &str) {
        let queue = &self.queue;
        let body = format!(
            r#"{{"items":[{{"queue":"{queue}","partition":"p","payload":1,"transactionId":"{id}"}}]}}"#
        );
        let answer = self.fixture.post("/api/v1/push", body).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
    }

    async fn pop(&self) -> Vec<Message> {
        pop(self.fixture, &format!("/queue/{}?batch=1", self.queue)).await
    }

    /// One value of a query with the queue as its parameter.
    async fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, sql: &str) -> T {
        let row = self.session.query_one(sql, &[&self.queue]).await;
        row.unwrap().get(0)
    }

    /// Whether `instant`, in milliseconds, lies `millis` after what was done.
    async fn lies_after(&self, done: impl Future<Output = ()>, millis: i64, instant: &str) -> bool {
        let clock =
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 + 0 * length($1)";
        let before: f64 = self.one(clock).await;
        done.await;
        let after: f64 = self.one(clock).await;
        let sql = format!(
            "SELECT (extract(epoch FROM max({instant})) * 1000)::float8
             FROM queen.queues q JOIN queen.partitions p ON p.queue_id = q.id
             LEFT JOIN queen.cursors c ON c.partition_id = p.id
             LEFT JOIN queen.recent_ids r ON r.partition_id = p.id WHERE q.name = $1"
        );
        let instant: f64 = self.one(&sql).await;
        (before..=after).contains(&(instant - millis as f64))
    }

    /// How often a record fails until it is a dead letter, five times at most.
    async fn failures(&self) -> Option<i64> {
        self.push("a").await;
        for failed in 1..=5 {
            let message = self.pop().await.remove(0);
            if ack(self.fixture, &message, "failed").await.dlq {
                return Some(failed);
            }
        }
        None
    }

    /// Which ages, in seconds, retention leaves of segments that are settled, or not.
    async fn left(&self, ages: &[i64], settled: bool) -> Vec<i64> {
        for age in ages {
            self.push(&age.to_string()).await;
            if settled {
                let message = self.pop().await.remove(0);
                assert!(ack(self.fixture, &message, "completed").await.success);
            }
        }
        let mut left = Vec::new();
        let of = "partition_id = (SELECT p.id FROM queen.partitions p
                  JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1) AND base_offset = $2";
        for (offset, age) in (0_i64..).zip(ages) {
            let sql =
                format!("UPDATE queen.segments SET ts = ts - make_interval(secs => $3) WHERE {of}");
            let seconds = *age as f64;
            self.session
                .execute(&sql, &[&self.queue, &offset, &seconds])
                .await
                .unwrap();
        }
        pass(self.fixture.broker.broker(), false).await.unwrap();
        for (offset, age) in (0_i64..).zip(ages) {
            let sql = format!("SELECT count(*) FROM queen.segments WHERE {of}");
            let row = self.session.query_one(&sql, &[&self.queue, &offset]).await;
            if row.unwrap().get::<_, i64>(0) == 1 {
                left.push(*age);
            }
        }
        left
    }

    /// Asserts that what the broker does is what this value says.
    async fn shows(&self, sign: Sign, value: &Value) {
        const DAY: i64 = 86_400;
        let number = || value.as_i64().unwrap();
        let holds = match sign {
            Sign::Lease => {
                self.push("a").await;
                let done = async { assert_eq!(self.pop().await.len(), 1) };
                self.lies_after(done, number() * 1000, "c.due").await
            }
            Sign::Pause => {
                self.push("a").await;
                let message = self.pop().await.remove(0);
                let done = async {
                    assert!(ack(self.fixture, &message, "failed").await.success);
                };
                self.lies_after(done, number(), "c.due").await
            }
            Sign::Failures => self.failures().await == Some(number() + 1),
            Sign::Dies => self.failures().await.is_some() == value.as_bool().unwrap(),
            Sign::Delay => {
                // The group reads the partition to its end before there is a record.
                self.push("a").await;
                let seen = !self.pop().await.is_empty();
                let due = "SELECT round(extract(epoch FROM max(c.due - s.ts)))::int8
                           FROM queen.queues q JOIN queen.partitions p ON p.queue_id = q.id
                           JOIN queen.segments s ON s.partition_id = p.id
                           JOIN queen.cursors c ON c.partition_id = p.id WHERE q.name = $1";
                if number() == 0 {
                    seen
                } else {
                    !seen && self.one::<i64>(due).await == number()
                }
            }
            Sign::Window => {
                let done = self.push("a");
                self.lies_after(done, number() * 1000, "r.expires_at").await
            }
            Sign::Sealed => {
                self.push("a").await;
                let block: Vec<u8> = self
                    .one(
                        "SELECT s.block FROM queen.queues q JOIN queen.partitions p ON p.queue_id = q.id
                         JOIN queen.segments s ON s.partition_id = p.id WHERE q.name = $1",
                    )
                    .await;
                let plain = crate::encryption::is_plain(&block);
                plain != value.as_bool().unwrap()
            }
            Sign::Age | Sign::SettledAge => {
                let settled = matches!(sign, Sign::SettledAge);
                // Retention keeps what is at a partition's end no less than what is before it.
                let (old, young) = (number() + 100, (number() - 100).max(1));
                let left = self.left(&[old, young], settled).await;
                if number() == 0 {
                    left == [old, young]
                } else {
                    left == [young]
                }
            }
            Sign::Expires => {
                self.left(&[10 * DAY], false).await.is_empty() == value.as_bool().unwrap()
            }
            Sign::Held => self.left(&[DAY], false).await.is_empty() == (value == ""),
            Sign::Found => {
                self.push("a").await;
                let path = format!("?{}=billing", self.option);
                let found = !pop(self.fixture, &path).await.is_empty();
                let list = self.fixture.get("/api/v1/resources/queues").await.json();
                let queues = list["queues"].as_array().unwrap();
                let own = queues.iter().find(|queue| queue["name"] == self.queue);
                found == (value == "billing") && own.unwrap()[self.option] == *value
            }
            Sign::None => true,
        };
        assert!(holds, "{} is said to be {value}", self.option);
    }
}

#[tokio::test]
async fn what_is_answered_of_every_option_is_what_is_applied() {
    let fixture = Fixture::with(VARIABLES, &[]).await;
    let session = fixture.session().await;
    let mut known = BTreeSet::new();
    for (option, sign, other, beside) in options() {
        known.insert(option.to_owned());
        for (queue, given) in [("unset", None), ("set", Some(other))] {
            let probe = Probe {
                fixture: &fixture,
                session: &session,
                option,
                queue: format!("{option}-{queue}"),
            };
            let mut options = beside.clone();
            if let Some(value) = &given {
                options[option] = value.clone();
            }
            let body = json!({"queue": probe.queue, "options": options}).to_string();
            let answer = fixture.post("/api/v1/configure", body).await.json();
            let said = &answer["options"][option];
            if let Some(value) = &given {
                assert_eq!(said, value, "{option}");
            }
            assert_eq!(said, &answer[option]);
            probe.shows(sign, said).await;
        }
    }
    let fresh = fixture
        .post("/api/v1/configure", r#"{"queue":"fresh"}"#)
        .await
        .json();
    assert_eq!(names(&fresh), known);
}

#[tokio::test]
async fn the_defaults_of_a_queue_are_those_of_the_page() {
    let fixture = Fixture::start().await;
    let fresh = fixture
        .post("/api/v1/configure", r#"{"queue":"fresh"}"#)
        .await
        .json();
    let page = include_str!("../../../../docs/broker.md");
    let (_, section) = page.split_once("### Queue options").unwrap();
    let section = section.split("\n#").next().unwrap();
    let mut listed = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let words = |cell: &'static str| cell.split(',').map(|word| word.trim().trim_matches('`'));
        let names: Vec<&str> = words(cells[0]).collect();
        let mut defaults: Vec<&str> = words(cells[2]).collect();
        if defaults.len() == 1 {
            defaults = vec![defaults[0]; names.len()];
        }
        for (name, default) in names.iter().zip(defaults) {
            let value = match default {
                "empty" => json!(""),
                text => serde_json::from_str(text).unwrap(),
            };
            assert_eq!(fresh["options"][name], value, "{name}");
            listed.insert((*name).to_owned());
        }
    }
    assert_eq!(listed, names(&fresh));
}

/// Names of the options that an answer lists.
fn names(answer: &Value) -> BTreeSet<String> {
    let options = answer["options"].as_object().unwrap();
    options.keys().cloned().collect()
}

use queen_protocol::ChangedResponse;

use crate::support::{Fixture, until};

const ROUTE: &str = "/api/v1/partitions/changed";

fn names(answer: &ChangedResponse, entry: usize) -> Vec<&str> {
    answer.entries[entry]
        .partitions
        .iter()
        .map(|partition| partition.name.as_str())
        .collect()
}

#[tokio::test]
async fn a_pass_without_since_names_every_partition_once_by_name() {
    let fixture = Fixture::start().await;
    for partition in ["b", "a", "ä", "B", "c"] {
        fixture.push("q", partition, &["1", "2"]).await;
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    let mut pages = 0;
    loop {
        let body = format!(r#"{{"entries":[{{"queue":"q","limit":2,"after":"{after}"}}]}}"#);
        let answer = fixture.changed(&body).await;
        seen.extend(names(&answer, 0).into_iter().map(str::to_owned));
        pages += 1;
        match &answer.entries[0].next {
            Some(next) => after.clone_from(next),
            None => break,
        }
    }
    assert_eq!(seen, ["B", "a", "b", "c", "ä"]);
    assert_eq!(pages, 3);
}

#[tokio::test]
async fn a_partition_is_listed_with_its_bounds_its_life_and_the_second_of_its_last_write() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1", "2"]).await;
    let answer = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
    let partition = &answer.entries[0].partitions[0];
    assert_eq!((partition.last_offset, partition.log_start), (1, 0));
    assert!(
        partition.last_write_at.ends_with(".000000Z"),
        "{}",
        partition.last_write_at
    );
    assert_eq!(partition.id.as_deref().map(str::len), Some(36));
    let fetched = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    let ts = &fetched.entries[0].records[0].ts;
    assert_eq!(&partition.last_write_at[..19], &ts[..19]);
}

#[tokio::test]
async fn since_lists_what_was_written_at_or_after_it_in_order_of_writing() {
    let fixture = Fixture::start().await;
    for partition in ["old", "z", "m", "a"] {
        fixture.push("q", partition, &["1"]).await;
    }
    let session = fixture.session().await;
    session
        .batch_execute(
            "UPDATE queen.partitions SET last_write_at = '2026-01-01T00:00:00Z' WHERE name = 'old';
             UPDATE queen.partitions SET last_write_at = '2026-01-01T00:00:05Z' WHERE name IN ('z', 'm');
             UPDATE queen.partitions SET last_write_at = '2026-01-01T00:00:09Z' WHERE name = 'a'",
        )
        .await
        .unwrap();
    let since = r#""queue":"q","since":"2026-01-01T00:00:05Z""#;
    let answer = fixture
        .changed(&format!(r#"{{"entries":[{{{since}}}]}}"#))
        .await;
    assert_eq!(names(&answer, 0), ["m", "z", "a"]);
    assert_eq!(answer.entries[0].next, None);

    let first = fixture
        .changed(&format!(r#"{{"entries":[{{{since},"limit":1}}]}}"#))
        .await;
    assert_eq!(names(&first, 0), ["m"]);
    let next = first.entries[0].next.as_deref().unwrap();
    let second = fixture
        .changed(&format!(r#"{{"entries":[{{{since},"after":"{next}"}}]}}"#))
        .await;
    assert_eq!(names(&second, 0), ["z", "a"]);
    let fraction = r#"{"entries":[{"queue":"q","since":"2026-01-01T00:00:05.000001Z"}]}"#;
    assert_eq!(names(&fixture.changed(fraction).await, 0), ["a"]);
}

#[tokio::test]
async fn a_cursor_of_the_other_mode_or_queue_or_a_forged_one_is_refused_for_its_entry_alone() {
    let fixture = Fixture::start().await;
    for queue in ["q", "r"] {
        fixture.push(queue, "a", &["1"]).await;
        fixture.push(queue, "b", &["1"]).await;
    }
    let since = r#""since":"2020-01-01T00:00:00Z""#;
    let answer = fixture
        .changed(&format!(
            r#"{{"entries":[{{"queue":"q","limit":1}},{{"queue":"q","limit":1,{since}}}]}}"#
        ))
        .await;
    let by_name = answer.entries[0].next.as_deref().unwrap();
    let by_write = answer.entries[1].next.as_deref().unwrap();
    let answer = fixture
        .changed(&format!(
            r#"{{"entries":[
                {{"queue":"q","after":"{by_write}"}},
                {{"queue":"q","after":"{by_name}",{since}}},
                {{"queue":"r","after":"{by_name}"}},
                {{"queue":"q","after":"n|a"}},
                {{"queue":"q","after":"{by_name}"}}]}}"#
        ))
        .await;
    for entry in &answer.entries[..4] {
        assert!(entry.is_bad_cursor(), "{entry:?}");
    }
    assert_eq!(names(&answer, 4), ["b"]);
}

#[tokio::test]
async fn cursors_are_good_on_every_broker_of_the_database() {
    let fixture = Fixture::start().await;
    fixture.push("q", "a", &["1"]).await;
    fixture.push("q", "b", &["1"]).await;
    let other = fixture.another(&[]).await;
    let answer = fixture
        .changed(r#"{"entries":[{"queue":"q","limit":1}]}"#)
        .await;
    let next = answer.entries[0].next.as_deref().unwrap();
    let body = format!(r#"{{"entries":[{{"queue":"q","after":"{next}"}}]}}"#);
    let answer: ChangedResponse = fixture.post_to(&other, ROUTE, &body).await.typed();
    assert_eq!(names(&answer, 0), ["b"]);
}

#[tokio::test]
async fn an_unknown_queue_is_marked_and_a_known_empty_one_is_not() {
    let fixture = Fixture::start().await;
    fixture
        .post("/api/v1/configure", r#"{"queue":"empty"}"#)
        .await;
    let answer = fixture
        .changed(r#"{"entries":[{"queue":"nowhere"},{"queue":"empty"}]}"#)
        .await;
    assert!(answer.entries[0].is_unknown_queue());
    assert!(answer.entries[1].is_ok() && answer.entries[1].partitions.is_empty());
}

#[tokio::test]
async fn an_empty_batch_answers_safe_time_alone() {
    let fixture = Fixture::start().await;
    for body in [r#"{"entries":[]}"#, "{}"] {
        let answer = fixture.changed(body).await;
        assert!(answer.entries.is_empty());
        assert_eq!(answer.safe_time.len(), "2026-01-01T00:00:00.000000Z".len());
    }
}

#[tokio::test]
async fn a_wrong_call_is_refused_whole() {
    let fixture = Fixture::start().await;
    let many = vec![r#"{"queue":"q"}"#; 65].join(",");
    for body in [
        format!(r#"{{"entries":[{many}]}}"#),
        r#"{"entries":[{"queue":"q"},{"queue":"q","since":"yesterday"}]}"#.into(),
        r#"{"entries":[{"queue":7}]}"#.into(),
        r#"{"entries":[{"queue":""}]}"#.into(),
    ] {
        assert_eq!(
            fixture.post(ROUTE, body.clone()).await.status,
            400,
            "{body:.80}"
        );
    }
    let limits = r#"{"entries":[{"queue":"q","limit":0},{"queue":"q","limit":99999}]}"#;
    assert_eq!(
        fixture.post(ROUTE, limits).await.status,
        200,
        "a limit is clamped"
    );
}

#[tokio::test]
async fn a_partition_never_written_has_no_last_offset_and_an_empty_log() {
    let fixture = Fixture::start().await;
    let configured = fixture.post("/api/v1/configure", r#"{"queue":"q"}"#).await;
    assert_eq!(configured.status, 200);
    let session = fixture.session().await;
    let made = "INSERT INTO queen.partitions (queue_id, name) SELECT id, 'p' FROM queen.queues";
    session.batch_execute(made).await.unwrap();
    let answer = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
    let partition = &answer.entries[0].partitions[0];
    assert_eq!((partition.last_offset, partition.log_start), (-1, 0));
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    let entry = &answer.entries[0];
    assert!(entry.is_ok() && entry.records.is_empty());
    assert_eq!((entry.high_watermark, entry.log_start_offset), (0, 0));
}

#[tokio::test]
async fn the_second_of_the_last_write_only_moves_forward() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let session = fixture.session().await;
    // As if the clock had stepped back an hour since.
    session
        .batch_execute(
            "UPDATE queen.partitions SET last_ts = last_ts + interval '1 hour',
                 last_write_at = last_write_at + interval '1 hour'",
        )
        .await
        .unwrap();
    let listed = async || {
        let answer = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
        answer.entries[0].partitions[0].clone()
    };
    let before = listed().await;
    fixture.push("q", "p", &["1"]).await;
    let after = listed().await;
    assert_eq!((before.last_offset, after.last_offset), (0, 1));
    assert!(after.last_write_at >= before.last_write_at, "{after:?}");
}

#[tokio::test]
async fn a_page_costs_its_rows_however_many_partitions_the_queue_has() {
    // One session goes through no lane, so it is the one that discovery uses.
    let variables = [
        ("QUEEN_PG_CONNECTIONS", "2"),
        ("QUEEN_RETENTION_INTERVAL_MS", "3600000"),
    ];
    let fixture = Fixture::with(&variables, &[]).await;
    fixture.push("q", "p", &["0"]).await;
    let session = fixture.session().await;
    session
        .batch_execute(
            "INSERT INTO queen.partitions (queue_id, name)
             SELECT id, 'n' || n FROM queen.queues, generate_series(1, 20000) n",
        )
        .await
        .unwrap();
    let read = async || -> i64 {
        let observer = fixture.broker.broker().database.observer().await.unwrap();
        let flush = "SELECT pg_stat_force_next_flush()";
        observer.execute(flush, &[]).await.unwrap();
        drop(observer);
        let sql = "SELECT seq_tup_read + idx_tup_fetch + (
                       SELECT sum(idx_tup_read)::int8 FROM pg_stat_user_indexes
                       WHERE relid = t.relid)
                   FROM pg_stat_user_tables t WHERE relname = 'partitions'";
        session.query_one(sql, &[]).await.unwrap().get(0)
    };
    for entry in [
        r#"{"queue":"q","limit":10}"#,
        r#"{"queue":"q","limit":10,"since":"2026-01-01T00:00:00Z"}"#,
    ] {
        let before = read().await;
        let answer = fixture
            .changed(&format!(r#"{{"entries":[{entry}]}}"#))
            .await;
        assert_eq!(names(&answer, 0).len(), 10);
        // The session tells its figures once it is idle.
        until(|| async { read().await > before }).await;
        let rows = read().await - before;
        assert!(rows <= 40, "{entry}: {rows} rows were read");
    }
}

/// What one tenant has is told to another as what nobody has: byte for byte, by every reading route.
#[tokio::test]
async fn what_another_tenant_has_changes_no_byte_of_an_answer() {
    const OWNER: &str = "11111111-1111-4111-8111-111111111111";
    const STRANGER: &str = "22222222-2222-4222-8222-222222222222";
    let fixture = Fixture::with(&[("QUEEN_TENANCY_HEADER", "true")], &[]).await;
    let http = reqwest::Client::new();
    let get = async |path: &str| {
        let request = http.get(fixture.url() + path);
        let request = request.header("x-queen-tenant", STRANGER);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let ask = async || {
        let mut answers = Vec::new();
        for (path, body) in [
            (ROUTE, r#"{"entries":[{"queue":"q"}]}"#),
            (
                ROUTE,
                r#"{"entries":[{"queue":"q","since":"2020-01-01T00:00:00Z"}]}"#,
            ),
            (
                "/api/v1/kv",
                r#"[{"op":"get","ns":"n","key":"k"},{"op":"getMany","ns":"n","keys":["k"]},
                    {"op":"getPrefix","ns":"n","prefix":"k"},{"op":"check","ns":"n","key":"k","expect":0}]"#,
            ),
        ] {
            let answer = fixture.post_as(STRANGER, path, body).await;
            // `safeTime` is everybody's and goes on.
            let (_, rest) = answer
                .text
                .split_once("safeTimeDegraded")
                .unwrap_or(("", &answer.text));
            answers.push((answer.status, rest.to_owned()));
        }
        for path in [
            "/api/v1/kv/n/k",
            "/api/v1/resources/queues",
            "/api/v1/dlq",
            "/api/v1/pop?namespace=space&wait=false",
            "/api/v1/pop/queue/q?wait=false",
        ] {
            answers.push(get(path).await);
        }
        answers
    };
    let before = ask().await;
    assert!(before.iter().all(|answer| answer.0 < 300), "{before:?}");
    for (path, body) in [
        (
            "/api/v1/configure",
            r#"{"queue":"q","options":{"namespace":"space"}}"#,
        ),
        (
            "/api/v1/push",
            r#"{"items":[{"queue":"q","payload":1,"transactionId":"t"}]}"#,
        ),
        (
            "/api/v1/kv",
            r#"[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]"#,
        ),
    ] {
        let answer = fixture.post_as(OWNER, path, body).await;
        assert!(answer.status < 300, "{path}: {}", answer.text);
    }
    assert_eq!(ask().await, before);
    // Nor does the id that the owner pushed count for the stranger.
    let body = r#"{"items":[{"queue":"q","payload":1,"transactionId":"t"}]}"#;
    let pushed = fixture.post_as(STRANGER, "/api/v1/push", body).await;
    assert_eq!(pushed.json()[0]["status"], "queued", "{}", pushed.text);
}

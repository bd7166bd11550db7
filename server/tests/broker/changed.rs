use queen_protocol::ChangedResponse;

use crate::support::Fixture;

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

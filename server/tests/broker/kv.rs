use futures_util::future::join_all;
use queen_protocol::{KvReason, KvResponse, KvResult};
use serde_json::json;

use crate::support::{Answer, Fixture, until};

const ROUTE: &str = "/api/v1/kv";

async fn batch(fixture: &Fixture, operations: &str) -> Vec<KvResult> {
    let body = format!(r#"{{"operations":[{operations}]}}"#);
    let answer: KvResponse = fixture.post(ROUTE, body).await.typed();
    for (index, result) in answer.results.iter().enumerate() {
        assert_eq!(result.index, index);
    }
    answer.results
}

async fn one(fixture: &Fixture, operation: &str) -> KvResult {
    batch(fixture, operation).await.remove(0)
}

fn put(key: &str, value: &str, more: &str) -> String {
    format!(r#"{{"op":"put","ns":"n","key":"{key}","value":{value},"forever":true{more}}}"#)
}

fn get(key: &str) -> String {
    format!(r#"{{"op":"get","ns":"n","key":"{key}"}}"#)
}

#[tokio::test]
async fn null_is_a_value_and_absence_is_not() {
    let fixture = Fixture::start().await;
    batch(&fixture, &put("k", "null", "")).await;
    let found = one(&fixture, &get("k")).await;
    assert!(found.found());
    assert_eq!(found.value, Some(serde_json::Value::Null));
    let missed = one(&fixture, &get("other")).await;
    assert!(!missed.found() && missed.value.is_none());
}

#[tokio::test]
async fn a_lost_race_brings_the_winners_value_and_version() {
    let fixture = Fixture::start().await;
    let won = one(&fixture, &put("k", r#"{"by":"first"}"#, "")).await;
    assert!(won.applied());
    let operations = [
        r#"{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true}"#.to_owned(),
        put("k", "2", r#","expect":999"#),
        put("other", "2", r#","expect":999"#),
        r#"{"op":"delete","ns":"n","key":"k","expect":999}"#.to_owned(),
        r#"{"op":"delete","ns":"n","key":"other"}"#.to_owned(),
        r#"{"op":"check","ns":"n","key":"k","expect":0}"#.to_owned(),
    ];
    let results = batch(&fixture, &operations.join(",")).await;
    let reasons: Vec<_> = results
        .iter()
        .map(|result| result.reason.unwrap())
        .collect();
    use KvReason::{Absent, Exists, Version};
    assert_eq!(reasons, [Exists, Version, Absent, Version, Absent, Exists]);
    assert_eq!(results[0].op, "put", "putIfAbsent comes back as put");
    for lost in [&results[0], &results[1], &results[3], &results[5]] {
        assert!(!lost.applied());
        assert_eq!(lost.value, Some(json!({"by": "first"})));
        assert_eq!(lost.version, won.version);
    }
}

#[tokio::test]
async fn versions_rise_over_writes_deletes_and_expiry() {
    let fixture = Fixture::start().await;
    let mut last = 0;
    for operation in [put("k", "1", ""), put("k", "2", "")] {
        let version = one(&fixture, &operation).await.version.unwrap();
        assert!(version > last);
        last = version;
    }
    let delete = format!(r#"{{"op":"delete","ns":"n","key":"k","expect":{last}}}"#);
    assert!(one(&fixture, &delete).await.applied());
    let again = one(&fixture, &put("k", "3", r#","expect":0"#)).await;
    assert!(again.applied() && again.version.unwrap() > last);
}

#[tokio::test]
async fn an_expired_key_reads_as_absent_and_expect_0_wins_over_it() {
    let fixture = Fixture::start().await;
    let put = r#"{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":1}"#;
    let first = one(&fixture, put).await;
    assert!(first.expires_at.is_some());
    until(|| async { !one(&fixture, &get("k")).await.found() }).await;
    let session = fixture.session().await;
    let kept: i64 = session
        .query_one("SELECT count(*) FROM queen.kv", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(kept, 1, "the row has not been swept yet");
    let page = one(&fixture, r#"{"op":"getPrefix","ns":"n","prefix":"k"}"#).await;
    assert!(page.rows().is_empty());
    let won = one(
        &fixture,
        r#"{"op":"putIfAbsent","ns":"n","key":"k","value":2,"ttlSeconds":60}"#,
    )
    .await;
    assert!(won.applied() && won.version > first.version);
}

#[tokio::test]
async fn a_key_may_live_longer_than_the_calendar() {
    let fixture = Fixture::start().await;
    let most = i64::MAX;
    let put = format!(r#"{{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":{most}}}"#);
    let end = one(&fixture, &put).await.expires_at;
    assert_eq!(end.as_deref(), Some("9999-12-30T00:00:00.000000Z"));
    assert!(one(&fixture, &get("k")).await.found());
}

#[tokio::test]
async fn each_operation_of_a_batch_sees_those_before_it() {
    let fixture = Fixture::start().await;
    let prefix = r#"{"op":"getPrefix","ns":"n","prefix":"k"}"#;
    let delete = r#"{"op":"delete","ns":"n","key":"k1"}"#;
    let operations = [
        put("k1", "1", ""),
        get("k1"),
        prefix.into(),
        delete.into(),
        get("k1"),
        prefix.into(),
    ];
    let results = batch(&fixture, &operations.join(",")).await;
    assert!(results[1].found());
    assert_eq!(results[2].rows().len(), 1);
    assert!(results[3].applied() && !results[4].found());
    assert!(results[5].rows().is_empty());
}

#[tokio::test]
async fn a_required_operation_that_loses_rolls_the_whole_batch_back() {
    let fixture = Fixture::start().await;
    let kept = one(&fixture, &put("lease", r#""mine""#, "")).await;
    let operations = [
        put("doc", "1", ""),
        put("lease", "2", r#","expect":7,"required":true"#),
    ];
    let answer = fixture
        .post(ROUTE, format!("[{}]", operations.join(",")))
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.json(),
        json!({
            "ok": false, "reason": "kv_precondition", "failedIndex": 1, "kvReason": "version",
            "version": kept.version, "value": "mine"
        })
    );
    assert!(!one(&fixture, &get("doc")).await.found());
    // What was asked for happened: it is no error.
    fixture
        .assert_metrics(&[
            "queen_kv_rolled_back_total 1",
            r#"queen_requests_total{route="/api/v1/kv",status="200"} 3"#,
        ])
        .await;
    // Not required: the batch goes on without it.
    let operations = [put("doc", "1", ""), put("lease", "2", r#","expect":7"#)];
    let results = batch(&fixture, &operations.join(",")).await;
    assert!(results[0].applied() && !results[1].applied());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_batches_that_expect_absence_exactly_one_wins() {
    let fixture = Fixture::start().await;
    for round in 0..10 {
        let attempts = (0..8).map(|n| {
            let fixture = &fixture;
            async move {
                let operation = put(
                    &format!("k{round}"),
                    &n.to_string(),
                    r#","expect":0,"required":true"#,
                );
                fixture.post(ROUTE, format!("[{operation}]")).await.json()["results"].is_array()
            }
        });
        let wins = join_all(attempts)
            .await
            .into_iter()
            .filter(|won| *won)
            .count();
        assert_eq!(wins, 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_compare_and_set_loses_no_update() {
    const TASKS: usize = 6;
    const UPDATES: usize = 10;
    let fixture = Fixture::start().await;
    batch(&fixture, &put("count", "0", "")).await;
    let tasks = (0..TASKS).map(|_| async {
        for _ in 0..UPDATES {
            loop {
                let seen = one(&fixture, &get("count")).await;
                let next = seen.value.unwrap().as_i64().unwrap() + 1;
                let more = format!(r#","expect":{}"#, seen.version.unwrap());
                if one(&fixture, &put("count", &next.to_string(), &more))
                    .await
                    .applied()
                {
                    break;
                }
            }
        }
    });
    join_all(tasks).await;
    let count = one(&fixture, &get("count")).await;
    assert_eq!(count.value, Some(json!(TASKS * UPDATES)));
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_over_the_same_keys_in_opposite_orders_both_finish() {
    let fixture = Fixture::start().await;
    let tasks = (0..8).map(|n| {
        let fixture = &fixture;
        async move {
            let mut operations: Vec<String> = (0..10)
                .map(|key| put(&format!("k{key}"), &n.to_string(), ""))
                .collect();
            if n % 2 == 0 {
                operations.reverse();
            }
            for _ in 0..5 {
                batch(fixture, &operations.join(",")).await;
            }
        }
    });
    join_all(tasks).await;
    let page = one(&fixture, r#"{"op":"getPrefix","ns":"n","prefix":"k"}"#).await;
    let values: Vec<_> = page
        .rows()
        .iter()
        .map(|row| row.value.clone().unwrap())
        .collect();
    assert_eq!(values.len(), 10);
    assert!(
        values.iter().all(|value| *value == values[0]),
        "a batch is seen whole: {values:?}"
    );
}

#[tokio::test]
async fn incr_counts_in_integers_within_its_bounds_and_keeps_the_first_expiry() {
    let fixture = Fixture::start().await;
    let incr = |delta: i64, more: &str| {
        format!(r#"{{"op":"incr","ns":"n","key":"c","delta":{delta},"ttlSeconds":100{more}}}"#)
    };
    let first = one(&fixture, &incr(i64::MAX, "")).await;
    let second = one(&fixture, &incr(1, "")).await;
    assert!(second.applied());
    assert_eq!(second.expires_at, first.expires_at);
    let text = fixture.post(ROUTE, format!("[{}]", get("c"))).await.text;
    assert!(text.contains("\"value\":9223372036854775808"), "{text}");
    let limited = one(
        &fixture,
        r#"{"op":"incr","ns":"n","key":"d","delta":6,"max":5,"forever":true}"#,
    )
    .await;
    assert!(!limited.applied());
    assert_eq!(
        (limited.reason, limited.value),
        (Some(KvReason::Limit), Some(json!(0)))
    );
    batch(&fixture, &put("text", r#""x""#, "")).await;
    let wrong = one(
        &fixture,
        r#"{"op":"incr","ns":"n","key":"text","delta":1,"forever":true}"#,
    )
    .await;
    assert_eq!(
        (wrong.reason, wrong.value),
        (Some(KvReason::Type), Some(json!("x")))
    );
}

#[tokio::test]
async fn a_prefix_is_paged_in_byte_order_and_other_keys_stay_out() {
    let fixture = Fixture::start().await;
    let keys = ["s3:a", "s3:B", "s3:ä", "s3:b", "s3;", "s2:z", "s3:a%b"];
    let puts: Vec<String> = keys.iter().map(|key| put(key, "1", "")).collect();
    batch(&fixture, &puts.join(",")).await;
    fixture
        .post(
            ROUTE,
            r#"[{"op":"put","ns":"other","key":"s3:x","value":1,"forever":true}]"#,
        )
        .await;
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let operation = format!(
            r#"{{"op":"getPrefix","ns":"n","prefix":"s3:","limit":2,"after":"{after}","keysOnly":true}}"#
        );
        let page = one(&fixture, &operation).await;
        assert!(page.rows().iter().all(|row| row.value.is_none()));
        seen.extend(page.rows().iter().map(|row| row.key.clone()));
        match page.next_after.clone() {
            Some(next) if page.truncated() => after = next,
            _ => break,
        }
    }
    assert_eq!(seen, ["s3:B", "s3:a", "s3:a%b", "s3:b", "s3:ä"]);
}

#[tokio::test]
async fn a_prefix_page_ends_at_its_bytes_too() {
    let fixture = Fixture::start().await;
    let value = format!("\"{}\"", "x".repeat(60_000));
    for chunk in 0..4 {
        let puts: Vec<String> = (0..50)
            .map(|n| put(&format!("k{:03}", chunk * 50 + n), &value, ""))
            .collect();
        batch(&fixture, &puts.join(",")).await;
    }
    let page = one(
        &fixture,
        r#"{"op":"getPrefix","ns":"n","prefix":"k","limit":1000}"#,
    )
    .await;
    assert!(page.truncated());
    assert!(
        (100..200).contains(&page.rows().len()),
        "{}",
        page.rows().len()
    );
    assert_eq!(
        page.next_after.as_deref(),
        page.rows().last().map(|row| row.key.as_str())
    );
}

#[tokio::test]
async fn get_many_names_what_is_missing() {
    let fixture = Fixture::start().await;
    batch(&fixture, &put("a", "1", "")).await;
    let result = one(
        &fixture,
        r#"{"op":"getMany","ns":"n","keys":["b","a","c"]}"#,
    )
    .await;
    assert_eq!(result.rows().len(), 1);
    assert_eq!(result.missing(), ["b", "c"]);
}

#[tokio::test]
async fn values_come_back_as_they_were_put() {
    let fixture = Fixture::start().await;
    let value = r#"{"n": 12345678901234567890123456789012345678.50, "s":"\ud800\u0000"}"#;
    batch(&fixture, &put("k", value, "")).await;
    let text = fixture.post(ROUTE, format!("[{}]", get("k"))).await.text;
    assert!(text.contains(value), "{text}");
}

#[tokio::test]
async fn a_wrong_batch_is_refused_whole_and_says_where() {
    let fixture = Fixture::start().await;
    let refused = async |operation: &str| -> Answer {
        fixture
            .post(ROUTE, format!("[{},{operation}]", put("k", "1", "")))
            .await
    };
    for (operation, code) in [
        (
            r#"{"op":"put","ns":"n","key":"k","value":1}"#,
            "kv_expiry_not_specified",
        ),
        (
            r#"{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":0}"#,
            "kv_bad_ttl",
        ),
        (r#"{"op":"get","ns":"-n","key":"k"}"#, "kv_bad_namespace"),
        (
            r#"{"op":"getPrefix","ns":"n","prefix":""}"#,
            "kv_prefix_required",
        ),
        (r#"{"op":"rename","ns":"n","key":"k"}"#, "kv_unknown_op"),
    ] {
        let answer = refused(operation).await;
        assert_eq!(answer.status, 400, "{operation}");
        assert_eq!(answer.json()["code"], code);
        assert!(
            answer.error().starts_with("operations[1]"),
            "{}",
            answer.error()
        );
    }
    assert_eq!(
        refused(r#"{"op":"get","ns":"n","key":7}"#).await.status,
        400
    );
    assert!(
        !one(&fixture, &get("k")).await.found(),
        "nothing is written"
    );
}

#[tokio::test]
async fn one_key_has_a_path_of_its_own() {
    let fixture = Fixture::start().await;
    let path = "/api/v1/kv/n/a%2Fb%20c/d";
    let missed: KvResult = fixture.request("GET", path, "").await.typed();
    assert!(!missed.found());
    assert_eq!(missed.key.as_deref(), Some("a/b c/d"));
    let body = r#"{"value":{"x":1},"forever":true,"expect":0,"required":true}"#;
    let won: KvResult = fixture.request("PUT", path, body).await.typed();
    assert!(won.applied());
    let lost = fixture.request("PUT", path, body).await;
    assert_eq!(lost.status, 200);
    assert_eq!(lost.json()["reason"], "kv_precondition");
    let found: KvResult = fixture.request("GET", path, "").await.typed();
    assert_eq!(
        (found.value, found.version),
        (Some(json!({"x": 1})), won.version)
    );
    let named = fixture.request("DELETE", path, r#"{"key":"other"}"#).await;
    assert_eq!(named.status, 400);
    let deleted: KvResult = fixture.request("DELETE", path, "").await.typed();
    assert!(deleted.applied());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_session_is_cut_half_way_writes_nothing_and_may_be_sent_again() {
    let fixture = Fixture::start().await;
    batch(&fixture, &[put("a", "1", ""), put("b", "1", "")].join(",")).await;
    let holder = fixture.session().await;
    holder
        .batch_execute("BEGIN; SELECT 1 FROM queen.kv WHERE key = 'b' FOR UPDATE")
        .await
        .unwrap();
    // The page makes the batch write what comes before it.
    let page = r#"{"op":"getPrefix","ns":"n","prefix":"a"}"#.to_owned();
    let increments = r#"{"op":"incr","ns":"n","key":"count","delta":1,"forever":true}"#.to_owned();
    let operations = [put("a", "2", ""), increments, page, put("b", "2", "")].join(",");
    let body = format!(r#"{{"operations":[{operations}]}}"#);
    let cut = fixture.cut("%INSERT INTO queen.kv%");
    let (answer, ()) = tokio::join!(fixture.post(ROUTE, body.clone()), cut);
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (503, Some("database_unavailable"))
    );
    assert_eq!(answer.retry_after.as_deref(), Some("1"));
    holder.batch_execute("ROLLBACK").await.unwrap();
    let look = format!(r#"{{"operations":[{}]}}"#, get("a"));
    assert_eq!(fixture.post(ROUTE, look).await.status, 200);
    for key in ["a", "b"] {
        assert_eq!(
            one(&fixture, &get(key)).await.value,
            Some(json!(1)),
            "{key}"
        );
    }
    assert!(!one(&fixture, &get("count")).await.found());
    assert_eq!(fixture.post(ROUTE, body).await.status, 200);
    for (key, value) in [("a", 2), ("b", 2), ("count", 1)] {
        assert_eq!(
            one(&fixture, &get(key)).await.value,
            Some(json!(value)),
            "{key}"
        );
    }
}

#[tokio::test]
async fn a_batch_that_the_database_refuses_leaves_its_session_to_the_next_one() {
    let variables = [
        ("QUEEN_PG_CONNECTIONS", "4"),
        ("QUEEN_PG_LOCK_TIMEOUT_MS", "100"),
    ];
    let fixture = Fixture::with(&variables, &[]).await;
    batch(&fixture, &put("a", "1", "")).await;
    let holder = fixture.session().await;
    let sessions = async || {
        let sql =
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'queen' AND state = 'idle'
                   ORDER BY pid";
        let rows = holder.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>()
    };
    let before = sessions().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE queen.kv IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let body = format!(r#"{{"operations":[{}]}}"#, put("a", "2", ""));
    let refused = fixture.post(ROUTE, body).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    holder.batch_execute("ROLLBACK").await.unwrap();
    batch(&fixture, &put("a", "3", "")).await;
    assert_eq!(sessions().await, before);
}

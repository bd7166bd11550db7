use serde_json::json;

use crate::support::{Answer, Fixture};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const SAME_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const OTHER_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const NAME: &str = "QUEEN_ENCRYPTION_KEY";
const FETCH: &str = r#"{"entries":[{"queue":"secret","partition":"p","offset":0},
    {"queue":"plain","partition":"p","offset":0}]}"#;

async fn encrypt(fixture: &Fixture, queue: &str, on: bool) -> Answer {
    let body = json!({"queue": queue, "options": {"encryptionEnabled": on}});
    fixture.post("/api/v1/configure", body.to_string()).await
}

/// The blocks of the queue `secret` as they are stored.
async fn blocks(fixture: &Fixture) -> Vec<Vec<u8>> {
    let sql = "SELECT s.block FROM queen.segments s JOIN queen.partitions p ON p.id = s.partition_id
               JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'secret' ORDER BY s.base_offset";
    let rows = fixture.session().await.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Whether an LZ4 frame begins behind the block's description.
pub fn is_plain(block: &[u8]) -> bool {
    block.get(18..22) == Some(&[0x04, 0x22, 0x4d, 0x18])
}

#[tokio::test]
async fn an_encrypted_queue_is_sealed_in_the_database_and_plain_to_its_readers() {
    let fixture = Fixture::with(&[(NAME, KEY)], &[]).await;
    fixture.push("secret", "p", &["\"before\""]).await;
    assert_eq!(encrypt(&fixture, "secret", true).await.status, 200);
    // The first push learns that the queue is encrypted, the second knows. Both are whole pushes
    // over a queue that is and one that is not.
    for n in [1, 2] {
        let body = format!(
            r#"{{"items":[{{"queue":"secret","partition":"p","payload":"{}{n}"}},
                {{"queue":"plain","partition":"p","payload":{n}}}]}}"#,
            "x".repeat(100_000)
        );
        assert_eq!(fixture.post("/api/v1/push", body).await.status, 201);
    }
    let stored = blocks(&fixture).await;
    let plain: Vec<bool> = stored.iter().map(|block| is_plain(block)).collect();
    assert_eq!(plain, [true, false, false]);
    let answer = fixture.fetch(FETCH).await;
    let payloads: Vec<_> = answer.entries[0]
        .records
        .iter()
        .map(|r| &r.payload)
        .collect();
    assert_eq!(*payloads[0], json!("before"));
    assert_eq!(*payloads[2], json!(format!("{}2", "x".repeat(100_000))));
    assert_eq!(answer.entries[1].records.len(), 2);
    // Switched off, the queue is stored in the clear by brokers that start anew.
    assert_eq!(encrypt(&fixture, "secret", false).await.status, 200);
    let other = fixture.another(&[(NAME, SAME_KEY)]).await;
    let body = r#"{"items":[{"queue":"secret","partition":"p","payload":3}]}"#;
    assert_eq!(
        fixture.post_to(&other, "/api/v1/push", body).await.status,
        201
    );
    assert!(is_plain(&blocks(&fixture).await[3]));
    let answer: queen_protocol::FetchResponse = fixture
        .post_to(&other, "/api/v1/fetch", FETCH)
        .await
        .typed();
    assert_eq!(answer.entries[0].records.len(), 4);
}

#[tokio::test]
async fn a_lost_key_makes_entries_unreadable_and_nothing_else() {
    let fixture = Fixture::with(&[(NAME, KEY)], &[]).await;
    assert_eq!(encrypt(&fixture, "secret", true).await.status, 200);
    fixture.push("secret", "p", &["1"]).await;
    fixture.push("plain", "p", &["2"]).await;
    for variables in [vec![], vec![(NAME, OTHER_KEY)]] {
        let other = fixture.another(&variables).await;
        let answer: queen_protocol::FetchResponse = fixture
            .post_to(&other, "/api/v1/fetch", FETCH)
            .await
            .typed();
        assert_eq!(answer.entries[0].error.as_deref(), Some("UNREADABLE"));
        assert!(answer.entries[0].records.is_empty());
        assert_eq!(answer.entries[0].high_watermark, 1);
        assert_eq!(answer.entries[1].records.len(), 1);
    }
}

#[tokio::test]
async fn a_broker_without_the_key_stores_nothing_of_an_encrypted_queue_in_the_clear() {
    let fixture = Fixture::with(&[(NAME, KEY)], &[]).await;
    assert_eq!(encrypt(&fixture, "secret", true).await.status, 200);
    let keyless = fixture.another(&[]).await;
    let body = r#"{"items":[{"queue":"plain","partition":"p","payload":1},
        {"queue":"secret","partition":"p","payload":1}]}"#;
    let refused = fixture.post_to(&keyless, "/api/v1/push", body).await;
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (503, Some("encryption_key_missing"))
    );
    let segments = fixture.session().await;
    let row = segments
        .query_one("SELECT count(*) FROM queen.segments", &[])
        .await;
    assert_eq!(row.unwrap().get::<_, i64>(0), 0);
    let body = r#"{"queue":"q","options":{"encryptionEnabled":true}}"#;
    let refused = fixture.post_to(&keyless, "/api/v1/configure", body).await;
    assert_eq!(refused.status, 400);
    assert!(refused.error().contains(NAME));
}

//! Pushes to very many partitions.

use queen::admission::Slot;
use queen::session::Session;
use queen::timestamp::Timestamp;
use uuid::Uuid;

use crate::support::Fixture;

const PARTITIONS: i32 = 4_000;

/// Seconds of CPU that the server's process of a session has taken.
async fn cpu(session: &Session) -> f64 {
    let row = session.query_one("SELECT pg_backend_pid()", &[]).await;
    let pid: i32 = row.unwrap().get(0);
    // In nanoseconds, where the ticks of `stat` are as long as a small push takes.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    let (running, _) = stat.split_once(' ').unwrap();
    running.parse::<f64>().unwrap() / 1e9
}

/// Pushes `each` ids to every partition, of which the broker knows nothing, and gives back what that took.
async fn push(session: &Session, each: i32, name: &str) -> f64 {
    const PUSH: &str = "
        SELECT count(*) FILTER (WHERE kind = 0) FROM queen.push_once($1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
            $11, $12, $13, $14, $5, $6, $6, $15, 9223372036854775807)";
    let all = |value: i64| vec![value; PARTITIONS.unsigned_abs() as usize];
    let some = |value: i32| vec![value; PARTITIONS.unsigned_abs() as usize];
    let names: Vec<String> = (0..PARTITIONS).map(|n| n.to_string()).collect();
    let groups: Vec<i32> = (1..=PARTITIONS).collect();
    let blocks = vec![b"block".to_vec(); names.len()];
    let starts: Vec<i32> = (0..PARTITIONS).map(|n| n * each + 1).collect();
    let ids: Vec<Uuid> = (0..PARTITIONS * each)
        .map(|n| {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            bytes[8..8 + name.len()].copy_from_slice(name.as_bytes());
            Uuid::from_bytes(bytes)
        })
        .collect();
    let server: Vec<Option<Timestamp>> = vec![None; names.len()];
    let before = cpu(session).await;
    let written = session
        .query_one(
            PUSH,
            &[
                &Uuid::from_u128(1),
                &vec!["q"; names.len()],
                &names,
                &all(i64::from(each)),
                &groups,
                &all(0),
                &some(each),
                &some(1),
                &all(1),
                &blocks,
                &starts,
                &vec![false; names.len()],
                &ids,
                &server,
                &all(i64::MAX),
            ],
        )
        .await
        .unwrap();
    assert_eq!(written.get::<_, i64>(0), i64::from(PARTITIONS));
    cpu(session).await - before
}

#[tokio::test]
async fn what_an_id_costs_does_not_grow_with_the_ids_of_the_whole_push() {
    let fixture = Fixture::start().await;
    let database = &fixture.broker.broker().database;
    let session = database.client(Slot::default()).await.unwrap();
    push(&session, 1, "made").await;
    let mut few = f64::INFINITY;
    for name in ["few-1", "few-2", "few-3"] {
        few = few.min(push(&session, 1, name).await);
    }
    let mut many = f64::INFINITY;
    for name in ["many-1", "many-2", "many-3"] {
        many = many.min(push(&session, 16, name).await);
    }
    // Sixteen times the ids are a few times the work: most of it is the partitions'.
    assert!(many < few * 3.0, "{many} s, after {few} s");
}

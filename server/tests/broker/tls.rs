//! TLS between the broker and PostgreSQL.
//!
//! The files in `tls/` are a certificate for `localhost`, its key, the authority that it is from, and an
//! authority that it is not from.

use private_postgres::{Options, PrivatePostgres};
use queen::broker::Running;
use queen::config::Config;

use crate::support::{Fixture, config, until};

const CERTIFICATE: &str = include_str!("tls/server.pem");
const KEY: &str = include_str!("tls/server.key");

/// A fixture whose server speaks TLS.
async fn encrypted() -> Fixture {
    let fixture = Fixture::start().await;
    let session = fixture.session().await;
    for (file, text) in [("server.crt", CERTIFICATE), ("server.key", KEY)] {
        let lines: Vec<String> = text.lines().map(|line| format!("('{line}')")).collect();
        // The server writes them itself: they have to be its own, and nobody else's.
        let write = format!(
            "COPY (VALUES {}) TO PROGRAM 'umask 077; cat > {file}'",
            lines.join(", ")
        );
        session.batch_execute(&write).await.unwrap();
    }
    session
        .batch_execute("ALTER SYSTEM SET ssl = on")
        .await
        .unwrap();
    session
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
    until(|| async {
        let row = session.query_one("SHOW ssl", &[]).await.unwrap();
        row.get::<_, String>(0) == "on"
    })
    .await;
    fixture
}

fn over(postgres: &PrivatePostgres, host: &str, mode: &str, authority: &str) -> Config {
    let file = format!(
        "{}/tests/broker/tls/{authority}",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut variables = vec![("PG_HOST", host), ("PG_SSLMODE", mode)];
    if !authority.is_empty() {
        variables.push(("PG_SSLROOTCERT", &file));
    }
    config(postgres, &variables)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_session_is_encrypted_with_a_server_that_proves_its_name() {
    let fixture = encrypted().await;
    let session = fixture.session().await;
    for (mode, authority) in [("require", ""), ("verify-full", "authority.pem")] {
        let over = over(&fixture.postgres, "localhost", mode, authority);
        let broker = Running::start(over).await.unwrap();
        let body = r#"{"items":[{"queue":"q","payload":1,"transactionId":"a"}]}"#;
        assert_eq!(
            fixture.post_to(&broker, "/api/v1/push", body).await.status,
            201
        );
        let listed = r#"{"entries":[{"queue":"q"}]}"#;
        let answer = fixture
            .post_to(&broker, "/api/v1/partitions/changed", listed)
            .await;
        assert_eq!(answer.status, 200);
        let sql = "SELECT count(*) FILTER (WHERE s.ssl), count(*) FROM pg_stat_ssl s
                   JOIN pg_stat_activity a USING (pid)
                   WHERE a.application_name = 'queen' AND a.client_addr IS NOT NULL";
        // The pools and the session that tells of writes.
        until(|| async {
            let row = session.query_one(sql, &[]).await.unwrap();
            row.get::<_, i64>(0) >= 3
        })
        .await;
        let row = session.query_one(sql, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), row.get::<_, i64>(1), "{mode}");
        broker.stop().await.unwrap();
        until(|| async {
            let row = session.query_one(sql, &[]).await.unwrap();
            row.get::<_, i64>(1) == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_prove_its_name_or_does_not_encrypt_is_refused() {
    let fixture = encrypted().await;
    let postgres = &fixture.postgres;
    for (host, authority, reason) in [
        ("localhost", "another-authority.pem", "UnknownIssuer"),
        // The certificate is for another name.
        ("127.0.0.1", "authority.pem", "not valid for name"),
    ] {
        let refused = Running::start(over(postgres, host, "verify-full", authority)).await;
        let error = refused.err().expect("a refusal").to_string();
        assert!(
            error.contains(reason) && error.contains("PG_SSLMODE"),
            "{error}"
        );
    }
    let plain = PrivatePostgres::start(Options::throwaway()).unwrap();
    let refused = Running::start(over(&plain, "localhost", "require", "")).await;
    let error = refused.err().expect("a refusal").to_string();
    assert!(error.contains("server does not support TLS"), "{error}");
}

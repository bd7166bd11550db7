//! A broker on a private PostgreSQL, and a client for both.

use std::future::Future;
use std::time::Duration;

use private_postgres::{Options, PrivatePostgres};
use queen::broker::Running;
use queen::config::Config;
use serde_json::Value;
use tokio_postgres::NoTls;

/// How long a condition may take to come true.
const PATIENCE: Duration = Duration::from_secs(30);

/// A PostgreSQL of the test's own and one broker on it. Both end with the value.
pub struct Fixture {
    // Fields are dropped in order: the broker ends before its database.
    pub broker: Running,
    pub postgres: PrivatePostgres,
    http: reqwest::Client,
}

pub struct Answer {
    pub status: u16,
    pub retry_after: Option<String>,
    pub text: String,
}

impl Answer {
    pub async fn of(response: reqwest::Response) -> Self {
        let retry_after = response.headers().get("retry-after");
        Self {
            status: response.status().as_u16(),
            retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
            text: response.text().await.unwrap(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub fn typed<T: serde::de::DeserializeOwned>(&self) -> T {
        assert!(
            (200..300).contains(&self.status),
            "{}: {}",
            self.status,
            self.text
        );
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }
}

impl Fixture {
    pub async fn start() -> Self {
        Self::with(&[], &[]).await
    }

    /// A broker with these variables, on a server with these settings.
    pub async fn with(variables: &[(&str, &str)], settings: &[(&str, &str)]) -> Self {
        let mut options = Options::throwaway();
        options.settings = settings
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        Self::on(PrivatePostgres::start(options).unwrap(), variables).await
    }

    /// A broker with these variables on `postgres`.
    pub async fn on(postgres: PrivatePostgres, variables: &[(&str, &str)]) -> Self {
        let broker = Running::start(config(&postgres, variables)).await.unwrap();
        Self {
            broker,
            postgres,
            http: reqwest::Client::new(),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.broker.address())
    }

    /// Another broker on the same database.
    pub async fn another(&self, variables: &[(&str, &str)]) -> Running {
        Running::start(config(&self.postgres, variables))
            .await
            .unwrap()
    }

    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        post(&self.http, &self.url(), path, body, None).await
    }

    pub async fn post_to(&self, broker: &Running, path: &str, body: &str) -> Answer {
        let url = format!("http://{}", broker.address());
        post(&self.http, &url, path, body.to_owned(), None).await
    }

    pub async fn post_as(&self, tenant: &str, path: &str, body: &str) -> Answer {
        post(&self.http, &self.url(), path, body.to_owned(), Some(tenant)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        Answer::of(self.http.get(self.url() + path).send().await.unwrap()).await
    }

    pub async fn request(&self, method: &str, path: &str, body: &str) -> Answer {
        let method = method.parse().unwrap();
        let request = self
            .http
            .request(method, self.url() + path)
            .body(body.to_owned());
        Answer::of(request.send().await.unwrap()).await
    }

    /// Pushes payloads to one partition, in one call.
    pub async fn push(&self, queue: &str, partition: &str, payloads: &[&str]) {
        let items: Vec<String> = payloads
            .iter()
            .map(|payload| {
                format!(r#"{{"queue":"{queue}","partition":"{partition}","payload":{payload}}}"#)
            })
            .collect();
        let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
        let answer = self.post("/api/v1/push", body).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
    }

    /// Ends the session of a broker that waits for a lock in a statement like this, as a database does that
    /// fails over.
    pub async fn cut(&self, statement: &str) {
        let session = self.session().await;
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND application_name = 'queen' AND query LIKE $1";
        until(|| async {
            let row = session.query_one(sql, &[&statement]).await.unwrap();
            row.get::<_, i64>(0) == 1
        })
        .await;
    }

    /// A superuser's session of its own.
    pub async fn session(&self) -> tokio_postgres::Client {
        session_of(&self.postgres).await
    }

    pub async fn changed(&self, body: &str) -> queen_protocol::ChangedResponse {
        self.post("/api/v1/partitions/changed", body.to_owned())
            .await
            .typed()
    }

    /// The answer of a fetch by a client that takes segments: its media type and its body.
    pub async fn fetch_segments(&self, body: &str) -> (String, Vec<u8>) {
        self.fetch_as("application/vnd.queen.segments, application/json", body)
            .await
    }

    /// Media type and body of the answer to a fetch by a client that accepts this.
    pub async fn fetch_as(&self, accept: &str, body: &str) -> (String, Vec<u8>) {
        let request = self.http.post(self.url() + "/api/v1/fetch");
        let request = request.header("accept", accept);
        let answer = request.body(body.to_owned()).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let media_type = answer.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        (media_type, answer.bytes().await.unwrap().to_vec())
    }

    pub async fn fetch(&self, body: &str) -> queen_protocol::FetchResponse {
        self.post("/api/v1/fetch", body.to_owned()).await.typed()
    }

    /// Holds `/metrics` to each of `lines`.
    pub async fn assert_metrics(&self, lines: &[&str]) {
        let text = self.get("/metrics").await.text;
        for line in lines {
            assert!(
                text.lines().any(|have| have == *line),
                "{line} is not in\n{text}"
            );
        }
    }

    /// Until `count` fetches are registered to park.
    pub async fn until_parked(&self, count: usize) {
        until(|| async { self.broker.broker().waiters.count() == count }).await;
    }
}

/// A superuser's session of its own.
pub async fn session_of(postgres: &PrivatePostgres) -> tokio_postgres::Client {
    let mut config = tokio_postgres::Config::new();
    config
        .host_path(postgres.socket_dir())
        .port(postgres.port())
        .user(postgres.user())
        .password(postgres.password())
        .dbname(postgres.database());
    connect(&config).await
}

pub async fn connect(config: &tokio_postgres::Config) -> tokio_postgres::Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub fn config(postgres: &PrivatePostgres, variables: &[(&str, &str)]) -> Config {
    Config::from_lookup(|name| {
        if let Some((_, value)) = variables.iter().find(|(key, _)| *key == name) {
            return Some((*value).to_owned());
        }
        match name {
            "PORT" => Some("0".into()),
            // No password is asked there: checking one costs most of a second without optimisation.
            "PG_HOST" => postgres.socket_dir().to_str().map(str::to_owned),
            "PG_PORT" => Some(postgres.port().to_string()),
            "PG_USER" => Some(postgres.user().into()),
            "PG_PASSWORD" => Some(postgres.password().into()),
            "PG_DB" => Some(postgres.database().into()),
            _ => None,
        }
    })
    .unwrap()
}

async fn post(
    http: &reqwest::Client,
    url: &str,
    path: &str,
    body: impl Into<reqwest::Body>,
    tenant: Option<&str>,
) -> Answer {
    let mut request = http.post(format!("{url}{path}")).body(body);
    if let Some(tenant) = tenant {
        request = request.header("x-queen-tenant", tenant);
    }
    Answer::of(request.send().await.unwrap()).await
}

/// Waits until `condition` holds; panics when it does not in time.
pub async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the condition did not come true in time"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

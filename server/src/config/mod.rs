//! The broker's variables: one table, read once at boot.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::auth::Authority;
use crate::embedded::settings::EmbeddedConfig;
use crate::limits::{BESIDES_STATEMENTS, DELETED_GROUP_LEAST, DELIVERY_LEASE_LEAST, MIB};
use crate::log::frame::Compression;
use crate::log::seal::SealKey;
use crate::tls::Tls;

mod reader;
mod variables;

pub use variables::{VARIABLES, Variable};

pub(crate) use reader::Reader;

/// Where the database is.
#[derive(Clone)]
pub struct DatabaseConfig {
    /// Host name, address, or folder of a unix socket.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Role.
    pub user: String,
    /// Password, if the server asks for one.
    pub password: Option<String>,
    /// Database.
    pub database: String,
    /// How connections are protected.
    pub tls: Tls,
    /// Pooled connections at most.
    pub connections: usize,
    /// Longest statement.
    pub statement_timeout: Duration,
    /// Longest wait for a lock.
    pub lock_timeout: Duration,
    /// Longest pause inside a transaction.
    pub idle_timeout: Duration,
    /// What sessions set `synchronous_commit` to; `None` before the server was asked.
    pub synchronous_commit: Option<String>,
}

impl DatabaseConfig {
    /// How long what is settled at delivery is kept from others: longer than taking it, rendering it and
    /// settling it may take, or the records would come again and again.
    pub fn delivery_lease(&self) -> Duration {
        DELIVERY_LEASE_LEAST.max(self.statement_timeout * 2 + BESIDES_STATEMENTS)
    }

    /// How long a deleted group may still be given cursors, by who found it before: longer than a statement,
    /// or these would stay for ever.
    pub fn deleted_group(&self) -> Duration {
        DELETED_GROUP_LEAST.max(self.statement_timeout + BESIDES_STATEMENTS)
    }
}

impl fmt::Debug for DatabaseConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}@{}:{}/{}",
            self.user, self.host, self.port, self.database
        )
    }
}

/// What the lanes admit.
#[derive(Debug, Clone)]
pub struct LaneConfig {
    /// Requests that wait for a slot of one lane at most.
    pub queue: usize,
    /// Longest wait for a slot.
    pub wait: Duration,
    /// Bytes of request bodies and answers in flight, beyond which nothing is admitted.
    pub memory_bytes: usize,
}

/// What a client connection may cost.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Connections at most.
    pub connections: usize,
    /// Longest wait for the head of a request, the idle time before it included.
    pub idle: Duration,
    /// Longest time for a body.
    pub body: Duration,
    /// Longest time for each [`WRITE_STEP_BYTES`](crate::limits::WRITE_STEP_BYTES) of an answer.
    pub write_step: Duration,
}

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// The whole configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address to listen on.
    pub listen_host: IpAddr,
    /// Port to listen on, 0 for a free one.
    pub port: u16,
    /// The database.
    pub database: DatabaseConfig,
    /// Whether any `PG_*` variable names a server: `--dev` brings its own only when none does.
    pub database_named: bool,
    /// How far `safeTime` lies behind when sessions are hidden: whole seconds.
    pub safe_floor: Duration,
    /// How segments are compressed.
    pub compression: Compression,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// The lanes.
    pub lanes: LaneConfig,
    /// Bytes of pushed transaction ids that are remembered; twice as many while room is made.
    pub id_memory_bytes: usize,
    /// Client connections.
    pub http: HttpConfig,
    /// Time between two passes of retention.
    pub retention_interval: Duration,
    /// An empty partition goes after this many days without a write; 0 keeps it.
    pub partition_cleanup_days: i32,
    /// Whether the tenant header is trusted.
    pub tenancy_header: bool,
    /// Who signs the bearer tokens that requests need; without it they need none.
    pub authority: Option<Authority>,
    /// The key of encryption at rest.
    pub seal_key: Option<SealKey>,
    /// The sink that the broker runs, if it runs one.
    pub embedded: Option<EmbeddedConfig>,
    /// Format of the log.
    pub log_format: LogFormat,
    /// Filter of the log.
    pub log_filter: String,
}

/// Everything that is wrong with the environment, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    /// Reads the process's environment.
    ///
    /// # Errors
    ///
    /// All variables that do not parse, together.
    pub fn from_env() -> Result<Self, ConfigErrors> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// Reads variables from `lookup`. A blank value counts as unset, and one that is no UTF-8 is refused.
    ///
    /// # Errors
    ///
    /// All variables that do not parse, together.
    pub fn from_lookup<V: Into<OsString>>(
        lookup: impl Fn(&str) -> Option<V>,
    ) -> Result<Self, ConfigErrors> {
        let lookup = |name: &str| lookup(name).map(Into::into);
        let mut reader = Reader::new(&lookup);
        let millis = |reader: &mut Reader<'_>, name, low| {
            Duration::from_millis(reader.number(name, low, 3_600_000))
        };

        let listen_host = reader.parsed("QUEEN_LISTEN_HOST", IpAddr::from([127, 0, 0, 1]));
        let port = reader.number("PORT", 0, 65_535) as u16;
        let database = DatabaseConfig {
            host: reader.text("PG_HOST"),
            port: reader.number("PG_PORT", 1, 65_535) as u16,
            user: reader.text("PG_USER"),
            password: reader.value("PG_PASSWORD"),
            database: reader.text("PG_DB"),
            tls: tls(&mut reader),
            connections: reader.number("QUEEN_PG_CONNECTIONS", 2, 1_000) as usize,
            statement_timeout: millis(&mut reader, "QUEEN_PG_STATEMENT_TIMEOUT_MS", 100),
            lock_timeout: millis(&mut reader, "QUEEN_PG_LOCK_TIMEOUT_MS", 100),
            idle_timeout: millis(&mut reader, "QUEEN_PG_IDLE_TIMEOUT_MS", 100),
            synchronous_commit: None,
        };
        let database_named = [
            "PG_HOST",
            "PG_PORT",
            "PG_USER",
            "PG_PASSWORD",
            "PG_DB",
            "PG_SSLMODE",
            "PG_SSLROOTCERT",
        ]
        .iter()
        .any(|name| reader.is_set(name));
        let floor_millis = reader.number("QUEEN_FETCH_SAFE_FLOOR_MS", 1_000, 3_600_000);
        let safe_floor = Duration::from_secs(floor_millis.div_ceil(1_000));
        let compression = reader.parsed("QUEEN_SEGMENT_COMPRESSION", Compression::default());
        let max_body_bytes = reader.number("QUEEN_MAX_BODY_MB", 1, 512) as usize * MIB;
        let lanes = LaneConfig {
            queue: reader.number("QUEEN_LANE_QUEUE", 0, 1_000_000) as usize,
            wait: millis(&mut reader, "QUEEN_LANE_WAIT_MS", 0),
            memory_bytes: reader.number("QUEEN_MEMORY_MB", 1, 1_048_576) as usize * MIB,
        };
        let compared = ["QUEEN_MEMORY_MB", "QUEEN_MAX_BODY_MB"];
        if lanes.memory_bytes < max_body_bytes && !reader.is_refused(&compared) {
            let what = format!(
                "{} MiB do not hold one request of QUEEN_MAX_BODY_MB, {} MiB",
                lanes.memory_bytes / MIB,
                max_body_bytes / MIB
            );
            reader.problem("QUEEN_MEMORY_MB", what);
        }
        let id_memory_bytes = reader.number("QUEEN_DEDUP_MEMORY_MB", 1, 1_048_576) as usize * MIB;
        let http = HttpConfig {
            connections: reader.number("QUEEN_HTTP_CONNECTIONS", 1, 1_000_000) as usize,
            idle: millis(&mut reader, "QUEEN_HTTP_IDLE_MS", 100),
            body: millis(&mut reader, "QUEEN_HTTP_BODY_MS", 100),
            write_step: millis(&mut reader, "QUEEN_HTTP_WRITE_MS", 100),
        };
        let retention_interval = millis(&mut reader, "QUEEN_RETENTION_INTERVAL_MS", 100);
        let partition_cleanup_days = reader.number("QUEEN_PARTITION_CLEANUP_DAYS", 0, 3_650) as i32;
        let tenancy_header = reader.flag("QUEEN_TENANCY_HEADER");
        let log_format = match reader.value("QUEEN_LOG_FORMAT").as_deref() {
            Some("json") => LogFormat::Json,
            _ => LogFormat::Human,
        };
        let log_filter = reader.text("RUST_LOG");
        // Not used, and to be text all the same.
        let _ = reader.value("QUEEN_SYNC_SECRET");

        let timeouts = database.statement_timeout + database.lock_timeout + database.idle_timeout;
        let compared = [
            "QUEEN_FETCH_SAFE_FLOOR_MS",
            "QUEEN_PG_STATEMENT_TIMEOUT_MS",
            "QUEEN_PG_LOCK_TIMEOUT_MS",
            "QUEEN_PG_IDLE_TIMEOUT_MS",
        ];
        if timeouts >= safe_floor && !reader.is_refused(&compared) {
            let what = format!(
                "{} ms is not above the longest write of the broker, \
                 QUEEN_PG_STATEMENT_TIMEOUT_MS + QUEEN_PG_LOCK_TIMEOUT_MS + QUEEN_PG_IDLE_TIMEOUT_MS \
                 = {} ms: raise the floor or lower a timeout",
                safe_floor.as_millis(),
                timeouts.as_millis()
            );
            reader.problem("QUEEN_FETCH_SAFE_FLOOR_MS", what);
        }
        let authority = Authority::read(&mut reader);
        let embedded = EmbeddedConfig::read(&mut reader);
        let seal_key = reader.value("QUEEN_ENCRYPTION_KEY").and_then(|text| {
            let key = SealKey::parse(&text);
            if key.is_none() {
                reader.refuse("QUEEN_ENCRYPTION_KEY", &text);
            }
            key
        });

        let problems = reader.into_problems();
        if !problems.is_empty() {
            return Err(ConfigErrors(problems));
        }
        Ok(Self {
            listen_host,
            port,
            database,
            database_named,
            safe_floor,
            compression,
            max_body_bytes,
            lanes,
            id_memory_bytes,
            http,
            retention_interval,
            partition_cleanup_days,
            tenancy_header,
            authority,
            seal_key,
            embedded,
            log_format,
            log_filter,
        })
    }
}

/// What `PG_SSLMODE` and `PG_SSLROOTCERT` say. Whoever names authorities means them to be asked.
fn tls(reader: &mut Reader<'_>) -> Tls {
    let mode = reader.text("PG_SSLMODE");
    let authorities = reader.value("PG_SSLROOTCERT");
    if reader.is_refused(&["PG_SSLROOTCERT"]) {
        return Tls::Off;
    }
    let read = match (mode.trim(), &authorities) {
        ("disable", None) => return Tls::Off,
        ("require", None) => Tls::unverified().map_err(|error| ("PG_SSLMODE", error.to_string())),
        ("verify-full", Some(file)) => Tls::verified(Path::new(file.trim()))
            .map_err(|error| ("PG_SSLROOTCERT", format!("{file:?} {error}"))),
        ("verify-full", None) => Err((
            "PG_SSLROOTCERT",
            "unset; PG_SSLMODE=verify-full needs a file with the certificates of the authorities"
                .into(),
        )),
        ("disable" | "require", Some(_)) => Err((
            "PG_SSLROOTCERT",
            format!(
                "set, and PG_SSLMODE={} asks no authority: set PG_SSLMODE=verify-full",
                mode.trim()
            ),
        )),
        _ => {
            reader.refuse("PG_SSLMODE", &mode);
            return Tls::Off;
        }
    };
    let host = reader.text("PG_HOST");
    if host.starts_with('/') {
        let what = format!(
            "{}, and PG_HOST {host:?} is a unix socket, which is not encrypted: set PG_SSLMODE=disable",
            mode.trim()
        );
        reader.problem("PG_SSLMODE", what);
    }
    read.unwrap_or_else(|(name, what)| {
        reader.problem(name, what);
        Tls::Off
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protected_connection_is_what_was_asked_for_or_refused() {
        let authorities = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/broker/tls/authority.pem"
        );
        let key = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broker/tls/server.key");
        let all = [
            ("PG_SSLMODE", "verify-full"),
            ("PG_SSLROOTCERT", authorities),
        ];
        let config = read(&all).expect("a protected connection");
        assert!(config.database_named && matches!(config.database.tls, Tls::On(_)));
        let config = read(&[("PG_SSLMODE", "require")]).expect("an encrypted connection");
        assert!(matches!(config.database.tls, Tls::On(_)));
        let config = read(&[("PG_SSLMODE", "disable")]).expect("a plain connection");
        assert!(matches!(config.database.tls, Tls::Off));
        for (variables, says) in [
            (vec![("PG_SSLMODE", "prefer")], "PG_SSLMODE: \"prefer\""),
            (vec![("PG_SSLMODE", "verify-full")], "PG_SSLROOTCERT: unset"),
            (
                vec![("PG_SSLROOTCERT", authorities)],
                "set PG_SSLMODE=verify-full",
            ),
            (
                vec![("PG_SSLMODE", "verify-full"), ("PG_SSLROOTCERT", "/absent")],
                "cannot be read",
            ),
            (
                vec![("PG_SSLMODE", "verify-full"), ("PG_SSLROOTCERT", key)],
                "holds no certificate",
            ),
            (
                vec![("PG_SSLMODE", "require"), ("PG_HOST", "/run/postgresql")],
                "unix socket",
            ),
        ] {
            let errors = read(&variables).expect_err(says).to_string();
            assert!(errors.contains(says), "{errors}");
        }
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
        Config::from_lookup(|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_empty_environment_boots_with_the_defaults() {
        let config = read(&[]).expect("defaults");
        assert_eq!(config.port, 6632);
        assert_eq!(config.safe_floor, Duration::from_secs(30));
        assert_eq!(config.max_body_bytes, 64 * MIB);
        assert!(!config.database_named && !config.tenancy_header);
    }

    #[test]
    fn a_blank_value_counts_as_unset() {
        let config = read(&[("PORT", "  "), ("PG_HOST", "")]).expect("blank is unset");
        assert_eq!(config.port, 6632);
        assert!(!config.database_named);
    }

    #[test]
    fn a_value_that_is_no_text_is_refused_by_name_whatever_the_variable() {
        use std::os::unix::ffi::OsStringExt;

        let folder = tempfile::tempdir().expect("a folder");
        let sink = folder.path().join("sink");
        std::fs::write(&sink, "").expect("a file");
        std::fs::set_permissions(&sink, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("permissions");
        for row in VARIABLES {
            for bytes in [&b"\xff\xfe"[..], b"hunter2\xff", b" \xff "] {
                let bytes = OsString::from_vec(bytes.to_vec());
                let errors = Config::from_lookup(|name| match name {
                    _ if name == row.name => Some(bytes.clone()),
                    "JWT_ENABLED" | "QUEEN_S3_EMBEDDED" => Some("true".into()),
                    "JWT_SECRET" => Some("0123456789abcdef0123456789abcdef".into()),
                    "QUEEN_S3_BUCKET" => Some("lake".into()),
                    "QUEEN_S3_BIN" => Some(sink.clone().into()),
                    _ => None,
                })
                .expect_err(row.name);
                let [said] = &errors.0[..] else {
                    panic!("{}: {errors}", row.name);
                };
                let begin = format!("{}: the value is not UTF-8 ", row.name);
                assert!(
                    said.starts_with(&begin) && said.ends_with(row.accepts),
                    "{said}"
                );
                assert!(!said.contains("hunter2") && !said.contains('\u{fffd}'));
            }
        }
    }

    #[test]
    fn what_tokens_are_checked_with_must_parse_before_they_are_asked_for() {
        for (name, value) in [
            ("JWT_ALGORITHM", "foo"),
            ("JWT_CLOCK_SKEW_SECONDS", "x"),
            ("JWT_PUBLIC_KEY", "no key"),
        ] {
            let errors = read(&[(name, value)]).expect_err(name);
            assert!(
                matches!(&errors.0[..], [one] if one.starts_with(name)),
                "{errors}"
            );
        }
        for algorithm in ["HS256", "RS256", "ES256"] {
            let config = read(&[("JWT_ALGORITHM", algorithm)]).expect("no key is needed");
            assert!(config.authority.is_none());
        }
    }

    #[test]
    fn everything_that_does_not_parse_is_reported_together() {
        let errors = read(&[
            ("PORT", "x"),
            ("QUEEN_TENANCY_HEADER", "yes"),
            ("JWT_ENABLED", "true"),
        ])
        .expect_err("three problems");
        assert_eq!(
            errors.0,
            [
                "PORT: \"x\" does not parse; accepted: 0 to 65535",
                "QUEEN_TENANCY_HEADER: \"yes\" does not parse; accepted: true or false",
                "JWT_SECRET: unset, and JWT_ENABLED=true with JWT_ALGORITHM=HS256 needs it",
            ]
        );
    }

    #[test]
    fn what_is_refused_is_compared_with_nothing_else() {
        // Beside each a value that its default would not go with.
        for (name, other, value) in [
            ("QUEEN_MEMORY_MB", "QUEEN_MAX_BODY_MB", "512"),
            ("QUEEN_MAX_BODY_MB", "QUEEN_MEMORY_MB", "1"),
            (
                "QUEEN_FETCH_SAFE_FLOOR_MS",
                "QUEEN_PG_LOCK_TIMEOUT_MS",
                "60000",
            ),
            (
                "QUEEN_PG_STATEMENT_TIMEOUT_MS",
                "QUEEN_FETCH_SAFE_FLOOR_MS",
                "1000",
            ),
            (
                "QUEEN_PG_LOCK_TIMEOUT_MS",
                "QUEEN_FETCH_SAFE_FLOOR_MS",
                "1000",
            ),
            (
                "QUEEN_PG_IDLE_TIMEOUT_MS",
                "QUEEN_FETCH_SAFE_FLOOR_MS",
                "1000",
            ),
        ] {
            let errors = read(&[(name, "1O24"), (other, value)]).expect_err(name);
            let begin = format!("{name}: \"1O24\" does not parse; accepted: ");
            assert!(
                matches!(&errors.0[..], [one] if one.starts_with(&begin)),
                "{errors}"
            );
        }
    }

    #[test]
    fn segments_are_compressed_with_lz4_unless_zstd_is_asked_for() {
        let with = |value| Ok(read(&[("QUEEN_SEGMENT_COMPRESSION", value)])?.compression);
        for (value, compression) in [
            (" ", Compression::Lz4),
            ("lz4", Compression::Lz4),
            ("zstd", Compression::Zstd),
        ] {
            assert_eq!(with(value), Ok(compression));
        }
        let errors: ConfigErrors = with("gzip").expect_err("refused");
        assert_eq!(
            errors.0,
            ["QUEEN_SEGMENT_COMPRESSION: \"gzip\" does not parse; accepted: lz4 or zstd"]
        );
    }

    #[test]
    fn the_floor_is_rounded_up_to_seconds_and_must_exceed_the_write_timeouts() {
        assert_eq!(
            read(&[("QUEEN_FETCH_SAFE_FLOOR_MS", "30001")])
                .expect("a floor")
                .safe_floor,
            Duration::from_secs(31)
        );
        let errors = read(&[("QUEEN_FETCH_SAFE_FLOOR_MS", "25000")]).expect_err("too low");
        assert!(
            errors.to_string().starts_with("QUEEN_FETCH_SAFE_FLOOR_MS"),
            "{errors}"
        );
    }

    #[test]
    fn what_outlives_statements_outlives_the_longest_one_that_may_be_set() {
        for (statement, floor, lease, group) in [
            ("100", "30000", 60, 60),
            ("15000", "30000", 60, 60),
            ("100000", "300000", 230, 130),
            ("3589000", "3600000", 7_208, 3_619),
        ] {
            let set = [
                ("QUEEN_PG_STATEMENT_TIMEOUT_MS", statement),
                ("QUEEN_FETCH_SAFE_FLOOR_MS", floor),
            ];
            let database = read(&set).expect(statement).database;
            assert_eq!(database.delivery_lease(), Duration::from_secs(lease));
            assert_eq!(database.deleted_group(), Duration::from_secs(group));
        }
    }

    #[test]
    fn the_page_for_operators_has_every_row_of_the_table() {
        let page = include_str!("../../../docs/broker.md");
        for Variable {
            name,
            default,
            accepts,
            doc,
            ..
        } in VARIABLES
        {
            let default = match *default {
                "" => "unset".to_owned(),
                default => format!("`{default}`"),
            };
            let row = format!("| `{name}` | {default} | {accepts} | {doc} |");
            assert!(
                page.lines().any(|line| line == row),
                "docs/broker.md lacks\n{row}"
            );
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let config = read(&[("PG_PASSWORD", "hunter2")]).expect("a password");
        assert!(!format!("{config:?}").contains("hunter2"));
        let errors = read(&[("QUEEN_ENCRYPTION_KEY", "hunter2")]).expect_err("refused");
        assert!(!errors.to_string().contains("hunter2"));
    }
}

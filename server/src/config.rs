//! The broker's variables: one table, read once at boot.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::limits::MIB;

/// One environment variable.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What holds when it is unset or blank; empty when nothing does.
    pub default: &'static str,
    /// What it accepts, in words.
    pub accepts: &'static str,
    /// Whether its value must never be shown.
    pub secret: bool,
    /// What it is for.
    pub doc: &'static str,
}

const fn variable(
    name: &'static str,
    default: &'static str,
    accepts: &'static str,
    doc: &'static str,
) -> Variable {
    Variable {
        name,
        default,
        accepts,
        secret: false,
        doc,
    }
}

const fn secret(name: &'static str, accepts: &'static str, doc: &'static str) -> Variable {
    Variable {
        name,
        default: "",
        accepts,
        secret: true,
        doc,
    }
}

/// Every variable the broker reads.
pub const VARIABLES: &[Variable] = &[
    variable(
        "PORT",
        "6632",
        "0 to 65535",
        "The port to listen on; 0 takes a free one, which the boot line names.",
    ),
    variable(
        "QUEEN_LISTEN_HOST",
        "127.0.0.1",
        "an IP address",
        "The address to listen on. The default is loopback: a container sets `0.0.0.0`.",
    ),
    variable(
        "PG_HOST",
        "localhost",
        "a host name, an address or the folder of a unix socket",
        "The PostgreSQL server.",
    ),
    variable("PG_PORT", "5432", "1 to 65535", "Its port."),
    variable(
        "PG_USER",
        "postgres",
        "a role",
        "The role to log in as. Grant it `pg_read_all_stats`, or `safeTime` stays degraded.",
    ),
    secret("PG_PASSWORD", "any text", "The role's password."),
    variable(
        "PG_DB",
        "postgres",
        "a database",
        "The database. The broker keeps everything in its schema `queen`.",
    ),
    variable(
        "QUEEN_PG_CONNECTIONS",
        "16",
        "2 to 1000",
        "Database connections at most, besides one that listens for the other brokers.",
    ),
    variable(
        "QUEEN_PG_STATEMENT_TIMEOUT_MS",
        "15000",
        "100 to 3600000",
        "Longest statement of the broker.",
    ),
    variable(
        "QUEEN_PG_LOCK_TIMEOUT_MS",
        "5000",
        "100 to 3600000",
        "Longest wait for a lock.",
    ),
    variable(
        "QUEEN_PG_IDLE_TIMEOUT_MS",
        "5000",
        "100 to 3600000",
        "Longest pause inside a transaction.",
    ),
    variable(
        "QUEEN_FETCH_SAFE_FLOOR_MS",
        "30000",
        "1000 to 3600000",
        "How far `safeTime` lies behind when sessions are hidden from the broker, rounded up to seconds. The three timeouts above must add up to less.",
    ),
    variable(
        "QUEEN_MAX_BODY_MB",
        "64",
        "1 to 512",
        "Largest request body, in MiB.",
    ),
    variable(
        "QUEEN_TENANCY_HEADER",
        "false",
        "true or false",
        "Whether the header `x-queen-tenant` (a UUID) names the tenant. Only behind a proxy that sets it itself.",
    ),
    variable(
        "QUEEN_LOG_FORMAT",
        "",
        "json for JSON lines; anything else is the human format",
        "The format of the log on standard error.",
    ),
    variable(
        "RUST_LOG",
        "warn,queen=info",
        "a tracing filter",
        "What is logged.",
    ),
    variable(
        "JWT_ENABLED",
        "false",
        "false",
        "Bearer tokens. Not in this release: `true` is refused, so that nothing is open by mistake.",
    ),
    secret(
        "JWT_SECRET",
        "any text",
        "The key of bearer tokens. Not used in this release.",
    ),
    secret(
        "QUEEN_ENCRYPTION_KEY",
        "unset",
        "Payload encryption at rest. Not in this release: setting it is refused, so that nothing is stored in the clear by mistake.",
    ),
    secret(
        "QUEEN_SYNC_SECRET",
        "any text",
        "Accepted and not used: brokers share nothing but the database.",
    ),
    variable(
        "QUEEN_S3_EMBEDDED",
        "false",
        "false",
        "A sink run by the broker. Not in this release: `true` is refused.",
    ),
];

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
    /// Pooled connections at most.
    pub connections: usize,
    /// Longest statement.
    pub statement_timeout: Duration,
    /// Longest wait for a lock.
    pub lock_timeout: Duration,
    /// Longest pause inside a transaction.
    pub idle_timeout: Duration,
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
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Whether the tenant header is trusted.
    pub tenancy_header: bool,
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
        Self::from_lookup(|name| match std::env::var(name) {
            Ok(value) => Some(value),
            Err(std::env::VarError::NotPresent) => None,
            // Not text: no parser takes it, and the value cannot be shown.
            Err(std::env::VarError::NotUnicode(_)) => Some("\u{fffd}".into()),
        })
    }

    /// Reads variables from `lookup`. A blank value counts as unset.
    ///
    /// # Errors
    ///
    /// All variables that do not parse, together.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigErrors> {
        let mut reader = Reader {
            lookup: &lookup,
            problems: Vec::new(),
        };
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
            connections: reader.number("QUEEN_PG_CONNECTIONS", 2, 1_000) as usize,
            statement_timeout: millis(&mut reader, "QUEEN_PG_STATEMENT_TIMEOUT_MS", 100),
            lock_timeout: millis(&mut reader, "QUEEN_PG_LOCK_TIMEOUT_MS", 100),
            idle_timeout: millis(&mut reader, "QUEEN_PG_IDLE_TIMEOUT_MS", 100),
        };
        let database_named = ["PG_HOST", "PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DB"]
            .iter()
            .any(|name| reader.value(name).is_some());
        let floor_millis = reader.number("QUEEN_FETCH_SAFE_FLOOR_MS", 1_000, 3_600_000);
        let safe_floor = Duration::from_secs(floor_millis.div_ceil(1_000));
        let max_body_bytes = reader.number("QUEEN_MAX_BODY_MB", 1, 512) as usize * MIB;
        let tenancy_header = reader.flag("QUEEN_TENANCY_HEADER");
        let log_format = match reader.value("QUEEN_LOG_FORMAT").as_deref() {
            Some("json") => LogFormat::Json,
            _ => LogFormat::Human,
        };
        let log_filter = reader.text("RUST_LOG");

        let timeouts = database.statement_timeout + database.lock_timeout + database.idle_timeout;
        if timeouts >= safe_floor {
            reader.problems.push(format!(
                "QUEEN_FETCH_SAFE_FLOOR_MS: {} ms is not above the longest write of the broker, \
                 QUEEN_PG_STATEMENT_TIMEOUT_MS + QUEEN_PG_LOCK_TIMEOUT_MS + QUEEN_PG_IDLE_TIMEOUT_MS \
                 = {} ms: raise the floor or lower a timeout",
                safe_floor.as_millis(),
                timeouts.as_millis()
            ));
        }
        for name in ["JWT_ENABLED", "QUEEN_S3_EMBEDDED"] {
            if reader.flag(name) {
                reader.problems.push(format!(
                    "{name}: true is not in this release; leave it unset"
                ));
            }
        }
        if reader.value("QUEEN_ENCRYPTION_KEY").is_some() {
            reader.problems.push(
                "QUEEN_ENCRYPTION_KEY: encryption at rest is not in this release; leave it unset"
                    .into(),
            );
        }

        if !reader.problems.is_empty() {
            return Err(ConfigErrors(reader.problems));
        }
        Ok(Self {
            listen_host,
            port,
            database,
            database_named,
            safe_floor,
            max_body_bytes,
            tenancy_header,
            log_format,
            log_filter,
        })
    }
}

struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn row(name: &str) -> &'static Variable {
        VARIABLES
            .iter()
            .find(|row| row.name == name)
            .unwrap_or_else(|| unreachable!("{name} is not in the table of variables"))
    }

    fn value(&self, name: &str) -> Option<String> {
        let row = Self::row(name);
        (self.lookup)(row.name).filter(|value| !value.trim().is_empty())
    }

    fn text(&self, name: &str) -> String {
        self.value(name)
            .unwrap_or_else(|| Self::row(name).default.into())
    }

    fn refuse(&mut self, name: &str, value: &str) {
        let row = Self::row(name);
        let shown = if row.secret {
            String::new()
        } else {
            format!(" {value:?}")
        };
        self.problems.push(format!(
            "{name}:{shown} does not parse; accepted: {}",
            row.accepts
        ));
    }

    fn number(&mut self, name: &str, low: u64, high: u64) -> u64 {
        let text = self.text(name);
        match text.trim().parse::<u64>() {
            Ok(number) if (low..=high).contains(&number) => number,
            _ => {
                self.refuse(name, &text);
                low
            }
        }
    }

    fn flag(&mut self, name: &str) -> bool {
        let text = self.text(name);
        match text.trim() {
            "true" => true,
            "false" => false,
            _ => {
                self.refuse(name, &text);
                false
            }
        }
    }

    fn parsed<T: std::str::FromStr>(&mut self, name: &str, otherwise: T) -> T {
        let text = self.text(name);
        match text.trim().parse() {
            Ok(value) => value,
            Err(_) => {
                self.refuse(name, &text);
                otherwise
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn everything_that_does_not_parse_is_reported_together() {
        let errors = read(&[
            ("PORT", "x"),
            ("QUEEN_TENANCY_HEADER", "yes"),
            ("JWT_ENABLED", "true"),
        ])
        .expect_err("three problems")
        .to_string();
        for part in [
            "PORT: \"x\"",
            "QUEEN_TENANCY_HEADER: \"yes\"",
            "JWT_ENABLED: true is not",
        ] {
            assert!(errors.contains(part), "{errors}");
        }
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
    fn the_page_for_operators_has_every_row_of_the_table() {
        let page = include_str!("../../docs/broker.md");
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

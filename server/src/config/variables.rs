//! The table of variables.

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
        "PG_SSLMODE",
        "disable",
        "disable, require or verify-full",
        "How the connection to PostgreSQL is protected: not at all; encrypted, whoever the server is; encrypted, with a server whose certificate is for `PG_HOST` and from one of `PG_SSLROOTCERT`.",
    ),
    variable(
        "PG_SSLROOTCERT",
        "",
        "a file of certificates in PEM",
        "The authorities that a certificate of the server may be from, with `PG_SSLMODE=verify-full`.",
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
        "Longest statement of the broker. The same on every broker of a database.",
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
        "QUEEN_SEGMENT_COMPRESSION",
        "lz4",
        "lz4 or zstd",
        "How what is pushed is compressed in the database. `lz4` costs who reads it less than half; `zstd` takes a third less room where pushes are large. Either is read, whichever is set.",
    ),
    variable(
        "QUEEN_MAX_BODY_MB",
        "64",
        "1 to 512",
        "Largest request body, in MiB.",
    ),
    variable(
        "QUEEN_MEMORY_MB",
        "512",
        "1 to 1048576",
        "Request bodies and answers in flight, in MiB: while they hold as much, requests are answered 503. At least one largest body.",
    ),
    variable(
        "QUEEN_LANE_QUEUE",
        "1024",
        "0 to 1000000",
        "Requests that wait for a slot of their lane (push, pop, consume, control) at most; one more is answered 429.",
    ),
    variable(
        "QUEEN_LANE_WAIT_MS",
        "5000",
        "0 to 3600000",
        "Longest wait for a slot, and for the transaction ids that a push is compared with; then the request is answered 503.",
    ),
    variable(
        "QUEEN_DEDUP_MEMORY_MB",
        "128",
        "1 to 1048576",
        "Remembered transaction ids of pushes, in MiB, about 5 bytes each; twice as much while they come faster than older ones are indexed.",
    ),
    variable(
        "QUEEN_HTTP_CONNECTIONS",
        "4096",
        "1 to 1000000",
        "Client connections at most; further ones wait to be accepted. The limit of open files lowers it.",
    ),
    variable(
        "QUEEN_HTTP_IDLE_MS",
        "100000",
        "100 to 3600000",
        "Longest wait for the head of a request, the idle time of a kept connection included. Longer than the idle time of clients and load balancers.",
    ),
    variable(
        "QUEEN_HTTP_BODY_MS",
        "60000",
        "100 to 3600000",
        "Longest time for the body of a request; then it is answered 408.",
    ),
    variable(
        "QUEEN_HTTP_WRITE_MS",
        "30000",
        "100 to 3600000",
        "Longest time that a client may take for each MiB of an answer; then its connection is cut.",
    ),
    variable(
        "QUEEN_RETENTION_INTERVAL_MS",
        "10000",
        "100 to 3600000",
        "Pause between two passes of retention.",
    ),
    variable(
        "QUEEN_PARTITION_CLEANUP_DAYS",
        "7",
        "0 to 3650",
        "Days without a write after which an empty partition is removed; 0 keeps it for ever.",
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
        "true or false",
        "Whether requests need a bearer token. The variables below it are needed only then, and have to parse always.",
    ),
    variable(
        "JWT_ALGORITHM",
        "HS256",
        "HS256, RS256 or ES256",
        "What tokens are signed with; any other signature is refused.",
    ),
    secret(
        "JWT_SECRET",
        "any text",
        "The key of HS256, 32 bytes or more.",
    ),
    variable(
        "JWT_PUBLIC_KEY",
        "",
        "a public key as PEM text",
        "The key of RS256 and ES256.",
    ),
    variable(
        "JWT_AUDIENCE",
        "",
        "any text",
        "The `aud` that tokens must carry.",
    ),
    variable(
        "JWT_ISSUER",
        "",
        "any text",
        "The `iss` that tokens must carry.",
    ),
    variable(
        "JWT_CLOCK_SKEW_SECONDS",
        "30",
        "0 to 3600",
        "How far the clocks of issuer and broker may differ for `exp` and `nbf`.",
    ),
    variable(
        "JWT_ROLE_CLAIM",
        "role",
        "the name of a claim",
        "Where tokens carry their role, or a list of roles: `read-only`, `read-write` or `admin`.",
    ),
    secret(
        "QUEEN_ENCRYPTION_KEY",
        "32 bytes, in hexadecimal digits or base64",
        "The key of encryption at rest, for queues with `encryptionEnabled`. The same on every broker of a database.",
    ),
    secret(
        "QUEEN_SYNC_SECRET",
        "any text",
        "Accepted and not used: brokers share nothing but the database.",
    ),
    variable(
        "QUEEN_S3_EMBEDDED",
        "false",
        "true or false",
        "`true` runs the sink as a child of the broker. Off, none of the five variables below it is read.",
    ),
    variable(
        "QUEEN_S3_BIN",
        "",
        "an executable file",
        "The sink's binary. Unset, it is `queen-s3` beside the broker's own executable.",
    ),
    variable(
        "QUEEN_S3_SHUTDOWN_GRACE_MS",
        "30000",
        "0 to 3600000",
        "How long a stopping sink has between SIGTERM and SIGKILL; at least 100 ms, whatever is set.",
    ),
    variable(
        "QUEEN_S3_BUCKET",
        "",
        "a bucket",
        "Read by the sink; the broker refuses to embed one that has none.",
    ),
    variable(
        "QUEEN_URL",
        "",
        "an http or https URL",
        "Where the embedded sink reaches Queen. Unset, it is the broker's own listener over loopback.",
    ),
    secret(
        "QUEEN_TOKEN",
        "any text",
        "Read by the sink, as its bearer token; the broker warns when it demands tokens and the sink has none.",
    ),
];

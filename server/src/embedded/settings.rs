//! What the broker reads to embed a sink, and what it refuses.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access};
use url::Url;

use crate::config::Reader;
use crate::limits::SINK_GRACE_MIN;

/// The binary beside the broker's executable.
const PROGRAM: &str = "queen-s3";
/// Longest grace of a stop, in milliseconds.
const GRACE_MAX_MS: u64 = 3_600_000;

/// How to run the sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// Its binary.
    pub program: PathBuf,
    /// Between SIGTERM and SIGKILL, at least [`SINK_GRACE_MIN`].
    pub grace: Duration,
    /// Where it reaches Queen, when that is not the broker's own listener.
    pub queen_url: Option<String>,
    /// Whether it is given a bearer token.
    pub has_token: bool,
}

impl EmbeddedConfig {
    /// Reads the variables; `None` when the sink is off, and then nothing else is read.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        if !reader.flag("QUEEN_S3_EMBEDDED") {
            return None;
        }
        let grace = reader.number("QUEEN_S3_SHUTDOWN_GRACE_MS", 0, GRACE_MAX_MS);
        let bucket = reader.value("QUEEN_S3_BUCKET");
        if bucket.is_none() && !reader.is_refused(&["QUEEN_S3_BUCKET"]) {
            reader.problem(
                "QUEEN_S3_BUCKET",
                "unset, and the embedded sink cannot run without one; set QUEEN_S3_ENDPOINT, \
                 QUEEN_S3_REGION, QUEEN_S3_BUCKET and QUEEN_S3_QUEUES, or unset QUEEN_S3_EMBEDDED",
            );
        }
        let named = reader.value("QUEEN_S3_BIN");
        // What is no text has been refused already, and does not stand for the default.
        let program = if reader.is_refused(&["QUEEN_S3_BIN"]) {
            PathBuf::new()
        } else {
            program(named).unwrap_or_else(|problem| {
                reader.problem("QUEEN_S3_BIN", problem);
                PathBuf::new()
            })
        };
        Some(Self {
            program,
            grace: Duration::from_millis(grace).max(SINK_GRACE_MIN),
            queen_url: queen_url(reader),
            has_token: reader.value("QUEEN_TOKEN").is_some(),
        })
    }
}

/// `QUEEN_URL` as the sink will read it: what it would refuse is refused here, where it is no crash loop.
fn queen_url(reader: &mut Reader<'_>) -> Option<String> {
    let value = reader.value("QUEEN_URL")?;
    let text = value.trim();
    let taken = text.bytes().all(|byte| byte.is_ascii_graphic())
        && Url::parse(text).is_ok_and(|url| {
            // The parser mends `http:host`.
            let whole = text.contains("://") && matches!(url.scheme(), "http" | "https");
            let plain = url.username().is_empty() && url.password().is_none();
            whole && plain && url.query().is_none() && url.fragment().is_none()
        });
    if !taken {
        let shown = if text.contains(['@', '?', '#']) {
            "the value (it may hold a secret, not shown)".to_owned()
        } else {
            format!("{text:?}")
        };
        let what = format!(
            "{shown} is refused; accepted: an http or https URL without user, password, query and fragment"
        );
        reader.problem("QUEEN_URL", what);
    }
    Some(text.to_owned())
}

/// The binary named, or the one beside this executable: absolute, a file, executable.
fn program(named: Option<String>) -> Result<PathBuf, String> {
    let path = match &named {
        Some(named) => std::path::absolute(named.trim())
            .map_err(|error| format!("{named:?} is no path: {error}"))?,
        None => std::env::current_exe()
            .map_err(|error| format!("unset, and the broker cannot tell its own folder: {error}"))?
            .with_file_name(PROGRAM),
    };
    check(&path)
        .map(|()| path.clone())
        .map_err(|problem| match named {
            Some(_) => format!("{} {problem}", path.display()),
            None => format!(
                "unset, and {} beside the broker's executable {problem}",
                path.display()
            ),
        })
}

fn check(path: &Path) -> Result<(), String> {
    if !path.is_file() {
        return Err("is not a file; name the queen-s3 binary".into());
    }
    access(path, Access::EXEC_OK)
        .map_err(|error| format!("cannot be executed ({error}); give it its execute bit"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use crate::config::Config;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, String> {
        Config::from_lookup(|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
        .map_err(|errors| errors.to_string())
    }

    fn executable(folder: &tempfile::TempDir, mode: u32) -> String {
        let path = folder.path().join("sink");
        std::fs::write(&path, "#!/bin/sh\n").expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("permissions");
        path.to_str().expect("text").to_owned()
    }

    #[test]
    fn off_reads_nothing_of_the_sink() {
        let config = read(&[
            ("QUEEN_S3_BIN", "/nowhere"),
            ("QUEEN_S3_SHUTDOWN_GRACE_MS", "soon"),
        ])
        .expect("the broker alone");
        assert_eq!(config.embedded, None);
    }

    #[test]
    fn a_grace_is_thirty_seconds_and_never_below_a_tenth() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = executable(&folder, 0o755);
        let with = |grace: &str| {
            read(&[
                ("QUEEN_S3_EMBEDDED", "true"),
                ("QUEEN_S3_BIN", &program),
                ("QUEEN_S3_BUCKET", "lake"),
                ("QUEEN_S3_SHUTDOWN_GRACE_MS", grace),
                ("QUEEN_URL", "  "),
            ])
            .map(|config| config.embedded.expect("on"))
        };
        assert_eq!(with("").expect("default").grace.as_millis(), 30_000);
        assert_eq!(with("0").expect("floored").grace.as_millis(), 100);
        assert_eq!(with("").expect("blank").queen_url, None);
        assert!(with("soon").expect_err("refused").contains("GRACE_MS"));
    }

    #[test]
    fn a_url_that_the_sink_would_refuse_is_refused_at_boot() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = executable(&folder, 0o755);
        let with = |url: &str, embedded: &str| {
            read(&[
                ("QUEEN_S3_EMBEDDED", embedded),
                ("QUEEN_S3_BIN", &program),
                ("QUEEN_S3_BUCKET", "lake"),
                ("QUEEN_URL", url),
            ])
            .map(|config| config.embedded.and_then(|sink| sink.queen_url))
        };
        for url in [
            "http://queen-proxy:6711",
            "HTTPS://queen.example/base/",
            " http://[::1]:6632 ",
        ] {
            assert_eq!(with(url, "true").expect(url).as_deref(), Some(url.trim()));
        }
        for url in [
            "nonsense",
            "localhost:6632",
            "ftp://queen:6632",
            "http:queen:6632",
            "http://",
            "http://queen:66320",
            "http://[::1",
            "http://two words",
            "http://queen/?hunter2",
            "http://queen/#hunter2",
            "http://queen:hunter2@host",
            "http://hunter2@host",
        ] {
            let error = with(url, "true").expect_err(url);
            assert!(error.starts_with("QUEEN_URL: "), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
            assert_eq!(with(url, "false"), Ok(None));
        }
    }

    #[test]
    fn what_would_crash_in_a_loop_is_refused_at_boot() {
        let folder = tempfile::tempdir().expect("a folder");
        let on = ("QUEEN_S3_EMBEDDED", "true");
        let bucket = ("QUEEN_S3_BUCKET", "lake");
        let text = folder.path().to_str().expect("text").to_owned();
        let error = read(&[on, bucket, ("QUEEN_S3_BIN", &text)]).expect_err("a folder");
        assert!(error.contains("QUEEN_S3_BIN") && error.contains("not a file"));
        let plain = executable(&folder, 0o644);
        let error = read(&[on, bucket, ("QUEEN_S3_BIN", &plain)]).expect_err("no execute bit");
        assert!(error.contains("execute bit"), "{error}");
        let program = executable(&folder, 0o755);
        let error = read(&[on, ("QUEEN_S3_BIN", &program)]).expect_err("no bucket");
        for name in ["ENDPOINT", "REGION", "BUCKET", "QUEUES"] {
            assert!(error.contains(&format!("QUEEN_S3_{name}")), "{error}");
        }
    }
}

//! Variables of an environment.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use queen_s3::config::{Config, Identity};
use queen_s3::limits::{KEY_BYTES, MIB};
use queen_s3::observe::boot_line::BootLine;

use super::{Verdict, ensure};

/// Stands at the head of every secret, so that its way can be followed.
const MARK: &str = "S3CRET-MARK-";
const SECRETS: [&str; 3] = ["QUEEN_TOKEN", "QUEEN_S3_ACCESS_KEY", "QUEEN_S3_SECRET_KEY"];
/// Longest word about one variable.
const PROBLEM_BYTES: usize = 2_000;

/// Lines of `NAME=value`; the value of a secret gets the mark.
pub fn taken_or_refused(input: &[u8]) -> Result<Verdict, String> {
    let mut variables: HashMap<String, Vec<u8>> = HashMap::new();
    for line in input.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b'=');
        let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let Some(value) = parts.next() else { continue };
        let blank = value.iter().all(u8::is_ascii_whitespace);
        let marked = match SECRETS.contains(&name.as_str()) && !blank {
            true => [MARK.as_bytes(), value].concat(),
            false => value.to_vec(),
        };
        variables.insert(name, marked);
    }
    let lookup = |name: &str| {
        let value = variables.get(name)?;
        Some(OsStr::from_bytes(value).to_owned())
    };
    let config = match Config::from_lookup(lookup) {
        Ok(config) => config,
        Err(problems) => {
            ensure(!problems.is_empty(), || "refused without a word".into())?;
            for problem in problems {
                let said = problem.to_string();
                let fine = said.starts_with(problem.variable)
                    && said.len() <= PROBLEM_BYTES
                    && !said.contains(MARK);
                ensure(fine, || format!("about {}: {said}", problem.variable))?;
            }
            return Ok(Verdict::Refused);
        }
    };
    let identity = Identity::resolve(config.instance.as_deref(), Some("host"));
    let line = BootLine {
        config: &config,
        identity: &identity,
    };
    for said in [line.to_string(), format!("{config:?}")] {
        ensure(!said.contains(MARK), || format!("a secret is told: {said}"))?;
    }
    let one_line = !line.to_string().chars().any(char::is_control);
    ensure(one_line, || format!("more than a line: {line}"))?;
    let mib = MIB as u64;
    let within = (mib..=5_120 * mib).contains(&config.target_bytes)
        && (5 * mib..=5_120 * mib).contains(&config.multipart_threshold_bytes)
        && (1..=256).contains(&config.fetch_concurrency)
        && (100..=86_400_000).contains(&config.max_window.as_millis())
        && (1_000..=3_600_000).contains(&config.lease_ttl.as_millis())
        && config.prefix.len() < KEY_BYTES
        && !config.prefix.starts_with('/')
        && !config.bucket.contains('/');
    ensure(within, || format!("out of range: {config:?}"))?;
    Ok(Verdict::Accepted)
}

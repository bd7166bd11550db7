//! The one line that says what this process is configured to do.

use std::fmt;

use crate::config::{Config, Identity, Queues, Secret, Sse};
use crate::lake::Format;
use crate::limits::MIB;

/// Characters of a KMS key's id that are shown: enough to confirm the key, not to name it.
const KMS_KEY_TAIL_CHARS: usize = 4;

/// Prints the boot line. Every value is spelled as the environment spells it, so that the line
/// can be pasted back into a manifest, and no secret is in it.
#[derive(Clone, Copy, Debug)]
pub struct BootLine<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The lease identity.
    pub identity: &'a Identity,
}

impl fmt::Display for BootLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, identity } = self;
        write!(
            f,
            "queen-s3 {} sink={}",
            env!("CARGO_PKG_VERSION"),
            config.sink
        )?;
        write!(f, " instance={}", identity.name)?;
        if identity.generated {
            f.write_str(" instance_from=generated")?;
        }
        write!(f, " queues={} partitions=discovery", Listed(&config.queues))?;
        write!(
            f,
            " queen={} token={}",
            config.queen(),
            presence(config.token.as_ref())
        )?;
        write!(f, " s3={} bucket={}", config.endpoint, config.bucket)?;
        write!(f, " prefix={} region={}", config.prefix, config.region)?;
        let addressing = if config.path_style {
            "path-style"
        } else {
            "virtual-host"
        };
        write!(f, " addressing={addressing} {}", Encrypted(&config.sse))?;
        let shape = config.shape;
        let compression = match shape.format {
            Format::Jsonl => "compression",
            Format::Parquet => "parquet_codec",
        };
        write!(
            f,
            " format={} {compression}={}",
            shape.format, shape.compression
        )?;
        write!(f, " layout={} align={}", shape.layout, shape.align)?;
        write!(f, " target_mb={}", config.target_bytes / MIB as u64)?;
        write!(f, " max_window_ms={}", config.max_window.as_millis())?;
        write!(f, " start={}", config.start)?;
        write!(f, " checkpoint_every={}", config.checkpoint_every)?;
        write!(f, " memory_mb={}", config.memory_bytes / MIB)?;
        write!(f, " fetch_concurrency={}", config.fetch_concurrency)?;
        write!(
            f,
            " discovery_interval_ms={}",
            config.discovery_interval.as_millis()
        )?;
        write!(f, " safe_guard_ms={}", config.safe_guard.as_millis())?;
        write!(f, " lease_ttl_ms={}", config.lease_ttl.as_millis())?;
        let threshold = config.multipart_threshold_bytes / MIB as u64;
        write!(f, " multipart_threshold_mb={threshold}")?;
        write!(f, " listen={} crash_at={}", config.listen, config.crash_at)
    }
}

fn presence(secret: Option<&Secret>) -> &'static str {
    if secret.is_some() { "<set>" } else { "<unset>" }
}

struct Listed<'a>(&'a Queues);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Queues::All => f.write_str("*"),
            Queues::Named(names) => f.write_str(&names.join(",")),
        }
    }
}

struct Encrypted<'a>(&'a Sse);

impl fmt::Display for Encrypted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Sse::Unset => f.write_str("sse=<unset>"),
            Sse::Aes256 => f.write_str("sse=AES256"),
            Sse::AwsKms { key_id: None } => f.write_str("sse=aws:kms sse_kms_key_id=<unset>"),
            Sse::AwsKms { key_id: Some(key) } => {
                let hidden = key.chars().count().saturating_sub(KMS_KEY_TAIL_CHARS);
                let tail: String = key.chars().skip(hidden).collect();
                write!(f, "sse=aws:kms sse_kms_key_id=...{tail}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn line(changes: &[(&str, &str)], identity: Identity) -> String {
        let config = Config::from_lookup(|name| {
            let changed = changes
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| *value);
            let value = changed.or(match name {
                "QUEEN_S3_QUEUES" => Some("orders,clicks"),
                "QUEEN_S3_ENDPOINT" => Some("https://s3.eu-central-1.amazonaws.com"),
                "QUEEN_S3_REGION" => Some("eu-central-1"),
                "QUEEN_S3_BUCKET" => Some("my-lake"),
                "QUEEN_S3_ACCESS_KEY" => Some("AKIAEXAMPLE"),
                "QUEEN_S3_SECRET_KEY" => Some("hunter2"),
                _ => None,
            });
            value.map(OsString::from)
        })
        .expect("a configuration");
        BootLine {
            config: &config,
            identity: &identity,
        }
        .to_string()
    }

    fn named() -> Identity {
        Identity {
            name: "sink-0".into(),
            generated: false,
        }
    }

    #[test]
    fn the_line_is_the_documented_one() {
        let line = line(
            &[("QUEEN_TOKEN", "hunter2"), ("QUEEN_S3_SSE", "AES256")],
            named(),
        );
        assert_eq!(
            line,
            concat!(
                "queen-s3 ",
                env!("CARGO_PKG_VERSION"),
                " sink=default instance=sink-0 queues=orders,clicks partitions=discovery",
                " queen=http://localhost:6632 token=<set> s3=https://s3.eu-central-1.amazonaws.com",
                " bucket=my-lake prefix=queen region=eu-central-1 addressing=virtual-host",
                " sse=AES256 format=jsonl compression=zstd layout=merged align=hour target_mb=128",
                " max_window_ms=300000 start=latest checkpoint_every=20 memory_mb=1024",
                " fetch_concurrency=4 discovery_interval_ms=2000 safe_guard_ms=5000",
                " lease_ttl_ms=30000 multipart_threshold_mb=64 listen=127.0.0.1:9333",
                " crash_at=never",
            )
        );
    }

    #[test]
    fn words_are_spelled_as_the_environment_spells_them() {
        let line = line(
            &[
                ("QUEEN_S3_QUEUES", "*"),
                ("QUEEN_S3_LAYOUT", "per-partition"),
                ("QUEEN_S3_FORMAT", "parquet"),
                ("QUEEN_S3_PARQUET_CODEC", "snappy"),
                ("QUEEN_S3_PATH_STYLE", "true"),
                ("QUEEN_S3_CRASH_AT", "after_intent"),
            ],
            named(),
        );
        for part in [
            " queues=* ",
            " token=<unset> ",
            " sse=<unset> format=parquet parquet_codec=snappy layout=per-partition ",
            " addressing=path-style ",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(line.ends_with(" crash_at=after_intent"), "{line}");
    }

    #[test]
    fn a_kms_key_is_shown_by_its_last_four_characters() {
        let kms = ("QUEEN_S3_SSE", "aws:kms");
        let key = (
            "QUEEN_S3_SSE_KMS_KEY_ID",
            "1234abcd-12ab-34cd-56ef-1234567890ab",
        );
        assert!(line(&[kms, key], named()).contains(" sse=aws:kms sse_kms_key_id=...90ab format="));
        assert!(line(&[kms], named()).contains(" sse=aws:kms sse_kms_key_id=<unset> format="));
    }

    #[test]
    fn a_generated_instance_is_reported_as_such() {
        let line = line(
            &[],
            Identity {
                name: "queen-s3-1".into(),
                generated: true,
            },
        );
        assert!(
            line.contains(" instance=queen-s3-1 instance_from=generated queues="),
            "{line}"
        );
    }

    #[test]
    fn no_secret_is_in_the_line() {
        let line = line(&[("QUEEN_TOKEN", "hunter2")], named());
        assert!(
            !line.contains("hunter2") && !line.contains("AKIA"),
            "{line}"
        );
    }
}

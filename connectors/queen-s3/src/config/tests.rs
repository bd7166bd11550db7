use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::*;

/// The least that boots.
const REQUIRED: [(&str, &str); 6] = [
    ("QUEEN_S3_QUEUES", "orders,clicks"),
    ("QUEEN_S3_ENDPOINT", "https://s3.eu-central-1.amazonaws.com"),
    ("QUEEN_S3_REGION", "eu-central-1"),
    ("QUEEN_S3_BUCKET", "my-lake"),
    ("QUEEN_S3_ACCESS_KEY", "AKIAEXAMPLE"),
    ("QUEEN_S3_SECRET_KEY", "a/secret+of=yours"),
];

fn read(changes: &[(&str, &str)]) -> Result<Config, Vec<Problem>> {
    let mut variables: BTreeMap<&str, &str> = REQUIRED.into_iter().collect();
    variables.extend(changes.iter().copied());
    Config::from_lookup(|name| variables.get(name).map(OsString::from))
}

/// What the only problem of these changes prints.
fn problem(changes: &[(&str, &str)]) -> String {
    let problems = read(changes).expect_err("a refusal");
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].to_string()
}

#[test]
fn the_required_variables_are_enough_and_the_rest_has_the_documented_defaults() {
    let config = read(&[]).expect("a configuration");
    insta::assert_debug_snapshot!(config);
}

#[test]
fn every_default_of_the_table_parses() {
    for variable in VARIABLES {
        if let DefaultValue::Value(default) = variable.default {
            read(&[(variable.name, default)]).expect(variable.name);
        }
    }
}

#[test]
fn every_word_of_the_table_has_a_meaning() {
    for variable in VARIABLES {
        if let Accepts::Words(words) = variable.accepts {
            for word in words {
                read(&[(variable.name, word)]).expect(variable.name);
            }
        }
    }
}

#[test]
fn every_number_is_taken_at_both_ends_of_its_range_and_refused_past_them() {
    for variable in VARIABLES {
        let Accepts::Number { min, max } = variable.accepts else {
            continue;
        };
        for taken in [min, max] {
            read(&[(variable.name, &taken.to_string())]).expect(variable.name);
        }
        for refused in [min.checked_sub(1), Some(max + 1)].into_iter().flatten() {
            let text = problem(&[(variable.name, &refused.to_string())]);
            assert_eq!(
                text,
                format!(
                    "{}: \"{refused}\" is refused; accepted: a whole number from {min} to {max}",
                    variable.name
                )
            );
        }
    }
}

#[test]
fn what_is_no_whole_number_is_refused() {
    for text in [
        "128MB",
        "1.5",
        "-1",
        "+1",
        "0x10",
        "1e3",
        "99999999999999999999",
        "١",
    ] {
        assert!(problem(&[("QUEEN_S3_TARGET_MB", text)]).starts_with("QUEEN_S3_TARGET_MB: "));
    }
}

#[test]
fn every_word_must_be_spelled_exactly() {
    for (variable, text, accepted) in [
        ("QUEEN_S3_FORMAT", "JSONL", "jsonl or parquet"),
        ("QUEEN_S3_COMPRESSION", "snappy", "zstd, gzip or none"),
        ("QUEEN_S3_PARQUET_CODEC", "gzip", "zstd or snappy"),
        (
            "QUEEN_S3_LAYOUT",
            "per_partition",
            "merged or per-partition",
        ),
        ("QUEEN_S3_ALIGN", "week", "hour, day or none"),
        ("QUEEN_S3_START", "newest", "latest or earliest"),
        ("QUEEN_S3_SSE", "aes256", "AES256 or aws:kms"),
        ("QUEEN_S3_PATH_STYLE", "yes", "true or false"),
        (
            "QUEEN_S3_CRASH_AT",
            "always",
            "never, after_intent, mid_upload, after_upload, before_commit or after_commit",
        ),
    ] {
        assert_eq!(
            problem(&[(variable, text)]),
            format!("{variable}: {text:?} is refused; accepted: {accepted}")
        );
    }
}

#[test]
fn a_codec_that_the_format_does_not_use_is_checked_all_the_same() {
    let text = problem(&[
        ("QUEEN_S3_FORMAT", "parquet"),
        ("QUEEN_S3_COMPRESSION", "lz4"),
    ]);
    assert!(text.starts_with("QUEEN_S3_COMPRESSION: \"lz4\""), "{text}");
}

#[test]
fn the_codec_of_the_format_counts() {
    let both = [
        ("QUEEN_S3_COMPRESSION", "gzip"),
        ("QUEEN_S3_PARQUET_CODEC", "snappy"),
    ];
    assert_eq!(
        read(&both).expect("valid").shape.compression,
        Compression::Gzip
    );
    let parquet = [both[0], both[1], ("QUEEN_S3_FORMAT", "parquet")];
    assert_eq!(
        read(&parquet).expect("valid").shape.compression,
        Compression::Snappy
    );
}

#[test]
fn a_blank_value_counts_as_unset() {
    for variable in VARIABLES {
        let unset = Config::from_lookup(|name| {
            let known = REQUIRED
                .iter()
                .find(|(known, _)| *known == name && name != variable.name);
            known.map(|(_, value)| value.into())
        });
        for blank in ["", " ", "\t\n"] {
            let read = read(&[(variable.name, blank)]);
            assert_eq!(
                format!("{read:?}"),
                format!("{unset:?}"),
                "{}",
                variable.name
            );
        }
    }
}

#[test]
fn space_around_a_value_is_dropped() {
    let config = read(&[
        ("QUEEN_S3_TARGET_MB", " 64\n"),
        ("QUEEN_S3_QUEUES", " orders , clicks "),
        ("QUEEN_S3_SECRET_KEY", "from-a-file\n"),
    ])
    .expect("a configuration");
    assert_eq!(config.target_bytes, 64 * MIB as u64);
    assert_eq!(
        config.queues,
        Queues::Named(vec!["orders".into(), "clicks".into()])
    );
    assert_eq!(config.secret_key.expose(), "from-a-file");
}

#[test]
fn every_problem_is_reported_at_once_in_the_order_of_the_table() {
    let problems = Config::from_lookup(|name| {
        (name == "QUEEN_S3_FORMAT" || name == "RUST_LOG").then(|| "a=b=c".into())
    })
    .expect_err("nothing is set");
    let variables: Vec<_> = problems.iter().map(|problem| problem.variable).collect();
    assert_eq!(
        variables,
        [
            "QUEEN_S3_QUEUES",
            "QUEEN_S3_ENDPOINT",
            "QUEEN_S3_REGION",
            "QUEEN_S3_BUCKET",
            "QUEEN_S3_ACCESS_KEY",
            "QUEEN_S3_SECRET_KEY",
            "QUEEN_S3_FORMAT",
            "RUST_LOG",
        ]
    );
    assert_eq!(
        problems[3].to_string(),
        "QUEEN_S3_BUCKET: is required and unset; accepted: one bucket name without a slash or a \
         space"
    );
}

#[test]
fn what_is_not_utf_8_is_a_problem_and_not_a_missing_value() {
    for variable in [
        "QUEEN_S3_BUCKET",
        "QUEEN_TOKEN",
        "QUEEN_S3_TARGET_MB",
        "RUST_LOG",
    ] {
        let problems = Config::from_lookup(|name| {
            if name == variable {
                return Some(OsString::from_vec(vec![b'a', 0xff]));
            }
            REQUIRED
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.into())
        })
        .expect_err("a refusal");
        assert_eq!(problems.len(), 1, "{problems:?}");
        let text = problems[0].to_string();
        assert!(text.starts_with(&format!("{variable}: the value is not UTF-8; accepted: ")));
    }
}

#[test]
fn a_refused_secret_is_not_shown() {
    for variable in ["QUEEN_TOKEN", "QUEEN_S3_ACCESS_KEY", "QUEEN_S3_SECRET_KEY"] {
        let text = problem(&[(variable, "hunter2 hunter2")]);
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.starts_with(variable), "{text}");
    }
}

#[test]
fn a_password_in_a_url_is_refused_and_not_shown() {
    for variable in ["QUEEN_URL", "QUEEN_S3_ENDPOINT"] {
        for value in [
            "http://user:hunter2@host",
            "ftp://user:hunter2@host",
            "https://hunter2@",
        ] {
            let text = problem(&[(variable, value)]);
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

#[test]
fn no_debug_text_of_a_configuration_shows_a_secret() {
    let config = read(&[
        ("QUEEN_TOKEN", "hunter2"),
        ("QUEEN_S3_ACCESS_KEY", "hunter2"),
    ]);
    let text = format!("{config:?} {config:#?}");
    assert!(
        !text.contains("hunter2") && !text.contains("a/secret"),
        "{text}"
    );
}

#[test]
fn a_static_partition_list_is_refused_with_the_reason() {
    let text = problem(&[("QUEEN_S3_PARTITIONS", "orders:0..1023")]);
    assert!(text.starts_with("QUEEN_S3_PARTITIONS: "), "{text}");
    assert!(
        text.contains("safeTime") && text.contains("discovery"),
        "{text}"
    );
}

#[test]
fn a_url_is_http_or_https_and_loses_its_trailing_slash() {
    for (text, url) in [
        ("http://localhost:6632/", "http://localhost:6632"),
        ("https://queen.example.com", "https://queen.example.com"),
        ("https://gateway/queen/", "https://gateway/queen"),
        ("http://[::1]:6632", "http://[::1]:6632"),
    ] {
        assert_eq!(read(&[("QUEEN_URL", text)]).expect(text).queen(), url);
    }
    for text in [
        "localhost:6632",
        "ftp://host",
        "http://",
        "http:host",
        "http://h?x=1",
        "http://a b",
    ] {
        problem(&[("QUEEN_URL", text)]);
    }
}

#[test]
fn an_endpoint_with_a_path_is_refused_and_points_to_the_prefix() {
    let text = problem(&[("QUEEN_S3_ENDPOINT", "http://127.0.0.1:9000/lake")]);
    assert!(
        text.contains("/lake") && text.contains("QUEEN_S3_PREFIX"),
        "{text}"
    );
    let config = read(&[("QUEEN_S3_ENDPOINT", "http://127.0.0.1:9000/")]).expect("valid");
    assert_eq!(config.endpoint, "http://127.0.0.1:9000");
}

#[test]
fn a_sink_is_a_plain_name() {
    for text in ["a/b", "a b", "é", "a%2F", &"a".repeat(65)] {
        problem(&[("QUEEN_S3_SINK", text)]);
    }
    for text in ["a", ".", "..", "...", "A.b_c-9", &"a".repeat(64)] {
        assert_eq!(read(&[("QUEEN_S3_SINK", text)]).expect(text).sink, text);
    }
}

#[test]
fn a_queue_list_is_names_or_one_star() {
    let queues = |text| read(&[("QUEEN_S3_QUEUES", text)]).expect(text).queues;
    assert_eq!(queues("*"), Queues::All);
    assert_eq!(
        queues("a, b ,a"),
        Queues::Named(vec!["a".into(), "b".into()])
    );
    assert_eq!(queues("späße/1"), Queues::Named(vec!["späße/1".into()]));
    for text in ["a,,b", "a,", ",", "a,*"] {
        problem(&[("QUEEN_S3_QUEUES", text)]);
    }
}

#[test]
fn a_bucket_is_one_name() {
    for text in ["a/b", "a b", "a\u{a0}b", ".", ".."] {
        problem(&[("QUEEN_S3_BUCKET", text)]);
    }
}

#[test]
fn a_region_is_one_segment_of_the_credential_scope() {
    for text in ["eu/1", "eu 1", "eu,1"] {
        problem(&[("QUEEN_S3_REGION", text)]);
    }
}

#[test]
fn a_prefix_holds_no_empty_or_relative_segment_and_no_outer_slash() {
    for text in [
        "/a", "a/", "/", "a//b", "./a", "a/..", "..", "a/./b", "a\u{1}b",
    ] {
        problem(&[("QUEEN_S3_PREFIX", text)]);
    }
    for text in ["a", "a/b/c", "team=x/lake", "..a", "é"] {
        assert_eq!(read(&[("QUEEN_S3_PREFIX", text)]).expect(text).prefix, text);
    }
}

#[test]
fn a_prefix_leaves_room_for_the_longest_key() {
    let room = KEY_BYTES - KEY_REST_BYTES - "default".len();
    read(&[("QUEEN_S3_PREFIX", &"a".repeat(room))]).expect("it fits");
    let text = problem(&[("QUEEN_S3_PREFIX", &"a".repeat(room + 1))]);
    assert!(
        text.starts_with("QUEEN_S3_PREFIX: ") && text.contains("1024"),
        "{text}"
    );
}

#[test]
fn a_kms_key_goes_only_with_kms() {
    let key = ("QUEEN_S3_SSE_KMS_KEY_ID", "alias/lake");
    for changes in [vec![key], vec![key, ("QUEEN_S3_SSE", "AES256")]] {
        let text = problem(&changes);
        assert!(text.starts_with("QUEEN_S3_SSE_KMS_KEY_ID: "), "{text}");
    }
    let config = read(&[key, ("QUEEN_S3_SSE", "aws:kms")]).expect("valid");
    assert_eq!(
        config.sse,
        Sse::AwsKms {
            key_id: Some("alias/lake".into())
        }
    );
    let config = read(&[("QUEEN_S3_SSE", "aws:kms")]).expect("valid");
    assert_eq!(config.sse, Sse::AwsKms { key_id: None });
}

#[test]
fn a_wrong_encryption_is_one_problem_even_beside_a_key() {
    let changes = [
        ("QUEEN_S3_SSE", "kms"),
        ("QUEEN_S3_SSE_KMS_KEY_ID", "alias/lake"),
    ];
    assert!(problem(&changes).starts_with("QUEEN_S3_SSE: "));
}

#[test]
fn an_address_to_listen_on_is_an_ip_address_and_a_port() {
    for text in [
        "9333",
        "localhost:9333",
        ":9333",
        "0.0.0.0",
        "0.0.0.0:70000",
    ] {
        problem(&[("QUEEN_S3_LISTEN", text)]);
    }
    let listen = read(&[("QUEEN_S3_LISTEN", "[::]:9333")])
        .expect("valid")
        .listen;
    assert_eq!(listen.to_string(), "[::]:9333");
}

#[test]
fn a_log_format_other_than_json_is_human() {
    for (text, format) in [
        ("json", LogFormat::Json),
        ("JSON", LogFormat::Human),
        ("x", LogFormat::Human),
    ] {
        assert_eq!(
            read(&[("QUEEN_S3_LOG_FORMAT", text)])
                .expect(text)
                .log_format,
            format
        );
    }
}

#[test]
fn a_log_filter_that_does_not_parse_is_refused() {
    let text = problem(&[("RUST_LOG", "queen_s3=loud")]);
    assert!(
        text.starts_with("RUST_LOG: \"queen_s3=loud\" is refused"),
        "{text}"
    );
}

#[test]
fn the_table_is_documented_whole() {
    insta::assert_snapshot!(markdown());
}

#[test]
fn the_page_for_operators_has_the_table_as_it_is() {
    let page = include_str!("../../../../docs/operating.md");
    let table = page
        .split_once("<!-- variables -->\n")
        .and_then(|(_, rest)| rest.split_once("\n<!-- /variables -->"))
        .map(|(table, _)| table);
    assert_eq!(
        table,
        Some(markdown().trim_end()),
        "copy the snapshot of the table to the page"
    );
}

use proptest::prelude::*;

use super::*;
use crate::lake::{Compression, Format, Layout};
use crate::limits::KEY_REST_BYTES;

const SHAPE: Shape = Shape {
    format: Format::Jsonl,
    compression: Compression::Zstd,
    layout: Layout::Merged,
    align: Align::Hour,
};

fn keys() -> LakeKeys {
    LakeKeys::new("queen", "default", "orders")
}

fn at(text: &str) -> Micros {
    Micros::parse(text).expect("a valid instant")
}

fn bounds() -> WindowBounds {
    WindowBounds {
        k: 42,
        t_start: at("2026-09-04T07:00:00.000000Z"),
        t_end: at("2026-09-04T07:05:00.000001Z"),
    }
}

#[test]
fn a_merged_object_is_named_by_its_window() {
    assert_eq!(
        keys().data(bounds(), SHAPE, None),
        "queen/default/queue=orders/dt=2026-09-04/hour=07/\
         w-0000000042-1788505200000000-1788505500000001.jsonl.zst"
    );
}

#[test]
fn a_partitions_object_is_named_by_its_window_and_its_encoded_name() {
    let shape = Shape {
        layout: Layout::PerPartition,
        format: Format::Parquet,
        ..SHAPE
    };
    assert_eq!(
        keys().data(bounds(), shape, Some("customer/7")),
        "queen/default/queue=orders/dt=2026-09-04/hour=07/\
         w-0000000042-1788505200000000-1788505500000001-p-customer%2F7.parquet"
    );
}

#[test]
fn only_day_leaves_the_hour_out() {
    let folder =
        |align| keys().window_prefix(1, at("2026-01-02T03:04:05Z"), Shape { align, ..SHAPE });
    assert_eq!(
        folder(Align::Hour),
        "queen/default/queue=orders/dt=2026-01-02/hour=03/w-0000000001-"
    );
    assert_eq!(folder(Align::None), folder(Align::Hour));
    assert_eq!(
        folder(Align::Day),
        "queen/default/queue=orders/dt=2026-01-02/w-0000000001-"
    );
}

#[test]
fn a_small_time_is_padded_to_sixteen_digits() {
    let bounds = WindowBounds {
        k: 1,
        t_start: Micros(0),
        t_end: Micros(1),
    };
    assert_eq!(
        keys().data(bounds, SHAPE, None),
        "queen/default/queue=orders/dt=1970-01-01/hour=00/\
         w-0000000001-0000000000000000-0000000000000001.jsonl.zst"
    );
}

#[test]
fn every_data_key_of_a_window_starts_with_its_prefix() {
    for align in Align::ALL {
        let shape = Shape {
            align: *align,
            ..SHAPE
        };
        let key = keys().data(bounds(), shape, Some("p"));
        let late = bounds().t_start.on(59 * 60 * Micros::PER_SECOND);
        assert!(
            key.starts_with(&keys().window_prefix(42, late, shape)),
            "{key}"
        );
        assert!(
            !key.starts_with(&keys().window_prefix(4, late, shape)),
            "{key}"
        );
    }
}

#[test]
fn sidecars_stand_beside_the_hive_folders_and_read_back() {
    let keys = LakeKeys::new("a/b", "nightly", "orders eu");
    assert_eq!(
        keys.manifest(42),
        "a/b/_queen/nightly/orders%20eu/windows/0000000042.json"
    );
    assert_eq!(
        keys.checkpoint(42),
        "a/b/_queen/nightly/orders%20eu/checkpoint/0000000042.json.zst"
    );
    for k in [0, 1, 42, 9_999_999_999, 10_000_000_000] {
        assert_eq!(keys.manifest_k(&keys.manifest(k)), Some(k));
        assert_eq!(keys.checkpoint_k(&keys.checkpoint(k)), Some(k));
        assert_eq!(keys.checkpoint_k(&keys.manifest(k)), None);
    }
    for stray in [
        "42.json",
        "+000000042.json",
        "0000000042.json.zst",
        "0000000042.json/x",
        ".json",
    ] {
        assert_eq!(
            keys.manifest_k(&format!("{}{stray}", keys.manifests())),
            None,
            "{stray}"
        );
    }
    assert!(keys.manifest(1).starts_with(&keys.manifests()));
    assert!(keys.checkpoint(1).starts_with(&keys.checkpoints()));
}

#[test]
fn a_data_key_tells_its_window() {
    let keys = keys();
    let shape = Shape {
        layout: Layout::PerPartition,
        align: Align::Day,
        ..SHAPE
    };
    assert_eq!(keys.data_k(&keys.data(bounds(), SHAPE, None)), Some(42));
    assert_eq!(
        keys.data_k(&keys.data(bounds(), shape, Some("w-7-"))),
        Some(42)
    );
    for stray in ["dt=2026-09-04/notes.txt", "w-42-1-2.jsonl", "w-"] {
        assert_eq!(
            keys.data_k(&format!("{}{stray}", keys.data_directory())),
            None,
            "{stray}"
        );
    }
    assert_eq!(keys.data_k("queen/other/queue=orders/w-0000000042-1"), None);
}

#[test]
fn the_directories_of_a_sink_hold_those_of_its_queues() {
    let [sidecars, data] = sink_directories("queen", "default");
    assert!(
        keys()
            .manifests()
            .starts_with(&format!("{sidecars}orders/"))
    );
    assert!(
        keys()
            .data_directory()
            .starts_with(&format!("{data}orders/"))
    );
}

#[test]
fn documents_are_named_by_sink_and_queue() {
    let keys = LakeKeys::new("queen", "default", "orders:eu");
    assert_eq!(keys.intent(), "s3:default:orders%3Aeu:intent");
    assert_eq!(keys.committed(), "s3:default:orders%3Aeu:committed");
    assert_eq!(keys.lease(), "s3:default:orders%3Aeu:lease");
}

#[test]
fn names_are_escaped_byte_by_byte() {
    for (raw, encoded) in [
        ("orders", "orders"),
        ("A-z_0.9", "A-z_0.9"),
        ("a b/c", "a%20b%2Fc"),
        ("é", "%C3%A9"),
        ("~%=:\n", "%7E%25%3D%3A%0A"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "..."),
    ] {
        assert_eq!(encode_name(raw), encoded);
    }
}

#[test]
fn no_key_leaves_its_prefix_whatever_sink_queue_and_partition_are_called() {
    let names = [".", "..", "...", "../..", "/", "", "%2E%2E", "a/../.."];
    for sink in [".", "..", "...", ".-", "default"] {
        for name in names {
            let keys = LakeKeys::new("queen/lake", sink, name);
            let data = keys.data(bounds(), SHAPE, Some(name));
            let objects = [data, keys.manifest(1), keys.checkpoint(1)];
            for key in objects {
                assert!(key.starts_with("queen/lake/"), "{key}");
                assert_eq!(key.split('/').count(), 7, "{key}");
                let relative = |segment: &str| matches!(segment, "." | "..");
                assert!(!key.split('/').any(relative), "{key}");
            }
            for document in [keys.intent(), keys.committed(), keys.lease()] {
                let parts: Vec<&str> = document.split(':').collect();
                let (sink, name) = (encode_name(sink), encode_name(name));
                assert_eq!(parts[..3], ["s3", &sink, &name], "{document}");
                assert_eq!(parts.len(), 4, "{document}");
            }
        }
    }
    let keys = LakeKeys::new("queen", "..", ".");
    assert_eq!(
        keys.manifest(1),
        "queen/_queen/%2E%2E/%2E/windows/0000000001.json"
    );
    assert!(
        keys.data(bounds(), SHAPE, None)
            .starts_with("queen/%2E%2E/queue=%2E/dt=")
    );
    assert_eq!(keys.committed(), "s3:%2E%2E:%2E:committed");
}

#[test]
fn a_long_name_keeps_its_head_and_ends_with_its_hash() {
    assert_eq!(encode_name(&"a".repeat(255)), "a".repeat(255));
    let hashed = encode_name(&"a".repeat(256));
    // printf 'a%.0s' {1..256} | sha256sum
    assert_eq!(
        hashed,
        format!("{}~02d7160d77e18c6447be80c2e355c7ed", "a".repeat(180))
    );
}

#[test]
fn a_long_name_is_never_cut_inside_an_escape() {
    for (plain, head_bytes) in [(177, 180), (178, 178), (179, 179), (180, 180)] {
        let raw = format!("{}/{}", "a".repeat(plain), "b".repeat(100));
        let encoded = encode_name(&raw);
        let (head, hash) = encoded.split_once('~').expect("a hashed name");
        assert_eq!((head.len(), hash.len()), (head_bytes, 32), "{encoded}");
    }
}

#[test]
fn the_longest_key_takes_what_the_limits_say() {
    let (prefix, sink) = ("a/prefix", "nightly");
    let keys = LakeKeys::new(prefix, sink, &"q".repeat(ENCODED_NAME_BYTES));
    let shape = Shape {
        layout: Layout::PerPartition,
        ..SHAPE
    };
    let key = keys.data(bounds(), shape, Some(&"p".repeat(ENCODED_NAME_BYTES)));
    assert_eq!(key.len(), prefix.len() + sink.len() + KEY_REST_BYTES);
    assert!(keys.checkpoint(1).len() < key.len());
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![".{0,20}", "[a./%~é]{0,6}", "[a-z/é]{200,300}"]
}

proptest! {
    #[test]
    fn an_encoded_name_stays_within_its_path_segment(raw in any_name()) {
        let encoded = encode_name(&raw);
        prop_assert!(encoded.len() <= ENCODED_NAME_BYTES);
        prop_assert!(encoded != "." && encoded != "..");
        prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-%~".contains(&byte)));
    }

    #[test]
    fn different_names_are_spelled_differently(left in any_name(), right in any_name()) {
        prop_assert_eq!(left == right, encode_name(&left) == encode_name(&right));
    }

    #[test]
    fn a_short_name_can_be_read_back_from_its_spelling(raw in any_name()) {
        let encoded = encode_name(&raw);
        let read = (!encoded.contains('~')).then_some(raw);
        prop_assert_eq!(decode_name(&encoded), read);
    }
}

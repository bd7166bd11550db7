use std::sync::Arc;

use queen_s3::lake::{Align, Compression, Format, Layout, Shape};
use queen_s3::verify::{Kind, Progress, verify};
use sha2::{Digest, Sha256};

use crate::lake::{
    ENCODINGS, EPOCH, LINEAGE, Lake, PREFIX, SECOND, SHAPE, SINK, at, check, range, store,
};

/// Three windows of three partitions, one of which ends and begins again.
fn clean(shape: Shape) -> Lake {
    let mut lake = Lake::of("orders/eu", shape);
    lake.window(10, &[("a", 5, 1), ("a", 6, 1), ("b", 0, 2)]);
    lake.t_end += 7 * SECOND;
    lake.window(
        30,
        &[("a", 7, 20), ("b", 1, 18), ("b", 2, 18), ("c%é", 0, 29)],
    );
    lake.window(60, &[("a", 8, 31), ("b", 0, 40), ("b", 1, 41)]);
    lake
}

#[tokio::test]
async fn a_whole_lake_is_clean_in_every_shape() {
    for (format, compression) in ENCODINGS {
        for layout in Layout::ALL {
            for align in Align::ALL {
                let shape = Shape {
                    format,
                    compression,
                    layout: *layout,
                    align: *align,
                };
                let report = clean(shape).check().await;
                assert_eq!(report.findings, [], "{shape:?}");
                assert_eq!(
                    (report.windows, report.records, report.partitions),
                    (3, 10, 3)
                );
                assert_eq!(
                    (report.from, report.t_end),
                    (Some(EPOCH), Some(EPOCH + 60 * SECOND))
                );
                assert_eq!(report.lineage.as_deref(), Some(LINEAGE));
                assert_eq!(report.notes, []);
            }
        }
    }
}

#[tokio::test]
async fn a_missing_object_is_found_and_its_gap_is_not_told_twice() {
    for layout in Layout::ALL {
        let lake = clean(Shape {
            layout: *layout,
            ..SHAPE
        });
        let report = lake.check().await;
        assert_eq!(report.findings, []);
        let manifest: queen_s3::lake::manifest::Manifest =
            serde_json::from_slice(&lake.bucket.content(&lake.keys.manifest(2))).expect("it reads");
        let key = &manifest.objects[0].key;
        lake.bucket.remove(key);
        let report = lake.check().await;
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        let finding = &report.findings[0];
        assert_eq!(finding.kind, Kind::MissingObject);
        assert_eq!((finding.window, finding.key.as_ref()), (Some(2), Some(key)));
    }
}

#[tokio::test]
async fn a_flipped_byte_is_found_wherever_it_is() {
    for (format, compression) in ENCODINGS {
        let mut lake = Lake::of(
            "orders",
            Shape {
                format,
                compression,
                ..SHAPE
            },
        );
        let object = lake
            .window(10, &[("a", 0, 1), ("b", 0, 1)])
            .objects
            .remove(0);
        lake.window(20, &[("a", 1, 11), ("b", 1, 12)]);
        let whole = lake.bucket.content(&object.key);
        for position in (0..whole.len()).step_by(7) {
            let mut damaged = whole.to_vec();
            damaged[position] ^= 4;
            lake.bucket.insert(&object.key, damaged);
            let report = lake.check().await;
            let found: Vec<_> = report
                .findings
                .iter()
                .map(|f| (f.kind, f.key.as_ref()))
                .collect();
            let expected = [(Kind::Sha256, Some(&object.key))];
            assert_eq!(found, expected, "{format} {compression} at {position}");
        }
    }
}

#[tokio::test]
async fn a_cut_object_and_one_with_more_behind_it_are_found() {
    for (format, compression) in ENCODINGS {
        let mut lake = Lake::of(
            "orders",
            Shape {
                format,
                compression,
                ..SHAPE
            },
        );
        let object = lake
            .window(10, &[("a", 0, 1), ("b", 0, 1)])
            .objects
            .remove(0);
        let whole = lake.bucket.content(&object.key);
        for changed in [
            whole.slice(..whole.len() - 1),
            [&whole[..], b"\n"].concat().into(),
        ] {
            lake.bucket.insert(&object.key, changed);
            assert_eq!(
                lake.found().await,
                [(Kind::Size, Some(1), None)],
                "{format} {compression}"
            );
        }
    }
}

#[tokio::test]
async fn a_second_frame_that_one_shot_readers_do_not_see_is_found_though_the_hash_is_right() {
    for compression in [Compression::Zstd, Compression::Gzip] {
        let mut lake = Lake::of(
            "orders",
            Shape {
                compression,
                ..SHAPE
            },
        );
        let mut manifest = lake.build(10, &[("a", 0, 1)]);
        let object = &mut manifest.objects[0];
        let frame = lake.bucket.content(&object.key);
        let twice = [&frame[..], &frame[..]].concat();
        (object.bytes, object.sha256) = (twice.len() as u64, hex::encode(Sha256::digest(&twice)));
        lake.bucket.insert(&object.key, twice);
        manifest.bytes = manifest.objects[0].bytes;
        lake.put_manifest(&manifest);
        assert_eq!(lake.found().await, [(Kind::Unreadable, Some(1), None)]);
    }
}

#[tokio::test]
async fn an_object_that_is_no_parquet_file_is_found_though_the_hash_is_right() {
    let shape = Shape {
        format: Format::Parquet,
        ..SHAPE
    };
    let mut lake = Lake::of("orders", shape);
    let mut manifest = lake.build(10, &[("a", 0, 1)]);
    let object = &mut manifest.objects[0];
    let content = "PAR1 PAR1";
    (object.bytes, object.sha256) = (content.len() as u64, hex::encode(Sha256::digest(content)));
    lake.bucket.insert(&object.key, content);
    manifest.bytes = manifest.objects[0].bytes;
    lake.put_manifest(&manifest);
    assert_eq!(lake.found().await, [(Kind::Unreadable, Some(1), None)]);
}

#[tokio::test]
async fn a_missing_window_is_found_and_explains_what_is_missing_with_it() {
    let lake = clean(SHAPE);
    lake.bucket.remove(&lake.keys.manifest(2));
    let report = lake.check().await;
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].kind, Kind::MissingManifest);
    assert_eq!(report.findings[0].window, Some(2));
    assert_eq!(report.findings[0].key, Some(lake.keys.manifest(2)));
}

#[tokio::test]
async fn windows_are_numbered_from_1() {
    let lake = clean(SHAPE);
    lake.bucket.remove(&lake.keys.manifest(1));
    assert_eq!(lake.found().await, [(Kind::MissingManifest, Some(1), None)]);
}

#[tokio::test]
async fn a_manifest_that_does_not_read_or_is_another_windows_is_found() {
    let lake = clean(SHAPE);
    let third = lake.bucket.content(&lake.keys.manifest(3));
    for damaged in [third.clone(), third.slice(..third.len() / 2)] {
        lake.bucket.insert(&lake.keys.manifest(2), damaged);
        assert_eq!(lake.found().await, [(Kind::BadManifest, Some(2), None)]);
    }
}

#[tokio::test]
async fn a_record_that_is_there_twice_in_an_object_is_found() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1), ("a", 1, 2), ("a", 1, 2), ("a", 2, 3)]);
    lake.window(20, &[("a", 3, 11)]);
    assert_eq!(lake.found().await, [(Kind::Duplicate, Some(1), at("a", 1))]);
}

#[tokio::test]
async fn a_record_of_an_earlier_window_is_found_even_where_it_is_named_late() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1), ("a", 1, 2)]);
    let records = [("a", 1, 2), ("a", 2, 13)];
    lake.window_with(20, &records, |manifest| {
        manifest.late = vec![range("a", 1, 1)]
    });
    assert_eq!(lake.found().await, [(Kind::Duplicate, Some(2), at("a", 1))]);
}

#[tokio::test]
async fn records_that_changed_places_are_found_and_are_no_gap() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1), ("a", 2, 2), ("a", 1, 1), ("a", 3, 3)]);
    lake.window(20, &[("b", 1, 11), ("b", 0, 11)]);
    assert_eq!(
        lake.found().await,
        [
            (Kind::Order, Some(1), at("a", 1)),
            (Kind::Order, Some(2), at("b", 0))
        ]
    );
}

#[tokio::test]
async fn partitions_that_changed_places_are_found() {
    let mut lake = Lake::new();
    lake.window(10, &[("b", 0, 1), ("a", 0, 2)]);
    assert_eq!(lake.found().await, [(Kind::Order, Some(1), at("a", 0))]);
}

#[tokio::test]
async fn a_ts_that_falls_within_a_life_is_no_finding_while_offsets_ascend() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 5), ("a", 1, 2), ("a", 2, 6), ("b", 0, 7)]);
    let late = |manifest: &mut queen_s3::lake::manifest::Manifest| {
        manifest.late = vec![range("a", 3, 3)];
    };
    lake.window_with(20, &[("a", 3, 4), ("a", 4, 12), ("a", 5, 11)], late);
    assert_eq!(lake.found().await, []);

    // What is missing, out of order or there twice is told as ever.
    let mut lake = Lake::new();
    let records = [
        ("a", 0, 5),
        ("a", 2, 2),
        ("b", 3, 7),
        ("b", 1, 6),
        ("c", 0, 5),
        ("c", 1, 4),
        ("c", 1, 4),
    ];
    lake.window(10, &records);
    assert_eq!(
        lake.found().await,
        [
            (Kind::Order, Some(1), at("b", 1)),
            (Kind::Duplicate, Some(1), at("c", 1)),
            (Kind::Gap, Some(1), at("a", 1)),
        ]
    );
}

#[tokio::test]
async fn offsets_that_are_missing_within_a_window_or_between_two_are_found() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1), ("a", 2, 2)]);
    lake.window(20, &[("a", 3, 11), ("b", 7, 11)]);
    lake.window(30, &[("b", 9, 21)]);
    assert_eq!(
        lake.found().await,
        [
            (Kind::Gap, Some(1), at("a", 1)),
            (Kind::Gap, Some(3), at("b", 8))
        ]
    );
}

#[tokio::test]
async fn lost_offsets_are_no_gap_whichever_window_names_them() {
    let mut lake = Lake::new();
    lake.window_with(10, &[("a", 0, 1)], |manifest| {
        manifest.lost = vec![range("a", 1, 3), range("a", 4, 4)];
    });
    lake.window(20, &[("a", 5, 11), ("b", 7, 11)]);
    lake.window(30, &[("b", 9, 21)]);
    lake.window_with(40, &[], |manifest| manifest.lost = vec![range("b", 8, 8)]);
    let report = lake.check().await;
    assert_eq!((report.findings, report.lost), (vec![], 5));
}

#[tokio::test]
async fn a_range_that_loses_less_than_what_is_missing_does_not_explain_it() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1)]);
    lake.window_with(20, &[("a", 5, 11)], |manifest| {
        manifest.lost = vec![range("a", 1, 3)];
    });
    assert_eq!(lake.found().await, [(Kind::Gap, Some(2), at("a", 1))]);
}

#[tokio::test]
async fn a_new_life_begins_at_offset_0_or_at_what_is_left_of_it() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 7, 1), ("b", 7, 1), ("c", 1, 1)]);
    lake.window_with(
        20,
        &[("a", 2, 11), ("b", 2, 11), ("c", 3, 11)],
        |manifest| {
            manifest.lost = vec![range("b", 0, 1), range("c", 0, 2)];
        },
    );
    assert_eq!(lake.found().await, [(Kind::Gap, Some(2), at("a", 0))]);
}

#[tokio::test]
async fn two_lives_in_the_wrong_order_that_look_like_one_show_once_the_partition_goes_on() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1), ("a", 1, 2)]);
    // 0 and 1 are the later life's, 2 and 3 are the former's and belong before them.
    lake.window(
        20,
        &[("a", 0, 11), ("a", 1, 12), ("a", 2, 13), ("a", 3, 14)],
    );
    assert_eq!(lake.found().await, [], "offsets and ts of one life");
    lake.window(30, &[("a", 2, 21)]);
    assert_eq!(lake.found().await, [(Kind::Gap, Some(3), at("a", 0))]);
}

#[tokio::test]
async fn another_lineage_is_found_once() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1)]);
    for end in [20, 30] {
        let foreign = |manifest: &mut queen_s3::lake::manifest::Manifest| {
            manifest.lineage = "another".to_owned();
        };
        lake.window_with(end, &[("a", end / 10 - 1, end - 1)], foreign);
    }
    assert_eq!(lake.found().await, [(Kind::Lineage, Some(2), None)]);
}

#[tokio::test]
async fn counts_that_are_wrong_are_found() {
    let mut lake = Lake::new();
    lake.window_with(10, &[("a", 0, 1)], |manifest| {
        manifest.objects[0].records = 2;
        manifest.records = 2;
    });
    lake.window_with(20, &[("a", 1, 11)], |manifest| manifest.records = 3);
    lake.window_with(30, &[("a", 2, 21)], |manifest| manifest.partitions = 2);
    lake.window_with(40, &[("a", 3, 31)], |manifest| manifest.max_ts = Some(0));
    let found: Vec<_> = lake.found().await.into_iter().map(|f| (f.0, f.1)).collect();
    assert_eq!(
        found,
        [
            (Kind::Count, Some(1)),
            (Kind::Count, Some(2)),
            (Kind::Count, Some(3)),
            (Kind::BadManifest, Some(4)),
        ]
    );
}

#[tokio::test]
async fn the_offsets_that_a_manifest_gives_a_partitions_object_are_checked() {
    let mut lake = Lake::of(
        "orders",
        Shape {
            layout: Layout::PerPartition,
            ..SHAPE
        },
    );
    lake.window_with(10, &[("a", 0, 1), ("a", 1, 1)], |manifest| {
        manifest.objects[0].last_offset = Some(2);
    });
    assert_eq!(lake.found().await, [(Kind::BadManifest, Some(1), None)]);
}

#[tokio::test]
async fn windows_that_overlap_are_found() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1)]);
    lake.t_end -= SECOND;
    lake.window(20, &[("a", 1, 11)]);
    lake.window_with(30, &[("a", 2, 21)], |manifest| {
        manifest.prev_t_end += SECOND
    });
    assert_eq!(
        lake.found().await,
        [(Kind::Tiling, Some(2), None), (Kind::Tiling, Some(3), None)]
    );
}

#[tokio::test]
async fn a_record_outside_its_window_is_found_unless_it_is_named_late() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1), ("b", 0, 10)]);
    lake.window_with(20, &[("a", 1, 2), ("b", 1, 3)], |manifest| {
        manifest.late = vec![range("b", 1, 1)];
    });
    let report = lake.check().await;
    let found: Vec<_> = report.findings.iter().map(|f| (f.kind, f.window)).collect();
    assert_eq!(found, [(Kind::Outside, Some(1)), (Kind::Outside, Some(2))]);
    assert_eq!(report.late, 1);
}

#[tokio::test]
async fn a_window_that_reaches_into_the_next_hour_is_found() {
    let mut lake = Lake::of(
        "orders",
        Shape {
            align: Align::None,
            ..SHAPE
        },
    );
    lake.window(2 * 3_600, &[("a", 0, 1)]);
    assert_eq!(lake.found().await, []);
    lake.k = 0;
    lake.t_end = EPOCH;
    lake.window_with(2 * 3_600, &[("a", 0, 1)], |manifest| {
        manifest.align = Align::Hour
    });
    assert_eq!(lake.found().await, [(Kind::Alignment, Some(1), None)]);
}

#[tokio::test]
async fn an_object_under_another_name_is_found() {
    let mut lake = Lake::new();
    let mut manifest = lake.build(10, &[("a", 0, 1)]);
    let key = &mut manifest.objects[0].key;
    let content = lake.bucket.remove(key);
    *key = key.replace("hour=10", "hour=11");
    lake.bucket.insert(key, content);
    lake.put_manifest(&manifest);
    assert_eq!(lake.found().await, [(Kind::Name, Some(1), None)]);
}

#[tokio::test]
async fn objects_that_no_manifest_names_are_found() {
    let lake = clean(SHAPE);
    let directory = lake.keys.data_directory();
    lake.bucket.insert(
        &format!("{directory}dt=2026-09-04/hour=10/w-0000000002-1-2.jsonl"),
        "",
    );
    lake.bucket
        .insert(&format!("{directory}dt=2026-09-04/hour=10/notes.txt"), "");
    lake.bucket.insert(
        &format!("{directory}dt=2026-09-04/hour=10/w-0000000005-1-2.jsonl"),
        "",
    );
    lake.bucket.insert(
        &format!("{directory}dt=2026-09-04/hour=11/w-0000000005-1-2.jsonl"),
        "",
    );
    lake.bucket
        .insert(&format!("{}0000000000.json", lake.keys.manifests()), "");
    assert_eq!(
        lake.found().await,
        [
            (Kind::ForeignObject, Some(2), None),
            (Kind::ForeignObject, Some(5), None),
            (Kind::ForeignSidecar, None, None),
            (Kind::ForeignObject, None, None),
        ]
    );
}

#[tokio::test]
async fn a_manifest_far_above_the_others_costs_one_finding_and_no_memory() {
    let mut lake = clean(SHAPE);
    lake.k = 9_999_999_998;
    lake.window(70, &[("a", 12, 61)]);
    let found = lake.found().await;
    assert_eq!(found, [(Kind::MissingManifest, Some(4), None)]);
}

#[tokio::test]
async fn a_window_in_flight_is_a_note_and_no_finding() {
    let mut lake = clean(SHAPE);
    let key = lake.build(70, &[("a", 9, 61)]).objects.remove(0).key;
    let report = lake.check().await;
    assert_eq!(report.findings, []);
    assert_eq!(report.notes.len(), 1);
    assert_eq!(
        (report.notes[0].window, report.notes[0].key.as_ref()),
        (Some(4), Some(&key))
    );
}

#[tokio::test(start_paused = true)]
async fn a_download_that_breaks_off_is_tried_again_and_counts_once() {
    let lake = clean(SHAPE);
    let manifest: queen_s3::lake::manifest::Manifest =
        serde_json::from_slice(&lake.bucket.content(&lake.keys.manifest(2))).expect("it reads");
    lake.bucket.break_downloads(&manifest.objects[0].key, 2);
    lake.bucket.break_downloads(&lake.keys.manifest(1), 1);
    let report = lake.check().await;
    assert_eq!((report.findings, report.records), (vec![], 10));
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_keeps_failing_or_refuses_ends_the_check() {
    let lake = clean(SHAPE);
    let ended = async || {
        let queues = [lake.queue.clone()];
        let store = store(&lake.bucket);
        verify(&store, PREFIX, SINK, Some(&queues), &mut Progress::hidden()).await
    };
    lake.bucket
        .break_downloads(&lake.keys.manifest(1), u32::MAX);
    let error = ended().await.expect_err("no manifest comes");
    assert_eq!(error.key, lake.keys.manifest(1));
    lake.bucket.deny();
    assert_eq!(ended().await.expect_err("it is refused").operation, "list");
}

#[tokio::test]
async fn every_queue_of_the_sink_is_found_in_the_bucket() {
    let lake = clean(SHAPE);
    let long = "q".repeat(300);
    let mut hashed = Lake::beside(Arc::clone(&lake.bucket), &long, SHAPE);
    hashed.window(10, &[("a", 0, 1)]);
    let mut flying = Lake::beside(Arc::clone(&lake.bucket), "flying", SHAPE);
    flying.build(10, &[("a", 0, 1)]);
    let report = check(&lake.bucket, None).await;
    let queues: Vec<_> = report
        .queues
        .iter()
        .map(|q| (q.queue.as_str(), q.windows))
        .collect();
    assert_eq!(
        queues,
        [("flying", 0), ("orders/eu", 3), (long.as_str(), 1)]
    );
    assert!(report.ok);

    hashed.bucket.remove(&hashed.keys.manifest(1));
    assert!(
        !check(&lake.bucket, None).await.ok,
        "a name that nothing tells"
    );
}

#[tokio::test]
async fn a_queue_without_a_window_is_noted() {
    let lake = Lake::new();
    let report = check(&lake.bucket, Some(&[lake.queue])).await;
    assert!(report.ok);
    assert_eq!(report.queues[0].notes.len(), 1);
    let text = report.to_string();
    assert!(text.contains("nothing to check"), "{text}");
}

#[tokio::test]
async fn the_report_for_programs_carries_what_the_one_for_people_says() {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1), ("a", 2, 2)]);
    let report = check(&lake.bucket, Some(&["orders".to_owned()])).await;
    let json = serde_json::to_value(&report).expect("it renders");
    assert_eq!((&json["ok"], &json["findings"]), (&false.into(), &1.into()));
    let finding = &json["queues"][0]["findings"][0];
    assert_eq!(finding["kind"], "gap");
    assert_eq!(
        (&finding["window"], &finding["offset"]),
        (&1.into(), &1.into())
    );
    assert_eq!(finding["partition"], "a");
    let text = report.to_string();
    for said in ["text", "advice", "key"] {
        let said = finding[said].as_str().expect("a text");
        assert!(text.contains(said), "{said:?} is not in {text}");
    }
}

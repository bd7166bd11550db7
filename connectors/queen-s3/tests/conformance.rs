//! The table of requirements, on the sink and on the broker, names the tests that prove each of
//! them, and every test that it names is there.

use std::collections::BTreeSet;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Whether `text` holds a test function `name`.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let signature = format!("fn {name}(");
    let at = lines.iter().position(|line| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.starts_with(&signature)
    });
    let is_attribute =
        |line: &&str| line.starts_with("#[test") || line.starts_with("#[tokio::test");
    at.is_some_and(|at| lines[..at].iter().rev().take(3).any(is_attribute))
}

#[test]
fn every_test_that_the_table_of_requirements_names_is_there() {
    let root = Path::new(ROOT);
    let table = std::fs::read_to_string(root.join("docs/conformance.md")).expect("the table");
    let named: BTreeSet<&str> = table
        .split('`')
        .filter(|part| part.contains(".rs::"))
        .collect();
    for part in [
        "connectors/queen-s3/",
        "server/src/",
        "server/tests/",
        "tests/tests/",
    ] {
        let count = named.iter().filter(|test| test.starts_with(part)).count();
        assert!(count > 10, "only {count} tests of {part} are named");
    }
    let missing: Vec<&str> = named
        .into_iter()
        .filter(|part| {
            let (file, test) = part.split_once("::").expect("a file and a test");
            let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            !has_test(&text, test)
        })
        .collect();
    assert!(missing.is_empty(), "docs/conformance.md names {missing:#?}");
}

#[test]
fn every_requirement_of_the_table_names_a_test() {
    let table = std::fs::read_to_string(Path::new(ROOT).join("docs/conformance.md"));
    let table = table.expect("the table");
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let bare: Vec<&str> = rows
        .filter(|row| {
            !row.contains(".rs::") && !row.starts_with("| Requirement") && !row.starts_with("| ---")
        })
        .collect();
    assert!(bare.is_empty(), "nothing proves {bare:#?}");
}

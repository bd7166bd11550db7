//! The examples in `deploy/` name metrics and variables that exist: those of the pages for
//! operators, which tests of the programs hold to what they export and read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Every file below `folder`.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// The words of `text` that begin with one of `prefixes`.
fn words<'a>(text: &'a str, prefixes: &[&str]) -> BTreeSet<&'a str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix)))
        .collect()
}

/// The words of the examples in `folder` that no page for operators has, of at least `least`.
fn unknown(folder: &str, prefixes: &[&str], least: usize) -> Result<Vec<String>> {
    let root = Path::new(ROOT);
    let mut pages = fs::read_to_string(root.join("docs/operating.md"))?;
    pages += &fs::read_to_string(root.join("docs/broker.md"))?;
    let known = words(&pages, prefixes);
    let mut unknown = Vec::new();
    let mut count = 0;
    for file in files(&root.join("deploy").join(folder))? {
        let text = fs::read_to_string(&file)?;
        let named = words(&text, prefixes);
        count += named.len();
        let strange = named.difference(&known);
        unknown.extend(strange.map(|word| format!("{word} in {}", file.display())));
    }
    ensure!(count >= least, "only {count} names are found in {folder}");
    Ok(unknown)
}

#[test]
fn alerts_and_dashboard_name_metrics_that_exist() -> Result<()> {
    for (folder, least) in [("prometheus", 10), ("grafana", 8)] {
        let unknown = unknown(folder, &["queen_"], least)?;
        ensure!(unknown.is_empty(), "no page has {unknown:#?}");
    }
    Ok(())
}

#[test]
fn units_and_manifests_set_variables_that_exist() -> Result<()> {
    for folder in ["systemd", "kubernetes"] {
        let unknown = unknown(folder, &["QUEEN_", "PG_", "JWT_"], 8)?;
        ensure!(unknown.is_empty(), "no page has {unknown:#?}");
    }
    Ok(())
}

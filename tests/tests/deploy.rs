//! The examples in `deploy/` name metrics and variables that exist: those of the pages for
//! operators, which tests of the programs hold to what they export and read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

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
fn every_alert_fires_in_a_case_of_promtool() -> Result<()> {
    let folder = Path::new(ROOT).join("deploy/prometheus");
    let alerts = fs::read_to_string(folder.join("alerts.yml"))?;
    let cases = fs::read_to_string(folder.join("alerts_test.yml"))?;
    let alerts: BTreeSet<&str> = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    ensure!(alerts.len() >= 15, "only {} alerts are found", alerts.len());
    let fires = |alert: &&str| {
        let label = format!("labels: '{{alertname=\"{alert}\"");
        cases.contains(&label)
    };
    let never: Vec<_> = alerts.iter().filter(|alert| !fires(alert)).collect();
    ensure!(never.is_empty(), "no case lets {never:?} fire");
    Ok(())
}

#[test]
fn the_dashboard_tells_jobs_apart_and_its_panels_do_not_overlap() -> Result<()> {
    let file = Path::new(ROOT).join("deploy/grafana/queen-s3.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = &panel["title"];
        let number = |field: &str| panel["gridPos"][field].as_u64();
        let place = (number("x"), number("y"), number("w"), number("h"));
        let (Some(x), Some(y), Some(12), Some(8)) = place else {
            bail!("{title} is not 12 by 8: {place:?}");
        };
        ensure!(x % 12 == 0 && y % 8 == 0, "{title} is off the grid");
        ensure!(taken.insert((x, y)), "{title} lies on another panel");
        for target in panel["targets"].as_array().context("no targets")? {
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            ensure!(
                legend.contains("{{job}}"),
                "{title} has the legend {legend:?}"
            );
            let query = target["expr"].as_str().unwrap_or_default();
            let broker = title.as_str().unwrap_or_default().starts_with("Broker");
            let variable = if broker { "$broker" } else { "$job" };
            ensure!(query.contains(variable), "{title} asks {query:?}");
        }
    }
    Ok(())
}

#[test]
fn the_alerts_know_the_jobs_that_are_scraped() -> Result<()> {
    let folder = Path::new(ROOT).join("deploy");
    let alerts = fs::read_to_string(folder.join("prometheus/alerts.yml"))?;
    let scrape = fs::read_to_string(folder.join("prometheus/scrape.yml"))?;
    for job in ["queen-s3", "queen"] {
        ensure!(alerts.contains(&format!("up{{job=\"{job}\"}}")), "{job}");
        ensure!(scrape.contains(&format!("job_name: {job}\n")), "{job}");
    }
    // The operator makes the job's name of the pods' label.
    let monitor = fs::read_to_string(folder.join("kubernetes/podmonitor.yaml"))?;
    let deployment = fs::read_to_string(folder.join("kubernetes/queen-s3.yaml"))?;
    ensure!(monitor.contains("jobLabel: app\n"));
    for shared in ["matchLabels: { app: queen-s3 }", "metrics"] {
        ensure!(
            monitor.contains(shared) && deployment.contains(shared),
            "{shared}"
        );
    }
    ensure!(deployment.contains("name: metrics, containerPort: 9333"));
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

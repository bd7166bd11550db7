//! What was measured: a table for people, a JSON file for comparison.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::machine::Machine;

/// What a figure must keep to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bar {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

impl Bar {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(bar) => value <= bar,
            Self::AtLeast(bar) => value >= bar,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bar) => write!(f, "<= {bar}"),
            Self::AtLeast(bar) => write!(f, ">= {bar}"),
        }
    }
}

/// One thing measured, once or several times.
#[derive(Debug, Clone)]
pub struct Figure {
    name: String,
    unit: &'static str,
    values: Vec<f64>,
    bar: Option<Bar>,
}

impl Figure {
    /// A figure of at least one value.
    pub fn new(name: impl Into<String>, unit: &'static str, values: Vec<f64>) -> Self {
        Self {
            name: name.into(),
            unit,
            values,
            bar: None,
        }
    }

    /// With a bar to keep to, by the median.
    #[must_use]
    pub fn bar(mut self, bar: Bar) -> Self {
        self.bar = Some(bar);
        self
    }

    fn sorted(&self) -> Vec<f64> {
        let mut values = self.values.clone();
        values.sort_unstable_by(f64::total_cmp);
        values
    }

    fn median(&self) -> f64 {
        let values = self.sorted();
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn verdict(&self) -> Option<bool> {
        self.bar.map(|bar| bar.is_met(self.median()))
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "unit": self.unit,
            "median": self.median(),
            "values": self.values,
            "bar": self.bar.map(|bar| bar.to_string()),
            "met": self.verdict(),
        })
    }
}

/// The figures of all scenarios of one run.
#[derive(Debug, Default)]
pub struct Report {
    scenarios: Vec<(&'static str, Vec<Figure>)>,
}

impl Report {
    /// Adds and prints a scenario's figures.
    pub fn add(&mut self, scenario: &'static str, figures: Vec<Figure>) {
        print!("{}", table(scenario, &figures));
        self.scenarios.push((scenario, figures));
    }

    /// Whether every figure that has a bar keeps to it.
    pub fn all_met(&self) -> bool {
        let mut figures = self.scenarios.iter().flat_map(|(_, figures)| figures);
        figures.all(|figure| figure.verdict() != Some(false))
    }

    /// Writes the JSON file.
    pub fn write(&self, path: &Path, machine: &Machine, command: &str) -> Result<()> {
        let scenarios: serde_json::Map<String, Value> = self
            .scenarios
            .iter()
            .map(|(name, figures)| {
                let figures = figures.iter().map(Figure::json).collect();
                ((*name).to_owned(), Value::Array(figures))
            })
            .collect();
        let report = json!({
            "command": command,
            "machine": machine,
            "scenarios": scenarios,
        });
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }
}

fn table(scenario: &str, figures: &[Figure]) -> String {
    use fmt::Write;

    let mut text = format!("\n{scenario}\n");
    let width = figures
        .iter()
        .map(|figure| figure.name.len())
        .max()
        .unwrap_or_default();
    for figure in figures {
        let sorted = figure.sorted();
        let spread = match sorted.as_slice() {
            [least, .., most] => format!("({} to {})", short(*least), short(*most)),
            _ => String::new(),
        };
        let bar = match (figure.bar, figure.verdict()) {
            (Some(bar), Some(true)) => format!("{bar}  met"),
            (Some(bar), _) => format!("{bar}  NOT MET"),
            (None, _) => String::new(),
        };
        let line = format!(
            "  {:<width$}  {:>9} {:<12} {spread:<22} {bar}",
            figure.name,
            short(figure.median()),
            figure.unit,
        );
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Three digits that count.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::{Bar, Figure, Report, table};

    #[test]
    fn a_figure_is_held_to_its_bar_by_its_median() {
        let figure = Figure::new("ratio", "x zstd", vec![3.0, 1.0, 1.5]);
        assert_eq!(figure.clone().bar(Bar::AtMost(1.5)).verdict(), Some(true));
        assert_eq!(figure.clone().bar(Bar::AtLeast(1.6)).verdict(), Some(false));
        assert_eq!(figure.verdict(), None);
        let mut report = Report::default();
        report.add("s", vec![figure.bar(Bar::AtMost(1.0))]);
        assert!(!report.all_met());
    }

    #[test]
    fn the_table_shows_median_spread_and_verdict() {
        let figures = [Figure::new("ratio", "x", vec![2.0, 1.0, 4.0]).bar(Bar::AtMost(1.9))];
        let text = table("backlog", &figures);
        assert!(
            text.contains("2.00 x") && text.contains("(1.00 to 4.00)") && text.contains("NOT MET"),
            "{text}"
        );
    }
}

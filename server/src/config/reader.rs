//! Variables as text, number, flag: what does not parse is gathered.

use std::ffi::OsString;
use std::fmt;

use super::variables::{VARIABLES, Variable};

/// Reads variables by their row in the table, and gathers what is wrong.
pub(crate) struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
    problems: Vec<Problem>,
}

struct Problem {
    variable: &'static str,
    line: String,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self {
            lookup,
            problems: Vec::new(),
        }
    }

    /// Everything that was wrong, a line each.
    pub(crate) fn into_problems(self) -> Vec<String> {
        self.problems.into_iter().map(|one| one.line).collect()
    }

    fn row(name: &str) -> &'static Variable {
        VARIABLES
            .iter()
            .find(|row| row.name == name)
            .unwrap_or_else(|| unreachable!("{name} is not in the table of variables"))
    }

    /// Notes what is wrong with the variable `name`.
    pub(crate) fn problem(&mut self, name: &str, what: impl fmt::Display) {
        self.problems.push(Problem {
            variable: Self::row(name).name,
            line: format!("{name}: {what}"),
        });
    }

    /// Whether something is wrong with one of `names`: what would stand in its place is nothing to compare
    /// others with.
    pub(crate) fn is_refused(&self, names: &[&str]) -> bool {
        let mut problems = self.problems.iter();
        problems.any(|problem| names.contains(&problem.variable))
    }

    /// Whether the variable is set, to whatever it is: what is no text is no missing variable.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        (self.lookup)(Self::row(name).name)
            .is_some_and(|value| value.to_str().is_none_or(|text| !text.trim().is_empty()))
    }

    /// The variable as it is set; `None` when unset, blank or no UTF-8, which is refused. Bytes that are
    /// replaced would be a value that others know, as a key above all.
    pub(crate) fn value(&mut self, name: &str) -> Option<String> {
        let row = Self::row(name);
        match (self.lookup)(row.name)?.into_string() {
            Ok(text) => Some(text).filter(|text| !text.trim().is_empty()),
            Err(_) => {
                // Some are read twice.
                if !self.is_refused(&[name]) {
                    let accepts = row.accepts;
                    let what = format!("the value is not UTF-8 (not shown); accepted: {accepts}");
                    self.problem(name, what);
                }
                None
            }
        }
    }

    pub(crate) fn text(&mut self, name: &str) -> String {
        self.value(name)
            .unwrap_or_else(|| Self::row(name).default.into())
    }

    pub(crate) fn refuse(&mut self, name: &str, value: &str) {
        let row = Self::row(name);
        let shown = if row.secret {
            String::new()
        } else {
            format!("{value:?} ")
        };
        let what = format!("{shown}does not parse; accepted: {}", row.accepts);
        self.problem(name, what);
    }

    /// A number from `low` to `high`; the default in place of one that is refused.
    pub(crate) fn number(&mut self, name: &str, low: u64, high: u64) -> u64 {
        let text = self.text(name);
        let number = text.trim().parse().ok();
        number
            .filter(|number| (low..=high).contains(number))
            .unwrap_or_else(|| {
                self.refuse(name, &text);
                let default = Self::row(name).default.parse();
                default.expect("a test reads every default of the table")
            })
    }

    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let text = self.text(name);
        match text.trim() {
            "true" => true,
            "false" => false,
            _ => {
                self.refuse(name, &text);
                false
            }
        }
    }

    pub(crate) fn parsed<T: std::str::FromStr>(&mut self, name: &str, otherwise: T) -> T {
        let text = self.text(name);
        match text.trim().parse() {
            Ok(value) => value,
            Err(_) => {
                self.refuse(name, &text);
                otherwise
            }
        }
    }
}

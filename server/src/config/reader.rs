//! Variables as text, number, flag: what does not parse is gathered.

use std::ffi::OsString;

use super::variables::{VARIABLES, Variable};

/// Reads variables by their row in the table, and gathers what is wrong.
pub(crate) struct Reader<'a> {
    pub(crate) lookup: &'a dyn Fn(&str) -> Option<OsString>,
    pub(crate) problems: Vec<String>,
}

impl Reader<'_> {
    fn row(name: &str) -> &'static Variable {
        VARIABLES
            .iter()
            .find(|row| row.name == name)
            .unwrap_or_else(|| unreachable!("{name} is not in the table of variables"))
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
                let problem = format!(
                    "{name}: the value is not UTF-8 (not shown); accepted: {}",
                    row.accepts
                );
                // Some are read twice.
                if !self.problems.contains(&problem) {
                    self.problems.push(problem);
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
            format!(" {value:?}")
        };
        self.problems.push(format!(
            "{name}:{shown} does not parse; accepted: {}",
            row.accepts
        ));
    }

    pub(crate) fn number(&mut self, name: &str, low: u64, high: u64) -> u64 {
        let text = self.text(name);
        match text.trim().parse::<u64>() {
            Ok(number) if (low..=high).contains(&number) => number,
            _ => {
                self.refuse(name, &text);
                low
            }
        }
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

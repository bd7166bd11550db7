//! What a check says in the end, to people and to programs.

use std::fmt;

use serde::Serialize;

use super::finding::Finding;
use crate::observe::one_line::OneLine;
use crate::time::Micros;

/// What a check of a lake came to.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether nothing was found.
    pub ok: bool,
    /// `QUEEN_S3_PREFIX`.
    pub prefix: String,
    /// `QUEEN_S3_SINK`.
    pub sink: String,
    /// Findings of all queues.
    pub findings: u64,
    /// By queue.
    pub queues: Vec<QueueReport>,
}

/// What a check of one queue's lake came to.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueReport {
    /// The queue's raw name.
    pub queue: String,
    /// Its lineage, when a manifest tells.
    pub lineage: Option<String>,
    /// Manifests that were read.
    pub windows: u64,
    /// Objects that were read.
    pub objects: u64,
    /// Their records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Partitions with a record.
    pub partitions: u64,
    /// Where the first window's stretch begins, µs.
    pub from: Option<i64>,
    /// Where the last window ends, µs.
    pub t_end: Option<i64>,
    /// Offsets that manifests name as lost.
    pub lost: u64,
    /// Offsets that manifests name as late.
    pub late: u64,
    /// How many things are wrong.
    pub findings_total: u64,
    /// The first of them, by window.
    pub findings: Vec<Finding>,
    /// What is worth knowing and not wrong.
    pub notes: Vec<Note>,
}

/// Something that is worth knowing and not wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The window, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// The key, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// In words.
    pub text: String,
}

impl Report {
    /// The report of these queues.
    pub fn new(prefix: &str, sink: &str, queues: Vec<QueueReport>) -> Self {
        let findings = queues.iter().map(|queue| queue.findings_total).sum();
        Self {
            ok: findings == 0,
            prefix: prefix.to_owned(),
            sink: sink.to_owned(),
            findings,
            queues,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for queue in &self.queues {
            queue.fmt(f)?;
        }
        let Self {
            prefix,
            sink,
            findings,
            ..
        } = self;
        let windows: u64 = self.queues.iter().map(|queue| queue.windows).sum();
        match (windows, findings) {
            (0, 0) => write!(
                f,
                "nothing to check: sink {sink} has no window under {prefix}"
            ),
            (_, 0) => write!(f, "clean: the lake of sink {sink} under {prefix} is whole"),
            (_, 1) => write!(f, "1 finding in the lake of sink {sink} under {prefix}"),
            (_, n) => write!(f, "{n} findings in the lake of sink {sink} under {prefix}"),
        }
    }
}

impl fmt::Display for QueueReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            queue,
            windows,
            objects,
            records,
            bytes,
            partitions,
            lost,
            late,
            ..
        } = self;
        write!(
            f,
            "{}: {windows} windows, {objects} objects, {records} records, {bytes} bytes, \
             {partitions} partitions",
            OneLine(queue)
        )?;
        if let (Some(from), Some(end)) = (self.from, self.t_end) {
            write!(f, ", [{}, {})", Micros(from), Micros(end))?;
        }
        if *lost > 0 {
            write!(f, ", {lost} lost")?;
        }
        if *late > 0 {
            write!(f, ", {late} late")?;
        }
        writeln!(f)?;
        for note in &self.notes {
            writeln!(f, "  note: {}", OneLine(&note.text))?;
        }
        for finding in &self.findings {
            write!(f, "  {}", finding.kind)?;
            if let Some(window) = finding.window {
                write!(f, ", window {window}")?;
            }
            if let Some(partition) = &finding.partition {
                write!(f, ", partition {partition:?}")?;
            }
            if let Some(offset) = finding.offset {
                write!(f, ", offset {offset}")?;
            }
            writeln!(f, ": {}", OneLine(&finding.text))?;
            if let Some(key) = &finding.key {
                writeln!(f, "    key: {}", OneLine(key))?;
            }
            writeln!(f, "    do: {}", finding.advice)?;
        }
        let unnamed = self.findings_total - self.findings.len() as u64;
        if unnamed > 0 {
            writeln!(f, "  and {unnamed} findings more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Kind;
    use super::*;

    #[test]
    fn no_name_and_no_text_of_the_bucket_writes_a_line_of_its_own() {
        let hostile = "a\nclean: the lake is whole\x1b[2J";
        let mut finding = Finding::new(Kind::MissingObject, hostile);
        finding.key = Some(hostile.to_owned());
        finding.partition = Some(hostile.to_owned());
        let queue = QueueReport {
            queue: hostile.to_owned(),
            findings_total: 1,
            findings: vec![finding],
            notes: vec![Note {
                window: None,
                key: None,
                text: hostile.to_owned(),
            }],
            ..QueueReport::default()
        };
        let text = Report::new("queen", "default", vec![queue]).to_string();
        assert!(!text.contains('\x1b'), "{text}");
        assert!(
            text.lines().all(|line| !line.starts_with("clean")),
            "{text}"
        );
        assert_eq!(text.matches(r"a\nclean: the lake").count(), 5, "{text}");
    }
}

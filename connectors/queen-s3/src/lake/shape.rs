//! How the objects of a window are made: format, compression, layout, alignment.

use crate::time::Micros;

macro_rules! spelled {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The value as the environment and the documents spell it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The value that `text` spells, exactly.
            pub fn from_spelling(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use spelled;

spelled! {
    /// The format of data objects.
    Format {
        /// One JSON object a line.
        Jsonl = "jsonl",
        /// Apache Parquet.
        Parquet = "parquet",
    }
}

spelled! {
    /// The compression of data objects: of the whole object for JSONL, the codec of the column
    /// chunks for Parquet.
    Compression {
        /// Zstandard, level 3.
        Zstd = "zstd",
        /// gzip, level 6; JSONL only.
        Gzip = "gzip",
        /// No compression; JSONL only.
        None = "none",
        /// Snappy; Parquet only.
        Snappy = "snappy",
    }
}

spelled! {
    /// How a window's records are laid out over objects.
    Layout {
        /// One object per window.
        Merged = "merged",
        /// One object per window and partition.
        PerPartition = "per-partition",
    }
}

spelled! {
    /// The Hive bucket that a window may not straddle.
    Align {
        /// An hour, UTC.
        Hour = "hour",
        /// A day, UTC.
        Day = "day",
        /// None: windows end where size or age say.
        None = "none",
    }
}

impl Align {
    const HOUR: i64 = 3_600 * Micros::PER_SECOND;

    fn width(self) -> Option<i64> {
        match self {
            Self::Hour => Some(Self::HOUR),
            Self::Day => Some(24 * Self::HOUR),
            Self::None => None,
        }
    }

    /// Start of the bucket that holds `at`; [`Micros::MIN`] without alignment.
    pub fn bucket_start(self, at: Micros) -> Micros {
        match self.width() {
            Some(width) => Micros(at.0.div_euclid(width).saturating_mul(width)),
            None => Micros::MIN,
        }
    }

    /// Start of the directory that a window starting at `at` lies in: its bucket, or its hour
    /// without alignment.
    pub fn directory_start(self, at: Micros) -> Micros {
        match self {
            Self::None => Self::Hour.bucket_start(at),
            aligned => aligned.bucket_start(at),
        }
    }

    /// End (exclusive) of the bucket that holds `at`; [`Micros::MAX`] without alignment.
    pub fn bucket_end(self, at: Micros) -> Micros {
        match self.width() {
            Some(width) => self.bucket_start(at).on(width),
            None => Micros::MAX,
        }
    }
}

/// Everything about a window's objects that its intent fixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Format of the data objects.
    pub format: Format,
    /// Their compression or codec.
    pub compression: Compression,
    /// Their layout.
    pub layout: Layout,
    /// The Hive bucket of the window.
    pub align: Align,
}

impl Shape {
    /// The file name's extension, without a leading dot.
    pub const fn extension(&self) -> &'static str {
        match (self.format, self.compression) {
            (Format::Parquet, _) => "parquet",
            (Format::Jsonl, Compression::Zstd) => "jsonl.zst",
            (Format::Jsonl, Compression::Gzip) => "jsonl.gz",
            (Format::Jsonl, _) => "jsonl",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_start_and_not_its_end() {
        let at = Micros::parse("2026-09-04T10:03:41.918204Z").expect("valid");
        let start = Align::Hour.bucket_start(at);
        let end = Align::Hour.bucket_end(at);
        assert_eq!(start.to_string(), "2026-09-04T10:00:00.000000Z");
        assert_eq!(end.to_string(), "2026-09-04T11:00:00.000000Z");
        assert_eq!(Align::Hour.bucket_start(start), start);
        assert_eq!(Align::Hour.bucket_start(end), end);
        assert_eq!(
            Align::Day.bucket_end(at).to_string(),
            "2026-09-05T00:00:00.000000Z"
        );
    }

    #[test]
    fn every_spelling_reads_back() {
        for layout in Layout::ALL {
            assert_eq!(Layout::from_spelling(layout.as_str()), Some(*layout));
        }
        assert_eq!(Layout::from_spelling("Merged"), None);
    }
}

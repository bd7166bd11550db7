//! DuckDB as a user runs it.

use std::process::Command;

use anyhow::{Context, Result, bail};
use queen_dev::python;

const COUNT: &str = "\
import duckdb, sys
print(*duckdb.sql(f\"\"\"
    SELECT count(*), count(DISTINCT (partition, \\\"offset\\\")), count(DISTINCT partition)
    FROM read_json('{sys.argv[1]}')\"\"\").fetchone())
";

/// Records, distinct places and distinct partitions in the objects that `glob` meets, counted by
/// DuckDB with nothing told about the format.
///
/// # Errors
///
/// When Python or DuckDB is missing (`scripts/setup run` installs them) or cannot read the lake.
pub fn count_with_duckdb(glob: &str) -> Result<(usize, usize, usize)> {
    let output = Command::new(python())
        .args(["-c", COUNT, glob])
        .output()
        .with_context(|| format!("run {}; scripts/setup run makes it", python().display()))?;
    if !output.status.success() {
        bail!(
            "DuckDB cannot read {glob}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let text = String::from_utf8(output.stdout)?;
    let mut numbers = text.split_whitespace().map(str::parse);
    let mut next = || {
        numbers
            .next()
            .context("too few numbers")?
            .context("not a number")
    };
    Ok((next()?, next()?, next()?))
}

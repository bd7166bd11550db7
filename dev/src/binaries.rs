//! Where the built programs are.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The broker's binary: `QUEEN_BIN`, else where `cargo build -p queen` puts it.
///
/// # Errors
///
/// When it is not built; the message says how to build it.
pub fn broker_binary() -> Result<PathBuf> {
    let build = "cargo build -p queen";
    find("QUEEN_BIN", &built_beside_this_program("queen")?, build)
}

/// The sink's binary: `QUEEN_S3_BIN`, else the newer of the sink's own debug and release builds.
///
/// # Errors
///
/// When it is not built; the message says how to build it.
pub fn sink_binary() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../connectors/queen-s3/target");
    let candidates = [root.join("debug/queen-s3"), root.join("release/queen-s3")];
    let build = "cargo build --manifest-path connectors/queen-s3/Cargo.toml";
    find("QUEEN_S3_BIN", &candidates, build)
}

/// The Python that has the readers: `PYTHON`, else the one in `.venv` that `scripts/setup` makes.
pub fn python() -> PathBuf {
    match env::var_os("PYTHON").filter(|value| !value.is_empty()) {
        Some(python) => PathBuf::from(python),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python"),
    }
}

/// `variable` when it is set, else the candidate that was built last.
fn find(variable: &str, candidates: &[PathBuf], build: &str) -> Result<PathBuf> {
    if let Some(path) = env::var_os(variable).filter(|value| !value.is_empty()) {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path.canonicalize()?);
        }
        bail!("{variable} names {}, which is not a file", path.display());
    }
    let built = |path: &PathBuf| path.metadata().and_then(|meta| meta.modified()).ok();
    match candidates
        .iter()
        .filter(|path| path.is_file())
        .max_by_key(|path| built(path))
    {
        Some(path) => Ok(path.canonicalize()?),
        None => bail!("there is no {}; build it: {build}", candidates[0].display()),
    }
}

/// Where cargo puts `name`: beside this program, or one up from a test in `deps`.
fn built_beside_this_program(name: &str) -> Result<[PathBuf; 2]> {
    let program = env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("."));
    Ok([folder.join(name), folder.join("..").join(name)])
}

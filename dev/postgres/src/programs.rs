//! Where PostgreSQL's programs are.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;

/// Debian keeps each major version's server programs here and off `PATH`.
const DEBIAN_ROOT: &str = "/usr/lib/postgresql";

/// The folder with `initdb` and `postgres` to use for `data`: the version that made the cluster
/// when there is one, else the newest.
///
/// # Errors
///
/// [`Error::NotInstalled`], or [`Error::OtherVersion`] when only other versions are there.
pub fn find(data: &Path) -> Result<PathBuf, Error> {
    let mut folders = debian_folders();
    folders.extend(path_folders());
    folders.extend(pg_config_folder());
    folders.retain(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file());
    let Ok(made_by) = fs::read_to_string(data.join("PG_VERSION")) else {
        return folders.into_iter().next().ok_or(Error::NotInstalled);
    };
    if folders.is_empty() {
        return Err(Error::NotInstalled);
    }
    let made_by = made_by.trim();
    folders
        .into_iter()
        .find(|folder| major_version(folder).as_deref() == Some(made_by))
        .ok_or_else(|| Error::OtherVersion {
            dir: data.to_path_buf(),
            version: made_by.to_owned(),
        })
}

/// Finds `program` on `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    path_folders()
        .into_iter()
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Debian's folders, newest major version first.
fn debian_folders() -> Vec<PathBuf> {
    let mut versions: Vec<u32> = fs::read_dir(DEBIAN_ROOT)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions
        .into_iter()
        .map(|version| Path::new(DEBIAN_ROOT).join(version.to_string()).join("bin"))
        .collect()
}

fn path_folders() -> Vec<PathBuf> {
    env::var_os("PATH")
        .map(|path| env::split_paths(&path).collect())
        .unwrap_or_default()
}

fn pg_config_folder() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

/// `15` of "postgres (PostgreSQL) 15.8 (Debian 15.8-0)".
fn major_version(folder: &Path) -> Option<String> {
    let output = Command::new(folder.join("postgres"))
        .arg("--version")
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let version = text
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    version
        .split(|c: char| !c.is_ascii_digit())
        .next()
        .map(str::to_owned)
}

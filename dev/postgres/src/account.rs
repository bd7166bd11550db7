//! The user that the server runs as.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

use crate::error::Error;
use crate::programs;

/// The system user that a root program runs the server as.
const SERVER_USER: &str = "postgres";

/// Who runs the server: the calling user, or `postgres` when the caller is root.
#[derive(Debug, Clone)]
pub enum Account {
    /// The server runs as the calling user.
    Caller,
    /// The caller is root; the server runs as `postgres` with these ids.
    Postgres {
        /// User id.
        uid: u32,
        /// Primary group id.
        gid: u32,
    },
}

impl Account {
    /// The account for this process.
    ///
    /// # Errors
    ///
    /// [`Error::NoUnprivilegedUser`] for root without a `postgres` user.
    pub fn detect() -> Result<Self, Error> {
        if !geteuid().is_root() {
            return Ok(Self::Caller);
        }
        let passwd = fs::read_to_string("/etc/passwd").map_err(Error::io("read /etc/passwd"))?;
        let (uid, gid) = ids_of(&passwd, SERVER_USER).ok_or(Error::NoUnprivilegedUser)?;
        Ok(Self::Postgres { uid, gid })
    }

    /// A command that runs `program` as this account. With `death_signal` (`INT`, `QUIT`) the
    /// kernel sends that signal once the thread that started it is gone.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`] when `setpriv` is needed and not there.
    pub fn command(&self, program: &Path, death_signal: Option<&str>) -> Result<Command, Error> {
        let needs_setpriv = matches!(self, Self::Postgres { .. }) || death_signal.is_some();
        // Only Linux knows a parent-death signal; elsewhere an ordinary user needs no wrapper.
        if !needs_setpriv || (cfg!(not(target_os = "linux")) && matches!(self, Self::Caller)) {
            return Ok(Command::new(program));
        }
        let setpriv = programs::on_path("setpriv").ok_or(Error::MissingProgram {
            program: "setpriv",
            package: "util-linux",
        })?;
        let mut command = Command::new(setpriv);
        if matches!(self, Self::Postgres { .. }) {
            command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
        }
        if let Some(signal) = death_signal {
            command.arg("--pdeathsig").arg(signal);
        }
        command.arg("--").arg(program);
        Ok(command)
    }

    /// Hands `path` to this account and closes it to everybody else.
    pub fn own(&self, path: &Path) -> Result<(), Error> {
        if let Self::Postgres { uid, gid } = self {
            chown(path, Some(*uid), Some(*gid)).map_err(Error::io(format!(
                "hand {} to user postgres",
                path.display()
            )))?;
        }
        let mode = if path.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Error::io(format!(
            "set the permissions of {}",
            path.display()
        )))
    }

    /// Checks that this account may pass through every folder above `dir` (an absolute path).
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] naming the first closed folder, `/root` being the usual one.
    pub fn check_reach(&self, dir: &Path) -> Result<(), Error> {
        let Self::Postgres { uid, gid } = self else {
            return Ok(());
        };
        for ancestor in dir.ancestors().skip(1) {
            let Ok(meta) = fs::metadata(ancestor) else {
                continue;
            };
            let search_bit = match (meta.uid() == *uid, meta.gid() == *gid) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            if meta.mode() & search_bit == 0 {
                return Err(Error::Unreachable {
                    dir: dir.to_path_buf(),
                    ancestor: ancestor.to_path_buf(),
                });
            }
        }
        Ok(())
    }
}

/// The user and group id of `name` in the text of `/etc/passwd`.
fn ids_of(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let line = passwd
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

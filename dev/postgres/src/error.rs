//! What can go wrong, told to the person who has to fix it.

use std::io;
use std::path::PathBuf;

/// Why a private cluster could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No PostgreSQL server programs on this machine.
    #[error(
        "PostgreSQL is not installed: no `initdb` and `postgres` in /usr/lib/postgresql/*/bin, on \
         PATH, or where `pg_config --bindir` points; on Debian and Ubuntu: apt-get install postgresql"
    )]
    NotInstalled,

    /// The folder was made by a major version whose programs are not on this machine.
    #[error(
        "the cluster in {} was made by PostgreSQL {version}, which is not installed; on Debian and \
         Ubuntu: apt-get install postgresql-{version}, or start with another folder", dir.display()
    )]
    OtherVersion {
        /// The cluster's folder.
        dir: PathBuf,
        /// The major version found in it.
        version: String,
    },

    /// A helper program is missing.
    #[error("`{program}` is not on PATH; on Debian and Ubuntu: apt-get install {package}")]
    MissingProgram {
        /// The program looked for.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },

    /// The program runs as root and there is no `postgres` user to run the server as.
    #[error(
        "PostgreSQL refuses to run as root and this machine has no user `postgres` to run it as; \
         run as an ordinary user, or on Debian and Ubuntu: apt-get install postgresql"
    )]
    NoUnprivilegedUser,

    /// The user that the server runs as cannot enter a folder on the way to the cluster.
    #[error(
        "the server runs as user `postgres`, which may not enter {}; choose a folder elsewhere \
         than {}, or run as an ordinary user", ancestor.display(), dir.display()
    )]
    Unreachable {
        /// The cluster's folder.
        dir: PathBuf,
        /// The folder on the way that is closed.
        ancestor: PathBuf,
    },

    /// Another server runs in the folder.
    #[error(
        "a PostgreSQL server (process {pid}) already runs in {}; stop the program that started \
         it, or start with another folder", dir.display()
    )]
    AlreadyRunning {
        /// The cluster's folder.
        dir: PathBuf,
        /// The running server's process id.
        pid: i32,
    },

    /// A program that ran to its end reported a failure.
    #[error("`{program}` failed ({status}): {output}")]
    ProgramFailed {
        /// The program.
        program: String,
        /// Its exit status.
        status: String,
        /// The end of what it wrote.
        output: String,
    },

    /// The server ended before it was ready.
    #[error("the PostgreSQL server ended at start ({status}); its log {} ends with: {tail}", log.display())]
    EndedAtStart {
        /// Its exit status.
        status: String,
        /// The server's log file.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },

    /// The server was not ready in time.
    #[error("the PostgreSQL server was not ready within {seconds} s; its log {} ends with: {tail}", log.display())]
    NotReady {
        /// The bound in seconds.
        seconds: u64,
        /// The server's log file.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },

    /// The server is not running.
    #[error("the PostgreSQL server is not running")]
    NotRunning,

    /// The operating system refused something.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried, with the path.
        action: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Names what was tried beside the system's answer.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}

//! The cluster: its folder, its start and its end.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, test_kill_process};
use tempfile::TempDir;

use crate::account::Account;
use crate::error::Error;
use crate::frozen::Frozen;
use crate::kept_child::KeptChild;
use crate::limits::{
    ATTEMPT_PAUSE, FAST_STOP_LIMIT, IMMEDIATE_STOP_LIMIT, LOG_TAIL, POLL, PREDECESSOR_LIMIT,
    SOCKET_PATH, START_ATTEMPTS, START_LIMIT,
};

use crate::programs;
use crate::small_disk;

/// How to start a cluster.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder to keep the cluster in, made when absent and used again when it holds one.
    /// `None` is a temporary folder that goes away with the handle.
    pub dir: Option<PathBuf>,
    /// `true`: PostgreSQL's own promises hold. `false`: no fsync, for data that nobody would miss
    /// after the machine itself has crashed; a killed server still has every commit.
    pub durable: bool,
    /// The superuser to make. A cluster that exists keeps the one it was made with.
    pub user: String,
    /// Further server settings, as `name`, `value`.
    pub settings: Vec<(String, String)>,
    /// Further variables of the server's environment, as `name`, `value`.
    pub environment: Vec<(String, String)>,
    /// Bytes of a small file system in [`PrivatePostgres::small_disk`], for a tablespace that is soon full.
    pub small_disk: Option<u64>,
}

impl Options {
    /// A cluster for one test or demo: temporary folder, no fsync.
    pub fn throwaway() -> Self {
        Self {
            dir: None,
            durable: false,
            user: "queen".into(),
            settings: Vec::new(),
            environment: Vec::new(),
            small_disk: None,
        }
    }

    /// A cluster that keeps what it is told, in `dir`.
    pub fn durable(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: Some(dir.into()),
            durable: true,
            ..Self::throwaway()
        }
    }
}

/// A running private cluster. Dropping it stops the server.
#[derive(Debug)]
pub struct PrivatePostgres {
    options: Options,
    account: Account,
    programs: PathBuf,
    password: String,
    port: u16,
    postmaster: Option<KeptChild>,
    folder: PathBuf,
    // Dropped after the fields above; `Drop` has stopped the server by then.
    sockets: TempDir,
    _temporary: Option<TempDir>,
}

impl PrivatePostgres {
    /// Makes the cluster when the folder holds none, starts the server and waits until it answers.
    ///
    /// A folder whose former server was killed is recovered first, as PostgreSQL does.
    ///
    /// # Errors
    ///
    /// Every variant of [`Error`] says what to do about it.
    pub fn start(options: Options) -> Result<Self, Error> {
        let account = Account::detect()?;
        let (folder, temporary) = match &options.dir {
            Some(dir) => {
                fs::create_dir_all(dir).map_err(Error::io(format!("make {}", dir.display())))?;
                (
                    dir.canonicalize()
                        .map_err(Error::io(format!("find {}", dir.display())))?,
                    None,
                )
            }
            None => {
                let temporary = temporary_folder("private-postgres-")?;
                (temporary.path().to_path_buf(), Some(temporary))
            }
        };
        account.check_reach(&folder)?;
        account.own(&folder)?;
        let programs = programs::find(&folder.join("data"))?;
        let sockets = socket_folder()?;
        account.own(sockets.path())?;
        let mut cluster = Self {
            options,
            account,
            programs,
            password: String::new(),
            port: 0,
            postmaster: None,
            folder,
            sockets,
            _temporary: temporary,
        };
        cluster.password = cluster.find_or_make_password()?;
        cluster.wait_for_predecessor()?;
        if !cluster.data().join("PG_VERSION").is_file() {
            cluster.initialise()?;
        }
        cluster.start_on(None)?;
        Ok(cluster)
    }

    /// The address to connect to over TCP. The connection needs [`password`](Self::password).
    pub fn host(&self) -> &'static str {
        "127.0.0.1"
    }

    /// The port, of TCP and of the unix socket's name. It stays the same over a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The superuser.
    pub fn user(&self) -> &str {
        &self.options.user
    }

    /// The superuser's password, generated with the cluster.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// A database that is always there.
    pub fn database(&self) -> &'static str {
        "postgres"
    }

    /// The folder of the unix socket, as `host` of a connection. No password is asked there: only
    /// the user that runs the server (and root) can enter it.
    pub fn socket_dir(&self) -> &Path {
        self.sockets.path()
    }

    /// The folder that holds the cluster.
    pub fn dir(&self) -> &Path {
        &self.folder
    }

    /// The folder that is a file system of its own where the options ask for one. What is in it goes with the
    /// server.
    pub fn small_disk(&self) -> PathBuf {
        self.folder.join("small")
    }

    /// Whether this machine lets this user have a small file system: root, or who may make user namespaces.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn may_have_small_disk() -> Result<bool, Error> {
        let folder = temporary_folder("private-postgres-")?;
        Ok(small_disk::may_be(folder.path(), &Account::detect()?))
    }

    /// The server's log of this start. The former start's lies beside it with `.1` appended.
    pub fn log_path(&self) -> PathBuf {
        self.folder.join("postgres.log")
    }

    /// The server's process id while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.postmaster.as_ref().map(KeptChild::pid)
    }

    /// Stops every process of the server without ending it (SIGSTOP), until what is given back is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where there is no `/proc`.
    pub fn freeze(&self) -> Result<Frozen, Error> {
        Frozen::of(self.pid().and_then(Pid::from_raw))
    }

    /// Stops the server: SIGINT (sessions are cut, data is written), then SIGQUIT, then SIGKILL.
    /// A stopped cluster can be started again with [`restart`](Self::restart).
    pub fn stop(&mut self) {
        self.end(Signal::INT);
    }

    /// Kills the server with SIGKILL, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    /// Stops the server if it runs, and starts it on the same port.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start); [`Error::EndedAtStart`] when the port was taken meanwhile.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop();
        self.start_on(Some(self.port))
    }

    /// Lets no file of the server grow beyond `bytes`, as a full disk would; `None` lets all grow
    /// again. Sessions that are there keep the limit that they began with.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`] without util-linux.
    pub fn limit_files(&self, bytes: Option<u64>) -> Result<(), Error> {
        let prlimit = programs::on_path("prlimit").ok_or(Error::MissingProgram {
            program: "prlimit",
            package: "util-linux",
        })?;
        let Some(pid) = self.pid() else {
            return Ok(());
        };
        // By the server's own account: another one, root too, may be denied it.
        let mut command = self.account.command(&prlimit, None)?;
        let soft = bytes.map_or("unlimited".into(), |bytes| bytes.to_string());
        command
            .args(["--pid", &pid.to_string()])
            .arg(format!("--fsize={soft}:"));
        run_to_end("prlimit", &mut command)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Ends the server, beginning with `first`, and leaves no process behind.
    fn end(&mut self, first: Signal) {
        let Some(postmaster) = self.postmaster.take() else {
            return;
        };
        let steps = [
            (Signal::INT, FAST_STOP_LIMIT),
            (Signal::QUIT, IMMEDIATE_STOP_LIMIT),
            (Signal::KILL, IMMEDIATE_STOP_LIMIT),
        ];
        for (signal, limit) in steps.into_iter().skip_while(|(signal, _)| *signal != first) {
            postmaster.signal(signal);
            if postmaster.wait(limit).is_some() {
                return;
            }
        }
    }

    /// Reads the password kept with the cluster, or makes one.
    fn find_or_make_password(&self) -> Result<String, Error> {
        let file = self.folder.join("password");
        if let Ok(password) = fs::read_to_string(&file)
            && !password.trim().is_empty()
        {
            return Ok(password.trim().to_owned());
        }
        let mut random = [0_u8; 16];
        File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut random))
            .map_err(Error::io("read /dev/urandom"))?;
        let password: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        File::create(&file)
            .and_then(|mut out| writeln!(out, "{password}"))
            .map_err(Error::io(format!("write {}", file.display())))?;
        self.account.own(&file)?;
        Ok(password)
    }

    /// Runs `initdb` into a folder beside the real one, so that a start that was killed half way
    /// leaves nothing that looks like a cluster.
    fn initialise(&self) -> Result<(), Error> {
        let unfinished = self.folder.join("data.new");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)
                .map_err(Error::io(format!("remove {}", unfinished.display())))?;
        }
        let mut command = self
            .account
            .command(&self.programs.join("initdb"), Some("KILL"))?;
        command
            .arg("--pgdata")
            .arg(&unfinished)
            .arg("--pwfile")
            .arg(self.folder.join("password"))
            .arg(format!("--username={}", self.options.user))
            .args(["--encoding=UTF8", "--locale=C", "--no-instructions"])
            .args(["--auth-local=trust", "--auth-host=scram-sha-256"]);
        if !self.options.durable {
            command.arg("--no-sync");
        }
        run_to_end("initdb", command.current_dir(&self.folder))?;
        fs::rename(&unfinished, self.data())
            .map_err(Error::io(format!("rename {}", unfinished.display())))
    }

    /// Starts the server on `fixed`, or on free ports until one is not taken by somebody faster.
    fn start_on(&mut self, fixed: Option<u16>) -> Result<(), Error> {
        let mut attempt = 1;
        loop {
            self.port = match fixed {
                Some(port) => port,
                None => free_port()?,
            };
            match self.start_once() {
                Err(Error::EndedAtStart { tail, .. })
                    if attempt < START_ATTEMPTS && passes(&tail) =>
                {
                    attempt += 1;
                    thread::sleep(ATTEMPT_PAUSE);
                }
                other => return other,
            }
        }
    }

    fn start_once(&mut self) -> Result<(), Error> {
        let log = self.log_path();
        let former = self.folder.join("postgres.log.1");
        if log.exists() {
            fs::rename(&log, former).map_err(Error::io(format!("rename {}", log.display())))?;
        }
        let output = File::create(&log).map_err(Error::io(format!("make {}", log.display())))?;
        let copy = output
            .try_clone()
            .map_err(Error::io("copy a file handle"))?;

        let death_signal = if self.options.durable { "INT" } else { "QUIT" };
        let mut command = self.server_command(death_signal)?;
        command
            .arg("-D")
            .arg(self.data())
            .args(["-c", "listen_addresses=127.0.0.1"]);
        command.arg("-c").arg(format!("port={}", self.port));
        let mut sockets = std::ffi::OsString::from("unix_socket_directories=");
        sockets.push(self.sockets.path());
        command
            .arg("-c")
            .arg(sockets)
            .args(["-c", "logging_collector=off"]);
        if !self.options.durable {
            // Commits still reach the kernel before they are acknowledged, so that a killed server
            // loses none.
            command.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
        }
        for (name, value) in &self.options.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command
            .current_dir(&self.folder)
            .stdin(std::process::Stdio::null())
            .stdout(output)
            .stderr(copy);
        let postmaster = KeptChild::spawn(command).map_err(Error::io("start postgres"))?;
        self.wait_until_ready(&postmaster)?;
        self.postmaster = Some(postmaster);
        Ok(())
    }

    /// The server, with its environment. Only it may have that: a preloaded library must not run as
    /// root first, in the program that hands over to the server's account.
    fn server_command(&self, death_signal: &str) -> Result<Command, Error> {
        let command = self.server_in_environment(death_signal)?;
        let Some(bytes) = self.options.small_disk else {
            return Ok(command);
        };
        let disk = self.small_disk();
        fs::create_dir_all(&disk).map_err(Error::io(format!("make {}", disk.display())))?;
        self.account.own(&disk)?;
        Ok(small_disk::within(&disk, bytes, &self.account, &command))
    }

    fn server_in_environment(&self, death_signal: &str) -> Result<Command, Error> {
        let server = self.programs.join("postgres");
        if self.options.environment.is_empty() {
            return self.account.command(&server, Some(death_signal));
        }
        let env = programs::on_path("env").ok_or(Error::MissingProgram {
            program: "env",
            package: "coreutils",
        })?;
        let mut command = self.account.command(&env, Some(death_signal))?;
        for (name, value) in &self.options.environment {
            command.arg(format!("{name}={value}"));
        }
        command.arg(server);
        Ok(command)
    }

    /// Waits as `pg_ctl` does: the server writes its state into `postmaster.pid`.
    fn wait_until_ready(&self, postmaster: &KeptChild) -> Result<(), Error> {
        let begin = Instant::now();
        while begin.elapsed() < START_LIMIT {
            if let Some(status) = postmaster.wait(POLL) {
                return Err(Error::EndedAtStart {
                    status: status.to_string(),
                    log: self.log_path(),
                    tail: tail_of(&self.log_path()),
                });
            }
            if let Some(state) = LockFile::read(&self.data())
                && state.pid == postmaster.pid()
                && state.status == "ready"
            {
                return Ok(());
            }
        }
        postmaster.signal(Signal::QUIT);
        if postmaster.wait(IMMEDIATE_STOP_LIMIT).is_none() {
            postmaster.signal(Signal::KILL);
        }
        Err(Error::NotReady {
            seconds: START_LIMIT.as_secs(),
            log: self.log_path(),
            tail: tail_of(&self.log_path()),
        })
    }

    /// Lets a former server in this folder finish: its program may have been killed a moment ago.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyRunning`] when it stays.
    fn wait_for_predecessor(&self) -> Result<(), Error> {
        let begin = Instant::now();
        while let Some(lock) = LockFile::read(&self.data()) {
            if !lock.is_held(&self.data()) {
                // After a crash the id may belong to another program of the same user; the
                // server would then refuse to start.
                let file = self.data().join(LOCK_FILE);
                return fs::remove_file(&file)
                    .map_err(Error::io(format!("remove {}", file.display())));
            }
            let limit = if lock.status == "stopping" {
                FAST_STOP_LIMIT
            } else {
                PREDECESSOR_LIMIT
            };
            if begin.elapsed() > limit {
                return Err(Error::AlreadyRunning {
                    dir: self.folder.clone(),
                    pid: lock.pid,
                });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        let first = if self.options.durable {
            Signal::INT
        } else {
            Signal::QUIT
        };
        self.end(first);
    }
}

/// The server's lock file in its data folder.
const LOCK_FILE: &str = "postmaster.pid";

/// What the lock file says: the id in line 1, the state ("starting", "ready", "stopping") in
/// line 8.
struct LockFile {
    pid: i32,
    status: String,
}

impl LockFile {
    fn read(data: &Path) -> Option<Self> {
        let text = fs::read_to_string(data.join(LOCK_FILE)).ok()?;
        let mut lines = text.lines();
        let pid = lines.next()?.trim().parse().ok()?;
        Some(Self {
            pid,
            status: lines.nth(6).unwrap_or_default().trim().to_owned(),
        })
    }

    /// Whether that process lives and is a server on `data`. A server's working folder is its
    /// data folder; where that cannot be seen, a living process counts.
    fn is_held(&self, data: &Path) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return false;
        };
        if test_kill_process(pid).is_err() {
            return false;
        }
        fs::read_link(format!("/proc/{}/cwd", self.pid)).map_or(true, |folder| folder == data)
    }
}

/// Whether the server's last words tell of something that another attempt gets past: a port
/// somebody took first, or a killed server's sessions that have not all noticed yet.
fn passes(tail: &str) -> bool {
    [
        "Address already in use",
        "could not create any TCP/IP sockets",
        "is still in use",
    ]
    .iter()
    .any(|words| tail.contains(words))
}

/// A port that nobody listens on at the moment.
fn free_port() -> Result<u16, Error> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(Error::io("find a free port on 127.0.0.1"))
}

fn temporary_folder(prefix: &str) -> Result<TempDir, Error> {
    tempfile::Builder::new()
        .prefix(prefix)
        .tempdir()
        .map_err(Error::io("make a temporary folder"))
}

/// A folder short enough for a unix socket's path, whatever `TMPDIR` says.
fn socket_folder() -> Result<TempDir, Error> {
    let folder = temporary_folder("pg-")?;
    if folder.path().as_os_str().as_bytes().len() + "/.s.PGSQL.65535".len() <= SOCKET_PATH {
        return Ok(folder);
    }
    tempfile::Builder::new()
        .prefix("pg-")
        .tempdir_in("/tmp")
        .map_err(Error::io("make a folder in /tmp"))
}

/// Runs `command` to its end.
fn run_to_end(name: &str, command: &mut Command) -> Result<(), Error> {
    let output = command.output().map_err(Error::io(format!("run {name}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(Error::ProgramFailed {
        program: name.to_owned(),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&text).trim().to_owned(),
    })
}

/// The end of a log, as far as it can be read.
fn tail_of(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_default()
}

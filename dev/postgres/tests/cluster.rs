//! A private cluster's life, on the PostgreSQL of this machine.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use private_postgres::{Error, Options, PrivatePostgres};

type Checked = Result<(), Box<dyn std::error::Error>>;

/// Runs one statement with `psql` and gives its answer.
fn ask(host: &str, cluster: &PrivatePostgres, statement: &str) -> Result<String, String> {
    let output = Command::new("psql")
        .args([
            "-XAtq",
            "-h",
            host,
            "-U",
            cluster.user(),
            "-d",
            cluster.database(),
        ])
        .args(["-p", &cluster.port().to_string(), "-c", statement])
        .env("PGPASSWORD", cluster.password())
        .output()
        .map_err(|error| error.to_string())?;
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

fn over_socket(cluster: &PrivatePostgres, statement: &str) -> Result<String, String> {
    ask(
        &cluster.socket_dir().display().to_string(),
        cluster,
        statement,
    )
}

/// Whether the process still runs. A zombie that nobody reaped counts as gone.
fn runs(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim().starts_with('Z'))
    })
}

fn becomes(limit: Duration, condition: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn answers_over_the_socket_and_over_tcp() -> Checked {
    let cluster = PrivatePostgres::start(Options::throwaway())?;
    assert_eq!(over_socket(&cluster, "select 1")?, "1");
    assert_eq!(
        ask(cluster.host(), &cluster, "select current_user")?,
        "queen"
    );
    Ok(())
}

#[test]
fn leaves_no_process_and_no_folder_when_a_test_panics() -> Checked {
    let cluster = PrivatePostgres::start(Options::throwaway())?;
    let (folder, pid) = (
        cluster.dir().to_path_buf(),
        cluster.pid().ok_or("no process")?,
    );
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _held = cluster;
        std::panic::resume_unwind(Box::new("a test failed"));
    }));
    assert!(panicked.is_err());
    assert!(!runs(pid));
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn keeps_its_data_and_port_over_a_restart_and_a_kill() -> Checked {
    let mut cluster = PrivatePostgres::start(Options::throwaway())?;
    let port = cluster.port();
    over_socket(&cluster, "create table kept as select 42 as n")?;
    cluster.restart()?;
    // The last commit before the kill is the one that a lazy server would lose.
    over_socket(&cluster, "insert into kept values (43)")?;
    cluster.kill();
    cluster.restart()?;
    assert_eq!(cluster.port(), port);
    assert_eq!(over_socket(&cluster, "select sum(n) from kept")?, "85");
    Ok(())
}

#[test]
fn opens_a_given_folder_again_with_the_same_password() -> Checked {
    let parent = tempfile::tempdir()?;
    let dir = open_to_all(parent.path())?.join("cluster");
    let first = PrivatePostgres::start(Options::durable(&dir))?;
    let password = first.password().to_owned();
    over_socket(&first, "create table kept as select 7 as n")?;
    drop(first);
    let second = PrivatePostgres::start(Options::durable(&dir))?;
    assert_eq!(second.password(), password);
    assert_eq!(ask(second.host(), &second, "select n from kept")?, "7");
    Ok(())
}

#[test]
fn a_second_start_in_a_folder_in_use_is_refused_and_names_the_process() -> Checked {
    let parent = tempfile::tempdir()?;
    let dir = open_to_all(parent.path())?.join("cluster");
    let options = Options {
        dir: Some(dir),
        ..Options::throwaway()
    };
    let first = PrivatePostgres::start(options.clone())?;
    match PrivatePostgres::start(options) {
        Err(Error::AlreadyRunning { pid, .. }) => assert_eq!(Some(pid), first.pid()),
        other => panic!("expected a refusal, got {other:?}"),
    }
    assert_eq!(over_socket(&first, "select 1")?, "1");
    Ok(())
}

#[test]
fn a_lock_file_left_by_a_killed_server_is_no_obstacle_even_when_its_id_lives_on() -> Checked {
    let parent = tempfile::tempdir()?;
    let dir = open_to_all(parent.path())?.join("cluster");
    let options = Options {
        dir: Some(dir.clone()),
        ..Options::throwaway()
    };
    drop(PrivatePostgres::start(options.clone())?);
    fs::write(
        dir.join("data/postmaster.pid"),
        format!("{}\n/\n0\n", std::process::id()),
    )?;
    let again = PrivatePostgres::start(options)?;
    assert_eq!(over_socket(&again, "select 1")?, "1");
    Ok(())
}

/// Not a test of its own: `ends_with_a_program_that_is_killed` runs this binary again with the
/// variable set and kills it.
#[test]
fn holder() -> Checked {
    let Ok(file) = std::env::var("PRIVATE_POSTGRES_HOLDER") else {
        return Ok(());
    };
    let cluster = PrivatePostgres::start(Options::throwaway())?;
    fs::write(&file, format!("{}\n", cluster.pid().ok_or("no process")?))?;
    loop {
        std::thread::park();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn ends_with_a_program_that_is_killed() -> Checked {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("pid");
    let mut program = Command::new(std::env::current_exe()?)
        .args(["--exact", "holder"])
        .env("PRIVATE_POSTGRES_HOLDER", &file)
        .env("TMPDIR", open_to_all(folder.path())?)
        .spawn()?;
    let written = || {
        fs::read_to_string(&file)
            .ok()
            .filter(|text| text.ends_with('\n'))
    };
    assert!(
        becomes(Duration::from_secs(60), || written().is_some()),
        "the holder never started"
    );
    let pid: i32 = written().ok_or("no id")?.trim().parse()?;
    assert!(runs(pid));
    program.kill()?;
    program.wait()?;
    assert!(
        becomes(Duration::from_secs(20), || !runs(pid)),
        "the server outlived its program"
    );
    Ok(())
}

/// Temporary folders are closed to other users, and as root the server is another user.
fn open_to_all(dir: &Path) -> std::io::Result<&Path> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    Ok(dir)
}

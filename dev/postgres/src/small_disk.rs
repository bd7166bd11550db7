//! A file system of the server's own that is soon full: what a full disk does is the kernel's word then, and no
//! imitation. It is in memory, seen by the server alone, and goes with it.

use std::path::Path;
use std::process::Command;

use rustix::process::{getegid, geteuid};

use crate::account::Account;

/// Makes it, with the folder, its bytes and further options, and goes on as another program.
const MOUNT: &str = r#"mount -t tmpfs -o "size=$1,mode=0700$2" small "$0" && shift 2 && exec "$@""#;

/// The command `inner`, with such a file system of `bytes` in `folder`. Who is not root needs user namespaces.
pub fn within(folder: &Path, bytes: u64, account: &Account, inner: &Command) -> Command {
    let mut command = Command::new("unshare");
    let (root, owner) = match account {
        Account::Postgres { uid, gid } => (true, format!(",uid={uid},gid={gid}")),
        Account::Caller => (false, String::new()),
    };
    if !root {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--", "sh", "-c", MOUNT]);
    command.arg(folder).arg(bytes.to_string()).arg(owner);
    if !root {
        // The server refuses to be root, in a namespace as well.
        let user = format!("--map-user={}", geteuid().as_raw());
        let group = format!("--map-group={}", getegid().as_raw());
        command.args(["unshare", "--user", &user, &group, "--"]);
    }
    command.arg(inner.get_program()).args(inner.get_args());
    command
}

/// Whether this machine lets this user have one.
pub fn may_be(folder: &Path, account: &Account) -> bool {
    let mut command = within(folder, 1 << 20, account, &Command::new("true"));
    command.output().is_ok_and(|done| done.status.success())
}

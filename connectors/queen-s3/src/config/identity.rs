//! Who holds this process's leases.

use uuid::Uuid;

use super::parse;

/// Hostnames that many machines share; as a lease identity they would let one machine take over
/// another's lease.
const SHARED_HOSTNAMES: [&str; 3] = ["localhost", "localhost.localdomain", "(none)"];

/// The lease identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub name: String,
    /// Whether it was made up for this process: a lease under such a name is never handed back to
    /// the next process, only expires.
    pub generated: bool,
}

impl Identity {
    /// The `configured` name, else the hostname, else a generated name.
    pub fn resolve(configured: Option<&str>, hostname: Option<&str>) -> Self {
        let hostname = hostname
            .filter(|name| !name.is_empty() && !SHARED_HOSTNAMES.contains(name))
            .and_then(|name| parse::instance(name).ok());
        match configured.map(str::to_owned).or(hostname) {
            Some(name) => Self {
                name,
                generated: false,
            },
            None => Self {
                name: format!("queen-s3-{}", Uuid::new_v4().simple()),
                generated: true,
            },
        }
    }

    /// [`resolve`](Self::resolve) with this machine's hostname.
    pub fn of_this_machine(configured: Option<&str>) -> Self {
        let uname = rustix::system::uname();
        Self::resolve(configured, uname.nodename().to_str().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configured_name_wins_over_the_hostname() {
        let identity = Identity::resolve(Some("sink-0"), Some("host"));
        assert_eq!(
            identity,
            Identity {
                name: "sink-0".into(),
                generated: false
            }
        );
        let identity = Identity::resolve(None, Some("host"));
        assert_eq!(
            identity,
            Identity {
                name: "host".into(),
                generated: false
            }
        );
    }

    #[test]
    fn without_a_hostname_of_its_own_a_machine_gets_a_generated_name() {
        for hostname in [None, Some(""), Some("localhost"), Some("a b")] {
            let identity = Identity::resolve(None, hostname);
            assert!(identity.generated, "{hostname:?}");
            assert_ne!(identity, Identity::resolve(None, hostname));
        }
    }
}

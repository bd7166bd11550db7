//! The S3 server of a stack: one of two that share no code.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::lake::Lake;
use crate::moto::Moto;
use crate::s3::S3Server;

/// Which S3 server a stack has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// [`S3Server`], built on `s3s`: checks signatures and digests, and keeps its bucket in a folder.
    #[default]
    S3s,
    /// [`Moto`], written in Python: checks neither, and keeps its bucket in memory.
    Moto,
}

impl StoreKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::S3s, Self::Moto];
}

impl fmt::Display for StoreKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::S3s => "s3s",
            Self::Moto => "moto",
        })
    }
}

/// An S3 server with one bucket. Dropping it stops it.
#[derive(Debug)]
pub enum Store {
    /// Of [`StoreKind::S3s`].
    S3s(S3Server),
    /// Of [`StoreKind::Moto`].
    Moto(Moto),
}

impl Store {
    /// Starts a server with an empty `bucket`, which a look finds in `<root>/<bucket>`. What a server
    /// says that is a process goes to a log in `logs`.
    pub async fn start(kind: StoreKind, root: &Path, logs: &Path, bucket: &str) -> Result<Self> {
        Ok(match kind {
            StoreKind::S3s => Self::S3s(S3Server::start(root, bucket).await?),
            StoreKind::Moto => Self::Moto(Moto::start(root, logs, bucket).await?),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::S3s(server) => server.address(),
            Self::Moto(moto) => moto.address(),
        }
    }

    /// `http://127.0.0.1:<port>`; the port stays the same over stops.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// An access key id that it accepts.
    pub fn access_key(&self) -> &str {
        match self {
            Self::S3s(server) => server.access_key(),
            Self::Moto(_) => "any-access-key",
        }
    }

    /// A secret access key that it accepts.
    pub fn secret_key(&self) -> &str {
        match self {
            Self::S3s(server) => server.secret_key(),
            Self::Moto(_) => "any-secret-key",
        }
    }

    /// The lake of `sink` under `prefix`, as it is whenever it is read, also while the server is
    /// stopped.
    pub fn lake(&self, prefix: &str, sink: &str) -> Lake {
        match self {
            Self::S3s(server) => server.lake(prefix, sink),
            Self::Moto(moto) => moto.lake(prefix, sink),
        }
    }

    /// Puts `content` under `key`, as somebody else may.
    pub async fn put(&self, key: &str, content: Vec<u8>) -> Result<()> {
        match self {
            Self::S3s(server) => server.put(key, content),
            Self::Moto(moto) => moto.put(key, content).await,
        }
    }

    /// Lets every request from now on wait at least this long, as at a store far away.
    pub fn delay(&self, delay: Duration) {
        match self {
            Self::S3s(server) => server.delay(delay),
            Self::Moto(moto) => moto.delay(delay),
        }
    }

    /// Serves nobody from now on, cuts every connection, and keeps what it holds.
    pub async fn stop(&mut self) {
        match self {
            Self::S3s(server) => server.stop().await,
            Self::Moto(moto) => moto.stop(),
        }
    }

    /// Serves again, at the same address.
    pub async fn start_again(&mut self) -> Result<()> {
        match self {
            Self::S3s(server) => server.start_again().await,
            Self::Moto(moto) => {
                moto.start_again();
                Ok(())
            }
        }
    }
}

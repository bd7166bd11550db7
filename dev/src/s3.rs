//! An S3 server over a folder, with real signature checks.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::dto::{GetObjectInput, HeadObjectInput};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3Request, S3Result, s3_error};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::lake::Lake;
use crate::limits::{POLL, REBIND_LIMIT};

/// An S3 server whose bucket is a folder in its root. Dropping it stops it and leaves the folder.
#[derive(Debug)]
pub struct S3Server {
    root: PathBuf,
    bucket: String,
    address: SocketAddr,
    access_key: String,
    secret_key: String,
    /// What every request waits before it is served, in milliseconds.
    delay: Arc<AtomicU64>,
    task: Option<JoinHandle<()>>,
}

impl S3Server {
    /// The region to sign with; either server takes any.
    pub const REGION: &str = "us-east-1";

    /// Serves `root` on a free loopback port and makes `bucket` in it.
    pub async fn start(root: &Path, bucket: &str) -> Result<Self> {
        let folder = root.join(bucket);
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let mut server = Self {
            root: root.to_path_buf(),
            bucket: bucket.into(),
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            access_key: "dev-access-key".into(),
            secret_key: "dev-secret-key-never-in-a-log".into(),
            delay: Arc::default(),
            task: None,
        };
        server.start_again().await?;
        Ok(server)
    }

    /// `http://127.0.0.1:<port>`; the port stays the same over stops.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The access key id that the server accepts.
    pub fn access_key(&self) -> &str {
        &self.access_key
    }

    /// The secret access key that the server accepts.
    pub fn secret_key(&self) -> &str {
        &self.secret_key
    }

    /// The lake of `sink` under `prefix`.
    pub fn lake(&self, prefix: &str, sink: &str) -> Lake {
        Lake::new(&self.root.join(&self.bucket), prefix, sink)
    }

    /// Puts `content` under `key`, as somebody else may.
    pub fn put(&self, key: &str, content: Vec<u8>) -> Result<()> {
        let file = self.root.join(&self.bucket).join(key);
        std::fs::create_dir_all(file.parent().unwrap_or(&self.root))?;
        std::fs::write(&file, content).with_context(|| format!("write {}", file.display()))
    }

    /// Lets every request from now on wait this long before it is served, as a store far away does.
    pub fn delay(&self, delay: Duration) {
        // A delay of more milliseconds than fit is never meant.
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.delay.store(millis, Ordering::Relaxed);
    }

    /// Closes the port and cuts every connection, as a crash would.
    pub async fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // Cancelled is the expected outcome; the port is free after it either way.
            let _ = task.await;
        }
    }

    /// Serves again on the same port.
    ///
    /// # Errors
    ///
    /// When somebody else took the port and keeps it.
    pub async fn start_again(&mut self) -> Result<()> {
        self.stop().await;
        let listener = bind(self.address, REBIND_LIMIT).await?;
        self.address = listener.local_addr()?;
        let files = FileSystem::new(&self.root)
            .map_err(|error| anyhow!("serve {}: {error:?}", self.root.display()))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(
            self.access_key.as_str(),
            self.secret_key.as_str(),
        ));
        service.set_access(Access {
            root: self.root.clone(),
            delay: Arc::clone(&self.delay),
        });
        self.task = Some(tokio::spawn(serve(listener, service.build())));
        Ok(())
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Lets requests wait, and answers for a folder as S3 does for a key that only others begin with:
/// there is no such object. The file system behind the server takes it for one that cannot be read.
struct Access {
    root: PathBuf,
    delay: Arc<AtomicU64>,
}

impl Access {
    fn check_key(&self, bucket: &str, key: &str) -> S3Result<()> {
        if self.root.join(bucket).join(key).is_dir() {
            return Err(s3_error!(NoSuchKey));
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let delay = self.delay.load(Ordering::Relaxed);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        match context.credentials() {
            Some(_) => Ok(()),
            None => Err(s3_error!(AccessDenied, "a signature is required")),
        }
    }

    async fn head_object(&self, request: &mut S3Request<HeadObjectInput>) -> S3Result<()> {
        self.check_key(&request.input.bucket, &request.input.key)
    }

    async fn get_object(&self, request: &mut S3Request<GetObjectInput>) -> S3Result<()> {
        self.check_key(&request.input.bucket, &request.input.key)
    }
}

async fn bind(address: SocketAddr, limit: Duration) -> Result<TcpListener> {
    let begin = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(_) if begin.elapsed() < limit => tokio::time::sleep(POLL).await,
            Err(error) => return Err(error).with_context(|| format!("listen on {address}")),
        }
    }
}

/// Accepts until cancelled. The connections are tasks of the set and end with it.
async fn serve(listener: TcpListener, service: S3Service) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A connection that is gone before it is accepted is its client's affair.
                let Ok((socket, _)) = accepted else { continue };
                let service = service.clone();
                connections.spawn(async move {
                    let http = Builder::new(TokioExecutor::new());
                    // A broken connection is its client's affair as well.
                    let _ = http.serve_connection(TokioIo::new(socket), service).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

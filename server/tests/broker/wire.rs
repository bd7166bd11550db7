//! What stands between a broker and its database.

use memchr::memmem;
use private_postgres::PrivatePostgres;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What becomes of the bytes between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    Open,
    /// They are taken and never arrive.
    Silent,
    /// Connections are cut; new ones are served.
    Cut,
    /// Open until a broker sends this text.
    Until(&'static str),
    /// What began with the text waits until the line is open, all else arrives.
    Held,
}

/// Carries connections to a database.
pub struct Wire {
    port: u16,
    line: watch::Sender<Line>,
}

impl Wire {
    pub async fn to(postgres: &PrivatePostgres) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let line = watch::Sender::new(Line::Open);
        let server = postgres.port();
        let shared = line.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(carry(from_client, to_server, shared.clone(), true));
                tokio::spawn(carry(from_server, to_client, shared.clone(), false));
            }
        });
        Self { port, line }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// Completes when a broker has sent the text that was waited for.
    pub async fn held(&self) {
        let mut line = self.line.subscribe();
        line.wait_for(|line| *line == Line::Held).await.unwrap();
    }
}

/// Carries bytes one way until the line is cut.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    line: watch::Sender<Line>,
    to_server: bool,
) {
    let mut changes = line.subscribe();
    let mut bytes = vec![0; 64 * 1024];
    loop {
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() || *changes.borrow_and_update() == Line::Cut {
                    return;
                }
            }
            read = from.read(&mut bytes) => {
                let Ok(count @ 1..) = read else { return };
                let state = *line.borrow();
                if let Line::Until(text) = state
                    && to_server
                    && memmem::find(&bytes[..count], text.as_bytes()).is_some()
                {
                    line.send_replace(Line::Held);
                    if changes.wait_for(|line| *line != Line::Held).await.is_err() {
                        return;
                    }
                }
                if state != Line::Silent && to.write_all(&bytes[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

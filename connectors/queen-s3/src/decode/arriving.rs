//! An object's bytes as they arrive, hashed on the way.

use std::io::{self, Read};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::error::TryRecvError;

/// Pieces of an object that another task downloads. The object is at its end when their sender is
/// gone.
#[derive(Debug)]
pub struct Arriving {
    pieces: Receiver<Bytes>,
    piece: Bytes,
    waits: bool,
    bytes: u64,
    sha256: Sha256,
}

impl Arriving {
    /// Reads what `pieces` brings. Where the next piece is not there yet, a read either waits for
    /// it, off the async threads, or fails with `WouldBlock`.
    pub fn new(pieces: Receiver<Bytes>, waits: bool) -> Self {
        Self {
            pieces,
            piece: Bytes::new(),
            waits,
            bytes: 0,
            sha256: Sha256::new(),
        }
    }

    /// How many bytes have arrived.
    pub fn arrived(&self) -> u64 {
        self.bytes
    }

    /// The hash of what has arrived.
    pub fn sha256(&self) -> [u8; 32] {
        self.sha256.clone().finalize().into()
    }

    fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
        if self.waits {
            return Ok(self.pieces.blocking_recv());
        }
        match self.pieces.try_recv() {
            Ok(piece) => Ok(Some(piece)),
            Err(TryRecvError::Disconnected) => Ok(None),
            Err(TryRecvError::Empty) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Read for Arriving {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let Some(piece) = self.next_piece()? else {
                return Ok(0);
            };
            self.sha256.update(&piece);
            self.bytes += piece.len() as u64;
            self.piece = piece;
        }
        let length = room.len().min(self.piece.len());
        room[..length].copy_from_slice(&self.piece.split_to(length));
        Ok(length)
    }
}

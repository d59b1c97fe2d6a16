//! A connection to the runner: messages of a kind, a length of three bytes, and a body.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_net::{Network, Stream};

use super::message::Kind;

/// Most bytes of a message, for which its length has room.
const MOST: usize = (1 << 24) - 1;
/// Bytes that are read at a time: a body takes no more memory than has come.
const PIECE: usize = 64 << 10;
/// Time limit for connecting.
const CONNECT: Duration = Duration::from_secs(1);

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
}

impl Connection {
    pub(super) async fn open(socket: &str, network: &Network) -> Result<Self, String> {
        let connecting = Stream::connect(socket, 0, None, "", network.names());
        match weir_runtime::timeout(CONNECT, connecting).await {
            Some(Ok(stream)) => Ok(Self { stream }),
            Some(Err(error)) => Err(format!("{socket}: {error}")),
            None => Err(format!("{socket}: no connection in time")),
        }
    }

    pub(super) async fn send(&mut self, kind: Kind, body: &[u8]) -> Result<(), String> {
        if body.len() > MOST {
            return Err("the request is too long for the runner's protocol: 16 MiB at most".to_owned());
        }
        let [_, lengths @ ..] = (body.len() as u32).to_be_bytes();
        let mut message = vec![kind as u8];
        message.extend_from_slice(&lengths);
        message.extend_from_slice(body);
        let mut rest = &*message;
        let sent: io::Result<()> = poll_fn(|cx| {
            while !rest.is_empty() {
                let written = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                rest = rest.get(written..).unwrap_or_default();
            }
            Poll::Ready(Ok(()))
        })
        .await;
        sent.map_err(|error| error.to_string())
    }

    /// The next message: its kind and its body.
    pub(super) async fn receive(&mut self) -> Result<(u8, Vec<u8>), String> {
        let head = self.exactly(4).await?;
        let [kind, ref lengths @ ..] = *head else { return Err("a message without a head".to_owned()) };
        let length = lengths.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        Ok((kind, self.exactly(length).await?))
    }

    async fn exactly(&mut self, length: usize) -> Result<Vec<u8>, String> {
        let mut whole = Vec::new();
        while whole.len() < length {
            let mut piece = vec![0; PIECE.min(length - whole.len())];
            let read: io::Result<usize> = poll_fn(|cx| {
                let mut room = ReadBuf::new(&mut piece);
                ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room))?;
                Poll::Ready(Ok(room.filled().len()))
            })
            .await;
            match read.map_err(|error| error.to_string())? {
                0 => return Err("the runner has closed the connection".to_owned()),
                count => whole.extend_from_slice(piece.get(..count).unwrap_or_default()),
            }
        }
        Ok(whole)
    }
}

//! Client of a connection, from a PROXY header ahead of TLS and of all other bytes.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use weir_plugin::{AddrText, Client};
use weir_wire::proxy_protocol::{self, Header, MAX_LEN, Malformed};

use crate::worker::Worker;
use weir_net::sys::Socket;

/// Reason why a connection is closed before anything of its own was read.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The peer is not among those that are believed.
    NotTrusted,
    Malformed(Malformed),
    /// The header was not there in time.
    Late,
    /// The peer closed, or reset, in the middle of the header.
    Cut,
    /// The peer closed without a byte, as checks of a listener do.
    Nothing,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotTrusted => "the peer is not in proxy_protocol.trusted",
            Self::Malformed(Malformed(reason)) => reason,
            Self::Late => "PROXY header not received in time",
            Self::Cut => "connection closed within the PROXY header",
            Self::Nothing => "connection closed before the PROXY header",
        })
    }
}

/// Reads the header, exactly, and takes over the client's address from it. Bytes after the header stay in the socket,
/// be they HTTP or a TLS handshake.
pub(crate) async fn receive(stream: &Socket, mut client: Client, worker: &Worker) -> Result<Client, Refused> {
    // Access to a Unix socket was decided by the permissions of its file.
    let trusted = client.is_unix() || worker.options.proxy_trusted.iter().any(|net| net.contains(&client.peer));
    if !trusted {
        return Err(Refused::NotTrusted);
    }
    let timer = worker.timers.timer();
    timer.set_idle(worker.options.head_ms);
    let header = poll_fn(|cx| {
        // On the stack, and only while there is something to read: a connection that waits holds no memory for it.
        let mut room = [0; MAX_LEN];
        match stream.poll_peek(cx, &mut room, look) {
            Poll::Ready(found) => {
                let found = found.unwrap_or(Err(Refused::Cut));
                Poll::Ready(found.and_then(|header| take(stream, header, &mut room).map_err(|_| Refused::Cut)))
            }
            Poll::Pending => timer.poll_expired(cx).map(|()| Err(Refused::Late)),
        }
    })
    .await?;
    if let Some(addresses) = header.addresses {
        client.addr = addresses.source.ip().to_canonical();
        client.addr_text = AddrText::new(client.addr);
        client.port = addresses.source.port();
        client.sender = client.addr;
    }
    Ok(client)
}

fn look(bytes: &[u8], ended: bool) -> Option<Result<Header, Refused>> {
    match proxy_protocol::parse(bytes) {
        Ok(Some(header)) => Some(Ok(header)),
        Ok(None) if bytes.is_empty() && ended => Some(Err(Refused::Nothing)),
        Ok(None) if ended => Some(Err(Refused::Cut)),
        Ok(None) => None,
        Err(malformed) => Some(Err(Refused::Malformed(malformed))),
    }
}

fn take(stream: &Socket, header: Header, room: &mut [u8]) -> io::Result<Header> {
    stream.take_peeked(room.get_mut(..header.len).unwrap_or_default())?;
    Ok(header)
}

//! Tunnels through forward proxies (RFC 9110 section 9.3.6): the proxy is asked for a connection to the server, and everything
//! behind its answer is the server's.

use std::future::poll_fn;
use std::task::Poll;

use weir_net::sys::Socket;
use weir_plugin::Failure;
use weir_wire::buffer::Buffer;

use super::Runner;
use super::connect::{connect_failure, late};
use crate::downstream::Presence;
use crate::relay;
use crate::upstream::Node;

/// Most bytes of an answer.
const LONGEST: usize = 8 << 10;

const REFUSED: Failure = Failure::upstream(502, "the forward proxy has refused the tunnel");

impl<D: Presence> Runner<D> {
    /// Asks a proxy for a tunnel, within the rest of the time to connect.
    pub(super) async fn ask_proxy(&self, node: &Node, question: &[u8], socket: &mut Socket) -> Result<(), Failure> {
        self.send_ahead(question, socket).await?;
        let mut answer = Buffer::new(LONGEST);
        loop {
            let read = poll_fn(|cx| match relay::poll_read(cx, socket, &mut answer) {
                Poll::Pending => self.timer.poll_expired(cx).map(|()| Err(late())),
                read => read.map(|read| read.map_err(|error| connect_failure(&error))),
            });
            if read.await? == 0 {
                tracing::warn!(proxy = %node.endpoint, "a forward proxy has closed the connection instead of opening a tunnel");
                return Err(REFUSED);
            }
            match opened(answer.bytes()) {
                Some(Ok(())) => return Ok(()),
                Some(Err(status)) => {
                    tracing::warn!(proxy = %node.endpoint, status, "a forward proxy has refused a tunnel");
                    return Err(REFUSED);
                }
                None if answer.bytes().len() >= LONGEST => return Err(REFUSED),
                None => {}
            }
        }
    }
}

/// The outcome of an answer: that the tunnel is open, or the status line. `None`: it is not complete. Nobody but the client speaks
/// first in a tunnel, so bytes behind the answer are refused.
fn opened(answer: &[u8]) -> Option<Result<(), String>> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let is_good = matches!(line, [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', b'2', ..]);
    let told = || String::from_utf8_lossy(line.get(..80).unwrap_or(line)).into_owned();
    Some(if is_good && end == answer.len() { Ok(()) } else { Err(told()) })
}

#[cfg(test)]
mod tests {
    use super::opened;

    #[test]
    fn answers_of_proxies() {
        let told = |line: &str| Some(Err(line.to_owned()));
        for (answer, expected) in [
            ("HTTP/1.1 200 Connection established\r\n\r\n", Some(Ok(()))),
            ("HTTP/1.0 204 x\r\nVia: y\r\n\r\n", Some(Ok(()))),
            ("HTTP/1.1 200 OK\r\nVia", None),
            ("HTTP/1.1 407 Authenticate\r\n\r\n", told("HTTP/1.1 407 Authenticate")),
            ("HTTP/1.1 200 OK\r\n\r\nmore", told("HTTP/1.1 200 OK")),
            ("SSH-2.0\r\n\r\n", told("SSH-2.0")),
        ] {
            assert_eq!(opened(answer.as_bytes()), expected, "{answer}");
        }
    }
}

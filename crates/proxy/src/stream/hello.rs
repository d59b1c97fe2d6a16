//! The name that a client asks for by TLS, read in passing: the session is between the client and a node.

use std::future::poll_fn;
use std::task::Poll;

use rustls::server::Acceptor;
use weir_net::sys::Socket;

use crate::worker::Worker;

/// Most bytes of a ClientHello that are looked at: with a post-quantum key share it has about 2 KiB.
const MOST: usize = 16 << 10;
/// Type of the records of a handshake (RFC 8446 section 5.1).
const HANDSHAKE: u8 = 22;

/// Result of a look at the first bytes.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    More,
    /// No TLS, or no name in it.
    Nameless,
    Name(Box<str>),
}

/// Waits for the ClientHello, within the time for handshakes, and leaves it in the socket. `None` where no name comes: the
/// client speaks something else, asks for none, or waits for the server to begin.
pub(super) async fn peek(socket: &Socket, worker: &Worker) -> Option<Box<str>> {
    let timer = worker.timers.timer();
    timer.set_idle(worker.options.handshake_ms);
    let looked = poll_fn(|cx| {
        // On the stack, and only while there is something to read: a client that waits holds no memory for it.
        let mut room = [0; MOST];
        let look = |bytes: &[u8], ended: bool| match look(bytes) {
            Look::More if ended || bytes.len() >= MOST => Some(None),
            Look::More => None,
            Look::Nameless => Some(None),
            Look::Name(name) => Some(Some(name)),
        };
        match socket.poll_peek(cx, &mut room, look) {
            Poll::Ready(found) => Poll::Ready(found.ok().flatten()),
            Poll::Pending => timer.poll_expired(cx).map(|()| None),
        }
    });
    looked.await
}

fn look(bytes: &[u8]) -> Look {
    match bytes.first() {
        None => return Look::More,
        Some(&HANDSHAKE) => {}
        Some(_) => return Look::Nameless,
    }
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        // 0: no room for more of a ClientHello that is too long.
        if !matches!(acceptor.read_tls(&mut rest), Ok(1..)) {
            return Look::Nameless;
        }
    }
    match acceptor.accept() {
        Ok(None) => Look::More,
        Ok(Some(accepted)) => {
            accepted.client_hello().server_name().map_or(Look::Nameless, |name| Look::Name(name.into()))
        }
        Err(_) => Look::Nameless,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::{Look, look};

    fn hello(name: &str) -> Vec<u8> {
        let config = ClientConfig::builder_with_provider(Arc::clone(weir_net::tls::provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let mut client = ClientConnection::new(Arc::new(config), name).expect("a session");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("a ClientHello");
        bytes
    }

    #[test]
    fn names_are_read_byte_by_byte() {
        let named = hello("db.example.com");
        for at in 0..named.len() {
            assert_eq!(look(&named[..at]), Look::More, "{at} of {} bytes", named.len());
        }
        assert_eq!(look(&named), Look::Name("db.example.com".into()));
        assert_eq!(look(&hello("127.0.0.1")), Look::Nameless, "an address is no name");
        for other in [&b"PING\r\n"[..], &[22, 9, 9, 255, 255, 0], &[0]] {
            assert_eq!(look(other), Look::Nameless, "{other:?}");
        }
    }
}

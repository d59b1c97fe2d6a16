//! TLS on a worker's sockets: handshakes and their turns, the stream of both sides, and the client's side.

pub mod client;
pub mod pem;
pub mod stream;
pub mod words;
pub mod x509;

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use tokio::sync::Semaphore;

use stream::{Session, TlsStream};

/// What does the cryptography.
#[must_use]
pub fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    &PROVIDER
}

/// Lets the handshakes of a worker take their steps one at a time, each after everything else that is ready has had
/// its turn: a step takes up to a millisecond, and a thousand of them at once would stop all traffic for a second.
#[derive(Debug)]
pub struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

impl Turns {
    async fn step<C: Session>(&self, stream: &mut TlsStream<C>) -> io::Result<bool> {
        let _turn = self.0.acquire().await;
        // The runtime looks for new events before it comes back here.
        weir_runtime::yield_now().await;
        stream.advance()
    }
}

/// Takes the handshake to its end.
///
/// # Errors
/// Those of the socket, and of TLS; the peer has been sent the alert.
pub async fn shake_hands<C: Session>(stream: &mut TlsStream<C>, turns: &Turns) -> io::Result<()> {
    loop {
        let step = turns.step(stream).await;
        if !matches!(step, Ok(false)) {
            // The last flight, or the alert.
            let sent = poll_fn(|cx| stream.poll_send(cx)).await;
            return step.and(sent);
        }
        poll_fn(|cx| stream.poll_receive(cx)).await?;
    }
}

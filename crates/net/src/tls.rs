//! TLS on a worker's sockets: handshakes and their queue, streams of both sides, and the client side.

pub mod authorities;
pub mod client;
pub mod issued;
pub mod ocsp;
pub mod pem;
pub mod staple;
pub mod stream;
pub mod words;
pub mod x509;

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use tokio::sync::Semaphore;

use stream::{Session, TlsStream};

/// Provider of the cryptography.
#[must_use]
pub fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    &PROVIDER
}

/// Queue of a worker's handshakes: their steps run one at a time, each after all other ready tasks have run. A step
/// takes up to a millisecond, and a thousand at once would stop all traffic for a second.
#[derive(Debug)]
pub struct HandshakeQueue(Semaphore);

impl Default for HandshakeQueue {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

impl HandshakeQueue {
    async fn step<C: Session>(&self, stream: &mut TlsStream<C>) -> io::Result<bool> {
        let _turn = self.0.acquire().await;
        // The runtime polls for new events before it returns here.
        weir_runtime::yield_now().await;
        stream.advance()
    }
}

/// Completes the handshake.
///
/// # Errors
/// Errors of the socket and of TLS; for the latter, the peer has been sent the alert.
pub async fn handshake<C: Session>(stream: &mut TlsStream<C>, handshakes: &HandshakeQueue) -> io::Result<()> {
    loop {
        let step = handshakes.step(stream).await;
        if !matches!(step, Ok(false)) {
            // The last flight, or the alert.
            let sent = poll_fn(|cx| stream.poll_send(cx)).await;
            return step.and(sent);
        }
        poll_fn(|cx| stream.poll_receive(cx)).await?;
    }
}

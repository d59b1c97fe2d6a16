//! Closing a connection whose client may not have read the answer yet, or has sent bytes that are unread: closing at once
//! would reset the connection and could destroy the answer (RFC 9112 section 9.6).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use tokio::io::{AsyncWriteExt, ReadBuf};

use super::h1::ClientStream;
use crate::timer::Timer;

/// Milliseconds, and bytes, that a client may go on sending after a final response.
const LINGER_MS: u64 = 1000;
const LINGER_BYTES: usize = 256 << 10;

/// Ends our side, and reads what the client still sends until it ends its own, for a time.
pub(crate) async fn close<S: ClientStream>(stream: &mut S, timer: &Timer, send_ms: u64) {
    timer.set(send_ms);
    if !matches!(timer.within(stream.shutdown()).await, Some(Ok(()))) {
        return;
    }
    timer.set(LINGER_MS);
    let mut sink = vec![0u8; 4096];
    let mut left = LINGER_BYTES;
    poll_fn(|cx| {
        loop {
            // Enough was thrown away, but the answer may still be on its way: what is unread now waits with it.
            if left == 0 {
                return timer.poll_expired(cx);
            }
            let mut room = ReadBuf::new(&mut sink);
            match Pin::new(&mut *stream).poll_read(cx, &mut room) {
                Poll::Ready(Ok(())) if !room.filled().is_empty() => {
                    left = left.saturating_sub(room.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return timer.poll_expired(cx),
            }
        }
    })
    .await;
}

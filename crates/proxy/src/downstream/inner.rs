//! Connections of the gateway to itself, in memory: requests that a plugin makes go the whole way of a client's, through
//! routes, plugins and logs, with the client's own address.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_plugin::{Client, Duplex};
use weir_telemetry::metrics::ConnectionState;

use super::h1::{self, ClientStream};
use crate::worker::Worker;

/// Bytes that one side may have sent ahead of the other.
const ROOM: usize = 16 << 10;

/// One end of a connection in memory. Dropping it notifies the other end.
#[derive(Debug)]
pub(crate) struct InnerStream {
    incoming: Rc<RefCell<Pipe>>,
    outgoing: Rc<RefCell<Pipe>>,
}

/// Bytes on their way in one direction.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// No more will come.
    has_ended: bool,
    /// True when the other end will not read them any more.
    is_abandoned: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Opens a connection that is served here for this client; `client.inner` marks it.
pub(crate) fn connect(client: &Client, worker: &Rc<Worker>) -> Box<dyn Duplex> {
    let (there, back) = (Rc::<RefCell<Pipe>>::default(), Rc::<RefCell<Pipe>>::default());
    let ours = InnerStream { incoming: Rc::clone(&there), outgoing: Rc::clone(&back) };
    let client = Client { inner: true, requests: 0, ..*client };
    let open = Open::new(worker);
    let worker = Rc::clone(worker);
    weir_runtime::spawn(async move {
        let _open = open;
        h1::serve(ours, client, worker).await;
    });
    Box::new(InnerStream { incoming: back, outgoing: there })
}

/// Counts the connection while it is open, also when its task panics.
struct Open(Rc<Worker>);

impl Open {
    fn new(worker: &Rc<Worker>) -> Self {
        worker.recorder.connection_accepted();
        worker.recorder.connection_opened(ConnectionState::Waiting);
        Self(Rc::clone(worker))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.recorder.connection_closed(ConnectionState::Waiting);
        if std::thread::panicking() {
            self.0.recorder.worker_panicked();
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl Drop for InnerStream {
    fn drop(&mut self) {
        let mut outgoing = self.outgoing.borrow_mut();
        outgoing.has_ended = true;
        wake(&mut outgoing.reader);
        let mut incoming = self.incoming.borrow_mut();
        incoming.is_abandoned = true;
        wake(&mut incoming.writer);
    }
}

impl AsyncRead for InnerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut way = self.incoming.borrow_mut();
        if way.bytes.is_empty() {
            if way.has_ended {
                return Poll::Ready(Ok(()));
            }
            way.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let (bytes, _) = way.bytes.as_slices();
        let length = bytes.len().min(room.remaining());
        room.put_slice(bytes.get(..length).unwrap_or_default());
        way.bytes.drain(..length);
        wake(&mut way.writer);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for InnerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut way = self.outgoing.borrow_mut();
        if way.is_abandoned || way.has_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let length = bytes.len().min(ROOM.saturating_sub(way.bytes.len()));
        if length == 0 && !bytes.is_empty() {
            way.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        way.bytes.extend(bytes.get(..length).unwrap_or_default());
        wake(&mut way.reader);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut way = self.outgoing.borrow_mut();
        way.has_ended = true;
        wake(&mut way.reader);
        Poll::Ready(Ok(()))
    }
}

impl ClientStream for InnerStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut way = self.incoming.borrow_mut();
        if !way.bytes.is_empty() || way.has_ended {
            return Poll::Ready(());
        }
        way.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut way = self.outgoing.borrow_mut();
        if way.is_abandoned {
            return Poll::Ready(());
        }
        way.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::{InnerStream, ROOM};
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn pair() -> (InnerStream, InnerStream) {
        let (a, b): (std::rc::Rc<_>, std::rc::Rc<_>) = Default::default();
        let ours = InnerStream { incoming: std::rc::Rc::clone(&a), outgoing: std::rc::Rc::clone(&b) };
        (ours, InnerStream { incoming: b, outgoing: a })
    }

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn bytes_arrive_within_a_bound() {
        let (mut one, mut other) = pair();
        let mut room = [0; 8];
        assert!(poll(other.read(&mut room)).is_pending());
        assert!(matches!(poll(one.write(&[7; ROOM + 1])), Poll::Ready(Ok(ROOM))));
        assert!(poll(one.write(b"x")).is_pending(), "it is full");
        assert!(matches!(poll(other.read(&mut room)), Poll::Ready(Ok(8))));
        assert!(matches!(poll(one.write(b"x")), Poll::Ready(Ok(1))));
        drop(one);
        let mut rest = Vec::new();
        assert!(matches!(poll(other.read_to_end(&mut rest)), Poll::Ready(Ok(n)) if n == ROOM - 7));
        assert!(matches!(poll(other.write(b"x")), Poll::Ready(Err(_))), "nobody is there");
    }
}

//! Black-box tests of the runtime: tasks, timers, sources and other threads.

mod sources;
mod tasks;
mod timers;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use weir_runtime::{Source, block_on, timeout};

/// Longer than any operation here takes.
const LONG: Duration = Duration::from_secs(20);

fn run<F: Future>(future: F) -> F::Output {
    block_on(async { timeout(LONG, future).await.expect("it hangs") }).expect("a runtime")
}

/// A flag that a task waits for.
#[derive(Clone, Default)]
struct Flag(Rc<(Cell<bool>, RefCell<Option<Waker>>)>);

impl Flag {
    fn set(&self) {
        self.0.0.set(true);
        if let Some(waker) = self.0.1.take() {
            waker.wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            self.0.1.replace(Some(cx.waker().clone()));
            if self.0.0.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

fn pair() -> (Source, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (Source::new(ours.into()).unwrap(), theirs)
}

async fn read(source: &Source, room: &mut [u8]) -> usize {
    poll_fn(|cx| source.poll_read(cx, room)).await.unwrap()
}

/// Writes all bytes.
async fn write(source: &Source, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| source.poll_write(cx, bytes)).await.unwrap();
        bytes = &bytes[n..];
    }
}

/// A TCP connection with small buffers: this side as a source, and the peer.
fn narrow_pair() -> (Source, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&theirs, 4096).unwrap();
    ours.set_nonblocking(true).unwrap();
    (Source::new(ours.into()).unwrap(), theirs)
}

/// Bytes without repetitions.
fn bytes(count: usize) -> Vec<u8> {
    let mut random = 1u64;
    let next = |_| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 56) as u8
    };
    (0..count).map(next).collect()
}

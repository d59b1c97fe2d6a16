//! Sockets of the data plane: TCP and Unix sockets on the worker's reactor, read and written with plain system calls.
//!
//! Bytes for a task that waits to read are read before it runs, and short writes are sent after all tasks of the
//! round have run: see [`weir_runtime`].

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, SockAddr, Socket as RawSocket, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_runtime::Source;

/// A connected socket.
#[derive(Debug)]
pub struct Socket {
    source: Source,
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    source: Source,
}

/// An accepted connection that is not yet registered with a worker's reactor.
#[derive(Debug)]
pub struct Accepted {
    fd: OwnedFd,
    /// Address of the peer; `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
}

impl Socket {
    fn tcp(fd: OwnedFd) -> io::Result<Self> {
        // Without `TCP_NODELAY` a small message may wait for an acknowledgement; a failure to set it costs only that.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        Self::register(fd)
    }

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { source: Source::new(fd)? })
    }

    /// Starts connecting to an address; [`Socket::poll_connected`] reports the completion.
    ///
    /// # Errors
    /// Also errors that are known at once, such as a missing route to the address.
    pub fn begin_connect(addr: SocketAddr) -> io::Result<Self> {
        let socket =
            RawSocket::new(Domain::for_address(addr), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        match socket.connect(&addr.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Self::tcp(socket.into())
    }

    /// Ready when the socket is connected, or connecting has failed.
    pub fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.source.poll_writable(cx));
        Poll::Ready(rustix::net::sockopt::socket_error(&self.source)?.map_err(io::Error::from))
    }

    /// Connects to a Unix socket, which succeeds or fails at once: a listener with a full queue refuses.
    pub fn connect_unix(path: &str) -> io::Result<Self> {
        let socket = RawSocket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Self::register(socket.into())
    }

    /// Registers a connection accepted by a listener.
    ///
    /// # Errors
    /// The worker's reactor cannot watch the socket.
    pub fn accepted(accepted: Accepted) -> io::Result<Self> {
        if accepted.peer.is_some() { Self::tcp(accepted.fd) } else { Self::register(accepted.fd) }
    }

    /// Ready if there may be something to read; the caller has to read next.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.source.poll_read_ready(cx)
    }

    /// True if bytes were read ahead that no read has taken yet.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.source.has_unread()
    }

    /// Moves bytes into a pipe: see [`Source::poll_splice_into`].
    pub(crate) fn poll_splice_into(
        &self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        self.source.poll_splice_into(cx, pipe, most)
    }

    /// Moves bytes out of a pipe: see [`Source::poll_splice_from`].
    pub(crate) fn poll_splice_from(
        &self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        self.source.poll_splice_from(cx, pipe, most)
    }

    /// True if written bytes wait for room in the socket.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.source.has_unsent()
    }

    /// True if written bytes have not been sent yet.
    #[must_use]
    pub fn has_pending_write(&self) -> bool {
        self.source.has_pending_write()
    }

    /// Number of written bytes that can never be sent.
    #[must_use]
    pub fn lost_bytes(&self) -> usize {
        self.source.lost_bytes()
    }

    /// Ready when the peer has reset the connection. A peer that has only ended its sending side may still read.
    pub fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.source.poll_write_closed(cx)
    }

    /// Peeks at the bytes that have arrived before anything was read: passes them to `look`, again whenever there are
    /// more, until `look` returns a value. The second argument of `look` is true if no more bytes will come.
    pub fn poll_peek<T>(
        &self,
        cx: &mut Context<'_>,
        room: &mut [u8],
        mut look: impl FnMut(&[u8], bool) -> Option<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            ready!(self.source.poll_readable(cx));
            match rustix::net::recv(&self.source, &mut *room, RecvFlags::PEEK) {
                Ok((n, _)) => {
                    let ended = n == 0 || self.source.is_read_closed();
                    match look(room.get(..n).unwrap_or_default(), ended) {
                        Some(said) => return Poll::Ready(Ok(said)),
                        None if ended => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                        None => self.source.clear_readable(),
                    }
                }
                Err(Errno::WOULDBLOCK) => self.source.clear_readable(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Reads bytes that were peeked: as many as fit into `room`.
    pub fn take_peeked(&self, mut room: &mut [u8]) -> io::Result<()> {
        while !room.is_empty() {
            match rustix::net::recv(&self.source, &mut *room, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((n, _)) => room = room.get_mut(n..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// True if nothing has arrived: neither bytes nor the end. Usually needs no system call, because the reactor
    /// would know of any arrival.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        if !self.source.is_readable() {
            return true;
        }
        if self.source.has_unread() {
            return false;
        }
        // The readiness may be stale: left over from a read that filled its buffer.
        let nothing = rustix::net::recv(&self.source, &mut [0u8; 1][..], RecvFlags::PEEK) == Err(Errno::WOULDBLOCK);
        if nothing {
            self.source.clear_readable();
        }
        nothing
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let n = ready!(self.source.poll_read(cx, buf.initialize_unfilled()))?;
        buf.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.source.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.source.poll_shutdown(cx)
    }
}

impl Listener {
    /// Registers a non-blocking listener.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { source: Source::new(fd)? })
    }

    /// Waits for the next connection.
    pub async fn accept(&self) -> io::Result<Accepted> {
        poll_fn(|cx| {
            loop {
                ready!(self.source.poll_readable(cx));
                match self.accept_now() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.source.clear_readable(),
                    accepted => return Poll::Ready(accepted),
                }
            }
        })
        .await
    }

    /// Waits until there is a connection in the queue.
    pub async fn has_next(&self) {
        poll_fn(|cx| {
            loop {
                ready!(self.source.poll_readable(cx));
                // The readiness may be stale: left over from the last accept.
                let mut listener = [PollFd::new(&self.source, PollFlags::IN)];
                match rustix::event::poll(&mut listener, Some(&Timespec::default())) {
                    Ok(0) => self.source.clear_readable(),
                    _ => return Poll::Ready(()),
                }
            }
        })
        .await;
    }

    /// Accepts a connection from the queue; [`io::ErrorKind::WouldBlock`] if the queue is empty.
    pub fn accept_now(&self) -> io::Result<Accepted> {
        loop {
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(&self.source, flags) {
                Ok((fd, peer)) => {
                    // A Unix client has a path, a name or neither; none of them identifies it.
                    return Ok(Accepted { fd, peer: peer.and_then(|peer| SocketAddr::try_from(peer).ok()) });
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Accepted {
    /// Wraps a connection that was accepted elsewhere.
    #[must_use]
    pub fn new(fd: OwnedFd, peer: Option<SocketAddr>) -> Self {
        Self { fd, peer }
    }

    /// Local address; an error for a Unix socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        SocketAddr::try_from(rustix::net::getsockname(&self.fd)?).map_err(io::Error::from)
    }
}

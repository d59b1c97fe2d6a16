//! Sockets of the data plane: TCP and Unix sockets on the worker's reactor, read and written with the bare system calls.
//!
//! What comes for a task that waits for bytes is read before it runs, and what it writes, if it is short, is sent when
//! all tasks of the round have run: see [`weir_runtime`].

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
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

/// A connection that was accepted; no worker's reactor knows of it yet.
#[derive(Debug)]
pub struct Accepted {
    fd: OwnedFd,
    /// `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
}

impl Socket {
    fn tcp(fd: OwnedFd) -> io::Result<Self> {
        // Without it a small message may wait for an acknowledgement; failing to set it costs only that.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        Self::register(fd)
    }

    fn register(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { source: Source::new(fd)? })
    }

    /// Begins to connect to an address; [`Socket::poll_connected`] tells when it is.
    ///
    /// # Errors
    /// Also those that are known at once, such as that there is no way to the address.
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

    /// Ready when the socket is connected, or cannot be.
    pub fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.source.poll_writable(cx));
        Poll::Ready(rustix::net::sockopt::socket_error(&self.source)?.map_err(io::Error::from))
    }

    /// Connects to a Unix socket, which is done at once or not at all: a listener whose queue is full refuses.
    pub fn connect_unix(path: &str) -> io::Result<Self> {
        let socket = RawSocket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Self::register(socket.into())
    }

    /// Takes over what a listener has accepted.
    ///
    /// # Errors
    /// The worker's reactor cannot watch it.
    pub fn accepted(accepted: Accepted) -> io::Result<Self> {
        if accepted.peer.is_some() { Self::tcp(accepted.fd) } else { Self::register(accepted.fd) }
    }

    /// Ready when there may be something to read, which is what comes next.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.source.poll_read_ready(cx)
    }

    /// Whether bytes that were written wait for room.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.source.has_unsent()
    }

    /// Whether bytes that were written have not been sent yet.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.source.owes()
    }

    /// How many of the bytes that were written can never be sent.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.source.lost()
    }

    /// Ready when the peer has reset the connection. That it has ended its own side is not enough: it may still read.
    pub fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.source.poll_write_closed(cx)
    }

    /// Shows what has arrived before anything was read, without taking it, to `look`, and again when there is more, until that says something. It
    /// is told as well whether there will be no more.
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

    /// Takes bytes that were shown: as many as there is room for.
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

    /// Whether nothing has arrived: neither bytes nor the end. Usually this costs no system call, because the reactor
    /// would have seen anything.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        if !self.source.is_readable() {
            return true;
        }
        if self.source.has_unread() {
            return false;
        }
        // Readiness may be left over from a read that filled its buffer.
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
    /// Takes over a listener that does not block.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { source: Source::new(fd)? })
    }

    /// The next connection.
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

    /// Waits until a connection waits in the queue.
    pub async fn has_next(&self) {
        poll_fn(|cx| {
            loop {
                ready!(self.source.poll_readable(cx));
                // Readiness may be left over from the last accept.
                let mut listener = [PollFd::new(&self.source, PollFlags::IN)];
                match rustix::event::poll(&mut listener, Some(&Timespec::default())) {
                    Ok(0) => self.source.clear_readable(),
                    _ => return Poll::Ready(()),
                }
            }
        })
        .await;
    }

    /// A connection that waits in the queue; [`io::ErrorKind::WouldBlock`] when none does.
    pub fn accept_now(&self) -> io::Result<Accepted> {
        loop {
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(&self.source, flags) {
                Ok((fd, peer)) => {
                    // A Unix client has a path, a name or nothing: none of it says who it is.
                    return Ok(Accepted { fd, peer: peer.and_then(|peer| SocketAddr::try_from(peer).ok()) });
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Accepted {
    /// One that was accepted elsewhere.
    #[must_use]
    pub fn new(fd: OwnedFd, peer: Option<SocketAddr>) -> Self {
        Self { fd, peer }
    }

    /// The local address; an error for a Unix socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        SocketAddr::try_from(rustix::net::getsockname(&self.fd)?).map_err(io::Error::from)
    }
}

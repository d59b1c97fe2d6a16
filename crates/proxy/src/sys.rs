//! Sockets of the data plane: TCP on tokio's reactor, read and written with the bare system calls.
//!
//! tokio's own stream goes through libc, whose cancellation points cost a tenth of our user time, and asks the kernel
//! once more after a short read unless it is used in one certain way. Here a read that does not fill its buffer, or a
//! write that is cut short, ends the readiness: the next event comes from the reactor without a system call.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendFlags, Shutdown};
use socket2::{Domain, Protocol, Socket as RawSocket, Type};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connected TCP socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: AsyncFd<OwnedFd>,
}

/// A listening TCP socket.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: AsyncFd<TcpListener>,
}

impl Socket {
    fn new(socket: RawSocket) -> io::Result<Self> {
        // Without it a small message may wait for an acknowledgement; failing to set it costs only that.
        let _ = socket.set_tcp_nodelay(true);
        let fd = OwnedFd::from(socket);
        // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped.
        Ok(Self { fd: unsafe { AsyncFd::register(fd)? } })
    }

    /// Begins to connect to an address; [`Socket::poll_connected`] tells when it is.
    ///
    /// # Errors
    /// Also those that are known at once, such as that there is no way to the address.
    pub(crate) fn begin_connect(addr: SocketAddr) -> io::Result<Self> {
        let socket =
            RawSocket::new(Domain::for_address(addr), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        match socket.connect(&addr.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Self::new(socket)
    }

    /// Ready when the socket is connected, or cannot be.
    pub(crate) fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ready = ready!(self.fd.poll_write_ready(cx))?;
        Poll::Ready(rustix::net::sockopt::socket_error(&self.fd)?.map_err(io::Error::from))
    }

    /// The local address.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        let addr = rustix::net::getsockname(&self.fd)?;
        SocketAddr::try_from(addr).map_err(io::Error::from)
    }

    /// Ready when there may be something to read.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        // An error of the reactor shows when the socket is read.
        self.fd.poll_read_ready(cx).map(drop)
    }

    /// Ready when the peer has reset the connection. That it has ended its own side is not enough: it may still read.
    ///
    /// Not to be called while a write is pending; that one will see it.
    pub(crate) fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        // A reset makes the socket readable as well, so that is what is waited for.
        if ready!(self.fd.poll_read_ready(cx)).is_err() {
            return Poll::Ready(());
        }
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match self.fd.poll_write_ready(&mut cx) {
            Poll::Ready(Ok(guard)) if !guard.ready().is_write_closed() => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Whether nothing has arrived: neither bytes nor the end. Usually this costs no system call, because the reactor
    /// would have seen anything.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match self.fd.poll_read_ready(&mut cx) {
            Poll::Pending => true,
            // Readiness may be left over from a read that filled its buffer.
            Poll::Ready(Ok(mut guard)) => {
                let peeked = rustix::net::recv(&self.fd, &mut [0u8; 1][..], RecvFlags::PEEK);
                let quiet = peeked.is_err_and(|error| error == rustix::io::Errno::WOULDBLOCK);
                if quiet {
                    guard.clear_ready();
                }
                quiet
            }
            Poll::Ready(Err(_)) => false,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            let wanted = room.len();
            match rustix::net::recv(&self.fd, room, RecvFlags::empty()) {
                Ok((n, _)) => {
                    if n > 0 && n < wanted {
                        guard.clear_ready();
                    }
                    buf.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            match rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(n) => {
                    if n > 0 && n < bytes.len() {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(n));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&self.fd, Shutdown::Write).map_err(io::Error::from))
    }
}

impl Listener {
    /// Takes over a non-blocking listener.
    pub(crate) fn new(listener: TcpListener) -> io::Result<Self> {
        // SAFETY: a `TcpListener` owns one descriptor and names it until it is dropped.
        Ok(Self { fd: unsafe { AsyncFd::register(listener)? } })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().local_addr()
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<(Socket, SocketAddr)> {
        poll_fn(|cx| {
            loop {
                let mut guard = ready!(self.fd.poll_read_ready(cx))?;
                match self.accept_now() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                    accepted => return Poll::Ready(accepted),
                }
            }
        })
        .await
    }

    /// A connection that waits in the queue; [`io::ErrorKind::WouldBlock`] when none does.
    pub(crate) fn accept_now(&self) -> io::Result<(Socket, SocketAddr)> {
        loop {
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(self.fd.get_ref(), flags) {
                Ok((fd, Some(peer))) => {
                    let peer = SocketAddr::try_from(peer).map_err(io::Error::from)?;
                    return Socket::new(fd.into()).map(|socket| (socket, peer));
                }
                Ok((_, None)) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

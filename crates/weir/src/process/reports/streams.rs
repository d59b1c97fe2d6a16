//! Byte streams to collectors, plain or with TLS, kept for the next batch where that is asked for.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use weir_telemetry::reports::{Tcp, Tls};

/// Idle time after which a connection is not used again: most servers and middleboxes keep one for longer.
const IDLE: Duration = Duration::from_secs(30);
/// Bytes that are written at one time.
const PIECE: usize = 64 << 10;
/// Least time for a whole batch, however short the limit of a single write is.
const BATCH: Duration = Duration::from_secs(60);
/// Most connections that are kept.
const KEPT: usize = 64;

/// Streams to all collectors. Each thread that sends has a stream of its own while it does.
pub(super) struct Streams {
    /// The setting `tls.trusted_certificate`.
    trusted: String,
    verifying: OnceLock<Result<Arc<ClientConfig>, String>>,
    trusting: OnceLock<Result<Arc<ClientConfig>, String>>,
    kept: Mutex<HashMap<Tcp, (Stream, Instant)>>,
}

/// A stream.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Streams {
    pub(super) fn new(trusted: &str) -> Self {
        let (verifying, trusting, kept) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Self { trusted: trusted.to_owned(), verifying, trusting, kept }
    }

    /// Writes a batch.
    pub(super) fn write(&self, to: &Tcp, batch: &[u8]) -> io::Result<()> {
        let mut stream = match self.take(to) {
            Some(stream) => stream,
            None => self.open(to)?,
        };
        stream.write(batch, to.timeout.max(BATCH))?;
        if to.is_kept {
            self.keep(to, stream);
            return Ok(());
        }
        stream.end()
    }

    /// A stream that was kept and whose server has not ended it meanwhile.
    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    fn take(&self, to: &Tcp) -> Option<Stream> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (_, last)| last.elapsed() < IDLE);
        let (mut stream, _) = kept.remove(to)?;
        drop(kept);
        stream.is_alive().then_some(stream)
    }

    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    fn keep(&self, to: &Tcp, stream: Stream) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.insert(to.clone(), (stream, Instant::now()));
        }
    }

    /// A stream that nobody else has.
    pub(super) fn open(&self, to: &Tcp) -> io::Result<Stream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (to.host.as_str(), to.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, to.timeout) {
                Ok(socket) => {
                    socket.set_write_timeout(Some(to.timeout))?;
                    socket.set_read_timeout(Some(to.timeout))?;
                    return match &to.tls {
                        None => Ok(Stream::Plain(socket)),
                        Some(tls) => self.secure(to, tls, socket),
                    };
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn secure(&self, to: &Tcp, tls: &Tls, mut socket: TcpStream) -> io::Result<Stream> {
        let name = tls.server_name.as_deref().unwrap_or(&to.host).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let config = self.config(tls.verify).map_err(io::Error::other)?;
        let mut session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        Ok(Stream::Tls(Box::new(StreamOwned::new(session, socket))))
    }

    /// TLS towards servers.
    ///
    /// # Errors
    /// The trusted certificates cannot be read.
    pub(super) fn config(&self, verify: bool) -> Result<Arc<ClientConfig>, String> {
        let cell = if verify { &self.verifying } else { &self.trusting };
        let authorities = verify.then_some(self.trusted.as_str());
        cell.get_or_init(|| weir_proxy::client_config(authorities, None).map(Arc::new)).clone()
    }
}

impl Stream {
    /// Writes all of a batch within `limit`: a server that takes a byte now and then holds a thread no longer.
    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    pub(super) fn write(&mut self, mut batch: &[u8], limit: Duration) -> io::Result<()> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the server does not read");
        let begin = Instant::now();
        while !batch.is_empty() {
            let piece = batch.get(..PIECE).unwrap_or(batch);
            let written = match self {
                Self::Plain(socket) => socket.write(piece),
                Self::Tls(stream) => stream.write(piece),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => batch = batch.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A socket whose time is over says only that it would block.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
                Err(error) => return Err(error),
            }
            if !batch.is_empty() && begin.elapsed() > limit {
                return Err(late());
            }
        }
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }

    /// Ends the stream: the server sees that no more comes.
    fn end(self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.shutdown(Shutdown::Write),
            Self::Tls(mut stream) => {
                stream.conn.send_close_notify();
                stream.flush()?;
                stream.sock.shutdown(Shutdown::Write)
            }
        }
    }

    /// Fills `room` within `limit`.
    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    pub(super) fn read(&mut self, mut room: &mut [u8], limit: Duration) -> io::Result<()> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
        let begin = Instant::now();
        while !room.is_empty() {
            let read = match self {
                Self::Plain(socket) => socket.read(room),
                Self::Tls(stream) => stream.read(room),
            };
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => room = std::mem::take(&mut room).get_mut(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
                Err(error) => return Err(error),
            }
            if !room.is_empty() && begin.elapsed() > limit {
                return Err(late());
            }
        }
        Ok(())
    }

    /// False when the server has ended the stream.
    pub(super) fn is_alive(&mut self) -> bool {
        let socket = match self {
            Self::Plain(socket) => &*socket,
            Self::Tls(stream) => &stream.sock,
        };
        if socket.set_nonblocking(true).is_err() {
            return false;
        }
        let is_open = match self {
            // Nothing is expected: data that nobody reads would have the connection reset at its end.
            Self::Plain(socket) => would_block(&socket.read(&mut [0])),
            Self::Tls(stream) => stream.is_open(),
        };
        let socket = match self {
            Self::Plain(socket) => &*socket,
            Self::Tls(stream) => &stream.sock,
        };
        is_open && socket.set_nonblocking(false).is_ok()
    }
}

/// The reading side of a stream with TLS.
trait Secured {
    /// Takes in what the server has sent, such as tickets; false when it has ended the stream.
    fn is_open(&mut self) -> bool;
}

impl Secured for StreamOwned<ClientConnection, TcpStream> {
    fn is_open(&mut self) -> bool {
        loop {
            match self.conn.read_tls(&mut self.sock) {
                Ok(0) => return false,
                Ok(_) => match self.conn.process_new_packets() {
                    Ok(state) if !state.peer_has_closed() && state.plaintext_bytes_to_read() == 0 => {}
                    _ => return false,
                },
                read => return would_block(&read),
            }
        }
    }
}

fn would_block(read: &io::Result<usize>) -> bool {
    matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

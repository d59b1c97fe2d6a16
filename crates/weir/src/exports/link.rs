//! A connection to a database, on a thread that may block: TCP, with TLS or without.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::TIMEOUT;

/// A connection.
pub(crate) enum Link {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// TLS that verifies servers by these authorities: `system`, or the path of a file in PEM.
///
/// # Errors
/// The authorities cannot be read.
pub(crate) fn verifying(trusted: &str) -> anyhow::Result<Arc<ClientConfig>> {
    let trusted = weir_proxy::trusted_certificates(trusted).map_err(|reason| anyhow::anyhow!("tls: {reason}"))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted);
    let config = ClientConfig::builder_with_provider(Arc::clone(weir_proxy::crypto_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Connects to a server.
///
/// # Errors
/// No address of the host answers.
pub(crate) fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    connect_within(host, port, TIMEOUT)
}

/// Connects to a server, with a limit for connecting to an address, and for each read and write.
///
/// # Errors
/// No address of the host answers.
pub(crate) fn connect_within(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Link {
    /// TLS on a connection. The handshake follows with the first bytes.
    ///
    /// # Errors
    /// The host is no name that a certificate may have.
    pub(crate) fn secure(stream: TcpStream, host: &str, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, stream))))
    }

    /// Reads exactly so many bytes.
    ///
    /// # Errors
    /// The connection ends, or nothing comes for too long.
    pub(crate) fn receive(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        let mut out = vec![0; bytes];
        self.read_exact(&mut out)?;
        Ok(out)
    }
}

impl Read for Link {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(out),
            Self::Tls(stream) => stream.read(out),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

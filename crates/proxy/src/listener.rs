//! Listening sockets: one a worker for each address, so that the kernel spreads connections without a lock.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};
use weir_config::settings::{ListenAddr, Listener};

use crate::Bound;

/// Connections the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;

/// A listening socket of a worker.
pub(crate) struct Listening {
    pub(crate) socket: TcpListener,
    /// Whether it speaks TLS.
    pub(crate) tls: bool,
}

/// Binds every address once for each worker: the addresses as bound, and each worker's listeners.
pub(crate) fn bind_all<'a>(
    wanted: impl Iterator<Item = (&'a Listener, bool)>,
    workers: usize,
) -> io::Result<(Vec<Bound>, Vec<Vec<Listening>>)> {
    let mut addresses = Vec::new();
    let mut by_worker: Vec<Vec<Listening>> = (0..workers).map(|_| Vec::new()).collect();
    for (listener, tls) in wanted {
        let ListenAddr::Tcp(mut address) = listener.address else { return Err(not_yet("Unix sockets")) };
        if listener.proxy_protocol {
            return Err(not_yet("the PROXY protocol"));
        }
        for listeners in &mut by_worker {
            let socket = bind(address)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
            // The first one finds the port for the others.
            address = socket.local_addr()?;
            listeners.push(Listening { socket, tls });
        }
        addresses.push(Bound { address: ListenAddr::Tcp(address), tls });
    }
    Ok((addresses, by_worker))
}

fn not_yet(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("not supported yet: {what}"))
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

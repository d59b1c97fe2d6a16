//! Listening sockets: one a worker for each address, so that the kernel spreads connections without a lock.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};
use weir_config::settings::{ListenAddr, Listener};

/// Connections the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;

/// Bound listeners.
pub(crate) struct Bound {
    /// As bound: port 0 has become a real one.
    pub(crate) addresses: Vec<ListenAddr>,
    /// For each worker, one for each address.
    pub(crate) by_worker: Vec<Vec<TcpListener>>,
}

/// Binds every address once for each worker.
pub(crate) fn bind_all(wanted: &[Listener], workers: usize) -> io::Result<Bound> {
    let mut bound = Bound { addresses: Vec::new(), by_worker: (0..workers).map(|_| Vec::new()).collect() };
    for listener in wanted {
        let ListenAddr::Tcp(mut address) = listener.address else { return Err(not_yet("Unix sockets")) };
        if listener.proxy_protocol {
            return Err(not_yet("the PROXY protocol"));
        }
        for listeners in &mut bound.by_worker {
            let listener = bind(address)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
            // The first one finds the port for the others.
            address = listener.local_addr()?;
            listeners.push(listener);
        }
        bound.addresses.push(ListenAddr::Tcp(address));
    }
    Ok(bound)
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

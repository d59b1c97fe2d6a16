//! Listening sockets: one a worker for each address, so that the kernel spreads connections without a lock.
//!
//! Sockets that were open before this process was, those of a process that is upgraded or of a service manager, are all
//! kept: closing one of several that share an address resets the connections in its queue. With more of them than
//! workers some workers have two.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};
use weir_config::settings::ListenAddr;

/// Connections the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;

/// A listening socket, with the address as the settings asked for it: port 0 is bound to another.
#[derive(Debug)]
pub struct ListenSocket {
    /// The address as the settings give it.
    pub asked: String,
    /// The bound socket.
    pub socket: TcpListener,
}

/// Bound listeners.
pub(crate) struct Bound {
    /// As bound: port 0 has become a real one.
    pub(crate) addresses: Vec<SocketAddr>,
    /// For each worker, one for each address or more.
    pub(crate) by_worker: Vec<Vec<TcpListener>>,
    /// Every socket once more, for a process that takes them over.
    pub(crate) sockets: Vec<ListenSocket>,
}

/// Listens on every address, once for each worker. What is inherited for an address that nobody asks for is closed.
pub(crate) fn bind_all(
    addresses: &[ListenAddr],
    workers: usize,
    mut inherited: Vec<ListenSocket>,
) -> io::Result<Bound> {
    let by_worker = (0..workers).map(|_| Vec::new()).collect();
    let mut bound = Bound { addresses: Vec::new(), by_worker, sockets: Vec::new() };
    for asked in addresses {
        let open = take(&mut inherited, asked);
        let open = complete(asked.0, open, workers)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {asked}: {error}")))?;
        bound.addresses.push(open.address);
        for socket in &open.sockets {
            bound.sockets.push(ListenSocket { asked: asked.to_string(), socket: socket.try_clone()? });
        }
        for (number, socket) in open.sockets.into_iter().chain(open.shared).enumerate() {
            if let Some(listeners) = bound.by_worker.get_mut(number % workers) {
                listeners.push(socket);
            }
        }
    }
    Ok(bound)
}

/// The inherited sockets for an address: those that were opened for the same words, or else those that are bound to it.
fn take(inherited: &mut Vec<ListenSocket>, asked: &ListenAddr) -> Vec<TcpListener> {
    let words = asked.to_string();
    let same_words = inherited.iter().any(|s| s.asked == words);
    let is_bound_to = |s: &ListenSocket| s.socket.local_addr().is_ok_and(|address| address == asked.0);
    let (found, rest) =
        std::mem::take(inherited).into_iter().partition(|s| if same_words { s.asked == words } else { is_bound_to(s) });
    *inherited = rest;
    found.into_iter().map(|s: ListenSocket| s.socket).collect()
}

/// The sockets of one address.
struct Open {
    address: SocketAddr,
    sockets: Vec<TcpListener>,
    /// Further handles of these, for workers that would have none.
    shared: Vec<TcpListener>,
}

/// Adds sockets until every worker has one.
fn complete(asked: SocketAddr, inherited: Vec<TcpListener>, workers: usize) -> io::Result<Open> {
    let mut sockets = inherited;
    for socket in &sockets {
        socket.set_nonblocking(true)?;
    }
    let inherited = sockets.len();
    if sockets.is_empty() {
        sockets.push(bind(asked)?);
    }
    // The first one has found the port for the others.
    let address = sockets.first().map_or(Ok(asked), TcpListener::local_addr)?;
    let mut shared = Vec::new();
    while sockets.len() + shared.len() < workers {
        match bind(address) {
            Ok(socket) => sockets.push(socket),
            // The socket of a service manager does not share its port, or we may not bind this one ourselves: all
            // workers accept from what there is.
            Err(_) if inherited > 0 => {
                for number in sockets.len()..workers {
                    let Some(socket) = sockets.get(number % sockets.len()) else { break };
                    shared.push(socket.try_clone()?);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Open { address, sockets, shared })
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

#[cfg(test)]
mod tests {
    use super::{ListenAddr, ListenSocket, TcpListener, bind, bind_all};

    fn asked(text: &str) -> ListenAddr {
        ListenAddr(text.parse().unwrap())
    }

    fn inherited(text: &str, socket: TcpListener) -> ListenSocket {
        ListenSocket { asked: text.to_owned(), socket }
    }

    #[test]
    fn every_inherited_socket_goes_to_a_worker() {
        // Inherited sockets, workers; listeners of each worker.
        let cases: [(usize, usize, &[usize]); 5] =
            [(0, 2, &[1, 1]), (1, 3, &[1, 1, 1]), (2, 2, &[1, 1]), (3, 2, &[2, 1]), (4, 1, &[4])];
        for (open, workers, expected) in cases {
            let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = first.local_addr().unwrap();
            let mut sockets = vec![first];
            sockets.extend((1..open).map(|_| bind(address).unwrap()));
            sockets.truncate(open);
            let sockets = sockets.into_iter().map(|s| inherited("127.0.0.1:0", s)).collect();
            let bound = bind_all(&[asked("127.0.0.1:0")], workers, sockets).unwrap();
            let counts: Vec<_> = bound.by_worker.iter().map(Vec::len).collect();
            assert_eq!(counts, expected, "{open} sockets, {workers} workers");
            assert_eq!(bound.sockets.len(), open.max(workers));
            for socket in bound.by_worker.iter().flatten() {
                assert_eq!(socket.local_addr().unwrap(), bound.addresses[0]);
                assert!(open == 0 || bound.addresses[0] == address);
            }
        }
    }

    #[test]
    fn a_socket_without_reuse_port_is_shared() {
        let single = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = single.local_addr().unwrap();
        let bound = bind_all(&[ListenAddr(address)], 4, vec![inherited("127.0.0.1:0", single)]).unwrap();
        assert_eq!(bound.addresses, [address]);
        assert!(bound.by_worker.iter().all(|listeners| listeners.len() == 1));
        assert_eq!(bound.sockets.len(), 1, "what is passed on is the socket, not its handles");
    }

    #[test]
    fn sockets_are_matched_by_what_was_asked_for() {
        let (a, b) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (at_a, at_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
        // The words of `b` have changed, and nobody asks for `c`.
        let c = TcpListener::bind("127.0.0.1:0").unwrap();
        let at_c = c.local_addr().unwrap();
        let sockets = vec![inherited("127.0.0.1:0", a), inherited("127.0.0.2:0", b), inherited("127.0.0.3:0", c)];
        let bound = bind_all(&[ListenAddr(at_b), asked("127.0.0.1:0")], 1, sockets).unwrap();
        assert_eq!(bound.addresses, [at_b, at_a]);
        assert!(std::net::TcpStream::connect(at_c).is_err(), "nobody listens there any more");
    }
}

//! Listening sockets: one a worker for each address, so that the kernel spreads connections without a lock.
//!
//! Sockets that were open before this process was, those of a process that is upgraded or of a service manager, are all
//! kept: closing one of several that share an address resets the connections in its queue. With more of them than
//! workers some workers have two.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};
use weir_config::settings::{ListenAddr, Listener};

use crate::Bound;

/// Connections the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;

/// Settings that ask for addresses.
pub(crate) const HTTP: &str = "listen.http";
pub(crate) const HTTPS: &str = "listen.https";

/// A listening socket, with what it was opened for: an address of the settings may be bound to another port.
#[derive(Debug)]
pub struct ListenSocket {
    /// The setting, such as `listen.http`.
    pub setting: String,
    /// The address as the setting gives it.
    pub asked: String,
    /// The bound socket.
    pub socket: TcpListener,
}

impl ListenSocket {
    /// Another handle of the socket.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let socket = self.socket.try_clone()?;
        Ok(Self { setting: self.setting.clone(), asked: self.asked.clone(), socket })
    }
}

/// An address to listen at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) setting: &'static str,
    pub(crate) listener: &'a Listener,
    pub(crate) tls: bool,
}

/// A listening socket of a worker.
pub(crate) struct Listening {
    pub(crate) socket: TcpListener,
    /// Whether it speaks TLS.
    pub(crate) tls: bool,
}

/// All listening sockets.
pub(crate) struct Listeners {
    /// The addresses as bound.
    pub(crate) addresses: Vec<Bound>,
    /// For each worker, one for each address or more.
    pub(crate) by_worker: Vec<Vec<Listening>>,
    /// Every socket once more, for a process that takes them over.
    pub(crate) sockets: Vec<ListenSocket>,
}

/// Listens at every address, once for each worker. What is inherited for an address that nobody asks for is closed.
pub(crate) fn bind_all<'a>(
    wanted: impl Iterator<Item = Wanted<'a>>,
    workers: usize,
    mut inherited: Vec<ListenSocket>,
) -> io::Result<Listeners> {
    let by_worker = (0..workers).map(|_| Vec::new()).collect();
    let mut all = Listeners { addresses: Vec::new(), by_worker, sockets: Vec::new() };
    for Wanted { setting, listener, tls } in wanted {
        let ListenAddr::Tcp(address) = listener.address else { return Err(not_yet("Unix sockets")) };
        if listener.proxy_protocol {
            return Err(not_yet("the PROXY protocol"));
        }
        let open = complete(address, take(&mut inherited, setting, address), workers)
            .map_err(|error| io::Error::new(error.kind(), format!("{setting}: cannot listen on {address}: {error}")))?;
        all.addresses.push(Bound { address: ListenAddr::Tcp(open.address), tls });
        for socket in &open.sockets {
            let (setting, asked) = (setting.to_owned(), address.to_string());
            all.sockets.push(ListenSocket { setting, asked, socket: socket.try_clone()? });
        }
        for (number, socket) in open.sockets.into_iter().chain(open.shared).enumerate() {
            if let Some(listeners) = all.by_worker.get_mut(number % workers) {
                listeners.push(Listening { socket, tls });
            }
        }
    }
    Ok(all)
}

/// The inherited sockets for an address: those that were opened for the same words, or else those that are bound to it.
fn take(inherited: &mut Vec<ListenSocket>, setting: &str, address: SocketAddr) -> Vec<TcpListener> {
    let words = address.to_string();
    let is_same = |s: &ListenSocket| s.setting == setting && s.asked == words;
    let is_bound = |s: &ListenSocket| s.socket.local_addr().is_ok_and(|bound| bound == address);
    let by_words = inherited.iter().any(is_same);
    let found = inherited.extract_if(.., |s| if by_words { is_same(s) } else { is_bound(s) });
    found.map(|s| s.socket).collect()
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

#[cfg(test)]
mod tests {
    use super::{HTTP, HTTPS, ListenAddr, ListenSocket, Listener, TcpListener, Wanted, bind, bind_all};

    fn wanted(setting: &'static str, address: &str) -> Wanted<'static> {
        let listener = Listener::from(ListenAddr::Tcp(address.parse().unwrap()));
        Wanted { setting, listener: Box::leak(Box::new(listener)), tls: setting == HTTPS }
    }

    fn inherited(setting: &str, asked: &str, socket: TcpListener) -> ListenSocket {
        ListenSocket { setting: setting.to_owned(), asked: asked.to_owned(), socket }
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
            let sockets = sockets.into_iter().map(|s| inherited(HTTP, "127.0.0.1:0", s)).collect();
            let all = bind_all([wanted(HTTP, "127.0.0.1:0")].into_iter(), workers, sockets).unwrap();
            let counts: Vec<_> = all.by_worker.iter().map(Vec::len).collect();
            assert_eq!(counts, expected, "{open} sockets, {workers} workers");
            assert_eq!(all.sockets.len(), open.max(workers));
            for listening in all.by_worker.iter().flatten() {
                let bound = all.addresses[0].address.tcp().unwrap();
                assert_eq!(listening.socket.local_addr().unwrap(), bound);
                assert!(open == 0 || bound == address);
            }
        }
    }

    #[test]
    fn a_socket_without_reuse_port_is_shared() {
        let single = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = single.local_addr().unwrap();
        let wanted = wanted(HTTP, &address.to_string());
        let all = bind_all([wanted].into_iter(), 4, vec![inherited(HTTP, "127.0.0.1:0", single)]).unwrap();
        assert_eq!(all.addresses[0].address.tcp(), Some(address));
        assert!(all.by_worker.iter().all(|listeners| listeners.len() == 1));
        assert_eq!(all.sockets.len(), 1, "what is passed on is the socket, not its handles");
    }

    #[test]
    fn sockets_are_matched_by_what_was_asked_for() {
        let open = || {
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            (socket, address)
        };
        let ((a, at_a), (b, at_b), (c, at_c), (d, at_d)) = (open(), open(), open(), open());
        let sockets = vec![
            inherited(HTTP, "127.0.0.1:0", a),
            inherited(HTTPS, "127.0.0.1:0", b),
            // The words of this one have changed, and its setting; nobody asks for the next.
            inherited(HTTP, "127.0.0.2:0", c),
            inherited(HTTP, "127.0.0.3:0", d),
        ];
        let addresses = [wanted(HTTP, "127.0.0.1:0"), wanted(HTTPS, &at_c.to_string()), wanted(HTTPS, "127.0.0.1:0")];
        let all = bind_all(addresses.into_iter(), 1, sockets).unwrap();
        let found: Vec<_> = all.addresses.iter().map(|bound| (bound.address.tcp().unwrap(), bound.tls)).collect();
        assert_eq!(found, [(at_a, false), (at_c, true), (at_b, true)]);
        assert!(std::net::TcpStream::connect(at_d).is_err(), "nobody listens there any more");
    }
}

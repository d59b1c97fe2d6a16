//! Listening sockets: for an IP address one a worker, so that the kernel spreads connections without a lock; for a
//! path one Unix socket that all workers accept from.
//!
//! `SO_REUSEPORT`, by which workers share a port, would let another gateway share it as well, and each would serve some
//! of the connections. So the first socket of an address is bound and listens without it, which fails if any other
//! process listens there, and shares its port with the others afterwards.
//!
//! Sockets that were open before this process was, those of a process that is upgraded or of a service manager, are all
//! kept: closing one of several that share an address resets the connections in its queue. With more of them than
//! workers some workers have two.

mod unix;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use weir_config::settings::{ListenAddr, Listener};
use weir_net::datagrams;

pub(crate) use unix::SocketFile;

/// Connections the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;

/// Names of the settings that list addresses.
pub(crate) const HTTP: &str = "listen.http";
pub(crate) const HTTPS: &str = "listen.https";
pub(crate) const TCP: &str = "listen.tcp";
pub(crate) const UDP: &str = "listen.udp";

/// An address that traffic is accepted at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The address; port 0 of the settings has become a real one.
    pub address: ListenAddr,
    /// True if TLS is spoken.
    pub tls: bool,
    /// True if connections begin with a PROXY header.
    pub proxy_protocol: bool,
    /// True if HTTP/2 is spoken.
    pub http2: bool,
    /// True if connections are for stream routes, and carry no HTTP that the gateway would read.
    pub streams: bool,
    /// True if datagrams of UDP arrive here, and no connections.
    pub udp: bool,
}

impl Bound {
    /// Scheme of the protocol at this listener: `http`, `https`, `tcp`, `tls` or `udp`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        match (self.streams, self.tls) {
            (false, false) => "http",
            (false, true) => "https",
            (true, _) if self.udp => "udp",
            (true, false) => "tcp",
            (true, true) => "tls",
        }
    }
}

/// A listening socket, with what it was opened for: an address of the settings may be bound to another port.
#[derive(Debug)]
pub struct ListenSocket {
    /// The setting, such as `listen.http`.
    pub setting: String,
    /// The address as the setting gives it.
    pub asked: String,
    /// The bound socket.
    pub socket: OwnedFd,
    /// True if a service manager opened the socket; the file of a Unix socket belongs to the service manager then.
    pub activated: bool,
}

impl ListenSocket {
    /// Another handle of the socket.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let socket = self.socket.try_clone()?;
        Ok(Self { setting: self.setting.clone(), asked: self.asked.clone(), socket, activated: self.activated })
    }
}

/// An address to listen at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenRequest<'a> {
    pub(crate) setting: &'static str,
    pub(crate) listener: &'a Listener,
    pub(crate) tls: bool,
    /// True if it is for stream routes.
    pub(crate) streams: bool,
    /// True if HTTP/2 is spoken where the listener does not say it.
    pub(crate) http2: bool,
}

/// A listening socket of a worker.
pub(crate) struct Listening {
    pub(crate) socket: OwnedFd,
    /// Number of the address among all that are listened at.
    pub(crate) entrance: usize,
}

/// All listening sockets, non-blocking.
pub(crate) struct Listeners {
    /// The addresses as bound.
    pub(crate) addresses: Vec<Bound>,
    /// The sockets of each worker: at least one for each address.
    pub(crate) by_worker: Vec<Vec<Listening>>,
    /// Every socket once more, for a process that takes them over.
    pub(crate) sockets: Vec<ListenSocket>,
    /// Files of Unix sockets that go with this process.
    pub(crate) files: Vec<SocketFile>,
    /// Addresses of sockets that the process before this one may still listen on, and whether they are of UDP.
    taken_over: Vec<(SocketAddr, bool)>,
}

impl Listeners {
    /// Listens at every address for all workers. Inherited sockets of addresses no longer configured are closed.
    pub(crate) fn bind<'a>(
        wanted: impl Iterator<Item = ListenRequest<'a>>,
        workers: usize,
        mut inherited: Vec<ListenSocket>,
    ) -> io::Result<Self> {
        let by_worker = (0..workers).map(|_| Vec::new()).collect();
        let mut all =
            Self { addresses: Vec::new(), by_worker, sockets: Vec::new(), files: Vec::new(), taken_over: Vec::new() };
        let mut made = Vec::new();
        let bound =
            inherited.iter().filter_map(|socket| local_address(&socket.socket).map(|at| (at, is_udp(&socket.socket))));
        all.taken_over = bound.collect();
        for wanted in wanted {
            if let Err(error) = all.add(wanted, &mut inherited, &mut made) {
                // Not those of inherited sockets: another process still listens on them.
                made.iter().for_each(SocketFile::remove);
                let message = format!("{}: cannot listen on {}: {error}", wanted.setting, wanted.listener.address);
                return Err(io::Error::new(error.kind(), message));
            }
        }
        all.files.append(&mut made);
        Ok(all)
    }

    fn add(
        &mut self,
        ListenRequest { setting, listener, tls, streams, http2 }: ListenRequest<'_>,
        inherited: &mut Vec<ListenSocket>,
        made: &mut Vec<SocketFile>,
    ) -> io::Result<()> {
        let workers = self.by_worker.len();
        let udp = setting == UDP;
        let found = take(inherited, setting, &listener.address);
        let activated = found.iter().any(|socket| socket.activated);
        let found: Vec<OwnedFd> = found.into_iter().map(|socket| socket.socket).collect();
        let (address, open) = match &listener.address {
            ListenAddr::Tcp(address) => {
                let (address, open) = complete(*address, found, workers, self.first_bind(*address, udp), udp)?;
                (ListenAddr::Tcp(address), open)
            }
            ListenAddr::Unix(path) => {
                if found.is_empty() {
                    let (socket, file) = unix::bind(path, listener.mode)?;
                    made.push(file);
                    (listener.address.clone(), share(vec![socket.into()], workers)?)
                } else {
                    if !activated {
                        self.files.push(SocketFile::inherited(path, listener.mode)?);
                    }
                    (listener.address.clone(), share(found, workers)?)
                }
            }
        };
        let entrance = self.addresses.len();
        let http2 = listener.http2.unwrap_or(http2);
        self.addresses.push(Bound { address, tls, proxy_protocol: listener.proxy_protocol, http2, streams, udp });
        for socket in &open.sockets {
            let (setting, asked) = (setting.to_owned(), listener.address.to_string());
            self.sockets.push(ListenSocket { setting, asked, socket: socket.try_clone()?, activated });
        }
        for (number, socket) in open.sockets.into_iter().chain(open.shared).enumerate() {
            if let Some(listeners) = self.by_worker.get_mut(number % workers) {
                listeners.push(Listening { socket, entrance });
            }
        }
        Ok(())
    }

    /// Mode of the first bind of an address: exclusive, unless another address of this gateway covers it.
    fn first_bind(&self, address: SocketAddr, udp: bool) -> Bind {
        let of_kind = self.addresses.iter().filter(|bound| bound.udp == udp);
        let mut own = of_kind.filter_map(|bound| bound.address.tcp());
        // The same address in two settings would be two services that share their connections by chance.
        let covered = own.any(|own| own != address && overlap(own, address));
        let taken_over = self.taken_over.iter().any(|(own, kind)| *kind == udp && overlap(*own, address));
        if covered || taken_over { Bind::Shared } else { Bind::Exclusive }
    }
}

/// True when connections to one address may arrive at a socket that is bound to the other.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

fn is_udp(socket: &OwnedFd) -> bool {
    SockRef::from(socket).r#type().is_ok_and(|kind| kind == Type::DGRAM)
}

fn local_address(socket: &OwnedFd) -> Option<SocketAddr> {
    SockRef::from(socket).local_addr().ok()?.as_socket()
}

/// The inherited sockets for an address: those that were opened for the same words, or else those that are bound to it.
fn take(inherited: &mut Vec<ListenSocket>, setting: &str, address: &ListenAddr) -> Vec<ListenSocket> {
    let words = address.to_string();
    let is_same = |s: &ListenSocket| s.setting == setting && s.asked == words;
    let is_bound = |s: &ListenSocket| is_udp(&s.socket) == (setting == UDP) && is_bound_to(&s.socket, address);
    let by_words = inherited.iter().any(is_same);
    inherited.extract_if(.., |s| if by_words { is_same(s) } else { is_bound(s) }).collect()
}

fn is_bound_to(socket: &OwnedFd, address: &ListenAddr) -> bool {
    let Ok(bound) = SockRef::from(socket).local_addr() else { return false };
    match address {
        ListenAddr::Tcp(address) => bound.as_socket() == Some(*address),
        ListenAddr::Unix(path) => bound.as_pathname() == Some(Path::new(path)),
    }
}

/// The sockets of one address.
struct Open {
    sockets: Vec<OwnedFd>,
    /// Further handles of these sockets, for workers that would have none.
    shared: Vec<OwnedFd>,
}

/// Adds sockets until every worker has one.
///
/// Of UDP a worker without a socket of its own has none: datagrams of one client would go to any worker that shares a
/// socket, whereas the system chooses one of several sockets by the addresses of both sides.
fn complete(
    asked: SocketAddr,
    inherited: Vec<OwnedFd>,
    workers: usize,
    first: Bind,
    udp: bool,
) -> io::Result<(SocketAddr, Open)> {
    let mut sockets = inherited;
    let inherited = sockets.len();
    if sockets.is_empty() {
        sockets.push(bind(asked, first, udp)?);
    }
    // The first one has found the port for the others.
    let address = sockets.first().and_then(local_address).unwrap_or(asked);
    while sockets.len() < workers {
        match bind(address, Bind::Shared, udp) {
            Ok(socket) => sockets.push(socket),
            // The socket of a service manager does not share its port, or we may not bind this one ourselves: all
            // workers accept from what there is.
            Err(_) if inherited > 0 => break,
            Err(error) => return Err(error),
        }
    }
    if udp && address.ip().is_unspecified() {
        sockets.iter().try_for_each(|socket| datagrams::tell_local(socket, address))?;
    }
    let sharing = if udp { 0 } else { workers };
    Ok((address, share(sockets, sharing)?))
}

/// Adds handles until every worker has one.
fn share(sockets: Vec<OwnedFd>, workers: usize) -> io::Result<Open> {
    for socket in &sockets {
        SockRef::from(socket).set_nonblocking(true)?;
    }
    let mut shared = Vec::new();
    for number in sockets.len()..workers {
        let Some(socket) = sockets.get(number % sockets.len().max(1)) else { break };
        shared.push(socket.try_clone()?);
    }
    Ok(Open { sockets, shared })
}

/// Sharing of an address at the moment when a socket begins to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bind {
    /// Fails if any other socket listens on the address.
    Exclusive,
    /// Allows sockets of this gateway, or of the process that it takes over from.
    Shared,
}

fn bind(address: SocketAddr, bind: Bind, udp: bool) -> io::Result<OwnedFd> {
    let (kind, protocol) = if udp { (Type::DGRAM, Protocol::UDP) } else { (Type::STREAM, Protocol::TCP) };
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    // For connections of an earlier process that have not quite ended. With UDP it would let others share the address.
    socket.set_reuse_address(!udp)?;
    socket.set_reuse_port(bind == Bind::Shared)?;
    socket.set_nonblocking(true)?;
    // Of two sockets that are bound at the same moment, the kernel lets the first one listen.
    let listen = || if udp { Ok(()) } else { socket.listen(BACKLOG) };
    socket.bind(&address.into()).and_then(|()| listen()).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            io::Error::new(error.kind(), format!("{error}: another process or another setting has a socket there"))
        }
        _ => error,
    })?;
    socket.set_reuse_port(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use socket2::SockRef;

    use super::{Bind, HTTP, HTTPS, ListenAddr, ListenRequest, ListenSocket, Listener, Listeners, bind};

    fn wanted(setting: &'static str, address: &str) -> ListenRequest<'static> {
        let address = match address.strip_prefix("unix:") {
            Some(path) => ListenAddr::Unix(path.into()),
            None => ListenAddr::Tcp(address.parse().unwrap()),
        };
        let listener = Listener::from(address);
        ListenRequest {
            setting,
            listener: Box::leak(Box::new(listener)),
            tls: setting == HTTPS,
            streams: false,
            http2: false,
        }
    }

    fn inherited(setting: &str, asked: &str, socket: impl Into<OwnedFd>) -> ListenSocket {
        let (setting, asked) = (setting.to_owned(), asked.to_owned());
        ListenSocket { setting, asked, socket: socket.into(), activated: false }
    }

    fn local(socket: &OwnedFd) -> std::net::SocketAddr {
        SockRef::from(socket).local_addr().unwrap().as_socket().unwrap()
    }

    #[test]
    fn every_inherited_socket_goes_to_a_worker() {
        // Inherited sockets, workers; listeners of each worker.
        let cases: [(usize, usize, &[usize]); 5] =
            [(0, 2, &[1, 1]), (1, 3, &[1, 1, 1]), (2, 2, &[1, 1]), (3, 2, &[2, 1]), (4, 1, &[4])];
        for (open, workers, expected) in cases {
            let first = bind("127.0.0.1:0".parse().unwrap(), Bind::Exclusive, false).unwrap();
            let address = local(&first);
            let mut sockets = vec![first];
            sockets.extend((1..open).map(|_| bind(address, Bind::Shared, false).unwrap()));
            sockets.truncate(open);
            let sockets = sockets.into_iter().map(|s| inherited(HTTP, "127.0.0.1:0", s)).collect();
            let all = Listeners::bind([wanted(HTTP, "127.0.0.1:0")].into_iter(), workers, sockets).unwrap();
            let counts: Vec<_> = all.by_worker.iter().map(Vec::len).collect();
            assert_eq!(counts, expected, "{open} sockets, {workers} workers");
            assert_eq!(all.sockets.len(), open.max(workers));
            for listening in all.by_worker.iter().flatten() {
                let bound = all.addresses[0].address.tcp().unwrap();
                assert_eq!(local(&listening.socket), bound);
                assert!(open == 0 || bound == address);
            }
        }
    }

    /// A port that was free a moment ago.
    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn an_address_belongs_to_one_gateway() {
        let listen = |addresses: &[String], inherited| {
            let wanted = addresses.iter().map(|address| wanted(HTTP, address));
            Listeners::bind(wanted.collect::<Vec<_>>().into_iter(), 2, inherited)
        };
        let own = ["127.0.0.1:0".to_owned()];
        let first = listen(&own, Vec::new()).unwrap();
        let port = first.addresses[0].address.tcp().unwrap().port();
        for other in [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}"), format!("[::]:{port}")] {
            let error = listen(std::slice::from_ref(&other), Vec::new()).err().expect("the port is taken").to_string();
            assert!(error.starts_with(&format!("listen.http: cannot listen on {other}: ")), "{error}");
            assert!(error.contains("another process"), "{error}");
        }
        // A process that takes over may listen beside the old one, at other addresses of its ports as well.
        let pass = || first.sockets.iter().map(|socket| socket.try_clone().unwrap()).collect::<Vec<_>>();
        assert!(listen(&own, pass()).is_ok());
        assert!(listen(&[format!("0.0.0.0:{port}")], pass()).is_ok());
        drop(first);

        // Two addresses of one gateway may cover each other; one address for two settings may not.
        let port = free_port();
        let (one, all, six) = (format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}"), format!("[::]:{port}"));
        assert!(listen(&[one.clone(), all, six], Vec::new()).is_ok());
        assert!(listen(&[one.clone(), one], Vec::new()).is_err());
    }

    #[test]
    fn of_gateways_that_start_at_one_time_one_listens() {
        const GATEWAYS: usize = 8;
        for _ in 0..20 {
            let address = format!("127.0.0.1:{}", free_port());
            let barrier = std::sync::Barrier::new(GATEWAYS);
            let results: Vec<_> = std::thread::scope(|scope| {
                let start = || {
                    barrier.wait();
                    Listeners::bind([wanted(HTTP, &address)].into_iter(), 2, Vec::new())
                };
                let threads: Vec<_> = (0..GATEWAYS).map(|_| scope.spawn(start)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(results.iter().filter(|result| result.is_ok()).count() <= 1, "{address}");
        }
    }

    #[test]
    fn a_socket_without_reuse_port_is_shared() {
        let single = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = single.local_addr().unwrap();
        let wanted = wanted(HTTP, &address.to_string());
        let all = Listeners::bind([wanted].into_iter(), 4, vec![inherited(HTTP, "127.0.0.1:0", single)]).unwrap();
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
            // The text of this address has changed, and its setting; the next is no longer configured.
            inherited(HTTP, "127.0.0.2:0", c),
            inherited(HTTP, "127.0.0.3:0", d),
        ];
        let addresses = [wanted(HTTP, "127.0.0.1:0"), wanted(HTTPS, &at_c.to_string()), wanted(HTTPS, "127.0.0.1:0")];
        let all = Listeners::bind(addresses.into_iter(), 1, sockets).unwrap();
        let found: Vec<_> = all.addresses.iter().map(|bound| (bound.address.tcp().unwrap(), bound.tls)).collect();
        assert_eq!(found, [(at_a, false), (at_c, true), (at_b, true)]);
        assert!(std::net::TcpStream::connect(at_d).is_err(), "nobody listens there any more");
    }

    #[test]
    fn a_unix_socket_is_shared_and_passed_on_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let words = format!("unix:{}", path.display());
        let first = Listeners::bind([wanted(HTTP, &words)].into_iter(), 3, Vec::new()).unwrap();
        assert!(first.by_worker.iter().all(|listeners| listeners.len() == 1));
        assert_eq!((first.sockets.len(), first.files.len()), (1, 1));

        // One that takes it over and cannot start leaves the file to the first.
        let pass = || first.sockets.iter().map(|socket| socket.try_clone().unwrap()).collect::<Vec<_>>();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let bad = [wanted(HTTP, &words), wanted(HTTP, &taken.local_addr().unwrap().to_string())];
        assert!(Listeners::bind(bad.into_iter(), 2, pass()).is_err());
        UnixStream::connect(&path).expect("it still listens");

        let second = Listeners::bind([wanted(HTTP, &words)].into_iter(), 2, pass()).unwrap();
        drop(first);
        UnixStream::connect(&path).expect("the second one listens");
        assert_eq!(second.files.len(), 1);
        second.files[0].remove();
        assert!(!path.exists());

        let mut activated = second.sockets;
        activated[0].activated = true;
        let third = Listeners::bind([wanted(HTTP, &words)].into_iter(), 2, activated).unwrap();
        assert!(third.files.is_empty(), "the file belongs to who opened the socket");
    }

    #[test]
    fn a_listener_that_fails_leaves_no_file_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let words = format!("unix:{}", path.display());
        let error = Listeners::bind([wanted(HTTP, &words), wanted(HTTPS, &words)].into_iter(), 2, Vec::new()).err();
        let error = error.expect("one path twice").to_string();
        assert_eq!(error, format!("listen.https: cannot listen on {words}: another process listens on it"));
        assert!(!path.exists());
    }
}

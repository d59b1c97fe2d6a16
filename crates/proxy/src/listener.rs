//! Listening sockets: for an IP address one a worker, so that the kernel spreads connections without a lock; for a
//! path one Unix socket that all workers accept from.
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

pub(crate) use unix::SocketFile;

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
    pub socket: OwnedFd,
    /// Whether a service manager opened it, to whom the file of a Unix socket belongs then.
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
pub(crate) struct Wanted<'a> {
    pub(crate) setting: &'static str,
    pub(crate) listener: &'a Listener,
    pub(crate) tls: bool,
}

/// A listening socket of a worker.
pub(crate) struct Listening {
    pub(crate) socket: OwnedFd,
    /// Which of the addresses it is for, by its number.
    pub(crate) entrance: usize,
}

/// All listening sockets. They do not block.
pub(crate) struct Listeners {
    /// The addresses as bound.
    pub(crate) addresses: Vec<Bound>,
    /// For each worker, one for each address or more.
    pub(crate) by_worker: Vec<Vec<Listening>>,
    /// Every socket once more, for a process that takes them over.
    pub(crate) sockets: Vec<ListenSocket>,
    /// Files of Unix sockets that go with this process.
    pub(crate) files: Vec<SocketFile>,
}

impl Listeners {
    /// Listens at every address for all workers. What is inherited for an address that nobody asks for is closed.
    pub(crate) fn bind<'a>(
        wanted: impl Iterator<Item = Wanted<'a>>,
        workers: usize,
        mut inherited: Vec<ListenSocket>,
    ) -> io::Result<Self> {
        let by_worker = (0..workers).map(|_| Vec::new()).collect();
        let mut all = Self { addresses: Vec::new(), by_worker, sockets: Vec::new(), files: Vec::new() };
        let mut made = Vec::new();
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
        Wanted { setting, listener, tls }: Wanted<'_>,
        inherited: &mut Vec<ListenSocket>,
        made: &mut Vec<SocketFile>,
    ) -> io::Result<()> {
        let workers = self.by_worker.len();
        let found = take(inherited, setting, &listener.address);
        let activated = found.iter().any(|socket| socket.activated);
        let found: Vec<OwnedFd> = found.into_iter().map(|socket| socket.socket).collect();
        let (address, open) = match &listener.address {
            ListenAddr::Tcp(address) => {
                let (address, open) = complete(*address, found, workers)?;
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
        self.addresses.push(Bound { address, tls, proxy_protocol: listener.proxy_protocol });
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
}

/// The inherited sockets for an address: those that were opened for the same words, or else those that are bound to it.
fn take(inherited: &mut Vec<ListenSocket>, setting: &str, address: &ListenAddr) -> Vec<ListenSocket> {
    let words = address.to_string();
    let is_same = |s: &ListenSocket| s.setting == setting && s.asked == words;
    let is_bound = |s: &ListenSocket| is_bound_to(&s.socket, address);
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
    /// Further handles of these, for workers that would have none.
    shared: Vec<OwnedFd>,
}

/// Adds sockets until every worker has one.
fn complete(asked: SocketAddr, inherited: Vec<OwnedFd>, workers: usize) -> io::Result<(SocketAddr, Open)> {
    let mut sockets = inherited;
    let inherited = sockets.len();
    if sockets.is_empty() {
        sockets.push(bind(asked)?);
    }
    // The first one has found the port for the others.
    let bound = sockets.first().and_then(|socket| SockRef::from(socket).local_addr().ok()?.as_socket());
    let address = bound.unwrap_or(asked);
    while sockets.len() < workers {
        match bind(address) {
            Ok(socket) => sockets.push(socket),
            // The socket of a service manager does not share its port, or we may not bind this one ourselves: all
            // workers accept from what there is.
            Err(_) if inherited > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok((address, share(sockets, workers)?))
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

fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
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
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use socket2::SockRef;

    use super::{HTTP, HTTPS, ListenAddr, ListenSocket, Listener, Listeners, Wanted, bind};

    fn wanted(setting: &'static str, address: &str) -> Wanted<'static> {
        let address = match address.strip_prefix("unix:") {
            Some(path) => ListenAddr::Unix(path.into()),
            None => ListenAddr::Tcp(address.parse().unwrap()),
        };
        let listener = Listener::from(address);
        Wanted { setting, listener: Box::leak(Box::new(listener)), tls: setting == HTTPS }
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
            let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = local(&first);
            let mut sockets = vec![first];
            sockets.extend((1..open).map(|_| bind(address).unwrap()));
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
            // The words of this one have changed, and its setting; nobody asks for the next.
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

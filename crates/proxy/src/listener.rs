//! Listening sockets: for an IP address one a worker, so that the kernel spreads connections without a lock; for a
//! path one Unix socket that all workers accept from.
//!
//! Sockets that were open before this process was, those of a process that is upgraded or of a service manager, are all
//! kept: closing one of several that share an address resets the connections in its queue. With more of them than
//! workers some workers have two.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use weir_config::settings::{ListenAddr, Listener, SocketMode};

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
    /// Whether a service manager has opened it, which then looks after the file of a Unix socket.
    pub activated: bool,
    /// The socket.
    pub socket: OwnedFd,
}

/// A listener of the settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) setting: &'static str,
    pub(crate) listener: &'a Listener,
    pub(crate) tls: bool,
}

/// Everything that listens for traffic.
pub(crate) struct Listeners {
    pub(crate) bound: Vec<Bound>,
    /// For each worker, one socket for each of `bound`, or more. They do not block.
    pub(crate) by_worker: Vec<Vec<Listening>>,
    /// Every socket once more, for a process that takes them over.
    pub(crate) sockets: Vec<ListenSocket>,
    /// Files of Unix sockets.
    pub(crate) files: Vec<SocketFile>,
}

/// A socket that a worker accepts from.
pub(crate) struct Listening {
    /// Which of the bound addresses it belongs to.
    pub(crate) entrance: usize,
    pub(crate) socket: OwnedFd,
}

/// The file of a Unix socket that this process listens on.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    made: Identity,
    /// Another process has made it.
    inherited: bool,
}

/// Which file it is: device, inode, and the time it was made at, since an inode is soon used again. Other permissions
/// and owners leave all of them as they are.
type Identity = (u64, u64, i64, i64);

/// The sockets of one address.
struct Open {
    address: ListenAddr,
    sockets: Vec<Socket>,
    /// Further handles of these, for workers that would have none.
    shared: Vec<Socket>,
}

impl Listeners {
    /// Listens at every address for all workers, with sockets that are inherited where there are some. What is
    /// inherited for an address that nobody asks for is closed.
    pub(crate) fn open<'a>(
        wanted: impl Iterator<Item = Wanted<'a>>,
        workers: usize,
        mut inherited: Vec<ListenSocket>,
    ) -> io::Result<Self> {
        let by_worker = (0..workers).map(|_| Vec::new()).collect();
        let mut listeners = Self { bound: Vec::new(), by_worker, sockets: Vec::new(), files: Vec::new() };
        for wanted in wanted {
            let found = take(&mut inherited, wanted.setting, &wanted.listener.address);
            if let Err(error) = listeners.add(wanted, found) {
                listeners.files.iter().filter(|file| !file.inherited).for_each(SocketFile::remove);
                let message = format!("{}: cannot listen on {}: {error}", wanted.setting, wanted.listener.address);
                return Err(io::Error::new(error.kind(), message));
            }
        }
        Ok(listeners)
    }

    fn add(&mut self, Wanted { setting, listener, tls }: Wanted<'_>, inherited: Vec<ListenSocket>) -> io::Result<()> {
        let activated = inherited.iter().any(|s| s.activated);
        let inherited: Vec<Socket> = inherited.into_iter().map(|s| s.socket.into()).collect();
        for socket in &inherited {
            socket.set_nonblocking(true)?;
        }
        let workers = self.by_worker.len();
        let open = match &listener.address {
            ListenAddr::Tcp(address) => open_tcp(*address, inherited, workers)?,
            ListenAddr::Unix(path) => {
                let (socket, file) = match inherited.into_iter().next() {
                    Some(socket) if activated => (socket, None),
                    Some(socket) => (socket, Some(SocketFile::inherited(path, listener.mode)?)),
                    None => bind_unix(path, listener.mode).map(|(socket, file)| (socket, Some(file)))?,
                };
                self.files.extend(file);
                let shared = (1..workers).map(|_| socket.try_clone()).collect::<Result<_, _>>()?;
                Open { address: listener.address.clone(), sockets: vec![socket], shared }
            }
        };
        for socket in &open.sockets {
            let (setting, asked) = (setting.to_owned(), listener.address.to_string());
            self.sockets.push(ListenSocket { setting, asked, activated, socket: socket.try_clone()?.into() });
        }
        let entrance = self.bound.len();
        for (number, socket) in open.sockets.into_iter().chain(open.shared).enumerate() {
            if let Some(listeners) = self.by_worker.get_mut(number % workers) {
                listeners.push(Listening { entrance, socket: socket.into() });
            }
        }
        self.bound.push(Bound { address: open.address, tls, proxy_protocol: listener.proxy_protocol });
        Ok(())
    }
}

impl ListenSocket {
    /// Another handle of the socket.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let socket = self.socket.try_clone()?;
        Ok(Self { setting: self.setting.clone(), asked: self.asked.clone(), activated: self.activated, socket })
    }
}

/// The inherited sockets for an address: those that were opened for the same words, or else those that are bound to it.
fn take(inherited: &mut Vec<ListenSocket>, setting: &str, address: &ListenAddr) -> Vec<ListenSocket> {
    let words = address.to_string();
    let is_same = |s: &ListenSocket| s.setting == setting && s.asked == words;
    let is_bound = |s: &ListenSocket| SockRef::from(&s.socket).local_addr().is_ok_and(|bound| is_at(&bound, address));
    let by_words = inherited.iter().any(is_same);
    inherited.extract_if(.., |s| if by_words { is_same(s) } else { is_bound(s) }).collect()
}

fn is_at(bound: &SockAddr, address: &ListenAddr) -> bool {
    match address {
        ListenAddr::Tcp(address) => bound.as_socket() == Some(*address),
        ListenAddr::Unix(path) => bound.as_pathname() == Some(path),
    }
}

/// Adds sockets until every worker has one.
fn open_tcp(asked: SocketAddr, inherited: Vec<Socket>, workers: usize) -> io::Result<Open> {
    let (mut sockets, mut shared) = (inherited, Vec::new());
    let inherited = sockets.len();
    if sockets.is_empty() {
        sockets.push(bind_tcp(asked)?);
    }
    // The first one has found the port for the others.
    let first = sockets.first().map(Socket::local_addr).transpose()?;
    let address = first.and_then(|first| first.as_socket()).unwrap_or(asked);
    while sockets.len() + shared.len() < workers {
        match bind_tcp(address) {
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
    Ok(Open { address: ListenAddr::Tcp(address), sockets, shared })
}

fn bind_tcp(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

fn bind_unix(path: &Path, mode: SocketMode) -> io::Result<(Socket, SocketFile)> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::of(path)?;
    // Nobody can connect before it listens, so nobody does with permissions that are not meant.
    let ready =
        fs::set_permissions(path, Permissions::from_mode(mode.bits().into())).and_then(|()| socket.listen(BACKLOG));
    match ready {
        Ok(()) => Ok((socket, file)),
        Err(error) => {
            file.remove();
            Err(error)
        }
    }
}

/// Removes a socket file on which nobody listens any more: a process that was killed has left it behind.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "the file is there already and is no socket"));
        }
        Ok(_) => {}
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        // A full queue has a listener too.
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Err(io::Error::new(ErrorKind::AddrInUse, "another process listens on it")),
    }
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), made: Self::identity(path)?, inherited: false })
    }

    /// Of a socket that another process has bound.
    fn inherited(path: &Path, mode: SocketMode) -> io::Result<Self> {
        fs::set_permissions(path, Permissions::from_mode(mode.bits().into()))?;
        Ok(Self { inherited: true, ..Self::of(path)? })
    }

    /// Removes the file if nobody listens on it.
    pub(crate) fn remove_if_dead(&self) {
        if Self::identity(&self.path).is_ok_and(|found| found == self.made)
            && let Err(error) = remove_stale(&self.path)
            && error.kind() != ErrorKind::AddrInUse
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the file of a Unix socket");
        }
    }

    fn identity(path: &Path) -> io::Result<Identity> {
        let found = fs::symlink_metadata(path)?;
        Ok((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
    }

    /// Removes the file, unless another one has taken its place.
    pub(crate) fn remove(&self) {
        if Self::identity(&self.path).is_ok_and(|found| found == self.made)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the file of a Unix socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn wanted<'a>(setting: &'static str, listener: &'a Listener) -> Wanted<'a> {
        Wanted { setting, listener, tls: setting == HTTPS }
    }

    fn at(address: &str) -> Listener {
        Listener::from(ListenAddr::Tcp(address.parse().unwrap()))
    }

    fn inherited(setting: &str, asked: &str, socket: impl Into<OwnedFd>) -> ListenSocket {
        ListenSocket { setting: setting.to_owned(), asked: asked.to_owned(), activated: false, socket: socket.into() }
    }

    fn address(socket: &Socket) -> SocketAddr {
        socket.local_addr().unwrap().as_socket().unwrap()
    }

    #[test]
    fn every_inherited_socket_goes_to_a_worker() {
        // Inherited sockets, workers; sockets of each worker.
        let cases: [(usize, usize, &[usize]); 5] =
            [(0, 2, &[1, 1]), (1, 3, &[1, 1, 1]), (2, 2, &[1, 1]), (3, 2, &[2, 1]), (4, 1, &[4])];
        for (open, workers, expected) in cases {
            let first = bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
            let at_first = address(&first);
            let mut sockets = vec![first];
            sockets.extend((1..open).map(|_| bind_tcp(at_first).unwrap()));
            sockets.truncate(open);
            let sockets = sockets.into_iter().map(|s| inherited(HTTP, "127.0.0.1:0", s)).collect();
            let all = Listeners::open([wanted(HTTP, &at("127.0.0.1:0"))].into_iter(), workers, sockets).unwrap();
            let counts: Vec<_> = all.by_worker.iter().map(Vec::len).collect();
            assert_eq!(counts, expected, "{open} sockets, {workers} workers");
            assert_eq!(all.sockets.len(), open.max(workers));
            for listening in all.by_worker.into_iter().flatten() {
                let bound = ListenAddr::Tcp(address(&listening.socket.into()));
                assert_eq!((&bound, listening.entrance), (&all.bound[0].address, 0));
                assert!(open == 0 || bound == ListenAddr::Tcp(at_first));
            }
        }
    }

    #[test]
    fn a_socket_without_reuse_port_is_shared() {
        let single = TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = at(&single.local_addr().unwrap().to_string());
        let sockets = vec![inherited(HTTP, "127.0.0.1:0", single)];
        let all = Listeners::open([wanted(HTTP, &listener)].into_iter(), 4, sockets).unwrap();
        assert_eq!(all.bound[0].address, listener.address);
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
        let (anywhere, there) = (at("127.0.0.1:0"), at(&at_c.to_string()));
        let wanted = [wanted(HTTP, &anywhere), wanted(HTTPS, &there), wanted(HTTPS, &anywhere)];
        let all = Listeners::open(wanted.into_iter(), 1, sockets).unwrap();
        let found: Vec<_> = all.bound.iter().map(|bound| (bound.address.clone(), bound.tls)).collect();
        let [at_a, at_b, at_c] = [at_a, at_b, at_c].map(ListenAddr::Tcp);
        assert_eq!(found, [(at_a, false), (at_c, true), (at_b, true)]);
        assert!(std::net::TcpStream::connect(at_d).is_err(), "nobody listens there any more");
    }

    #[test]
    fn the_file_of_a_unix_socket_goes_with_its_last_listener() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let unix = Listener::from(ListenAddr::Unix(path.clone()));
        let open = |sockets| Listeners::open([wanted(HTTP, &unix)].into_iter(), 2, sockets).expect("it listens");
        let old = open(Vec::new());
        let new = open(old.sockets.iter().map(|s| s.try_clone().unwrap()).collect());
        let files = old.files;
        drop((old.sockets, old.by_worker));
        files.iter().for_each(SocketFile::remove_if_dead);
        UnixStream::connect(&path).expect("the new one listens on the same file");
        drop((new.sockets, new.by_worker));
        files.iter().for_each(SocketFile::remove_if_dead);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_socket_without_a_listener_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let bind = || bind_unix(&path, SocketMode::default()).map_err(|error| error.kind());

        let (first, file) = bind().expect("a new socket");
        assert_eq!(fs::metadata(&path).expect("the socket").mode() & 0o777, 0o666);
        assert_eq!(bind().err(), Some(ErrorKind::AddrInUse));
        UnixStream::connect(&path).expect("it is the first one that listens");
        drop(first);
        let (_second, newer) = bind().expect("in the place of one that is dead");
        file.remove();
        UnixStream::connect(&path).expect("the file of another is not removed");
        newer.remove();
        assert!(!path.exists());

        fs::write(&path, "precious").expect("a file");
        assert_eq!(bind().err(), Some(ErrorKind::AlreadyExists));
        assert_eq!(fs::read_to_string(&path).expect("the file"), "precious");

        let full = folder.path().join("full");
        let _listening = UnixListener::bind(&full).expect("a listener");
        assert_eq!(remove_stale(&full).err().map(|e| e.kind()), Some(ErrorKind::AddrInUse));
    }

    #[test]
    fn a_listener_that_fails_leaves_no_file_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let unix = Listener::from(ListenAddr::Unix(path.clone()));
        let twice = [wanted(HTTP, &unix), wanted(HTTPS, &unix)].into_iter();
        let error = Listeners::open(twice, 2, Vec::new()).err().expect("one path twice");
        assert_eq!(
            error.to_string(),
            format!("listen.https: cannot listen on unix:{}: another process listens on it", path.display())
        );
        assert!(!path.exists());
    }
}

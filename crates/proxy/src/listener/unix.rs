//! Unix sockets, and their files.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use weir_config::settings::FileMode;

use super::BACKLOG;

/// The file of a Unix socket that this process has made, or taken over.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    made: Identity,
}

/// Identity of a file: device, inode, and the time it was made at, since an inode is soon used again. Changes of
/// permissions and owners leave all of them as they are.
type Identity = (u64, u64, i64, i64);

pub(super) fn bind(path: &Path, mode: FileMode) -> io::Result<(Socket, SocketFile)> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::of(path)?;
    // No client can connect before the socket listens, so none does with permissions that are not meant.
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

/// Removes a socket file that no process listens on: left behind by a process that was killed.
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
    /// The file that is there now.
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), made: Self::identity(path)? })
    }

    fn identity(path: &Path) -> io::Result<Identity> {
        let found = fs::symlink_metadata(path)?;
        Ok((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
    }

    /// The file of a socket that another process has bound.
    pub(super) fn inherited(path: &Path, mode: FileMode) -> io::Result<Self> {
        fs::set_permissions(path, Permissions::from_mode(mode.bits().into()))?;
        Self::of(path)
    }

    /// Removes the file if no process listens on it.
    pub(crate) fn remove_if_dead(&self) {
        if Self::identity(&self.path).is_ok_and(|found| found == self.made)
            && let Err(error) = remove_stale(&self.path)
            && error.kind() != ErrorKind::AddrInUse
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the file of a Unix socket");
        }
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
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn only_a_socket_without_a_listener_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let bind = || super::bind(&path, FileMode::EVERYONE).map_err(|error| error.kind());

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
}

//! Sockets that were open before this process was: those of the process that it takes over from, or of systemd.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::net::SocketAddrUnix;
use weir_config::settings::{Listen, ListenAddr};
use weir_proxy::{DataPlane, ListenSocket};

use crate::process::handover::{Inheritance, Passed};
use crate::process::systemd;

/// The settings of the sockets of the data plane.
const TRAFFIC: [&str; 2] = ["listen.http", "listen.https"];

/// Sockets for listeners to come.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    sockets: Vec<Passed>,
}

/// Sockets that this process listens at beside those of the data plane.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    servers: Vec<Passed>,
}

impl Inherited {
    /// Takes sockets over. Those that systemd opened take the place of addresses in the settings.
    pub(crate) fn new(sockets: Vec<Passed>, listen: &mut Listen) -> anyhow::Result<Self> {
        systemd::replace(listen, &sockets)?;
        Ok(Self { sockets })
    }

    /// The sockets of the data plane.
    pub(crate) fn traffic(&mut self) -> Vec<ListenSocket> {
        let traffic = self.sockets.extract_if(.., |passed| TRAFFIC.contains(&passed.setting.as_str()));
        let socket = |Passed { setting, asked, activated, socket }| ListenSocket { setting, asked, socket, activated };
        traffic.map(socket).collect()
    }

    /// The socket of another server: one that was opened for the same words, or else one that is bound to the address.
    pub(crate) fn server(&mut self, setting: &str, asked: SocketAddr) -> Option<Passed> {
        let words = asked.to_string();
        let same = self.sockets.iter().position(|passed| passed.setting == setting && passed.asked == words);
        let bound = || self.sockets.iter().position(|passed| passed.setting == setting && is_bound_to(passed, asked));
        Some(self.sockets.remove(same.or_else(bound)?))
    }
}

/// The address that a socket is bound to, if it is one to listen at.
pub(crate) fn address(socket: &OwnedFd) -> Option<ListenAddr> {
    let bound = rustix::net::getsockname(socket).ok()?;
    if let Ok(bound) = SocketAddr::try_from(bound.clone()) {
        return Some(ListenAddr::Tcp(bound));
    }
    let path = SocketAddrUnix::try_from(bound).ok()?.path_bytes()?.to_vec();
    Some(ListenAddr::Unix(OsString::from_vec(path).into()))
}

fn is_bound_to(passed: &Passed, wanted: SocketAddr) -> bool {
    address(&passed.socket) == Some(ListenAddr::Tcp(wanted))
}

impl Listening {
    /// Remembers the socket of a server beside the data plane.
    pub(crate) fn add(&mut self, setting: &str, asked: SocketAddr, activated: bool, socket: OwnedFd) {
        self.servers.push(Passed { setting: setting.to_owned(), asked: asked.to_string(), activated, socket });
    }

    /// All sockets, for a process that takes them over.
    pub(crate) fn pass_on(&self, data_plane: &DataPlane) -> io::Result<Inheritance> {
        let mut sockets = Vec::new();
        for ListenSocket { setting, asked, socket, activated } in data_plane.sockets()? {
            sockets.push(Passed { setting, asked, activated, socket });
        }
        for passed in &self.servers {
            let socket = passed.socket.as_fd().try_clone_to_owned()?;
            let (setting, asked) = (passed.setting.clone(), passed.asked.clone());
            sockets.push(Passed { setting, asked, activated: passed.activated, socket });
        }
        Ok(Inheritance { sockets, ..Inheritance::default() })
    }
}

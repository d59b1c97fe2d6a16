//! Listening sockets inherited from the old process of an upgrade, or from systemd.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::net::SocketAddrUnix;
use weir_config::settings::{Listen, ListenAddr};
use weir_proxy::{DataPlane, ListenSocket};

use crate::process::handover::{Inheritance, InheritedSocket};
use crate::process::systemd;

/// The settings of the sockets of the data plane.
const TRAFFIC: [&str; 4] = ["listen.http", "listen.https", "listen.tcp", "listen.udp"];

/// Inherited sockets that are not in use yet.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    sockets: Vec<InheritedSocket>,
}

/// Listening sockets of the servers beside the data plane.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    servers: Vec<InheritedSocket>,
}

impl Inherited {
    /// Takes sockets over. Sockets opened by systemd replace the addresses in the settings.
    pub(crate) fn new(sockets: Vec<InheritedSocket>, listen: &mut Listen) -> anyhow::Result<Self> {
        systemd::replace(listen, &sockets)?;
        Ok(Self { sockets })
    }

    /// The sockets of the data plane.
    pub(crate) fn traffic(&mut self) -> Vec<ListenSocket> {
        let traffic = self.sockets.extract_if(.., |passed| TRAFFIC.contains(&passed.setting.as_str()));
        let socket =
            |InheritedSocket { setting, asked, activated, socket }| ListenSocket { setting, asked, socket, activated };
        traffic.map(socket).collect()
    }

    /// The socket of another server: one opened for the same text in the settings, or else one bound to the address.
    pub(crate) fn server(&mut self, setting: &str, asked: SocketAddr) -> Option<InheritedSocket> {
        let words = asked.to_string();
        let same = self.sockets.iter().position(|passed| passed.setting == setting && passed.asked == words);
        let bound = || self.sockets.iter().position(|passed| passed.setting == setting && is_bound_to(passed, asked));
        Some(self.sockets.remove(same.or_else(bound)?))
    }
}

/// The address that a socket is bound to, if that is an address for a listener.
pub(crate) fn address(socket: &OwnedFd) -> Option<ListenAddr> {
    let bound = rustix::net::getsockname(socket).ok()?;
    if let Ok(bound) = SocketAddr::try_from(bound.clone()) {
        return Some(ListenAddr::Tcp(bound));
    }
    let path = SocketAddrUnix::try_from(bound).ok()?.path_bytes()?.to_vec();
    Some(ListenAddr::Unix(OsString::from_vec(path).into()))
}

fn is_bound_to(passed: &InheritedSocket, wanted: SocketAddr) -> bool {
    address(&passed.socket) == Some(ListenAddr::Tcp(wanted))
}

impl Listening {
    /// Adds the socket of a server beside the data plane.
    pub(crate) fn add(&mut self, setting: &str, asked: SocketAddr, activated: bool, socket: OwnedFd) {
        self.servers.push(InheritedSocket { setting: setting.to_owned(), asked: asked.to_string(), activated, socket });
    }

    /// Duplicates all sockets for a process that takes over.
    pub(crate) fn pass_on(&self, data_plane: &DataPlane) -> io::Result<Inheritance> {
        let mut sockets = Vec::new();
        for ListenSocket { setting, asked, socket, activated } in data_plane.sockets()? {
            sockets.push(InheritedSocket { setting, asked, activated, socket });
        }
        for passed in &self.servers {
            let socket = passed.socket.as_fd().try_clone_to_owned()?;
            let (setting, asked) = (passed.setting.clone(), passed.asked.clone());
            sockets.push(InheritedSocket { setting, asked, activated: passed.activated, socket });
        }
        Ok(Inheritance { sockets, ..Inheritance::default() })
    }
}

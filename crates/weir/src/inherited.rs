//! Sockets that were open before this process was: those of the process that it takes over from, or of systemd.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use weir_config::settings::Listen;
use weir_proxy::{DataPlane, ListenSocket};

use crate::handover::{Inheritance, Passed};
use crate::systemd;

/// The settings of the sockets of the data plane.
const TRAFFIC: [&str; 2] = ["listen.http", "listen.https"];

/// Sockets for listeners to come.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    sockets: Vec<Passed>,
}

/// Sockets that this process listens at beside the data plane, and what it has to pass on about all of them.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    servers: Vec<Passed>,
    /// Settings whose sockets systemd opened.
    activated: Vec<String>,
}

impl Inherited {
    /// Takes sockets over. Those that systemd opened take the place of addresses in the settings.
    pub(crate) fn new(sockets: Vec<Passed>, listen: &mut Listen) -> anyhow::Result<Self> {
        systemd::replace(listen, &sockets)?;
        Ok(Self { sockets })
    }

    /// What is to be remembered of them.
    pub(crate) fn listening(&self) -> Listening {
        let activated = self.sockets.iter().filter(|passed| passed.activated);
        Listening { servers: Vec::new(), activated: activated.map(|passed| passed.setting.clone()).collect() }
    }

    /// The sockets of the data plane.
    pub(crate) fn traffic(&mut self) -> Vec<ListenSocket> {
        let traffic = self.sockets.extract_if(.., |passed| TRAFFIC.contains(&passed.setting.as_str()));
        let socket = |Passed { setting, asked, activated, socket }| ListenSocket { setting, asked, socket, activated };
        traffic.map(socket).collect()
    }

    /// The socket of another server: one that was opened for the same words, or else one that is bound to the address.
    pub(crate) fn server(&mut self, setting: &str, asked: SocketAddr) -> Option<TcpListener> {
        let words = asked.to_string();
        let same = self.sockets.iter().position(|passed| passed.setting == setting && passed.asked == words);
        let bound = || self.sockets.iter().position(|passed| passed.setting == setting && is_bound_to(passed, asked));
        Some(self.sockets.remove(same.or_else(bound)?).socket.into())
    }
}

fn is_bound_to(passed: &Passed, address: SocketAddr) -> bool {
    let bound = rustix::net::getsockname(&passed.socket);
    bound.is_ok_and(|bound| SocketAddr::try_from(bound).is_ok_and(|bound| bound == address))
}

impl Listening {
    /// Remembers the socket of a server beside the data plane.
    pub(crate) fn add(&mut self, setting: &str, asked: SocketAddr, socket: OwnedFd) {
        let activated = self.is_activated(setting);
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
        Ok(Inheritance { sockets, keeper: None })
    }

    fn is_activated(&self, setting: &str) -> bool {
        self.activated.iter().any(|of| of == setting)
    }
}

//! A real HAProxy in front.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::nginx::free_port;
use super::process::{Process, program};
use super::{LIMIT, wait_until};

/// A running HAProxy that passes bytes on.
pub(crate) struct Haproxy {
    pub(crate) addr: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

/// How often another free port is tried when somebody else took the one that was free a moment ago.
const ATTEMPTS: usize = 20;

impl Haproxy {
    /// Passes connections on to this server, which is `ADDRESS OPTIONS` as in HAProxy's configuration.
    pub(crate) fn to(server: &str) -> Self {
        (0..ATTEMPTS).find_map(|_| Self::try_start(server)).expect("HAProxy to start")
    }

    fn try_start(server: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("create a folder");
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let config = format!(
            "defaults\n  mode tcp\n  timeout connect 20s\n  timeout client 20s\n  timeout server 20s\n\
             frontend f\n  bind {addr}\n  default_backend b\nbackend b\n  server s {server}\n"
        );
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, config).expect("write HAProxy's configuration");
        let mut command = Command::new(program("haproxy"));
        command.args(["-db", "-q", "-f"]).arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process::spawn(&mut command);
        let listens = wait_until("HAProxy to listen", LIMIT, || {
            let ended = process.exited().is_some();
            (ended || TcpStream::connect(addr).is_ok()).then_some(!ended)
        });
        listens.then_some(Self { addr, _process: process, _folder: folder })
    }
}

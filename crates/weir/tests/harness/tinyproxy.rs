//! A real forward proxy.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::process::{Process, program};
use super::{LIMIT, free_port, wait_until};

/// A running tinyproxy that only this user may use.
pub(crate) struct Tinyproxy {
    pub(crate) port: u16,
    _process: Process,
    _folder: TempDir,
}

/// User and password.
pub(crate) const USER: &str = "gate:way";

impl Tinyproxy {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        let (file, port) = (folder.path().join("tinyproxy.conf"), free_port());
        let (user, password) = USER.split_once(':').expect("a user");
        let text = format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 20\nMaxClients 50\nBasicAuth {user} {password}\n\
             LogFile \"{0}/log\"\nPidFile \"{0}/pid\"\n",
            folder.path().display()
        );
        fs::write(&file, text).expect("write the proxy's configuration");
        let mut command = Command::new(program("tinyproxy"));
        command.arg("-d").arg("-c").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::spawn(&mut command);
        wait_until("the proxy", LIMIT, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        Self { port, _process: process, _folder: folder }
    }
}

//! A real HAProxy in front.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;

use tempfile::TempDir;

use super::Certificate;
use super::process::{Process, program};

/// A running HAProxy that relays bytes.
pub(crate) struct Haproxy {
    pub(crate) addr: SocketAddr,
    process: Process,
    folder: TempDir,
}

impl Haproxy {
    /// Starts a relay to this server, which is `ADDRESS OPTIONS` as in HAProxy's configuration.
    ///
    /// The listener is HAProxy's standard input, so that no other process can take the port, and connections made before
    /// HAProxy is up wait in the queue.
    pub(crate) fn to(server: &str) -> Self {
        Self::bound("", server)
    }

    /// The same for clients that speak TLS.
    pub(crate) fn with_tls(certificate: &Certificate, server: &str) -> Self {
        let whole = certificate.cert_file.with_extension("whole.pem");
        fs::write(&whole, format!("{}{}", certificate.cert, certificate.key)).expect("write a certificate");
        Self::bound(&format!("ssl crt {}", whole.display()), server)
    }

    fn bound(how: &str, server: &str) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen for HAProxy");
        let addr = listener.local_addr().expect("an address");
        let config = format!(
            "defaults\n  mode tcp\n  timeout connect 20s\n  timeout client 20s\n  timeout server 20s\n\
             frontend f\n  bind fd@0 {how}\n  default_backend b\nbackend b\n  server s {server}\n"
        );
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, config).expect("write HAProxy's configuration");
        let log = File::create(folder.path().join("log")).expect("create a file for HAProxy's messages");
        let mut command = Command::new(program("haproxy"));
        // With `-q`, HAProxy would close its standard input.
        command.args(["-db", "-f"]).arg(&file).stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(log);
        Self { addr, process: Process::spawn(&mut command), folder }
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("--- HAProxy at {}, ended: {:?} ---\n{log}---", self.addr, self.process.exited());
        }
    }
}

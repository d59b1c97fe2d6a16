//! A real nginx as origin.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tempfile::TempDir;

use super::process::{Process, program};
use super::{LIMIT, wait_until};

/// A running nginx.
pub(crate) struct Nginx {
    addr: SocketAddr,
    process: Process,
    folder: TempDir,
}

/// Maximum number of ports to try, because another process may take a free port first.
const ATTEMPTS: usize = 20;

impl Nginx {
    /// Starts nginx with these directives in its `server` block. `FOLDER` stands for a folder of its own.
    pub(crate) fn start(server: &str) -> Self {
        Self::listening("", server)
    }

    /// As [`Nginx::start`], with TLS; the directives name the certificate.
    pub(crate) fn start_tls(server: &str) -> Self {
        Self::listening(" ssl", server)
    }

    /// As [`Nginx::start`], with further parameters of `listen`.
    pub(crate) fn listening(how: &str, server: &str) -> Self {
        Self::with("", how, server)
    }

    /// As [`Nginx::listening`], with directives of its `http` block.
    pub(crate) fn with(http: &str, how: &str, server: &str) -> Self {
        for _ in 0..ATTEMPTS {
            if let Some(nginx) = Self::try_start(http, how, server) {
                return nginx;
            }
        }
        panic!("nginx did not start on any of {ATTEMPTS} free ports");
    }

    fn try_start(http: &str, how: &str, server: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("create a folder");
        let path = folder.path().display().to_string();
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let server = server.replace("FOLDER", &path);
        let config = format!(
            "daemon off; worker_processes 1; pid {path}/pid; error_log {path}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n\
               access_log off; default_type text/plain; keepalive_requests 1000000; client_max_body_size 0;\n\
               client_body_temp_path {path}/body; proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi;\n\
               uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi; {http}\n\
               server {{ listen {addr}{how}; root {path};\n{server}\n}}\n}}\n"
        );
        fs::write(folder.path().join("nginx.conf"), config).expect("write nginx's configuration");
        let process = Self::spawn(&folder);
        let mut nginx = Self { addr, process, folder };
        let listens = nginx.await_listening();
        // A port taken by another process is the only reason to try again; any other error fails the test.
        let log = nginx.log();
        assert!(listens || log.contains("Address already in use"), "nginx ended: {log}");
        listens.then_some(nginx)
    }

    fn spawn(folder: &TempDir) -> Process {
        let path = folder.path().display();
        let mut command = Command::new(program("nginx"));
        command.args([
            "-p",
            &path.to_string(),
            "-c",
            &format!("{path}/nginx.conf"),
            "-e",
            &format!("{path}/error.log"),
        ]);
        Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Waits until nginx listens. Returns false if it ended before.
    fn await_listening(&mut self) -> bool {
        wait_until("nginx to listen", LIMIT, || {
            let ended = self.process.exited().is_some();
            (ended || TcpStream::connect(self.addr).is_ok()).then_some(!ended)
        })
    }

    /// Stops nginx. Its port refuses connections from then on.
    pub(crate) fn stop(&mut self) {
        self.process.signal(rustix::process::Signal::TERM);
        self.process.wait();
    }

    /// Starts nginx again at the same address, after it was stopped.
    pub(crate) fn start_again(&mut self) {
        wait_until("nginx to have its port again", LIMIT, || {
            self.process = Self::spawn(&self.folder);
            self.await_listening().then_some(())
        });
    }

    /// `host:port`, as nodes are named in a configuration.
    pub(crate) fn node(&self) -> String {
        self.addr.to_string()
    }

    /// A file in nginx's own folder.
    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file that nginx serves.
    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.folder.path().join(name), content).expect("write a file for nginx");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The workers end when the master ends gracefully; a killed master would leave them behind.
        if self.process.exited().is_none() {
            self.process.signal(rustix::process::Signal::TERM);
            self.process.wait();
        }
        if thread::panicking() {
            eprintln!("--- nginx at {} ---\n{}---", self.addr, self.log());
        }
    }
}

/// A free port, for programs that cannot choose one themselves. The port is outside of the kernel's range of ephemeral
/// ports, so that no other process gets it before the program binds it, and is never returned twice.
pub(crate) fn free_port() -> u16 {
    static PORTS: LazyLock<Vec<u16>> = LazyLock::new(|| {
        let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("read the range of ports");
        let ends: Vec<u16> = range.split_whitespace().map(|end| end.parse().expect("a port")).collect();
        (10_000..=u16::MAX).filter(|port| !(ends[0]..=ends[1]).contains(port)).collect()
    });
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Test programs that run at the same time start at different places.
    let start = (std::process::id() as usize).wrapping_mul(211);
    PORTS
        .iter()
        .map(|_| PORTS[start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len()])
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a free port outside of net.ipv4.ip_local_port_range")
}

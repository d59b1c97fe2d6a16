//! An origin that runs a script of the test on its raw connections, and records the requests.

use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::net::{AddressFamily, SocketType};

use super::message::{Fault, Fields, Head, Request, Wire};

/// An origin. Requests that are not strictly HTTP/1.1, and panics of its script, fail the test when it is dropped.
pub(crate) struct Origin {
    addr: SocketAddr,
    listener: TcpListener,
    /// Reserves the port while no socket listens there.
    _bound: Option<OwnedFd>,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// A connection, as passed to the script.
pub(crate) struct Connection {
    wire: Wire,
    /// Serial number at this origin, from 1.
    pub(crate) number: usize,
    resets: bool,
    shared: Arc<Shared>,
}

/// A reserved port that refuses connections.
pub(crate) struct Refusing {
    addr: SocketAddr,
    _bound: OwnedFd,
}

/// A listener with a full queue: connections to it are neither established nor refused.
pub(crate) struct Full {
    addr: SocketAddr,
    _listener: OwnedFd,
    _queued: Vec<TcpStream>,
}

/// Response of an origin.
pub(crate) struct Answer {
    bytes: Vec<u8>,
    close: bool,
}

#[derive(Default)]
struct Shared {
    connections: AtomicUsize,
    open: AtomicUsize,
    stopping: AtomicBool,
    requests: Mutex<Vec<Request>>,
    streams: Mutex<Vec<TcpStream>>,
    faults: Mutex<Vec<String>>,
}

impl Origin {
    /// Runs `script` for every connection, on a thread of its own; the connection is closed when it returns.
    pub(crate) fn scripted(script: impl Fn(&mut Connection) + Send + Sync + 'static) -> Self {
        Self::scripted_on(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), script).expect("bind an origin")
    }

    /// As [`Origin::scripted`], at the given address.
    pub(crate) fn scripted_on(
        addr: SocketAddr,
        script: impl Fn(&mut Connection) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let bound = if addr.port() == 0 { Some(bound_to(addr)?) } else { None };
        let addr = bound.as_ref().map_or(addr, |(addr, _)| *addr);
        let listener = TcpListener::bind(addr)?;
        let accepts = listener.try_clone()?;
        let shared = Arc::<Shared>::default();
        let script = Arc::new(script);
        let of_thread = Arc::clone(&shared);
        let accepting = thread::spawn(move || {
            for stream in accepts.incoming() {
                if of_thread.stopping.load(SeqCst) {
                    break;
                }
                let Ok(stream) = stream else {
                    // The origin refuses connections for now.
                    thread::sleep(std::time::Duration::from_millis(1));
                    continue;
                };
                let (shared, script) = (Arc::clone(&of_thread), Arc::clone(&script));
                let number = shared.connections.fetch_add(1, SeqCst) + 1;
                shared.open.fetch_add(1, SeqCst);
                shared.streams.lock().expect("streams").push(stream.try_clone().expect("clone a stream"));
                thread::spawn(move || {
                    let mut connection = Connection { wire: Wire::new(stream), number, resets: false, shared };
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| script(&mut connection))) {
                        connection.note(format!("the origin's script panicked: {}", super::message_of(&*panic)));
                    }
                    if !connection.resets {
                        connection.wire.shutdown(Shutdown::Both);
                    }
                    // A reset is sent when the socket is closed, so all handles of the connection are dropped here.
                    let shared = Arc::clone(&connection.shared);
                    drop(connection);
                    shared.open.fetch_sub(1, SeqCst);
                });
            }
        });
        Ok(Self { addr, listener, _bound: bound.map(|(_, socket)| socket), shared, accepting: Some(accepting) })
    }

    /// Refuses connections from now on and closes the open ones, like a killed process.
    pub(crate) fn die(&self) {
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).expect("stop listening");
        for stream in self.shared.streams.lock().expect("streams").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections again.
    pub(crate) fn rise(&self) {
        rustix::net::listen(&self.listener, 128).expect("listen again");
    }

    /// Answers request after request.
    pub(crate) fn answering(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self::scripted(move |connection| connection.answer_all(&answer))
    }

    /// Answers everything with 200 and `hello`.
    pub(crate) fn hello() -> Self {
        Self::answering(|_| Answer::ok("hello"))
    }

    /// Answers with the body it received, and the target in the field `X-Target`.
    pub(crate) fn echo() -> Self {
        Self::answering(|request| {
            let head = format!(
                "HTTP/1.1 200 OK\r\nX-Target: {}\r\nX-Method: {}\r\nContent-Length: {}\r\n\r\n",
                request.target,
                request.method,
                request.body.len()
            );
            Answer::keep([head.as_bytes(), &request.body].concat())
        })
    }

    /// Answers at each of these addresses with its position in the list.
    pub(crate) fn numbered(count: usize) -> Vec<Self> {
        (0..count).map(|number| Self::answering(move |_| Answer::ok(&number.to_string()))).collect()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `host:port`, as nodes are named in a configuration.
    pub(crate) fn node(&self) -> String {
        self.addr.to_string()
    }

    /// The received requests, in the order in which their heads were complete.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().expect("requests").clone()
    }

    /// The received requests with complete bodies.
    pub(crate) fn complete(&self) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.complete).collect()
    }

    /// The last received request.
    pub(crate) fn last(&self) -> Request {
        self.requests().pop().expect("no request has reached the origin")
    }

    /// Number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// Number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(SeqCst)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopping.store(true, SeqCst);
        // The accepting thread waits in `accept`: one more connection wakes it.
        let _ = TcpStream::connect(match self.addr.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, self.addr.port())),
            _ => self.addr,
        });
        // A refusing origin polls, so it notices the end without that.
        if let Some(accepting) = self.accepting.take() {
            accepting.join().expect("the origin's accepting thread");
        }
        for stream in self.shared.streams.lock().expect("streams").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let faults = std::mem::take(&mut *self.shared.faults.lock().expect("faults"));
        if !thread::panicking() {
            assert!(faults.is_empty(), "at the origin: {faults:?}");
        }
    }
}

/// A socket that is bound but does not listen. Its port is reserved and refuses connections, and can be listened at later.
fn bound_to(addr: SocketAddr) -> std::io::Result<(SocketAddr, OwnedFd)> {
    let family = if addr.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &addr)?;
    let addr = rustix::net::getsockname(&socket)?.try_into().map_err(std::io::Error::other)?;
    Ok((addr, socket))
}

impl Refusing {
    pub(crate) fn bind() -> Self {
        let (addr, bound) = bound_to(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("bind");
        Self { addr, _bound: bound }
    }

    /// `host:port`, as nodes are named in a configuration.
    pub(crate) fn node(&self) -> String {
        self.addr.to_string()
    }
}

impl Full {
    pub(crate) fn bind() -> Self {
        let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("bind");
        rustix::net::listen(&listener, 0).expect("listen");
        let addr = rustix::net::getsockname(&listener).expect("an address").try_into().expect("an IP address");
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&addr, std::time::Duration::from_millis(200)) {
            queued.push(stream);
        }
        Self { addr, _listener: listener, _queued: queued }
    }

    /// `host:port`, as nodes are named in a configuration.
    pub(crate) fn node(&self) -> String {
        self.addr.to_string()
    }
}

impl Connection {
    /// Reads a request, with its body. Returns `None` if the connection ends before or inside the request.
    pub(crate) fn request(&mut self) -> Option<Request> {
        let head = self.head()?;
        self.body_of(head)
    }

    /// Reads a request head. The body, if [`Request::framing`] announces one, is not read.
    pub(crate) fn head(&mut self) -> Option<Request> {
        let head = match self.wire.head() {
            Ok(head) => head?,
            Err(fault) => return self.fault(&fault),
        };
        match self.record(&head) {
            Ok(request) => Some(request),
            Err(fault) => self.fault(&fault),
        }
    }

    /// Reads the body of a request.
    pub(crate) fn body_of(&mut self, mut request: Request) -> Option<Request> {
        match self.wire.body(request.framing) {
            Ok((body, trailers)) => {
                request.body = body;
                request.trailers = trailers;
                request.complete = true;
            }
            Err(fault) => return self.fault(&fault),
        }
        let mut requests = self.shared.requests.lock().expect("requests");
        let recorded = requests.iter_mut().rev().find(|r| r.connection == self.number).expect("its head was recorded");
        recorded.clone_from(&request);
        Some(request)
    }

    fn record(&mut self, head: &Head) -> Result<Request, Fault> {
        let (method, target, minor, framing) = head.request()?;
        let request = Request {
            connection: self.number,
            method: method.to_owned(),
            target: target.to_owned(),
            minor,
            fields: head.fields.clone(),
            framing,
            body: Vec::new(),
            trailers: Fields::default(),
            complete: false,
        };
        self.shared.requests.lock().expect("requests").push(request.clone());
        Ok(request)
    }

    fn fault(&self, fault: &Fault) -> Option<Request> {
        if let Fault::Malformed(what) = fault {
            self.note(format!("the gateway sent what is not HTTP/1.1: {what}"));
        }
        None
    }

    fn note(&self, fault: String) {
        self.shared.faults.lock().expect("faults").push(fault);
    }

    /// Answers request after request, until the connection or an answer ends it.
    pub(crate) fn answer_all(&mut self, answer: &impl Fn(&Request) -> Answer) {
        while let Some(request) = self.request() {
            let Answer { bytes, close } = answer(&request);
            if !self.send(bytes) || close {
                return;
            }
        }
    }

    /// Sends all bytes. Returns true if the gateway accepted them.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.wire.send(bytes.as_ref()).is_ok()
    }

    /// Reads exactly `count` raw bytes.
    pub(crate) fn exactly(&mut self, count: usize) -> Result<Vec<u8>, Fault> {
        self.wire.exactly(count)
    }

    /// Reads raw bytes; empty at the connection's end.
    pub(crate) fn some(&mut self) -> Result<Vec<u8>, Fault> {
        self.wire.some()
    }

    /// Reads one chunk of a body.
    pub(crate) fn chunk(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        self.wire.chunk()
    }

    /// Waits until the gateway closes the connection, or the time limit is reached.
    pub(crate) fn await_close(&mut self) {
        while self.wire.some().is_ok_and(|bytes| !bytes.is_empty()) {}
    }

    /// Makes the connection end with a reset, not an orderly close, when the script returns.
    pub(crate) fn reset(&mut self) {
        self.resets = true;
        rustix::net::sockopt::set_socket_linger(self.wire.stream(), Some(std::time::Duration::ZERO))
            .expect("set SO_LINGER");
        // The reset is sent when the last handle is dropped, so the handle kept for the origin's end is dropped here.
        let local = self.wire.stream().peer_addr().ok();
        self.shared.streams.lock().expect("streams").retain(|stream| stream.peer_addr().ok() != local);
    }

    /// Closes the sending side; reading stays possible.
    pub(crate) fn finish_sending(&mut self) {
        self.wire.shutdown(Shutdown::Write);
    }
}

impl Answer {
    /// 200 with a body of known length; the connection is kept.
    pub(crate) fn ok(body: &str) -> Self {
        Self::status(200, body)
    }

    /// A status with a body of known length; the connection is kept.
    pub(crate) fn status(status: u16, body: &str) -> Self {
        Self::keep(format!("HTTP/1.1 {status} Status\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
    }

    /// These bytes; the connection is kept.
    pub(crate) fn keep(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), close: false }
    }

    /// These bytes; then the connection is closed.
    pub(crate) fn close(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), close: true }
    }
}

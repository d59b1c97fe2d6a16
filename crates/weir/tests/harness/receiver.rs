//! Receivers of what the gateway sends beside requests: datagrams, and byte streams that say nothing.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Interval of looks whether the receiver is to end.
const LOOK: Duration = Duration::from_millis(20);

/// A receiver on loopback, which ends with this value.
pub(crate) struct Receiver {
    addr: SocketAddr,
    stopping: Arc<AtomicBool>,
    messages: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Receiver {
    /// A receiver of datagrams, each a message.
    pub(crate) fn udp() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind a socket");
        socket.set_read_timeout(Some(LOOK)).expect("set a timeout");
        let receiver = Self::new(socket.local_addr().expect("an address"));
        let (stopping, messages) = (Arc::clone(&receiver.stopping), Arc::clone(&receiver.messages));
        thread::spawn(move || {
            let mut room = vec![0; 70_000];
            while !stopping.load(SeqCst) {
                if let Ok((len, _)) = socket.recv_from(&mut room) {
                    messages.lock().expect("a lock").push(room[..len].to_vec());
                }
            }
        });
        receiver
    }

    /// A receiver of byte streams, each a message that grows.
    pub(crate) fn tcp() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind a socket");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let receiver = Self::new(listener.local_addr().expect("an address"));
        let (stopping, messages) = (Arc::clone(&receiver.stopping), Arc::clone(&receiver.messages));
        thread::spawn(move || {
            while !stopping.load(SeqCst) {
                let Ok((mut stream, _)) = listener.accept() else {
                    thread::sleep(LOOK / 10);
                    continue;
                };
                let number = {
                    let mut messages = messages.lock().expect("a lock");
                    messages.push(Vec::new());
                    messages.len() - 1
                };
                stream.set_nonblocking(false).expect("a socket that blocks");
                stream.set_read_timeout(Some(LOOK)).expect("set a timeout");
                let (stopping, messages) = (Arc::clone(&stopping), Arc::clone(&messages));
                thread::spawn(move || {
                    let mut room = vec![0; 70_000];
                    while !stopping.load(SeqCst) {
                        match stream.read(&mut room) {
                            Ok(0) => return,
                            Ok(len) => messages.lock().expect("a lock")[number].extend_from_slice(&room[..len]),
                            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                            Err(_) => return,
                        }
                    }
                });
            }
        });
        receiver
    }

    fn new(addr: SocketAddr) -> Self {
        Self { addr, stopping: Arc::default(), messages: Arc::default() }
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }

    /// The messages so far.
    pub(crate) fn messages(&self) -> Vec<Vec<u8>> {
        self.messages.lock().expect("a lock").clone()
    }

    /// The same as texts.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.messages().iter().map(|message| String::from_utf8_lossy(message).into_owned()).collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stopping.store(true, SeqCst);
    }
}
